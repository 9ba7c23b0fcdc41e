//! Lanes to servers, and operations under way on them.
//!
//! An operation owns its buffer until it completes, so one that nobody waits for any more is left
//! behind without cutting the connection. Of a read that was left behind the completion is dropped by its
//! token when it comes; of a write it says that the server has these pages after all.
//!
//! Invariant: while writes are left behind at a server all others go the same way, on one lane: what is sent
//! on one lane is done in order, also when it has to be sent again.

use crate::extent::{ExtentId, Holding};
use crate::roster::Roster;
use muninn_net::{Buffer, Done, Kind, Lane, OpError, Operation, Transport, Verb};
use muninn_policy::hedge::Latency;
use muninn_policy::membership::KEEP_SILENT;
use muninn_types::{Class, GrantId, LaneKind, Nanos, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Adds a page of a grant to what an operation is about.
pub(crate) fn add_page(segs: &mut Vec<Seg>, grant: GrantId, page: u32) {
    const LEN: u32 = PAGE_SIZE as u32;
    let offset = page * LEN;
    match segs.last_mut() {
        Some(last) if last.grant == grant && last.offset + last.len == offset => last.len += LEN,
        _ => segs.push(Seg::new(grant, offset, LEN)),
    }
}

/// Who gets an operation, and which pages or rows of a batch it is for.
pub(crate) type Post = (Holding, u64);

/// Notes that a server is to get an operation for a page or a row.
pub(crate) fn add_post(posts: &mut Vec<Post>, to: Holding, at: usize) {
    let mut known = posts.iter_mut();
    match known.find(|(known, _)| known.server == to.server) {
        Some((_, pages)) => *pages |= 1 << at,
        None => posts.push((to, 1 << at)),
    }
}

/// Who gets what is written.
#[derive(Default)]
pub(crate) struct Posts {
    pub awaited: Vec<Post>,
    /// Nobody waits for these.
    pub silent: Vec<Post>,
}

/// Pages of one operation.
pub(crate) const OPERATION_PAGES: usize = 64;
/// Buffers that are kept for the next operation.
const BUFFERS_MAX: usize = 8;
/// Writes that may be left behind at a server, each with a buffer: 4 MiB.
const WRITES_BEHIND_MAX: usize = 16;

/// An operation at one server, for some pages of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub server: ServerId,
    pub generation: u32,
    pub class: Class,
    pub token: u64,
    /// Which pages of the batch.
    pub pages: u64,
    pub posted_at: Nanos,
    pub state: LegState,
    /// Others were asked for the same.
    pub hedged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegState {
    Waiting,
    Done,
    /// Refused, lost, or not waited for any longer.
    Failed,
}

/// A page on its way to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub extent: ExtentId,
    pub at: Holding,
    pub place: u32,
    /// It was written again meanwhile, and this is what it was before.
    pub outdated: bool,
}

/// An operation that was left behind.
struct Behind {
    token: u64,
    class: Class,
    posted_at: Nanos,
    /// Of a write: what its member has when it is done.
    pages: Vec<Written>,
}

struct Connection {
    generation: u32,
    critical: Box<dyn Lane>,
    bulk: Box<dyn Lane>,
    latency: Latency,
    /// Operations that were left behind, oldest first.
    behind: VecDeque<Behind>,
}

impl Connection {
    fn writes_behind(&self) -> impl Iterator<Item = &Behind> {
        let behind = self.behind.iter();
        behind.filter(|behind| !behind.pages.is_empty())
    }
    fn lane(&mut self, kind: LaneKind) -> &mut Box<dyn Lane> {
        match kind {
            LaneKind::Bulk => &mut self.bulk,
            _ => &mut self.critical,
        }
    }
}

/// The lanes of one thread.
pub(crate) struct Wire {
    roster: Arc<Roster>,
    connections: Vec<Option<Connection>>,
    buffers: Vec<Buffer>,
    next_token: u64,
    /// Pages that members have got after all, until somebody takes note of it.
    late: Vec<Written>,
}

