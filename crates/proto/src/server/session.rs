//! A session: one client at this server, its lanes and its grants.

use super::ledger::{self, Entry};
use super::memory::Backing;
use super::pool::Extent;
use super::registry::SessionInfo;
use super::service::Service;
use crate::auth::SessionSecret;
use muninn_types::{ConnId, GrantId, LaneKind, Nanos, Tag};
use muninn_wire::Transport;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// The most lanes of a session: control, and a few for the threads of its client.
pub(super) const MAX_LANES: usize = 16;
/// Replies kept for each lane. A client has at most half as many requests under way that must not
/// be done twice.
pub(super) const REPLAY_LEN: usize = 32;

/// Ids that a server counts up spread well under one multiplication; SipHash would cost more than
/// the rest of a lookup.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn finish(&self) -> u64 {
        // The table takes its index from the low bits and its tag from the high ones.
        self.0 ^ (self.0 >> 32)
    }
}

pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A reply that may have to be given again.
#[derive(Debug)]
pub(super) struct Replay<B: Backing> {
    pub tag: Tag,
    pub frame: Vec<u8>,
    pub payload: Vec<u8>,
    /// Memory files that went with it. A reply must not keep memory that was given up since.
    pub descriptors: Vec<Weak<B::Segment>>,
}

impl<B: Backing> Replay<B> {
    /// What it takes.
    fn bytes(&self) -> u64 {
        let held = self.frame.capacity() + self.payload.capacity() + self.descriptors.len() * 8;
        held as u64 + ledger::KEPT_BYTES
    }
}

#[derive(Debug)]
pub(super) struct Lane<B: Backing> {
    pub kind: LaneKind,
    pub conn: Option<ConnId>,
    pub replay: VecDeque<Replay<B>>,
    /// Calls that must not be done twice and are not done yet. As many as a client may have.
    pub calls: Vec<Tag>,
}

#[derive(Debug)]
pub(super) struct Session<B: Backing> {
    /// What is kept for it, and how much of that are answers.
    pub entry: Entry,
    pub kept_bytes: u64,
    pub info: Arc<SessionInfo>,
    pub secret: SessionSecret,
    pub grants: IdMap<GrantId, Arc<Extent<B>>>,
    pub lanes: [Option<Lane<B>>; MAX_LANES],
    pub last_seen: Nanos,
    /// When its client closed the last of its connections, if it has none.
    pub left: Option<Nanos>,
    /// Segments (and their incarnations) whose memory file the client was given, and how many of
    /// its grants lie in each.
    pub mapped: HashMap<(u32, u32), u32>,
    /// Lanes on which the payload of a write is arriving.
    pub writes_under_way: u32,
    /// Services it is tied to, and whether it keeps each alive.
    pub services: Vec<(Arc<Service<B>>, bool)>,
    /// The process at the other end, where the kernel says which that is.
    pub process: Option<i32>,
}

impl<B: Backing> Session<B> {
    pub(super) fn transport(&self) -> Transport {
        self.info.transport
    }

    /// The client gave a sign of life.
    pub(super) fn seen(&mut self, now: Nanos, lease: Nanos) {
        self.last_seen = now;
        self.info.lease_ends.store((now + lease).0, Relaxed);
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.lanes.iter().flatten().filter_map(|lane| lane.conn)
    }

    pub(super) fn remember(&mut self, lane: usize, replay: Replay<B>) {
        if let Some(lane) = &mut self.lanes[lane] {
            if lane.replay.len() == REPLAY_LEN {
                self.kept_bytes -= lane.replay.pop_front().map_or(0, |old| old.bytes());
            }
            self.kept_bytes += replay.bytes();
            lane.replay.push_back(replay);
        }
        self.settle();
    }

    /// Writes down what is kept for it. There was room, or it gives something back.
    pub(super) fn settle(&mut self) {
        let grants = self.grants.len() as u64 * ledger::GRANT_BYTES;
        let _ = self
            .entry
            .set(ledger::SESSION_BYTES + grants + self.kept_bytes);
    }

    /// The reply that was given under this tag. It counts as the latest again: a client that is
    /// cut several times may have done more than a queue's length since the first time.
    pub(super) fn replayed(&mut self, lane: usize, tag: Tag) -> Option<&Replay<B>> {
        let replay = &mut self.lanes[lane].as_mut()?.replay;
        let at = replay.iter().position(|replay| replay.tag == tag)?;
        let found = replay.remove(at)?;
        replay.push_back(found);
        replay.back()
    }

    /// Adds a grant; whether the client needs the memory file of its segment for it. One that the
    /// session has already (shared twice, or adopted by its own owner) is not counted again.
    pub(super) fn insert(&mut self, grant: GrantId, extent: Arc<Extent<B>>) -> bool {
        if self.grants.contains_key(&grant) {
            return false;
        }
        let mut fresh = false;
        if self.transport() == Transport::Shm {
            let count = self
                .mapped
                .entry((extent.segment().0, extent.incarnation()))
                .or_default();
            *count += 1;
            fresh = *count == 1;
        }
        self.info.granted(1, extent.bytes() as i64);
        self.grants.insert(grant, extent);
        self.settle();
        fresh
    }

    pub(super) fn remove(&mut self, grant: GrantId) {
        let Some(extent) = self.grants.remove(&grant) else {
            return;
        };
        let segment = (extent.segment().0, extent.incarnation());
        if let Some(count) = self.mapped.get_mut(&segment) {
            *count -= 1;
            if *count == 0 {
                self.mapped.remove(&segment);
            }
        }
        self.info.granted(-1, -(extent.bytes() as i64));
        self.settle();
    }
}
