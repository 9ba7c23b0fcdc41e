//! The clerk: everything that is asked of servers while pages are read and written.
//!
//! A thread of its own asks for extents ahead of need ([`gather`]), gives back those no longer needed, renews the
//! leases ([`rounds`]), tries servers that were away again and copies what has too few copies ([`work`],
//! [`mover`](crate::mover)), so that the data path never waits for a server that is slow to answer. Both sides
//! talk through a small locked list, the *desk*, which is never locked while a server is waited for.
//!
//! Invariant: every grant that a server counts as ours is in the map, on the desk or in the clerk's
//! hands, and there is nothing in its hands while it holds still.

mod gather;
mod rounds;
mod work;

use crate::extent::Holding;
use crate::heritage::Ticket;
use crate::lock;
use crate::mover::{Courier, Order};
use crate::roster::Roster;
use muninn_net::Transport;
use muninn_policy::layout::Layout;
use muninn_policy::placement::Placement;
use muninn_types::{Extent, GrantId, ServerId};
use muninn_wire::MAX_GRANTS;
use rounds::Rounds;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pages of an extent, at most: 16 MiB.
pub const EXTENT_PAGES: u32 = Extent::PAGES_MAX;
/// How long a server may take to give memory: where it is the only one, and where others can be asked.
const ONLY_DEADLINE: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(1);
/// The longest sleep.
const NAP: Duration = Duration::from_millis(100);
/// How long those who want the clerk to hold still wait for it.
const HOLD_PATIENCE: Duration = Duration::from_secs(5);

/// A new extent.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    /// Of each member.
    pub pages: u32,
    /// In the order of their pieces.
    pub members: Vec<Holding>,
}

/// What became of an order.
#[derive(Debug)]
pub(crate) struct Moved {
    pub pages: u32,
    pub piece: u8,
    /// A member that had fallen behind, if it was not for a new one.
    pub behind: Option<Holding>,
    /// The member that was filled, or why there is none; `None` if the clerk was only interrupted.
    pub target: Result<Holding, Option<String>>,
}

#[derive(Debug, Default)]
struct Desk {
    wanted: bool,
    /// The clerk has something in its hands.
    busy: bool,
    held: bool,
    stop: bool,
    granted: Vec<Fresh>,
    to_release: Vec<Holding>,
    to_revoke: Vec<Ticket>,
    order: Option<Order>,
    moved: Option<Moved>,
    to_move: usize,
}

pub struct Clerk {
    roster: Arc<Roster>,
    layout: Layout,
    placement: Mutex<Placement>,
    desk: Mutex<Desk>,
    bell: Condvar,
    still: Condvar,
    small: AtomicBool,
    /// Extents with parity that were granted.
    turn: AtomicU32,
    /// Something has happened that the writer should look at.
    news: AtomicBool,
    said: Mutex<Option<String>>,
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clerk").finish_non_exhaustive()
    }
}

impl Clerk {
    /// `node` and `process` give the order in which servers are asked.
    pub fn new(roster: Arc<Roster>, layout: Layout, node: u64, process: u64) -> Clerk {
        let servers: Vec<ServerId> = roster.ids().collect();
        Clerk {
            placement: Mutex::new(Placement::new(node, process, &servers)),
            roster,
            layout,
            desk: Mutex::default(),
            bell: Condvar::new(),
            still: Condvar::new(),
            small: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            news: AtomicBool::new(false),
            said: Mutex::default(),
        }
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// While somebody else reads what there is, it cannot be written over: small pieces waste less.
    pub fn want_small(&self, small: bool) {
        self.small.store(small, Relaxed);
    }

    /// Whether there is something for [`Volume::attend`](crate::Volume::attend) to look at, said once.
    pub fn take_news(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, Relaxed)
    }

    /// An extent is wanted ahead of need.
    pub(crate) fn want(&self) {
        lock(&self.desk).wanted = true;
        self.bell.notify_one();
    }

    pub(crate) fn take_granted(&self) -> Option<Fresh> {
        lock(&self.desk).granted.pop()
    }

    pub(crate) fn release(&self, holdings: impl IntoIterator<Item = Holding>) {
        lock(&self.desk).to_release.extend(holdings);
        self.bell.notify_one();
    }

    /// Nobody will use these any more.
    pub fn revoke(&self, tickets: impl Iterator<Item = Ticket>) {
        lock(&self.desk).to_revoke.extend(tickets);
        self.bell.notify_one();
    }