/// How an operation ended.
pub(crate) enum Ended {
    /// The buffer of a read holds what was read.
    Well(Buffer),
    Refused(String),
    Lost(String),
}

impl Wire {
    pub(crate) fn new(roster: Arc<Roster>) -> Wire {
        Wire {
            roster,
            connections: Vec::new(),
            buffers: Vec::new(),
            next_token: 0,
            late: Vec::new(),
        }
    }

    fn connection(&mut self, server: ServerId, generation: u32) -> Result<&mut Connection, String> {
        let at = server.0 as usize;
        if at >= self.connections.len() {
            self.connections.resize_with(at + 1, || None);
        }
        let entry = &mut self.connections[at];
        if entry.as_ref().is_none_or(|c| c.generation != generation) {
            let session = self.roster.session(server);
            let (transport, _) = session
                .filter(|(_, current)| *current == generation)
                .ok_or_else(|| self.roster.why(server))?;
            *entry = Some(open_lanes(&*transport, generation)?);
        }
        Ok(entry.as_mut().expect("it was just put there"))
    }

    fn known(&self, server: ServerId) -> Option<&Connection> {
        self.connections.get(server.0 as usize)?.as_ref()
    }
    fn known_mut(&mut self, server: ServerId) -> Option<&mut Connection> {
        self.connections.get_mut(server.0 as usize)?.as_mut()
    }

    pub(crate) fn latency(&self, server: ServerId) -> Latency {
        let connection = self.known(server);
        connection.map(|c| c.latency).unwrap_or_default()
    }

    pub(crate) fn deadline(&self, server: ServerId) -> Duration {
        let connection = self.known(server);
        connection.map_or(Duration::from_secs(30), |c| c.critical.deadline())
    }

    pub(crate) fn buffer(&mut self) -> Buffer {
        let kept = self.buffers.pop();
        kept.unwrap_or_else(|| Buffer::new(OPERATION_PAGES * PAGE_SIZE))
    }

    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        // One that others still send goes with the last of them.
        if buffer.is_alone() && self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    /// Posts an operation for some pages of a batch. An error leaves nothing under way.
    pub(crate) fn post(
        &mut self,
        server: ServerId,
        generation: u32,
        class: Class,
        verb: impl FnOnce(Vec<Seg>) -> Verb,
        (segs, data, pages): (Vec<Seg>, Buffer, u64),
    ) -> Result<Leg, String> {
        let token = self.next_token;
        self.next_token += 1;
        let lane = class.lane();
        let operation = Operation {
            verb: verb(segs),
            class,
            data,
            token,
        };
        let posted_at = self.roster.now();
        let connection = self.connection(server, generation)?;
        if let Err(operation) = connection.lane(lane).post(operation) {
            // Only on a server that has not answered for long: all of them were left behind.
            self.drain(server);
            let connection = self.connection(server, generation)?;
            if connection.lane(lane).post(operation).is_err() {
                return Err(format!("too many operations under way at {server}"));
            }
        }
        Ok(Leg {
            server,
            generation,
            class,
            token,
            pages,
            posted_at,
            state: LegState::Waiting,
            hedged: false,
        })
    }

    /// Waits for a completion on the lane of a leg: whose it is, and how it ended.
    pub(crate) fn poll(&mut self, leg: &Leg, wait: Duration) -> Option<(u64, Ended)> {
        let connection = self.known_mut(leg.server)?;
        if connection.generation != leg.generation {
            return Some((leg.token, Ended::Lost(self.roster.why(leg.server))));
        }
        let Some(done) = connection.lane(leg.class.lane()).poll(wait) else {
            // The clerk may have found out that the session is lost: nothing will come.
            let lost = self.roster.generation(leg.server) != leg.generation;
            return lost.then(|| (leg.token, Ended::Lost(self.roster.why(leg.server))));
        };
        let token = done.operation.token;
        Some((token, self.end(leg.server, leg.posted_at, done)))
    }

