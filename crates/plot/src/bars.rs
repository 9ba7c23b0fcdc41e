//! Bars in labelled groups, one colour for each series.

use crate::axis::{Axis, label};
use crate::svg::{HEIGHT_PX, Page, text_width_px};
use crate::{PlotError, write_file};
use std::path::Path;

/// Up to this many bars carry their value in figures.
const VALUED_BARS_MAX: usize = 32;
/// Room below the plane for slanted group names.
const SLANTED_PX: f64 = 40.0;

/// Grouped bars. A series has the same colour in each group; a group may lack some.
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    y_label: String,
    names: Vec<String>,
    groups: Vec<(String, Vec<(usize, f64)>)>,
}

impl Bars {
    pub fn new(title: impl Into<String>, y_label: impl Into<String>) -> Bars {
        Bars {
            title: title.into(),
            y_label: y_label.into(),
            names: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Adds a group of bars, each named after its series.
    pub fn group<S: AsRef<str>>(mut self, label: impl Into<String>, bars: &[(S, f64)]) -> Bars {
        let bars = bars.iter().map(|(name, value)| {
            let name = name.as_ref();
            let known = self.names.iter().position(|n| n == name);
            let series = known.unwrap_or_else(|| {
                self.names.push(name.to_string());
                self.names.len() - 1
            });
            (series, *value)
        });
        let bars = bars.collect();
        self.groups.push((label.into(), bars));
        self
    }

    /// The chart as SVG text.
    pub fn render(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let mut page = Page::new(&self.title, &names);
        let plane = page.plane;
        let slot_px = (plane.right - plane.left) / self.groups.len().max(1) as f64;
        let slanted = self
            .groups
            .iter()
            .any(|(name, _)| text_width_px(name) > slot_px - 6.0);
        if slanted {
            page.plane.bottom = HEIGHT_PX - 58.0 - SLANTED_PX;
        }
        let plane = page.plane;
        let values = || {
            self.groups
                .iter()
                .flat_map(|(_, bars)| bars.iter().map(|b| b.1))
        };
        if !values().any(f64::is_finite) {
            page.no_data();
            return page.finish();
        }
        // Bars stand on zero, whatever the values are.
        let with_zero = values().chain([0.0]);
        let Some(axis) = Axis::fit(with_zero, None, false, (plane.bottom, plane.top)) else {
            page.no_data();
            return page.finish();
        };
        page.y_axis(&axis, &self.y_label);
        let zero = axis.px(0.0).unwrap_or(plane.bottom);
        let valued = values().count() <= VALUED_BARS_MAX;
        for (i, (name, bars)) in self.groups.iter().enumerate() {
            let middle = plane.left + slot_px * (i as f64 + 0.5);
            let width = (slot_px * 0.8 / self.names.len().max(1) as f64).min(70.0);
            let start = middle - width * bars.len() as f64 / 2.0;
            for (k, &(series, value)) in bars.iter().enumerate() {
                let Some(y) = axis.px(value) else { continue };
                let x = start + width * k as f64;
                page.bar(
                    x + 0.5,
                    y.min(zero),
                    (width - 1.0).max(0.5),
                    (y - zero).abs(),
                    series,
                );
                if valued {
                    let above = if value < 0.0 { y + 11.0 } else { y - 4.0 };
                    page.small_label(x + width / 2.0, above, &rounded(value));
                }
            }
            if slanted {
                page.slanted_label(middle + 6.0, plane.bottom + 16.0, name);
            } else {
                page.label(middle, plane.bottom + 19.0, "middle", name);
            }
        }
        page.frame();
        page.grid(&format!("M{:.1} {zero:.1}H{:.1}", plane.left, plane.right));
        page.finish()
    }

    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        write_file(path.as_ref(), &self.render())
    }
}

/// Three digits are what fits above a bar.
fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    label(value, Some(digits))
}
