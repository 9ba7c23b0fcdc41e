//! What a server leaves to the process that takes its place: everything but the memory itself, which
//! travels as descriptors.
//!
//! ```text
//!  0 u64 magic "MUNINNES"    8 u32 version     12 u32 reserved, 0
//! 16 u64 length of what follows the head       24 u64 check over it
//! ```
//!
//! An estate of another version is refused, whatever is in it: the process that has it goes on. It holds
//! the secrets of sessions, so it is shown to nobody but the next process of the same user.

use crate::codec::{DecodeError, Reader, ShortText, Writer};
use crate::frame::check_all;
use crate::message::Transport;
use crate::{MAX_NAME, PROOF_LEN, TICKET_LEN};
use muninn_types::{GrantId, LaneKind, SessionId, Tag};
use std::fmt;
use std::net::IpAddr;

/// Version of what is written here. It changes with every field.
pub const ESTATE_VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"MUNINNES";
const HEAD: usize = 32;
/// The longest answer that is kept for a client.
const MAX_KEPT: usize = 1 << 20;
/// The longest address of a listener.
const MAX_ADDRESS: usize = 255;

/// Why an estate cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EstateError {
    #[error("it is not the state of a muninn server")]
    Magic,
    #[error("its state has version {0}, and this release of muninn understands {ESTATE_VERSION}")]
    Version(u32),
    #[error("its state arrived damaged")]
    Damaged,
    #[error("its state cannot be read ({0})")]
    Decode(#[from] DecodeError),
    #[error("its state contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// Bytes that must not be printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Times are those of the machine's monotonic clock, which both processes share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estate {
    pub name: ShortText,
    pub lease_ns: u64,
    pub memory_bytes: u64,
    pub segment_bytes: u64,
    /// A session's number says which event loop it belongs to.
    pub shards: u8,
    pub boot: u64,
    pub next_session: u64,
    pub next_grant: u64,
    pub started_ns: u64,
    pub drain_ends_ns: Option<u64>,
    /// Addresses as texts, in the order of the descriptors; then that of the metrics, if there is one.
    pub listening: Vec<String>,
    pub metrics: Option<String>,
    /// Quotas that came with certificates.
    pub certified: Vec<(ShortText, u64)>,
    pub segments: Vec<LeftSegment>,
    pub extents: Vec<LeftExtent>,
    pub tickets: Vec<LeftTicket>,
    pub sessions: Vec<LeftSession>,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftUse {
    Free,
    Shared,
    Owned(SessionId),
    /// Its memory is to be replaced.
    Retiring,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftSegment {
    pub incarnation: u32,
    pub bytes: u64,
    pub used: LeftUse,
    pub closed: bool,
    pub orphaned: bool,
    pub lasting: bool,
    pub charged: Option<ShortText>,
    /// First frames and orders of free chunks. What is neither free nor an extent is to be wiped.
    pub free: Vec<(u32, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftExtent {
    pub segment: u32,
    pub frame: u32,
    pub order: u8,
    pub charged: Option<ShortText>,
    pub frozen: bool,
}

/// Where somebody connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftSource {
    User(u32),
    Address(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftTicket {
    pub key: Secret<TICKET_LEN>,
    pub owner: SessionId,
    pub whose: ShortText,
    pub transport: Transport,
    pub source: LeftSource,
    pub ends_ns: Option<u64>,
    /// Grants, and numbers of extents.
    pub grants: Vec<(GrantId, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftSession {
    pub id: SessionId,
    pub name: ShortText,
    pub account: ShortText,
    pub owner: ShortText,
    pub is_server: bool,
    pub source: LeftSource,
    pub transport: Transport,
    pub pid: u32,
    pub secret: Secret<PROOF_LEN>,
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub note: ShortText,
    /// The process at the other end, where the kernel says which that is.
    pub process: Option<u32>,
    pub left_ns: Option<u64>,
    /// Grants, and numbers of extents.
    pub grants: Vec<(GrantId, u32)>,
    pub lanes: Vec<LeftLane>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftLane {
    pub index: u8,
    pub kind: LaneKind,
    pub answers: Vec<LeftAnswer>,
}

/// An answer that may have to be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAnswer {
    pub tag: Tag,
    pub frame: Vec<u8>,
    pub payload: Vec<u8>,
    /// Segments whose memory files went with it; None where one of them is gone.
    pub segments: Option<Vec<u32>>,
}

impl Writer<'_> {
    fn bool(&mut self, yes: bool) -> &mut Self {
        self.u8(u8::from(yes))
    }
    fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.bool(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
        self
    }
    fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(items.len() as u32);
        for item in items {
            put(self, item);
        }
        self
    }
    fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).bytes(bytes)
    }
}

impl<'a> Reader<'a> {
    fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        match self.bool()? {
            true => take(self).map(Some),
            false => Ok(None),
        }
    }
    /// Every item takes a byte or more, so a false count ends at the end of the bytes.
    fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(take(self)?);
        }
        Ok(items)
    }
    fn long(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(DecodeError::Value);
        }
        self.bytes(len)
    }
    fn address(&mut self) -> Result<String, DecodeError> {
        let text = std::str::from_utf8(self.long(MAX_ADDRESS)?);
        text.map(str::to_string).map_err(|_| DecodeError::Value)
    }
    fn name(&mut self) -> Result<ShortText, DecodeError> {
        self.text(ShortText::MAX)
    }
    fn transport(&mut self) -> Result<Transport, DecodeError> {
        Transport::from_byte(self.u8()?).ok_or(DecodeError::Value)
    }
    fn grants(&mut self) -> Result<Vec<(GrantId, u32)>, DecodeError> {
        self.list(|r| Ok((GrantId(r.u64()?), r.u32()?)))
    }
}

