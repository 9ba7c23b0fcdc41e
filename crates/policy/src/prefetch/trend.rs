//! Leap's majority trend: the step that most of the last faults have in common.
//!
//! Each thread has a history of the last 32 steps between its faults. A step is the trend if it is
//! the majority of the newest 8 steps, or else of 16, or of 32 (found in one pass each, by Boyer and
//! Moore's vote), so a few stray faults do not hide it. The window follows the hits since the last
//! one: the next power of two above them, never less than half of the last window; without hits, one
//! page if the fault follows the trend and none otherwise. Without a trend the last one found is used
//! on trial, into the read buffer.
//!
//! Leap sees a cache hit for every page that was right. Here confident windows are mapped at once
//! and hits are not seen; a fault on the page right after a window counts as a hit for each page of
//! it, and as one more step of the trend.
//!
//! Known limit: two streams that alternate in one thread have no majority; `adaptive` sees both.
//! From: Maruf and Chowdhury, "Effectively Prefetching Remote Memory with Leap", ATC 2020,
//! algorithms 1 and 2; its largest window is 8, ours 64 as everywhere in Muninn.

use super::{FarPages, Fault, Landing, PageIndex, Prefetch, Source, WINDOW_PAGES_MAX, Window};

const HISTORY: usize = 32;
/// The newest steps in which a majority is looked for first.
const SEARCH_FIRST: usize = 8;
const THREADS: usize = 16;
/// A longer step is never a trend worth following.
const STRIDE_PAGES_MAX: i64 = 1_024;

#[derive(Clone, Debug)]
struct Detector {
    /// Steps between faults; `newest` is the place of the last one.
    steps: [i64; HISTORY],
    newest: usize,
    len: usize,
    last_page: Option<PageIndex>,
    /// The trend found last, and where it leads to after the last window.
    trend: i64,
    next: Option<PageIndex>,
    window_pages: usize,
    mapped_pages: usize,
    hits: usize,
}

#[derive(Debug)]
pub struct Trend {
    threads: Vec<Detector>,
}

impl Default for Trend {
    fn default() -> Trend {
        Trend::new()
    }
}

impl Trend {
    pub fn new() -> Trend {
        Trend {
            threads: vec![Detector::new(); THREADS],
        }
    }
}

impl Prefetch for Trend {
    fn handle_fault(&mut self, fault: Fault, far: &dyn FarPages, window: &mut Window) {
        window.clear();
        let detector = &mut self.threads[fault.thread as usize % THREADS];
        let follows = detector.record(fault);
        if fault.source == Source::Buffer {
            return;
        }
        let found = detector.find_trend();
        let usable = |step: &i64| *step != 0 && step.abs() <= STRIDE_PAGES_MAX;
        if let Some(step) = found.filter(usable) {
            detector.trend = step;
        }
        let size = detector.window_size(follows || found == Some(detector.trend));
        let Some(stride) = i32::try_from(detector.trend).ok().filter(|s| *s != 0) else {
            return;
        };
        let confident = found == Some(detector.trend);
        window.landing = if confident {
            Landing::Mapped
        } else {
            Landing::Buffered
        };
        let next = window.collect(fault.page, stride, size, far);
        detector.next = next.filter(|_| confident);
        detector.mapped_pages = if confident { window.pages().len() } else { 0 };
    }
}

impl Detector {
    fn new() -> Detector {
        Detector {
            steps: [0; HISTORY],
            newest: 0,
            len: 0,
            last_page: None,
            trend: 0,
            next: None,
            window_pages: 0,
            mapped_pages: 0,
            hits: 0,
        }
    }

