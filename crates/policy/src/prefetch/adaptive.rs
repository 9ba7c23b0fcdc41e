//! Streams with a window that doubles while they last.
//!
//! A thread's last faults are searched for a step that repeats: two faults next to each other, or
//! three at equal distances. That starts a stream with a small window. The pages are mapped at once,
//! so the program next faults on the first far page *after* the window: when that very fault comes,
//! the whole window was used, and the next one is twice as large (up to 64). A stream that does not
//! go on costs its last window and is forgotten.
//!
//! How large a window a new stream starts with follows the measured share of streams that went on
//! after their first window: 1 page when hardly any did, 16 when nearly all did. Streams are found
//! per thread but continue under any thread (work moves between threads), and several may run
//! interleaved in one.
//!
//! Known limit: pages that are walked in an order which repeats but has no constant step are not
//! seen; `slot` may catch those.
//! From: Linux's readahead and Leap, without the cache hits that both of them can see.

use super::{FarPages, Fault, Landing, PageIndex, Prefetch, Source, WINDOW_PAGES_MAX, Window};

const STREAMS: usize = 32;
const THREADS: usize = 16;
/// Faults of a thread among which a step is looked for.
const HISTORY: usize = 6;
/// A longer step is taken for chance.
const STRIDE_PAGES_MAX: i64 = 1_024;
const START_PAGES_MAX: f64 = 16.0;
/// A stream that has not gone on after this many faults is over; a fault on its next page is then
/// taken for chance. Enough for 32 streams with windows that differ by a factor of 8.
const IDLE_FAULTS_MAX: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Where the next fault is expected.
    next: PageIndex,
    stride: i32,
    window_pages: u32,
    /// Went on at least once.
    proven: bool,
    /// Number of the fault that used it last.
    used_at: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Newest first.
    pages: [u32; HISTORY],
    len: usize,
}

#[derive(Debug)]
pub struct Adaptive {
    streams: [Option<Stream>; STREAMS],
    threads: [History; THREADS],
    faults: u64,
    /// Share of streams that went on after their first window; a running mean.
    proven_share: f64,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        Adaptive::new()
    }
}

impl Adaptive {
    pub fn new() -> Adaptive {
        Adaptive {
            streams: [None; STREAMS],
            threads: [History::default(); THREADS],
            faults: 0,
            proven_share: 0.5,
        }
    }

    /// Windows of new streams: from 1 page at a share of nothing to 16 at a share of one.
    fn start_pages(&self) -> u32 {
        START_PAGES_MAX.powf(self.proven_share).round() as u32
    }

    fn judge(&mut self, went_on: bool) {
        let outcome = if went_on { 1.0 } else { 0.0 };
        self.proven_share += (outcome - self.proven_share) / 16.0;
    }

    fn continued(&self, page: PageIndex) -> Option<usize> {
        let goes_on = |s: &Stream| s.next == page && self.faults - s.used_at <= IDLE_FAULTS_MAX;
        self.streams
            .iter()
            .position(|s| s.as_ref().is_some_and(goes_on))
    }

    /// The place for a new stream: a free one, or that of the stream unused for longest.
    fn place_for_new(&mut self) -> usize {
        let used_at = |s: &Option<Stream>| s.map_or(0, |s| s.used_at);
        let oldest = (0..STREAMS).min_by_key(|&i| used_at(&self.streams[i]));
        let place = oldest.unwrap_or(0);
        if self.streams[place].is_some_and(|s| !s.proven) {
            self.judge(false);
        }
        place
    }
}

impl Prefetch for Adaptive {
    fn handle_fault(&mut self, fault: Fault, far: &dyn FarPages, window: &mut Window) {
        window.clear();
        window.landing = Landing::Mapped;
        self.faults += 1;
        let history = &mut self.threads[fault.thread as usize % THREADS];
        let stride = history.stride_to(fault.page);
        history.push(fault.page);
        if fault.source == Source::Buffer {
            return;
        }
        let (place, stride, window_pages, proven) = match self.continued(fault.page) {
            Some(place) => {
                let Some(stream) = self.streams[place] else {
                    return;
                };
                if !stream.proven {
                    self.judge(true);
                }
                let doubled = (stream.window_pages * 2).min(WINDOW_PAGES_MAX as u32);
                (place, stream.stride, doubled, true)
            }
            None => {
                let Some(stride) = stride else { return };
                (self.place_for_new(), stride, self.start_pages(), false)
            }
        };
        let next = window.collect(fault.page, stride, window_pages as usize, far);
        // A stream that has reached the end of what is far is over, and a success if it ever was.
        self.streams[place] = next.map(|next| Stream {
            next,
            stride,
            window_pages,
            proven,
            used_at: self.faults,
        });
    }
}

impl History {
    fn push(&mut self, page: PageIndex) {
        self.pages.copy_within(0..HISTORY - 1, 1);
        self.pages[0] = page.0;
        self.len = (self.len + 1).min(HISTORY);
    }

    /// The step that leads to this page: from a neighbour, or twice from earlier faults.
    fn stride_to(&self, page: PageIndex) -> Option<i32> {
        let earlier = &self.pages[..self.len];
        let step_from = |from: u32| i64::from(page.0) - i64::from(from);
        for (i, &from) in earlier.iter().enumerate() {
            let step = step_from(from);
            let twice = || {
                let before = i64::from(from) - step;
                earlier[i + 1..].iter().any(|&p| i64::from(p) == before)
            };
            if step != 0 && step.abs() <= STRIDE_PAGES_MAX && (step.abs() == 1 || twice()) {
                return i32::try_from(step).ok();
            }
        }
        None
    }
}