fn put_grants(w: &mut Writer<'_>, grants: &[(GrantId, u32)]) {
    w.list(grants, |w, (grant, extent)| {
        w.u64(grant.0).u32(*extent);
    });
}

impl LeftSource {
    fn encode(self, w: &mut Writer<'_>) {
        match self {
            LeftSource::User(uid) => w.u8(0).u32(uid),
            LeftSource::Address(IpAddr::V4(ip)) => w.u8(4).bytes(&ip.octets()),
            LeftSource::Address(IpAddr::V6(ip)) => w.u8(6).bytes(&ip.octets()),
        };
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftSource, DecodeError> {
        Ok(match r.u8()? {
            0 => LeftSource::User(r.u32()?),
            4 => LeftSource::Address(IpAddr::from(r.array::<4>()?)),
            6 => LeftSource::Address(IpAddr::from(r.array::<16>()?)),
            _ => return Err(DecodeError::Value),
        })
    }
}

impl LeftSegment {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.incarnation).u64(self.bytes);
        match self.used {
            LeftUse::Free => w.u8(0),
            LeftUse::Shared => w.u8(1),
            LeftUse::Owned(session) => w.u8(2).u64(session.0),
            LeftUse::Retiring => w.u8(3),
        };
        w.bool(self.closed).bool(self.orphaned).bool(self.lasting);
        w.option(self.charged.as_ref(), |w, name| {
            w.text(name);
        });
        w.list(&self.free, |w, (frame, order)| {
            w.u32(*frame).u8(*order);
        });
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftSegment, DecodeError> {
        Ok(LeftSegment {
            incarnation: r.u32()?,
            bytes: r.u64()?,
            used: match r.u8()? {
                0 => LeftUse::Free,
                1 => LeftUse::Shared,
                2 => LeftUse::Owned(SessionId(r.u64()?)),
                3 => LeftUse::Retiring,
                _ => return Err(DecodeError::Value),
            },
            closed: r.bool()?,
            orphaned: r.bool()?,
            lasting: r.bool()?,
            charged: r.option(Reader::name)?,
            free: r.list(|r| Ok((r.u32()?, r.u8()?)))?,
        })
    }
}

impl LeftExtent {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.segment).u32(self.frame).u8(self.order);
        w.option(self.charged.as_ref(), |w, name| {
            w.text(name);
        });
        w.bool(self.frozen);
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftExtent, DecodeError> {
        Ok(LeftExtent {
            segment: r.u32()?,
            frame: r.u32()?,
            order: r.u8()?,
            charged: r.option(Reader::name)?,
            frozen: r.bool()?,
        })
    }
}

