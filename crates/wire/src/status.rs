//! What a server tells of itself: its pool, its traffic by class, its refusals, its sessions.

use crate::VERSION_TIMES;
use crate::codec::{DecodeError, Reader, ShortText, Writer};
use muninn_types::{Class, SessionId, Spread};

/// Requests and bytes of one class of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTraffic {
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// How long requests waited in a server and were worked on, and how long its loops let connections wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerTimes {
    pub classes: [Spread; Class::COUNT],
    pub lag: Spread,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStatus {
    pub name: ShortText,
    pub uptime_ms: u64,
    pub pool_bytes: u64,
    pub granted_bytes: u64,
    /// Freed and not yet wiped.
    pub wiping_bytes: u64,
    pub largest_free_bytes: u64,
    pub sessions: u32,
    pub grants: u32,
    pub connections: u32,
    pub lease_ms: u32,
    /// 0 when not draining, else the time left plus one.
    pub drain_left_ms: u64,
    pub traffic: [ClassTraffic; Class::COUNT],
    /// Refusals by reason, those that happened.
    pub refusals: Vec<(ShortText, u64)>,
    pub services: Vec<ServiceStatus>,
    /// Not known to older versions.
    pub times: Option<Box<ServerTimes>>,
}

/// A service, and what was done with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceStatus {
    pub name: ShortText,
    pub bytes: u64,
    pub sessions: u32,
    pub locks: u32,
    pub locks_held: u32,
    /// Calls run here, those that failed, and accesses they made.
    pub calls: u64,
    pub failed: u64,
    pub accesses: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStatus {
    pub id: SessionId,
    pub name: ShortText,
    pub transport: u8,
    pub connected: bool,
    pub pid: u32,
    pub grants: u32,
    pub granted_bytes: u64,
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub lease_left_ms: u64,
    /// What the client said of itself: where its functions run, and why.
    pub note: ShortText,
}

/// One page of a status: the server, and the sessions after a given one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusPage {
    pub server: ServerStatus,
    pub sessions: Vec<SessionStatus>,
    /// Ask again after this session for more.
    pub next: Option<SessionId>,
}

impl StatusPage {
    /// The most sessions in a page; the rest comes with the next one. Keeps a page within a payload.
    pub const MAX_SESSIONS: usize = 256;
    const MAX_REFUSALS: usize = 128;
    /// The most services of a server.
    pub const MAX_SERVICES: usize = 64;

    /// Encodes as a payload. A session takes at most 640 bytes, so a full page fits a payload.
    pub fn encode(&self, version: u8, payload: &mut Vec<u8>) {
        let s = &self.server;
        let mut w = Writer(payload);
        w.text(&s.name)
            .u64(s.uptime_ms)
            .u64(s.pool_bytes)
            .u64(s.granted_bytes);
        w.u64(s.wiping_bytes)
            .u64(s.largest_free_bytes)
            .u32(s.sessions)
            .u32(s.grants);
        w.u32(s.connections).u32(s.lease_ms).u64(s.drain_left_ms);
        for class in &s.traffic {
            w.u64(class.requests)
                .u64(class.bytes_in)
                .u64(class.bytes_out);
        }
        w.u16(s.refusals.len() as u16);
        for (reason, count) in &s.refusals {
            w.text(reason).u64(*count);
        }
        w.u16(s.services.len() as u16);
        for service in &s.services {
            w.text(&service.name)
                .u64(service.bytes)
                .u32(service.sessions);
            w.u32(service.locks).u32(service.locks_held);
            w.u64(service.calls)
                .u64(service.failed)
                .u64(service.accesses);
        }
        w.u16(self.sessions.len() as u16);
        for session in &self.sessions {
            w.u64(session.id.0)
                .text(&session.name)
                .u8(session.transport);
            w.u8(u8::from(session.connected))
                .u32(session.pid)
                .u32(session.grants);
            w.u64(session.granted_bytes)
                .u64(session.requests)
                .u64(session.bytes_in);
            w.u64(session.bytes_out)
                .u64(session.lease_left_ms)
                .text(&session.note);
        }
        w.u64(self.next.map_or(0, |id| id.0));
        if version >= VERSION_TIMES {
            match &s.times {
                None => _ = w.u8(0),
                Some(times) => {
                    w.u8(1);
                    for spread in times.classes.iter().chain([&times.lag]) {
                        write_spread(spread, &mut w);
                    }
                }
            }
        }
    }