    /// Notes the step to this fault; true when it follows the trend.
    fn record(&mut self, fault: Fault) -> bool {
        let went_on = self.next == Some(fault.page) && fault.source == Source::Far;
        let step = match self.last_page {
            _ if went_on => Some(self.trend),
            Some(last) => Some(i64::from(fault.page.0) - i64::from(last.0)),
            None => None,
        };
        if went_on {
            self.hits += self.mapped_pages;
        }
        if fault.source == Source::Buffer {
            self.hits += 1;
        }
        self.last_page = Some(fault.page);
        if let Some(step) = step {
            self.newest = (self.newest + 1) % HISTORY;
            self.steps[self.newest] = step;
            self.len = (self.len + 1).min(HISTORY);
        }
        step == Some(self.trend) && self.trend != 0
    }

    /// Algorithm 1: the majority of the newest steps, of twice as many, and so on.
    fn find_trend(&self) -> Option<i64> {
        let mut width = SEARCH_FIRST;
        loop {
            let width_now = width.min(self.len);
            if let Some(step) = self.majority(width_now) {
                return Some(step);
            }
            if width >= HISTORY || width > self.len {
                return None;
            }
            width *= 2;
        }
    }

    fn newest_steps(&self, width: usize) -> impl Iterator<Item = i64> + '_ {
        (0..width).map(|ago| self.steps[(self.newest + HISTORY - ago) % HISTORY])
    }

    /// Boyer and Moore's vote, and a second pass that counts.
    fn majority(&self, width: usize) -> Option<i64> {
        let (mut candidate, mut votes) = (0, 0);
        for step in self.newest_steps(width) {
            if votes == 0 {
                candidate = step;
            }
            votes += if step == candidate { 1 } else { -1 };
        }
        let count = self.newest_steps(width).filter(|s| *s == candidate).count();
        (count > width / 2).then_some(candidate)
    }

    /// Algorithm 2.
    fn window_size(&mut self, follows: bool) -> usize {
        let wanted = match self.hits {
            0 => usize::from(follows),
            hits => (hits + 1).next_power_of_two(),
        };
        // Shrinks smoothly, so that one stray fault does not end a good window.
        let size = wanted.min(WINDOW_PAGES_MAX).max(self.window_pages / 2);
        self.window_pages = size;
        self.hits = 0;
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 5 of the paper: a descending run, then an ascending one with strays in it. The paper
    /// uses a history of 8 searched from 4; the trends are the same in ours.
    #[test]
    fn the_papers_example() {
        let mut detector = Detector::new();
        let mut trend_after = |page: u32| {
            detector.record(Fault {
                page: PageIndex(page),
                thread: 0,
                source: Source::Far,
            });
            detector.find_trend()
        };
        for page in [0x48, 0x45, 0x42] {
            trend_after(page);
        }
        assert_eq!(trend_after(0x3F), Some(-3));
        for page in [0x3C, 0x02, 0x04, 0x06, 0x08, 0x0A] {
            trend_after(page);
        }
        assert_eq!(trend_after(0x0C), Some(2), "five of eight");
        for page in [0x10, 0x39, 0x12, 0x14] {
            trend_after(page);
        }
        assert_eq!(trend_after(0x16), Some(2), "found again behind the strays");
    }

    #[test]
    fn the_vote_needs_more_than_half() {
        let mut detector = Detector::new();
        detector.steps = [0; HISTORY];
        detector.len = 8;
        detector.newest = 7;
        detector.steps[..8].copy_from_slice(&[1, 2, 1, 2, 1, 2, 1, 2]);
        assert_eq!(detector.majority(8), None);
        detector.steps[7] = 1;
        assert_eq!(detector.majority(8), Some(1));
    }

    #[test]
    fn the_window_doubles_with_hits_and_halves_without() {
        let mut detector = Detector::new();
        assert_eq!(detector.window_size(false), 0);
        assert_eq!(detector.window_size(true), 1);
        let mut sizes = Vec::new();
        for _ in 0..7 {
            detector.hits = detector.window_pages;
            sizes.push(detector.window_size(true));
        }
        assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(detector.window_size(false), 32);
        assert_eq!(detector.window_size(false), 16);
    }
}