impl LeftTicket {
    fn encode(&self, w: &mut Writer<'_>) {
        w.bytes(&self.key.0).u64(self.owner.0).text(&self.whose);
        w.u8(self.transport.to_byte());
        self.source.encode(w);
        w.option(self.ends_ns, |w, ends| {
            w.u64(ends);
        });
        put_grants(w, &self.grants);
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftTicket, DecodeError> {
        Ok(LeftTicket {
            key: Secret(r.array()?),
            owner: SessionId(r.u64()?),
            whose: r.name()?,
            transport: r.transport()?,
            source: LeftSource::decode(r)?,
            ends_ns: r.option(Reader::u64)?,
            grants: r.grants()?,
        })
    }
}

impl LeftAnswer {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.tag.0).long(&self.frame).long(&self.payload);
        w.option(self.segments.as_ref(), |w, segments| {
            w.list(segments, |w, segment| {
                w.u32(*segment);
            });
        });
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftAnswer, DecodeError> {
        Ok(LeftAnswer {
            tag: Tag(r.u64()?),
            frame: r.long(MAX_KEPT)?.to_vec(),
            payload: r.long(MAX_KEPT)?.to_vec(),
            segments: r.option(|r| r.list(Reader::u32))?,
        })
    }
}

impl LeftSession {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.id.0).text(&self.name).text(&self.account);
        w.text(&self.owner).bool(self.is_server);
        self.source.encode(w);
        w.u8(self.transport.to_byte()).u32(self.pid);
        w.bytes(&self.secret.0).u64(self.requests);
        w.u64(self.bytes_in).u64(self.bytes_out).text(&self.note);
        w.option(self.process, |w, pid| {
            w.u32(pid);
        });
        w.option(self.left_ns, |w, left| {
            w.u64(left);
        });
        put_grants(w, &self.grants);
        w.list(&self.lanes, |w, lane| {
            w.u8(lane.index).u8(lane.kind.to_byte());
            w.list(&lane.answers, |w, answer| answer.encode(w));
        });
    }
    fn decode(r: &mut Reader<'_>) -> Result<LeftSession, DecodeError> {
        Ok(LeftSession {
            id: SessionId(r.u64()?),
            name: r.text(MAX_NAME)?,
            account: r.name()?,
            owner: r.name()?,
            is_server: r.bool()?,
            source: LeftSource::decode(r)?,
            transport: r.transport()?,
            pid: r.u32()?,
            secret: Secret(r.array()?),
            requests: r.u64()?,
            bytes_in: r.u64()?,
            bytes_out: r.u64()?,
            note: r.name()?,
            process: r.option(Reader::u32)?,
            left_ns: r.option(Reader::u64)?,
            grants: r.grants()?,
            lanes: r.list(|r| {
                Ok(LeftLane {
                    index: r.u8()?,
                    kind: LaneKind::from_byte(r.u8()?).ok_or(DecodeError::Value)?,
                    answers: r.list(LeftAnswer::decode)?,
                })
            })?,
        })
    }
}

