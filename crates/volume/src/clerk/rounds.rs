//! When leases are renewed.
//!
//! One thread asks all servers in turn, so one that is silent keeps the others waiting. Invariant: a round in which
//! any number of them are silent takes no longer than twice what one may take, and a moment for each
//! ([`patience_after`]); so those that answer keep their leases when half of a large pool goes silent at once.

use super::{Clerk, NAP};
use crate::lock;
use muninn_net::Beat;
use muninn_policy::membership::patience_after;
use muninn_types::{Nanos, ServerId};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a beat may take: where there are others, of one that is suspected, and after others were silent.
const BEAT_MAX: Duration = Duration::from_millis(500);
const SUSPECT_BEAT: Duration = Duration::from_millis(50);
const BEAT_LEAST: Nanos = Nanos::millis(1);
/// How often one that is suspected is asked.
const SUSPECT_PAUSE: Duration = Duration::from_millis(200);
/// How often the writer is reminded of what is still to be moved.
const REMIND: Duration = Duration::from_secs(1);

impl Clerk {
    /// Renews a lease; whether its server was silent.
    fn beat(&self, server: ServerId, patience: Duration) -> bool {
        let Some((transport, generation)) = self.roster.session(server) else {
            return false;
        };
        let beat = transport.beat(patience);
        match beat {
            Beat::Answered => self.roster.heard(server),
            Beat::Silent => self.roster.suspect(server),
            Beat::Lost => {
                let why = transport.lost().unwrap_or_default();
                self.roster.lose(server, generation, &why);
                return false;
            }
        }
        let draining = transport.drain_left().is_some();
        self.roster.note_draining(server, draining);
        self.roster.note_asked(server, transport.asked_back().0);
        beat == Beat::Silent
    }
}

/// When leases are renewed, each four times as often as it runs out.
pub(super) struct Rounds {
    next: HashMap<ServerId, Nanos>,
    remind_at: Nanos,
}

impl Rounds {
    pub(super) fn new() -> Rounds {
        Rounds {
            next: HashMap::new(),
            remind_at: Nanos::ZERO,
        }
    }

    pub(super) fn left(&self, now: Nanos) -> Duration {
        let first = self.next.values().min();
        first.map_or(NAP, |at| at.saturating_sub(now).into())
    }

    pub(super) fn go(&mut self, clerk: &Clerk) {
        let mut silent = 0;
        for server in clerk.roster.ids() {
            let Some((transport, _)) = clerk.roster.session(server) else {
                self.next.remove(&server);
                continue;
            };
            let pause = transport.lease() / 4;
            let now = clerk.roster.now();
            let due = *self.next.entry(server).or_insert(now + pause.into());
            let suspected = clerk.roster.is_suspected(server);
            if now < due {
                continue;
            }
            let alone = clerk.roster.is_alone();
            let (patience, pause) = match suspected {
                _ if alone => (pause, pause),
                true => (SUSPECT_BEAT.min(pause), SUSPECT_PAUSE.min(pause)),
                false => (BEAT_MAX.min(pause), pause),
            };
            let patience = patience_after(silent, patience.into(), BEAT_LEAST);
            silent += u32::from(clerk.beat(server, patience.into()));
            self.next.insert(server, clerk.roster.now() + pause.into());
        }
        let now = clerk.roster.now();
        if now >= self.remind_at {
            self.remind_at = now + REMIND.into();
            let desk = lock(&clerk.desk);
            let to_move = desk.to_move > 0 && desk.order.is_none();
            if to_move || clerk.roster.has_leaving() || clerk.roster.has_fresh() {
                clerk.news.store(true, Relaxed);
            }
        }
    }
}
