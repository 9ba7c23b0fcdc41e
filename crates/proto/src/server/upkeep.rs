//! When connections and sessions end, and what is looked after in between.
//!
//! A session outlives its connections by a lease, so that a network may fail for a while. A client
//! that closed all of them in good order, as the kernel does for a process that ends, is not coming
//! back; it has a moment to do so, in case somebody in between did it. One that has memory mapped is
//! believed only once its process is gone: until then it may use what it had.

use super::memory::Backing;
use super::service::Service;
use super::session::Session;
use super::shard::{Conn, ConnState, Out, Shard};
use muninn_types::{ConnId, Nanos, SessionId};
use muninn_wire::{Notice, Transport};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How long a client may take to come back that closed its last connection.
const RETURN: Nanos = Nanos::millis(1_000);

impl<B: Backing> Shard<B> {
    /// The connection is gone. Its session stays until the lease runs out.
    pub fn closed(&mut self, conn: ConnId) {
        let Some(gone) = self.forget(conn) else {
            return;
        };
        if let ConnState::Lane { session, lane } = gone.state
            && let Some(session) = self.sessions.get_mut(&session)
        {
            // A lane that came back already belongs to its new connection.
            if let Some(lane) = &mut session.lanes[lane]
                && lane.conn == Some(conn)
            {
                lane.conn = None;
            }
            session.writes_under_way -= u32::from(gone.receiving);
            let connected = session.connections().next().is_some();
            session.info.connected.store(connected, Relaxed);
        }
    }

    /// The other side closed the connection in good order.
    pub fn left(&mut self, conn: ConnId, now: Nanos) {
        let of = match self.conns.get(&conn).map(|conn| &conn.state) {
            Some(ConnState::Lane { session, .. }) => Some(*session),
            _ => None,
        };
        self.closed(conn);
        if let Some(session) = of.and_then(|id| self.sessions.get_mut(&id))
            && session.connections().next().is_none()
        {
            session.left = Some(now);
        }
    }

    pub(super) fn end_session(&mut self, id: SessionId, now: Nanos, out: &mut Out<B>) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        for conn in session.connections() {
            self.forget(conn);
            out.fenced.push(conn);
        }
        if let Some(agents) = self.shared.agents.get() {
            agents.session_ended(id);
        }
        self.shared.registry.remove_session(id);
        let mapped = (session.transport() == Transport::Shm)
            .then_some(session.process)
            .flatten();
        let tied = session.services.iter();
        let services = tied.map(|(service, _)| Arc::clone(service)).collect();
        self.shared.services.ended(id.0, mapped, services);
        for (service, keeps) in &session.services {
            self.shared.services.untie(service, *keeps);
        }
        self.shared.pool.owner_ended(id);
        self.shared
            .pool
            .orphan_tickets(id, now + self.shared.config.lease);
    }

    /// Closes connections that were made with a key that has been revoked or has expired since, or whose
    /// operator is not believed any more. Their sessions
    /// stay for a lease: whoever has another key of the same name, and the session's secret, comes back.
    fn close_revoked(&mut self, out: &mut Out<B>) {
        let (changes, time) = (self.shared.key_changes.load(Relaxed), self.shared.time());
        let same_key = std::mem::replace(&mut self.key_seen, changes) == changes;
        let same_time = std::mem::replace(&mut self.time_seen, time) == time;
        if same_key && same_time {
            return;
        }
        let key = self.shared.key();
        let why = |conn: &Conn| {
            let (own, theirs) = (key.credentials()?, conn.identity.as_ref()?);
            own.doubts(theirs, time)
        };
        let known = self.conns.iter();
        let ended: Vec<_> = known
            .filter_map(|(id, conn)| Some((*id, why(conn)?)))
            .collect();
        for (id, why) in ended {
            self.shared.registry.refused(why);
            self.closed(id);
            out.fenced.push(id);
        }
    }

    /// To be called a few times in each lease: ends what is overdue and passes on notices.
    pub fn tick(&mut self, now: Nanos, out: &mut Out<B>) {
        self.close_revoked(out);
        let lease = self.shared.config.lease;
        let overdue: Vec<SessionId> = (self.sessions.iter())
            .filter(|(_, session)| now.saturating_sub(session.last_seen) > lease)
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            self.shared.registry.refused("lease-ran-out");
            self.end_session(id, now, out);
        }
        let has_gone = |session: &Session<B>| match (session.transport(), session.process) {
            (Transport::Shm, Some(pid)) => self.shared.services.has_ended(pid),
            (Transport::Shm, None) => false,
            _ => true,
        };
        let is_over = |left: Nanos| now.saturating_sub(left) > RETURN;
        let left: Vec<SessionId> = (self.sessions.iter())
            .filter(|(_, session)| session.left.is_some_and(is_over) && has_gone(session))
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            self.end_session(id, now, out);
        }
        let late: Vec<ConnId> = (self.conns.iter())
            .filter(|(_, c)| c.is_stranger() && now.saturating_sub(c.since) > Self::HANDSHAKE)
            .map(|(id, _)| *id)
            .collect();
        for conn in late {
            self.shared.registry.refused("handshake-too-slow");
            self.closed(conn);
            out.fenced.push(conn);
        }
        let idle: Vec<ConnId> = (self.conns.iter())
            .filter(|(_, c)| matches!(c.state, ConnState::Observer))
            .filter(|(_, c)| now.saturating_sub(c.since) > Self::OBSERVER_IDLE)
            .map(|(id, _)| *id)
            .collect();
        for conn in idle {
            self.shared.registry.refused("observer-idle");
            self.closed(conn);
            out.fenced.push(conn);
        }
        self.shared.pool.expire_tickets(now);
        self.shared.services.bury();
        // A process that is gone needs no lease to be over: nobody has to wait for its locks.
        for session in self.sessions.values_mut() {
            let ended = |tied: &mut (Arc<Service<B>>, bool)| tied.0.has_ended();
            let left: Vec<_> = session.services.extract_if(.., ended).collect();
            for (service, keeps) in &left {
                for (grant, _) in &service.chunks {
                    session.remove(*grant);
                }
                self.shared.services.untie(service, *keeps);
            }
            if let Some(pid) = session.process
                && !session.services.is_empty()
                && session.connections().next().is_none()
                && !self.shared.services.is_alive(pid)
            {
                session.process = None;
                for (service, _) in &session.services {
                    service.free_locks_of(session.info.id.0);
                }
            }
        }
        let (drain, changes) = self.shared.pool.drain();
        if changes != self.drain_seen {
            self.drain_seen = changes;
            let left = |ends: Nanos| ends.saturating_sub(now).0 / 1_000_000;
            let notice = match drain {
                Some(ends) => Notice::Drain {
                    left_ms: left(ends),
                },
                None => Notice::DrainCancelled,
            };
            self.notify(notice, out);
        }
    }

    /// Tells every session's control lane.
    pub fn notify(&mut self, notice: Notice, out: &mut Out<B>) {
        for session in self.sessions.values() {
            if let Some(conn) = session.lanes[0].as_ref().and_then(|lane| lane.conn) {
                out.notices.push((conn, notice));
            }
        }
    }
}