impl Estate {
    /// With its head.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        let w = &mut Writer(&mut bytes);
        w.text(&self.name).u64(self.lease_ns);
        w.u64(self.memory_bytes).u64(self.segment_bytes);
        w.u8(self.shards).u64(self.boot);
        w.u64(self.next_session).u64(self.next_grant);
        w.u64(self.started_ns);
        w.option(self.drain_ends_ns, |w, ends| {
            w.u64(ends);
        });
        w.list(&self.listening, |w, address| {
            w.long(address.as_bytes());
        });
        w.option(self.metrics.as_ref(), |w, address| {
            w.long(address.as_bytes());
        });
        w.list(&self.certified, |w, (name, quota)| {
            w.text(name).u64(*quota);
        });
        w.list(&self.segments, |w, segment| segment.encode(w));
        w.list(&self.extents, |w, extent| extent.encode(w));
        w.list(&self.tickets, |w, ticket| ticket.encode(w));
        w.list(&self.sessions, |w, session| session.encode(w));
        let (head, body) = bytes.split_at_mut(HEAD);
        let (len, sum) = (body.len() as u64, check_all(body));
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&ESTATE_VERSION.to_le_bytes());
        head[16..24].copy_from_slice(&len.to_le_bytes());
        head[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Checks the head before anything else is looked at.
    pub fn decode(bytes: &[u8]) -> Result<Estate, EstateError> {
        let mut head = Reader::new(bytes);
        if head.array::<8>()? != *MAGIC {
            return Err(EstateError::Magic);
        }
        let version = head.u32()?;
        if version != ESTATE_VERSION {
            return Err(EstateError::Version(version));
        }
        let (reserved, len, sum) = (head.u32()?, head.u64()?, head.u64()?);
        let body = head.rest();
        if reserved != 0 || len != body.len() as u64 || sum != check_all(body) {
            return Err(EstateError::Damaged);
        }
        let mut r = Reader::new(body);
        let estate = Estate {
            name: r.name()?,
            lease_ns: r.u64()?,
            memory_bytes: r.u64()?,
            segment_bytes: r.u64()?,
            shards: r.u8()?,
            boot: r.u64()?,
            next_session: r.u64()?,
            next_grant: r.u64()?,
            started_ns: r.u64()?,
            drain_ends_ns: r.option(Reader::u64)?,
            listening: r.list(Reader::address)?,
            metrics: r.option(Reader::address)?,
            certified: r.list(|r| Ok((r.name()?, r.u64()?)))?,
            segments: r.list(LeftSegment::decode)?,
            extents: r.list(LeftExtent::decode)?,
            tickets: r.list(LeftTicket::decode)?,
            sessions: r.list(LeftSession::decode)?,
        };
        r.end()?;
        Ok(estate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ShortText {
        ShortText::lossy(text, 64)
    }

    fn sample() -> Estate {
        Estate {
            name: text("raven"),
            lease_ns: 10,
            memory_bytes: 8 << 20,
            segment_bytes: 4 << 20,
            shards: 2,
            boot: 7,
            next_session: 3,
            next_grant: 9,
            started_ns: 5,
            drain_ends_ns: Some(77),
            listening: vec!["unix:/run/m.sock".into(), "127.0.0.1:7000".into()],
            metrics: Some("127.0.0.1:9100".into()),
            certified: vec![(text("ada"), 1 << 20)],
            segments: vec![LeftSegment {
                incarnation: 3,
                bytes: 4 << 20,
                used: LeftUse::Owned(SessionId(0x107)),
                closed: true,
                orphaned: false,
                lasting: false,
                charged: Some(text("ada")),
                free: vec![(0, 4), (32, 5)],
            }],
            extents: vec![LeftExtent {
                segment: 0,
                frame: 16,
                order: 4,
                charged: None,
                frozen: true,
            }],
            tickets: vec![LeftTicket {
                key: Secret([9; TICKET_LEN]),
                owner: SessionId(0x107),
                whose: text(""),
                transport: Transport::Shm,
                source: LeftSource::User(1000),
                ends_ns: None,
                grants: vec![(GrantId(4), 0)],
            }],
            sessions: vec![LeftSession {
                id: SessionId(0x107),
                name: text("ada"),
                account: text("ada"),
                owner: text(""),
                is_server: false,
                source: LeftSource::Address(IpAddr::from([10, 0, 0, 7])),
                transport: Transport::Shm,
                pid: 44,
                secret: Secret([5; PROOF_LEN]),
                requests: 1,
                bytes_in: 2,
                bytes_out: 3,
                note: text("sorting"),
                process: Some(44),
                left_ns: None,
                grants: vec![(GrantId(4), 0)],
                lanes: vec![LeftLane {
                    index: 0,
                    kind: LaneKind::Control,
                    answers: vec![LeftAnswer {
                        tag: Tag(12),
                        frame: vec![1; 40],
                        payload: vec![2; 9],
                        segments: Some(vec![0]),
                    }],
                }],
            }],
        }
    }

    #[test]
    fn an_estate_comes_back_as_it_was_and_shows_no_secret() {
        let estate = sample();
        assert_eq!(Estate::decode(&estate.encode()), Ok(estate.clone()));
        let shown = format!("{estate:?}");
        assert!(
            !shown.contains("9, 9, 9") && !shown.contains("5, 5, 5"),
            "{shown}"
        );
    }

    #[test]
    fn any_flipped_bit_and_any_missing_byte_is_noticed() {
        let good = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Estate::decode(&bad).is_err(), "bit {bit} went unnoticed");
        }
        for len in 0..good.len() {
            assert!(
                Estate::decode(&good[..len]).is_err(),
                "{len} bytes are not all"
            );
        }
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let mut other = sample().encode();
        other[8] += 1;
        let error = Estate::decode(&other).unwrap_err();
        assert_eq!(error, EstateError::Version(ESTATE_VERSION + 1));
        assert_eq!(
            error.to_string(),
            "its state has version 3, and this release of muninn understands 2"
        );
    }
}