    fn end(&mut self, server: ServerId, posted_at: Nanos, done: Done) -> Ended {
        let Done { operation, result } = done;
        let Some(connection) = &mut self.connections[server.0 as usize] else {
            return Ended::Lost(self.roster.why(server));
        };
        let mut behind = connection.behind.iter();
        let behind = behind.position(|behind| behind.token == operation.token);
        let behind = behind.and_then(|at| connection.behind.remove(at));
        match result {
            Ok(_) => {
                match behind {
                    // It says that the server lives, not how fast it is.
                    Some(behind) => {
                        let pages = behind.pages.into_iter();
                        self.late.extend(pages.filter(|page| !page.outdated));
                    }
                    None => {
                        let took = self.roster.now().saturating_sub(posted_at);
                        connection.latency.handle_answer(took);
                    }
                }
                if connection.behind.is_empty() && self.roster.is_suspected(server) {
                    self.roster.heard(server);
                }
                Ended::Well(operation.data)
            }
            Err(OpError::SessionLost(why)) => {
                self.roster.lose(server, connection.generation, &why);
                self.give_back(operation.data);
                Ended::Lost(self.roster.why(server))
            }
            Err(error) => {
                self.give_back(operation.data);
                Ended::Refused(format!(
                    "{error} (server at {})",
                    self.roster.address(server)
                ))
            }
        }
    }

    /// Nobody waits for this leg any more. `pages` of a write that the member lacks until it is done.
    pub(crate) fn leave_behind(&mut self, leg: &Leg, pages: Vec<Written>) {
        if let Some(connection) = self.known_mut(leg.server)
            && connection.generation == leg.generation
        {
            connection.behind.push_back(Behind {
                token: leg.token,
                class: leg.class,
                posted_at: leg.posted_at,
                pages,
            });
        }
    }

    fn behind_at(&self, server: ServerId) -> Option<&Connection> {
        let connection = self.known(server);
        connection.filter(|connection| !connection.behind.is_empty())
    }

    /// Whether writes are left behind at a server for longer than one usually takes: nobody should wait
    /// for what would come after them.
    pub(crate) fn is_late(&self, server: ServerId) -> bool {
        self.behind_at(server).is_some_and(|connection| {
            let oldest = connection.writes_behind().next();
            let patience = connection.latency.hedge_after();
            oldest.is_some_and(|b| self.roster.now() > b.posted_at.saturating_add(patience))
        })
    }

    /// Whether something is left behind at a server for so long that others should take its place, whatever
    /// else it answers.
    pub(crate) fn is_given_up(&self, server: ServerId) -> bool {
        self.behind_at(server).is_some_and(|connection| {
            let oldest = connection.behind.front().map(|behind| behind.posted_at);
            let patience = connection.latency.suspect_after();
            let patience = patience.saturating_add(KEEP_SILENT);
            oldest.is_some_and(|at| self.roster.now() > at.saturating_add(patience))
        })
    }

    /// The class in which a write goes to a server, so that it comes after those that were left behind.
    pub(crate) fn class_of_write(&self, server: ServerId, class: Class) -> Class {
        let connection = self.behind_at(server);
        let first = connection.and_then(|connection| connection.writes_behind().next());
        match first {
            Some(first) if first.class.lane() != class.lane() => first.class,
            _ => class,
        }
    }

    /// Whether one more write may be left behind.
    pub(crate) fn may_leave_behind(&self, server: ServerId) -> bool {
        let connection = self.behind_at(server);
        connection.is_none_or(|c| c.writes_behind().count() < WRITES_BEHIND_MAX)
    }

    fn under_way(&self, at: Holding) -> impl Iterator<Item = &Written> {
        let connection = self.behind_at(at.server).into_iter();
        let writes = connection.flat_map(Connection::writes_behind);
        let pages = writes.flat_map(|write| &write.pages);
        pages.filter(move |page| page.at == at)
    }

