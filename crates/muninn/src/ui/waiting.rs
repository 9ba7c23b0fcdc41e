//! Nobody waits in silence: what takes more than two seconds is said, once when it does and once when it is over.
//!
//! On standard error, also where no person looks: a log without it says nothing about the time that passed.

use muninn_types::format_duration;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than this is not waited without a word.
const QUIET: Duration = Duration::from_secs(2);

/// Something that may take long; dropped when it is over.
#[derive(Debug)]
#[must_use]
pub struct Waiting {
    /// Over, and whether anything was said.
    shared: Arc<(Mutex<(bool, bool)>, Condvar)>,
    began: Instant,
    what: String,
}

/// From now on this is waited for: `an answer from 10.0.0.5:7000`.
pub fn waiting(what: impl Into<String>) -> Waiting {
    let shared = Arc::new((Mutex::new((false, false)), Condvar::new()));
    let what: String = what.into();
    let (own, named) = (Arc::clone(&shared), what.clone());
    std::thread::spawn(move || {
        let state = own.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = own.1.wait_timeout_while(state, QUIET, |(over, _)| !*over);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.0 {
            state.1 = true;
            eprintln!("muninn: waiting for {named}");
        }
    });
    Waiting {
        shared,
        began: Instant::now(),
        what,
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        self.shared.1.notify_all();
        if state.1 {
            let (what, took) = (&self.what, format_duration(self.began.elapsed()));
            eprintln!("muninn: waited {took} for {what}");
        }
    }
}
