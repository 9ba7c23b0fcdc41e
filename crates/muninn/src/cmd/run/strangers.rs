//! Processes of a job in which the library is not: static programs, setuid ones, those of another C library,
//! and those that were executed past all that hands it on.
//!
//! They run as they would without Muninn, and have no limit. Nobody should have to find that out by himself:
//! when one of them has some memory it is named, once for all of its name. Looked for more and more rarely,
//! since everybody below the launcher has to be asked. Known limit: one that is over before the next look is
//! not seen.

use muninn_sys::proc::{self, RealProc};
use muninn_sys::reap;
use muninn_types::Bytes;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Between the first two looks, and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Who has less is not spoken of.
const SMALL: Bytes = Bytes::mib(4);
/// Names that are said at most.
const SAID_MAX: usize = 16;

/// One who looks for them.
#[derive(Debug)]
pub struct Strangers {
    next: Instant,
    pause: Duration,
    said: BTreeSet<String>,
}

impl Strangers {
    pub fn new() -> Strangers {
        Strangers {
            next: Instant::now() + PAUSE_MIN,
            pause: PAUSE_MIN,
            said: BTreeSet::new(),
        }
    }

    /// What is to be said of those who were found now, if it is time to look.
    pub fn look(&mut self) -> Vec<String> {
        let now = Instant::now();
        if now < self.next || self.said.len() >= SAID_MAX {
            return Vec::new();
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.next = now + self.pause;
        // Each of them anew: one that had the library may be another program by now.
        let below = reap::descendants().into_iter();
        below.filter_map(|pid| self.look_at(pid)).collect()
    }

    fn look_at(&mut self, pid: u32) -> Option<String> {
        // It may have ended, or be executing another program this very moment: then the next look tells.
        let held = proc::statm(&RealProc, pid as i32).ok()?.private_resident();
        if held < SMALL {
            return None;
        }
        // The embedded server is one of us.
        if proc::is_same_program(pid) || proc::has_mapped(pid, "muninn")? {
            return None;
        }
        let name = proc::name_of(pid)?;
        self.said.insert(name.clone()).then(|| {
            format!(
                "process {pid} ({name}) runs without far memory and without a limit, and holds {} by now: the \
                 library is not in it (it is static, setuid, for another C library, or was executed past the C \
                 library)",
                held.rounded()
            )
        })
    }
}
