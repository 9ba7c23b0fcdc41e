//! Whether a server of the pool can be counted on right now.
//!
//! ```text
//!            answers                       silence                 session lost
//!  Unknown ──────────► Up ◄───────────────────────► Suspected ───────────────────► Away
//!     └── no connection ──────────────────────────────────────────────────────────► │ retried with
//!                      ▲────────────────────── answers ─────────────────────────────┘ back-off
//! ```
//!
//! A *suspected* server may still have what it was given: nobody waits for it while others can
//! answer, and it counts again as soon as it answers. What it misses meanwhile is brought to it then, or
//! to another server if it is silent for longer than [`KEEP_SILENT`]. One that is *away* has lost what it kept; it is
//! tried again with growing pauses, and comes back empty.
//!
//! Invariant: a change is told once, and silences of one server no more often than every [`TELL_PAUSE`]: one
//! that is slow all the time would fill the screen. Pauses between two attempts double up to [`PAUSE_MAX`].

use muninn_types::Nanos;

/// How long what a suspected server missed is kept for it before it is copied to another server.
pub const KEEP_SILENT: Nanos = Nanos::secs(1);
/// How long one more server is waited for where so many were waited for in vain already, one after the other:
/// half of what the one before had, so that all of them together take no longer than two would, and `least` for
/// each.
pub fn patience_after(silent: u32, patience: Nanos, least: Nanos) -> Nanos {
    let halved = patience.0.checked_shr(silent).unwrap_or(0);
    Nanos(halved).max(least).min(patience)
}

pub const TELL_PAUSE: Nanos = Nanos::secs(10);
pub const PAUSE_FIRST: Nanos = Nanos::millis(200);
pub const PAUSE_MAX: Nanos = Nanos::secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has asked it for anything yet.
    #[default]
    Unknown,
    Up,
    Suspected,
    Away,
}

/// One server, as its client sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Membership {
    standing: Standing,
    retry_at: Nanos,
    pause: Nanos,
    /// The last silence was told; no other is before this.
    told: bool,
    tell_at: Nanos,
}

impl Membership {
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// It answered. Whether that is news.
    pub fn handle_answer(&mut self) -> bool {
        let before = std::mem::replace(&mut self.standing, Standing::Up);
        self.pause = Nanos::ZERO;
        match before {
            Standing::Suspected => self.told,
            Standing::Away => true,
            Standing::Unknown | Standing::Up => false,
        }
    }

    /// It has not answered for longer than is usual. Whether that is news.
    pub fn handle_silence(&mut self, now: Nanos) -> bool {
        if self.standing != Standing::Up {
            return false;
        }
        self.standing = Standing::Suspected;
        self.told = now >= self.tell_at;
        if self.told {
            self.tell_at = now.saturating_add(TELL_PAUSE);
        }
        self.told
    }

    /// Its session is lost, or could not be opened. Whether that is news.
    pub fn handle_lost(&mut self, now: Nanos) -> bool {
        let news = self.standing != Standing::Away;
        self.standing = Standing::Away;
        self.pause = match self.pause {
            Nanos::ZERO => PAUSE_FIRST,
            pause => Nanos(pause.0.saturating_mul(2)).min(PAUSE_MAX),
        };
        self.retry_at = now.saturating_add(self.pause);
        news
    }

    /// Whether a connection is worth an attempt.
    pub fn may_connect(&self, now: Nanos) -> bool {
        self.standing != Standing::Away || now >= self.retry_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_are_silent_it_takes_a_bounded_time() {
        let (patience, least) = (Nanos::millis(500), Nanos::millis(1));
        assert_eq!(patience_after(0, patience, least), patience);
        assert_eq!(patience_after(1, patience, least), Nanos::millis(250));
        let all: u64 = (0..200).map(|n| patience_after(n, patience, least).0).sum();
        assert!(Nanos(all) <= Nanos::millis(1_000 + 200), "{all}");
        // Never longer than it was to be.
        assert_eq!(patience_after(9, Nanos(7), least), Nanos(7));
    }

    #[test]
    fn a_change_is_told_once() {
        let mut server = Membership::default();
        assert!(!server.handle_answer(), "what works is no news");
        assert!(server.handle_silence(Nanos::ZERO));
        assert!(!server.handle_silence(Nanos::ZERO));
        assert!(server.handle_answer());
        assert!(server.handle_lost(Nanos::ZERO));
        assert!(!server.handle_lost(Nanos::ZERO));
        assert!(!server.handle_silence(TELL_PAUSE), "it is away already");
        assert_eq!(server.standing(), Standing::Away);
        assert!(server.handle_answer());
    }

    #[test]
    fn one_that_is_slow_all_the_time_is_told_of_now_and_then() {
        let mut server = Membership::default();
        server.handle_answer();
        let (mut now, mut lines) = (Nanos::ZERO, 0);
        while now < TELL_PAUSE {
            now += Nanos::millis(100);
            lines += u32::from(server.handle_silence(now));
            assert_eq!(server.standing(), Standing::Suspected);
            lines += u32::from(server.handle_answer());
        }
        assert_eq!(lines, 2, "one silence, and its end");
        assert!(server.handle_silence(now + TELL_PAUSE));
    }

    #[test]
    fn attempts_grow_rarer_up_to_a_bound() {
        let mut server = Membership::default();
        let (mut now, mut attempts) = (Nanos::ZERO, 0);
        while now < Nanos::secs(100) {
            assert!(server.may_connect(now));
            server.handle_lost(now);
            attempts += 1;
            assert!(!server.may_connect(now));
            while !server.may_connect(now) {
                now += Nanos::millis(10);
            }
        }
        assert!((14..=17).contains(&attempts), "{attempts}");
        server.handle_answer();
        server.handle_lost(now);
        assert!(server.may_connect(now + PAUSE_FIRST), "a new beginning");
    }
}
