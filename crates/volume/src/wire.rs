//! Lanes to servers, and operations under way on them.
//!
//! An operation owns its buffer until it completes, so one that nobody waits for any more is left
//! behind without cutting the connection: its completion is dropped by its token when it comes.

use crate::roster::Roster;
use muninn_net::{Buffer, Done, Kind, Lane, OpError, Operation, Transport, Verb};
use muninn_policy::hedge::Latency;
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

/// Pages of one operation.
pub const OPERATION_PAGES: usize = 64;
/// Buffers that are kept for the next operation.
const BUFFERS_MAX: usize = 8;

/// An operation at one server, for some pages of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Leg {
    pub server: ServerId,
    pub generation: u32,
    pub lane: LaneKind,
    pub token: u64,
    /// Which pages of the batch.
    pub pages: u64,
    pub posted_at: Nanos,
    pub state: LegState,
    /// Others were asked for the same.
    pub hedged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    Waiting,
    Done,
    /// Refused, lost, or not waited for any longer.
    Failed,
}

struct Connection {
    generation: u32,
    critical: Box<dyn Lane>,
    bulk: Box<dyn Lane>,
    latency: Latency,
    /// Operations that were left behind, oldest first.
    behind: VecDeque<(u64, Nanos)>,
}

impl Connection {
    fn lane(&mut self, kind: LaneKind) -> &mut Box<dyn Lane> {
        match kind {
            LaneKind::Bulk => &mut self.bulk,
            _ => &mut self.critical,
        }
    }
}

/// The lanes of one thread.
pub struct Wire {
    roster: Arc<Roster>,
    connections: Vec<Option<Connection>>,
    buffers: Vec<Buffer>,
    next_token: u64,
}

/// How an operation ended.
pub enum Ended {
    /// The buffer of a read holds what was read.
    Well(Buffer),
    Refused(String),
    Lost(String),
}

impl Wire {
    pub fn new(roster: Arc<Roster>) -> Wire {
        let connections = roster.ids().map(|_| None).collect();
        Wire {
            roster,
            connections,
            buffers: Vec::new(),
            next_token: 0,
        }
    }

    fn connection(&mut self, server: ServerId, generation: u32) -> Result<&mut Connection, String> {
        let entry = &mut self.connections[server.0 as usize];
        if entry.as_ref().is_none_or(|c| c.generation != generation) {
            let session = self.roster.session(server);
            let (transport, _) = session
                .filter(|(_, current)| *current == generation)
                .ok_or_else(|| self.roster.why(server))?;
            *entry = Some(open_lanes(&*transport, generation)?);
        }
        Ok(entry.as_mut().expect("it was just put there"))
    }

    pub fn latency(&self, server: ServerId) -> Latency {
        let connection = self.connections[server.0 as usize].as_ref();
        connection.map(|c| c.latency).unwrap_or_default()
    }

    pub fn deadline(&self, server: ServerId) -> Duration {
        let connection = self.connections[server.0 as usize].as_ref();
        connection.map_or(Duration::from_secs(30), |c| c.critical.deadline())
    }

    pub fn buffer(&mut self) -> Buffer {
        let kept = self.buffers.pop();
        kept.unwrap_or_else(|| Buffer::new(OPERATION_PAGES * PAGE_SIZE))
    }

    pub fn give_back(&mut self, buffer: Buffer) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    /// Posts an operation for some pages of a batch. An error leaves nothing under way.
    pub fn post(
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
            lane,
            token,
            pages,
            posted_at,
            state: LegState::Waiting,
            hedged: false,
        })
    }

    /// Waits for a completion on the lane of a leg: whose it is, and how it ended.
    pub fn poll(&mut self, leg: &Leg, wait: Duration) -> Option<(u64, Ended)> {
        let connection = self.connections[leg.server.0 as usize].as_mut()?;
        if connection.generation != leg.generation {
            return Some((leg.token, Ended::Lost(self.roster.why(leg.server))));
        }
        let Some(done) = connection.lane(leg.lane).poll(wait) else {
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
        let before = connection.behind.len();
        connection
            .behind
            .retain(|(token, _)| *token != operation.token);
        let left_behind = connection.behind.len() < before;
        match result {
            Ok(_) => {
                // One that was left behind says that the server lives, not how fast it is.
                if !left_behind {
                    let took = self.roster.now().saturating_sub(posted_at);
                    connection.latency.handle_answer(took);
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

    /// Nobody waits for this leg any more.
    pub fn leave_behind(&mut self, leg: &Leg) {
        if let Some(connection) = &mut self.connections[leg.server.0 as usize]
            && connection.generation == leg.generation
        {
            connection.behind.push_back((leg.token, leg.posted_at));
        }
    }

    /// Takes in what has come for operations that were left behind.
    pub fn drain(&mut self, server: ServerId) {
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
    pub fn look_behind(&mut self, server: ServerId) {
        let oldest = |wire: &Wire| {
            let connection = wire.connections[server.0 as usize].as_ref()?;
            let (_, posted_at) = connection.behind.front()?;
            Some((*posted_at, connection.latency.suspect_after()))
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
    pub fn forget(&mut self, server: ServerId, generation: u32) {
        let entry = &mut self.connections[server.0 as usize];
        if entry.as_ref().is_some_and(|c| c.generation == generation) {
            *entry = None;
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