    pub fn decode(version: u8, payload: &[u8]) -> Result<StatusPage, DecodeError> {
        let mut r = Reader::new(payload);
        let mut server = ServerStatus {
            name: r.text(ShortText::MAX)?,
            uptime_ms: r.u64()?,
            pool_bytes: r.u64()?,
            granted_bytes: r.u64()?,
            wiping_bytes: r.u64()?,
            largest_free_bytes: r.u64()?,
            sessions: r.u32()?,
            grants: r.u32()?,
            connections: r.u32()?,
            lease_ms: r.u32()?,
            drain_left_ms: r.u64()?,
            ..ServerStatus::default()
        };
        for class in &mut server.traffic {
            *class = ClassTraffic {
                requests: r.u64()?,
                bytes_in: r.u64()?,
                bytes_out: r.u64()?,
            };
        }
        let refusals = usize::from(r.u16()?);
        if refusals > Self::MAX_REFUSALS {
            return Err(DecodeError::Value);
        }
        for _ in 0..refusals {
            server.refusals.push((r.text(ShortText::MAX)?, r.u64()?));
        }
        let services = usize::from(r.u16()?);
        if services > Self::MAX_SERVICES {
            return Err(DecodeError::Value);
        }
        for _ in 0..services {
            server.services.push(ServiceStatus {
                name: r.text(ShortText::MAX)?,
                bytes: r.u64()?,
                sessions: r.u32()?,
                locks: r.u32()?,
                locks_held: r.u32()?,
                calls: r.u64()?,
                failed: r.u64()?,
                accesses: r.u64()?,
            });
        }
        let count = usize::from(r.u16()?);
        if count > Self::MAX_SESSIONS {
            return Err(DecodeError::Value);
        }
        let mut sessions = Vec::new();
        for _ in 0..count {
            sessions.push(SessionStatus {
                id: SessionId(r.u64()?),
                name: r.text(ShortText::MAX)?,
                transport: r.u8()?,
                connected: r.bool()?,
                pid: r.u32()?,
                grants: r.u32()?,
                granted_bytes: r.u64()?,
                requests: r.u64()?,
                bytes_in: r.u64()?,
                bytes_out: r.u64()?,
                lease_left_ms: r.u64()?,
                note: r.text(ShortText::MAX)?,
            });
        }
        let next = Some(SessionId(r.u64()?)).filter(|id| id.0 != 0);
        if version >= VERSION_TIMES && r.bool()? {
            let mut times = Box::<ServerTimes>::default();
            for spread in times.classes.iter_mut().chain([&mut times.lag]) {
                *spread = read_spread(&mut r)?;
            }
            server.times = Some(times);
        }
        r.end()?;
        Ok(StatusPage {
            server,
            sessions,
            next,
        })
    }
}

/// Buckets with something in them, each behind its number.
fn write_spread(spread: &Spread, w: &mut Writer<'_>) {
    let full = spread.counts.iter().filter(|count| **count > 0).count();
    w.u64(spread.sum_ns).u8(full as u8);
    for (bucket, count) in spread.counts.iter().enumerate() {
        if *count > 0 {
            w.u8(bucket as u8).u64(*count);
        }
    }
}

fn read_spread(r: &mut Reader<'_>) -> Result<Spread, DecodeError> {
    let mut spread = Spread {
        sum_ns: r.u64()?,
        ..Spread::default()
    };
    for _ in 0..r.u8()? {
        let bucket = usize::from(r.u8()?);
        let count = spread.counts.get_mut(bucket).ok_or(DecodeError::Value)?;
        *count = r.u64()?;
    }
    Ok(spread)
}
