//! Memory beside the pool: what a server remembers of its clients, and what waits on its way to them.
//!
//! Each bit of it is small and has a bound of its own, and there may be many thousands of them. So they
//! are added up, for each source and for all, and who has no room left is refused before anything is
//! kept for it; a connection whose buffers have grown beyond it is closed. Invariant: what is kept is at
//! most [`Ledger::most`], and what one connection of each event loop may hold.
//!
//! What things weigh is rounded up, with what the allocator takes for itself.

use super::registry::lock;
use super::shard::Peer;
use muninn_types::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What a session, a grant and a ticket take, and a connection without its buffers.
pub(super) const SESSION_BYTES: u64 = 4 << 10;
pub(super) const GRANT_BYTES: u64 = 256;
pub(super) const TICKET_BYTES: u64 = 512;
pub const CONNECTION_BYTES: u64 = 3 << 10;
/// Kept free for the longest answer that is remembered.
pub(super) const ANSWER_BYTES: u64 = 4 << 10;
/// What a kept answer takes beside its bytes.
pub(super) const KEPT_BYTES: u64 = 160;

/// Of the 64 MiB and 1 % that a server may hold beside its memory, this much is for what clients have it
/// keep; the rest is the program itself.
const FIXED: u64 = 40 << 20;
const SHARE: u64 = 256;
/// Changes smaller than this are not written down.
const STEP: u64 = 1 << 10;

#[derive(Debug, Default)]
struct Sums {
    all: u64,
    sources: HashMap<Peer, u64>,
    connections: HashMap<Peer, u64>,
}

#[derive(Debug)]
pub struct Ledger {
    sums: Mutex<Sums>,
    most: u64,
    most_of_source: u64,
    /// Connections of one source at most: each takes one of the descriptors that there are.
    connections_of_source: AtomicU64,
}

impl Ledger {
    /// For a server of this memory; one source may have `part` of `whole` of what there is.
    pub fn new(memory: Bytes, part: usize, whole: usize) -> Arc<Ledger> {
        let most = FIXED + memory.0 / SHARE;
        let whole = whole.max(1) as u64;
        let part = (part as u64).min(whole);
        Arc::new(Ledger {
            sums: Mutex::default(),
            most,
            most_of_source: most / whole * part,
            connections_of_source: AtomicU64::new(u64::MAX),
        })
    }

    /// The most that is kept for all.
    pub fn most(&self) -> u64 {
        self.most
    }
    pub fn most_of_source(&self) -> u64 {
        self.most_of_source
    }

    /// From now on a source may have so many connections.
    pub fn limit_connections(&self, of_source: u64) {
        self.connections_of_source.store(of_source, Relaxed);
    }

    /// A line for something of this source, which takes nothing yet.
    pub fn open(self: &Arc<Ledger>, peer: Peer) -> Entry {
        Entry {
            ledger: Arc::clone(self),
            source: peer.source(),
            bytes: 0,
            connections: 0,
        }
    }

    /// A line for a connection; `None` if its source has as many as it may.
    pub fn connect(self: &Arc<Ledger>, peer: Peer) -> Option<Entry> {
        let mut entry = self.open(peer);
        let mut sums = lock(&self.sums);
        let count = sums.connections.entry(entry.source).or_default();
        if *count >= self.connections_of_source.load(Relaxed) {
            return None;
        }
        *count += 1;
        drop(sums);
        entry.connections = 1;
        Some(entry)
    }

    fn fits(&self, sums: &Sums, source: &Peer, more: u64) -> bool {
        let own = sums.sources.get(source).copied().unwrap_or(0);
        sums.all + more <= self.most && own + more <= self.most_of_source
    }
}

/// What something takes; given back when it goes.
#[derive(Debug)]
pub struct Entry {
    ledger: Arc<Ledger>,
    source: Peer,
    bytes: u64,
    /// That it stands for: one or none.
    connections: u64,
}

impl Entry {
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn source(&self) -> Peer {
        self.source
    }

    /// It takes so much now. False: more than may be.
    pub fn set(&mut self, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(STEP);
        if bytes == self.bytes {
            return true;
        }
        let mut sums = lock(&self.ledger.sums);
        sums.all = sums.all - self.bytes + bytes;
        let own = sums.sources.entry(self.source).or_default();
        *own = *own - self.bytes + bytes;
        if *own == 0 {
            sums.sources.remove(&self.source);
        }
        let fits = bytes < self.bytes || self.ledger.fits(&sums, &self.source, 0);
        self.bytes = bytes;
        fits
    }

    /// Whether so much more may be taken.
    pub fn has_room(&self, more: u64) -> bool {
        self.ledger
            .fits(&lock(&self.ledger.sums), &self.source, more)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.set(0);
        if self.connections == 0 {
            return;
        }
        let mut sums = lock(&self.ledger.sums);
        if let Some(count) = sums.connections.get_mut(&self.source) {
            *count -= self.connections;
            if *count == 0 {
                sums.connections.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_kept_for_each_source_and_for_all() {
        let ledger = Ledger::new(Bytes::ZERO, 1, 2);
        let half = FIXED / 2;
        let [one, two] = [1, 2].map(|uid| Peer::Unix { uid });
        let mut first = ledger.open(one);
        assert!(first.set(half - STEP));
        let mut second = ledger.open(one);
        assert!(second.has_room(STEP) && !second.has_room(STEP + 1));
        assert!(second.set(1));
        // It is there all the same, and is counted.
        assert!(!second.set(2 * STEP));
        assert!(second.set(STEP));
        let mut other = ledger.open(two);
        assert!(other.set(half));
        let third = ledger.open(Peer::Unix { uid: 3 });
        assert!(!third.has_room(1), "there is no more for anybody");
        drop(first);
        assert!(third.has_room(half - STEP));
        drop((second, other));
        let sums = lock(&ledger.sums);
        assert_eq!((sums.all, sums.sources.len()), (0, 0));
    }

    #[test]
    fn a_source_has_so_many_connections_and_no_more() {
        let ledger = Ledger::new(Bytes::ZERO, 1, 2);
        ledger.limit_connections(3);
        let [one, two] = [1, 2].map(|uid| Peer::Unix { uid });
        let mut held: Vec<Entry> = (0..3).filter_map(|_| ledger.connect(one)).collect();
        assert!(held.len() == 3 && ledger.connect(one).is_none());
        // What is not a connection is none, and others have theirs.
        let session = ledger.open(one);
        held.extend(ledger.connect(two));
        held.remove(0);
        held.extend(ledger.connect(one));
        assert!(held.len() == 4 && ledger.connect(one).is_none());
        drop((held, session));
        assert!(lock(&ledger.sums).connections.is_empty());
    }
}