    pub(crate) fn give_order(&self, order: Order) {
        lock(&self.desk).order = Some(order);
        self.bell.notify_one();
    }
    pub(crate) fn take_moved(&self) -> Option<Moved> {
        lock(&self.desk).moved.take()
    }
    /// So many extents wait to be moved.
    pub(crate) fn note_to_move(&self, extents: usize) {
        lock(&self.desk).to_move = extents;
    }

    /// Tells people, unless it was the last thing they were told.
    pub(crate) fn say_once(&self, text: &str) {
        let mut said = lock(&self.said);
        if said.as_deref() != Some(text) {
            self.roster.tell(text);
            *said = Some(text.to_string());
        }
    }

    /// While set, nothing is asked for ahead of need, given back or moved. False if the clerk could
    /// not be reached in time.
    pub fn hold_still(&self, hold: bool) -> bool {
        let mut desk = lock(&self.desk);
        desk.held = hold;
        if !hold {
            self.bell.notify_one();
            return true;
        }
        let ends = Instant::now() + HOLD_PATIENCE;
        while desk.busy {
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                desk.held = false;
                return false;
            }
            let waited = self.still.wait_timeout(desk, left);
            desk = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Grants that are to be given back, and those of extents that nobody has taken yet.
    pub(crate) fn on_the_desk(&self) -> Vec<Holding> {
        let desk = lock(&self.desk);
        let granted = desk.granted.iter().flat_map(|fresh| &fresh.members);
        granted.chain(&desk.to_release).copied().collect()
    }

    fn deadline(&self) -> Duration {
        match self.roster.is_alone() {
            true => ONLY_DEADLINE,
            false => DEADLINE,
        }
    }

    /// Does as the list of servers says, if it has changed. What is on the desk for a server that left goes
    /// back; under the desk's lock, so that nobody takes it in between.
    pub(crate) fn follow_list(&self) {
        let mut desk = lock(&self.desk);
        if !self.roster.follow() {
            return;
        }
        let mut placement = lock(&self.placement);
        self.roster.ids().for_each(|id| placement.handle_join(id));
        let left = |fresh: &Fresh| {
            let mut members = fresh.members.iter();
            members.any(|at| self.roster.has_left(at.server))
        };
        let (back, kept): (Vec<Fresh>, Vec<Fresh>) = desk.granted.drain(..).partition(left);
        desk.granted = kept;
        let back = back.into_iter().flat_map(|fresh| fresh.members);
        desk.to_release.extend(back);
    }

    /// Lets [`Clerk::run`] return.
    pub fn stop(&self) {
        lock(&self.desk).stop = true;
        self.bell.notify_one();
    }

    /// The clerk's thread, until [`Clerk::stop`].
    pub fn run(&self) {
        let mut courier = Courier::new(Arc::clone(&self.roster));
        let mut rounds = Rounds::new();
        // The first ones it will need, before anybody waits for them.
        self.knock_ahead(&[], self.layout.members());
        for server in self.first_choices(&[], self.layout.members()) {
            if self.roster.is_ready(server) {
                let _ = self.roster.open(server);
            }
        }
        let mut news = self.roster.news();
        while !lock(&self.desk).stop {
            self.work(&mut courier, &mut rounds);
            rounds.go(self);
            self.follow_list();
            self.roster.take_leave();
            self.roster.retry();
            let now = self.roster.news();
            if std::mem::replace(&mut news, now) != now {
                self.news.store(true, Relaxed);
            }
        }
    }
}

/// Lists of grants for requests of their own, with those in one that are mapped together: a server
/// shares what it has mapped together only together.
pub(crate) fn together(transport: &dyn Transport, grants: &[GrantId]) -> Vec<Vec<GrantId>> {
    let place = |id: GrantId| match transport.mapped(id) {
        Some(mapped) => (mapped.map.addr(), 0),
        None => (0, id.0),
    };
    let mut placed: Vec<((u64, u64), GrantId)> =
        grants.iter().map(|id| (place(*id), *id)).collect();
    placed.sort_unstable();
    placed.dedup();
    let mut lists: Vec<Vec<GrantId>> = Vec::new();
    for group in placed.chunk_by(|a, b| a.0 == b.0) {
        let ids = group.iter().map(|(_, id)| *id);
        match lists.last_mut() {
            Some(last) if last.len() + group.len() <= MAX_GRANTS => last.extend(ids),
            _ => lists.push(ids.collect()),
        }
    }
    lists
}
