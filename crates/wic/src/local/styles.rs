//! Which way of making accesses takes less time, found out by trying, as a place is found.
//!
//! One choice for all functions of a thread; a *call* of `muninn_policy::wic_place` is one run of the
//! executor here. Prefetching comes first: it loses little where it is the wrong way, and a thread that
//! sees few calls at a time may never get to try the other one.

use super::memory::Style;
use muninn_policy::wic_place::{Chooser, Config};
use muninn_types::Nanos;

/// A window of so many runs, each of some calls, is enough to compare two ways to run them.
const CONFIG: Config = Config {
    window: 16,
    window_max: 16,
    windows: 4,
    margin: 0.05,
    wins: 2,
    settle: Nanos::ZERO,
    regret: 0.01,
    share: 0.02,
    hopeless: 2.0,
    // The window of a thread is one run at a time: nothing could go ahead of it.
    probe: f64::INFINITY,
    change: 1.5,
};

/// How the calls of one thread make their accesses.
#[derive(Debug)]
pub struct Styles {
    style: Style,
    chooser: Option<Chooser<Style>>,
}

impl Styles {
    /// Always this one.
    pub fn fixed(style: Style) -> Styles {
        Styles {
            style,
            chooser: None,
        }
    }
    /// Whichever takes less time.
    pub fn adaptive(now: Nanos) -> Styles {
        let mut chooser = Chooser::new(&[Style::Prefetch, Style::Sync], CONFIG, now);
        Styles {
            style: chooser.choose(),
            chooser: Some(chooser),
        }
    }

    /// How new calls make their accesses.
    pub fn style(&self) -> Style {
        self.style
    }
    /// Whether anybody wants to know how long runs take.
    pub fn is_open(&self) -> bool {
        self.chooser.is_some()
    }
    /// So many calls ended in the time from `begin` to `now`.
    pub fn ran(&mut self, ended: u32, begin: Nanos, now: Nanos) {
        if let (Some(chooser), 1..) = (&mut self.chooser, ended) {
            let each = now.saturating_sub(begin).0 / u64::from(ended);
            chooser.ended(self.style, Nanos(each), 0, now);
            self.style = chooser.choose();
        }
    }
}
