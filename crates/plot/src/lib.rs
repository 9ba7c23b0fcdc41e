//! Plain SVG charts in one style: lines, steps, points and grouped bars.
//!
//! The SVG is written by hand. A chart library sizes text with font files that a server may not
//! have; here the browser lays the text out and nothing depends on the machine. The same data gives
//! the same bytes: no clock, no hash order, every coordinate rounded to a tenth of a pixel.
//!
//! Numbers that cannot be drawn (NaN, infinities, zero or less on a logarithmic axis) leave a gap,
//! and a chart without any drawable number says "no data" instead of failing.
//!
//! Known limit: the width of a word is estimated, so a legend of very wide letters stands loosely.
#![forbid(unsafe_code)]

mod axis;
mod bars;
mod chart;
mod svg;

pub use bars::Bars;
pub use chart::Chart;

use std::path::{Path, PathBuf};

/// Why a chart could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    #[error("cannot write the chart {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Writes the text, and makes the folder first where it is missing.
fn write_file(path: &Path, text: &str) -> Result<(), PlotError> {
    let refused = |source| PlotError::Write {
        path: path.to_path_buf(),
        source,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::create_dir_all(folder).map_err(refused)?;
    }
    std::fs::write(path, text).map_err(refused)
}