    /// Whether a write that was left behind may still change a member.
    pub(crate) fn may_change(&self, at: Holding) -> bool {
        self.under_way(at).next().is_some()
    }
    /// Whether a write that was left behind may still change a page of a member.
    pub(crate) fn may_change_page(&self, at: Holding, place: u32) -> bool {
        self.under_way(at).any(|page| page.place == place)
    }
    /// Pages that a member will have when all is done that was left behind.
    pub(crate) fn coming(&self, at: Holding) -> impl Iterator<Item = u32> {
        let pages = self.under_way(at).filter(|page| !page.outdated);
        pages.map(|page| page.place)
    }

    /// A page was written again: what a write that was left behind brings is old.
    pub(crate) fn note_outdated(&mut self, at: Holding, place: u32) {
        let same = |page: &Written| page.at == at && page.place == place;
        self.late.retain(|page| !same(page));
        if let Some(connection) = self.known_mut(at.server) {
            let pages = connection.behind.iter_mut().flat_map(|b| &mut b.pages);
            pages
                .filter(|page| same(page))
                .for_each(|page| page.outdated = true);
        }
    }

    /// A page that a member has got after all.
    pub(crate) fn take_late(&mut self) -> Option<Written> {
        self.late.pop()
    }

    /// Waits for something that was left behind at a server; whether there is anything.
    pub(crate) fn await_behind(&mut self, server: ServerId, wait: Duration) -> bool {
        let Some(connection) = &mut self.connections[server.0 as usize] else {
            return false;
        };
        let Some(class) = connection.writes_behind().next().map(|behind| behind.class) else {
            return false;
        };
        if let Some(done) = connection.lane(class.lane()).poll(wait)
            && let Ended::Well(buffer) = self.end(server, Nanos::ZERO, done)
        {
            self.give_back(buffer);
        }
        true
    }

    /// Takes in what has come for operations that were left behind.
    pub(crate) fn drain(&mut self, server: ServerId) {
        for lane in [LaneKind::Critical, LaneKind::Bulk] {
            loop {
                let Some(connection) = &mut self.connections[server.0 as usize] else {
                    return;
                };
                if connection.behind.is_empty() {
                    return;
                }
                let Some(done) = connection.lane(lane).poll(Duration::ZERO) else {
                    break;
                };
                if let Ended::Well(buffer) = self.end(server, Nanos::ZERO, done) {
                    self.give_back(buffer);
                }
            }
        }
    }

    /// Suspects a server on which something was left behind for too long.
    pub(crate) fn look_behind(&mut self, server: ServerId) {
        let oldest = |wire: &Wire| {
            let connection = wire.known(server)?;
            let posted_at = connection.behind.front()?.posted_at;
            Some((posted_at, connection.latency.suspect_after()))
        };
        if oldest(self).is_none() {
            return;
        }
        self.drain(server);
        if let Some((posted_at, patience)) = oldest(self)
            && self.roster.now() > posted_at.saturating_add(patience)
        {
            self.roster.suspect(server);
        }
    }

    /// Forgets the lanes of sessions that are lost.
    pub(crate) fn forget(&mut self, server: ServerId, generation: u32) {
        if self
            .known(server)
            .is_some_and(|c| c.generation == generation)
        {
            self.connections[server.0 as usize] = None;
        }
    }
}

fn open_lanes(transport: &dyn Transport, generation: u32) -> Result<Connection, String> {
    if transport.kind() == Kind::Shm {
        // Its memory is mapped as long as it is ours; lanes would catch SIGBUS with a handler.
        return Err("its memory is no longer mapped".to_string());
    }
    let lane = |kind| transport.lane(kind).map_err(|error| error.to_string());
    Ok(Connection {
        generation,
        critical: lane(LaneKind::Critical)?,
        bulk: lane(LaneKind::Bulk)?,
        latency: Latency::default(),
        behind: VecDeque::new(),
    })
}
