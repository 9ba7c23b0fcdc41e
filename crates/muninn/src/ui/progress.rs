//! Progress for anything that may take more than two seconds; on standard error, and only where a
//! person is looking.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub type Progress = ProgressBar;

/// A bar of `steps` steps. Silent when standard error is not a terminal.
pub fn progress(steps: u64, what: &str) -> Progress {
    let bar = ProgressBar::new(steps);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len} {eta}")
        .expect("the template is a constant and well formed");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar
}
