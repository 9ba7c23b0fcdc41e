//! The bodies of requests, replies and notices.

use crate::codec::{DecodeError, Reader, ShortText, Writer};
use crate::frame::{Header, Kind, seal_frame};
use crate::seg::{Seg, Segs};
use crate::service::{Call, Opening};
use crate::wics::WicsRequest;
use crate::{
    HEADER_LEN, MAX_GRANTS, MAX_NAME, MAX_WIC_NAME, NONCE_LEN, PROOF_LEN, TICKET_LEN, VERSION_ASKS,
    VERSION_MIN, VERSION_WICS,
};
use muninn_types::{Class, GrantId, LaneId, LaneKind, SegmentId, ServiceId, SessionId, Tag};

/// How a session reaches the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Every access is a message.
    Tcp,
    /// Segments arrive as memory files and are mapped.
    Shm,
}

impl Transport {
    pub const fn to_byte(self) -> u8 {
        self as u8
    }
    pub const fn from_byte(byte: u8) -> Option<Transport> {
        match byte {
            0 => Some(Transport::Tcp),
            1 => Some(Transport::Shm),
            _ => None,
        }
    }
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
        }
    }
}

/// What a connection is opened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A new session; this connection becomes its lane 0.
    Open {
        transport: Transport,
        name: ShortText,
    },
    /// A further lane of a session, or a lane again after a cut.
    Attach {
        session: SessionId,
        lane: LaneId,
        kind: LaneKind,
    },
    /// No session: status, and operator commands where permitted.
    Observe,
}

/// How the two sides prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lock {
    /// They do not.
    #[default]
    Open,
    /// Both have one key.
    Shared,
    /// Each has a key of its own, and an operator's word for it.
    Identity,
}

impl Lock {
    pub const ALL: [Lock; 3] = [Lock::Open, Lock::Shared, Lock::Identity];
    pub const fn name(self) -> &'static str {
        match self {
            Lock::Open => "open",
            Lock::Shared => "shared",
            Lock::Identity => "identity",
        }
    }
    pub const fn to_byte(self) -> u8 {
        self as u8
    }
    pub const fn from_byte(byte: u8) -> Option<Lock> {
        match byte {
            0 => Some(Lock::Open),
            1 => Some(Lock::Shared),
            2 => Some(Lock::Identity),
            _ => None,
        }
    }
}

/// The first message of every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub nonce: [u8; NONCE_LEN],
    pub pid: u32,
    pub intent: Intent,
    pub lock: Lock,
    /// The first message of the handshake inside, which all of the above is bound to.
    pub noise: Vec<u8>,
}

impl Hello {
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        w.bytes(&self.nonce).u32(self.pid);
        match &self.intent {
            Intent::Open { transport, name } => w.u8(0).u8(transport.to_byte()).text(name),
            Intent::Attach {
                session,
                lane,
                kind,
            } => w.u8(1).u64(session.0).u8(lane.0).u8(kind.to_byte()),
            Intent::Observe => w.u8(2),
        };
        w.u8(self.lock.to_byte()).bytes(&self.noise);
    }

    /// The part of a body that is not the handshake inside.
    pub fn open_part<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        &body[..body.len() - self.noise.len()]
    }

    pub fn decode(body: &[u8]) -> Result<Hello, DecodeError> {
        let mut r = Reader::new(body);
        let (nonce, pid) = (r.array()?, r.u32()?);
        let intent = match r.u8()? {
            0 => Intent::Open {
                transport: Transport::from_byte(r.u8()?).ok_or(DecodeError::Value)?,
                name: r.text(MAX_NAME)?,
            },
            1 => Intent::Attach {
                session: SessionId(r.u64()?),
                lane: LaneId(r.u8()?),
                kind: LaneKind::from_byte(r.u8()?).ok_or(DecodeError::Value)?,
            },
            2 => Intent::Observe,
            _ => return Err(DecodeError::Value),
        };
        let lock = Lock::from_byte(r.u8()?).ok_or(DecodeError::Value)?;
        Ok(Hello {
            nonce,
            pid,
            intent,
            lock,
            noise: r.rest().to_vec(),
        })
    }
}

/// The server's answer to a hello: its nonce, and its part of the handshake inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub nonce: [u8; NONCE_LEN],
    pub lock: Lock,
    pub noise: Vec<u8>,
}

impl Challenge {
    pub fn encode(&self, body: &mut Vec<u8>) {
        Writer(body)
            .bytes(&self.nonce)
            .u8(self.lock.to_byte())
            .bytes(&self.noise);
    }
    pub fn decode(body: &[u8]) -> Result<Challenge, DecodeError> {
        let mut r = Reader::new(body);
        Ok(Challenge {
            nonce: r.array()?,
            lock: Lock::from_byte(r.u8()?).ok_or(DecodeError::Value)?,
            noise: r.rest().to_vec(),
        })
    }
}

/// The connection is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 0 for an observer.
    pub session: SessionId,
    pub lease_ms: u32,
    /// The largest grant to be had.
    pub max_grant_bytes: u64,
    pub server: ShortText,
    /// Further lanes of the session prove that they know it.
    pub secret: [u8; PROOF_LEN],
}

impl Welcome {
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        w.u64(self.session.0)
            .u32(self.lease_ms)
            .u64(self.max_grant_bytes)
            .text(&self.server)
            .bytes(&self.secret);
    }
    pub fn decode(body: &[u8]) -> Result<Welcome, DecodeError> {
        let mut r = Reader::new(body);
        let welcome = Welcome {
            session: SessionId(r.u64()?),
            lease_ms: r.u32()?,
            max_grant_bytes: r.u64()?,
            server: r.text(ShortText::MAX)?,
            secret: r.array()?,
        };
        r.end()?;
        Ok(welcome)
    }
}

/// A grant as its owner learns of it. Place in the segment matters to sessions that map memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInfo {
    pub grant: GrantId,
    pub bytes: u64,
    pub segment: SegmentId,
    /// Counts the memory files a segment has had; a mapping is good for one of them.
    pub incarnation: u32,
    pub segment_bytes: u64,
    pub segment_offset: u64,
    /// A descriptor of the segment's memory file travels with this message.
    pub descriptor: bool,
}

impl GrantInfo {
    const LEN: usize = 41;

    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        w.u64(self.grant.0)
            .u64(self.bytes)
            .u32(self.segment.0)
            .u32(self.incarnation);
        w.u64(self.segment_bytes)
            .u64(self.segment_offset)
            .u8(u8::from(self.descriptor));
    }
    fn read(r: &mut Reader<'_>) -> Result<GrantInfo, DecodeError> {
        Ok(GrantInfo {
            grant: GrantId(r.u64()?),
            bytes: r.u64()?,
            segment: SegmentId(r.u32()?),
            incarnation: r.u32()?,
            segment_bytes: r.u64()?,
            segment_offset: r.u64()?,
            descriptor: r.bool()?,
        })
    }
    pub fn decode(body: &[u8]) -> Result<GrantInfo, DecodeError> {
        let mut r = Reader::new(body);
        let info = GrantInfo::read(&mut r)?;
        r.end()?;
        Ok(info)
    }
}

/// Grants adopted with one ticket. Travels as a payload: 64 of them are longer than a body.
pub type Adopted = Vec<GrantInfo>;

pub fn decode_adopted(payload: &[u8]) -> Result<Adopted, DecodeError> {
    if payload.len() > MAX_GRANTS * GrantInfo::LEN {
        return Err(DecodeError::Value);
    }
    let mut r = Reader::new(payload);
    let mut grants = Vec::new();
    for _ in 0..payload.len() / GrantInfo::LEN {
        grants.push(GrantInfo::read(&mut r)?);
    }
    r.end()?;
    Ok(grants)
}

/// The value that an atomic operation found.
pub fn decode_old_value(body: &[u8]) -> Result<u64, DecodeError> {
    let mut r = Reader::new(body);
    let value = r.u64()?;
    r.end()?;
    Ok(value)
}

/// 1 to 64 grants, each once, still in the bytes they arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantList<'a>(&'a [u8]);

impl<'a> GrantList<'a> {
    pub fn decode(body: &'a [u8]) -> Result<GrantList<'a>, DecodeError> {
        let (ids, rest) = body.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(DecodeError::Short);
        }
        let distinct = ids.iter().enumerate().all(|(i, id)| !ids[..i].contains(id));
        if ids.is_empty() || ids.len() > MAX_GRANTS || !distinct {
            return Err(DecodeError::Value);
        }
        Ok(GrantList(body))
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GrantId> + use<'a> {
        self.0
            .as_chunks::<8>()
            .0
            .iter()
            .map(|id| GrantId(u64::from_le_bytes(*id)))
    }
}

/// What a server says unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Move what you keep here elsewhere and release it within this time.
    Drain {
        left_ms: u64,
    },
    DrainCancelled,
    /// The server stops; nothing kept here will be had again.
    Stopping,
}

impl Notice {
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        match self {
            Notice::Drain { left_ms } => w.u8(0).u64(*left_ms),
            Notice::DrainCancelled => w.u8(1),
            Notice::Stopping => w.u8(2),
        };
    }
    pub fn decode(body: &[u8]) -> Result<Notice, DecodeError> {
        let mut r = Reader::new(body);
        let notice = match r.u8()? {
            0 => Notice::Drain { left_ms: r.u64()? },
            1 => Notice::DrainCancelled,
            2 => Notice::Stopping,
            _ => return Err(DecodeError::Value),
        };
        r.end()?;
        Ok(notice)
    }
}

/// How far a drain has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    pub draining: bool,
    pub left_ms: u64,
    pub held_bytes: u64,
    pub holders: u32,
    /// So much of what this session holds is to be moved elsewhere; not known to older versions.
    pub asked_bytes: u64,
}

impl DrainReport {
    pub fn encode(&self, version: u8, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        w.u8(u8::from(self.draining))
            .u64(self.left_ms)
            .u64(self.held_bytes)
            .u32(self.holders);
        if version >= VERSION_ASKS {
            w.u64(self.asked_bytes);
        }
    }
    pub fn decode(version: u8, body: &[u8]) -> Result<DrainReport, DecodeError> {
        let mut r = Reader::new(body);
        let report = DrainReport {
            draining: r.bool()?,
            left_ms: r.u64()?,
            held_bytes: r.u64()?,
            holders: r.u32()?,
            asked_bytes: match version >= VERSION_ASKS {
                true => r.u64()?,
                false => 0,
            },
        };
        r.end()?;
        Ok(report)
    }
}

/// A request, decoded. Lists stay in the bytes they arrived in: nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Hello(Hello),
    Prove {
        proof: [u8; PROOF_LEN],
        /// The client's last part of the handshake inside.
        noise: &'a [u8],
    },
    Heartbeat,
    Goodbye,
    Grant {
        bytes: u64,
    },
    Release(GrantList<'a>),
    Share(GrantList<'a>),
    Adopt {
        ticket: [u8; TICKET_LEN],
    },
    Revoke {
        ticket: [u8; TICKET_LEN],
    },
    Status {
        after: SessionId,
    },
    /// Start (or, with 0, cancel) giving memory back.
    Drain {
        deadline_ms: u64,
    },
    /// All that the server has, to go on in its place. What follows the reply is no longer frames.
    TakeOver,
    /// For the agent of a managed heap: its own language.
    Agent(&'a [u8]),
    Read(Segs<'a>),
    Write(Segs<'a>),
    CompareSwap {
        grant: GrantId,
        offset: u32,
        expect: u64,
        new: u64,
    },
    FetchAdd {
        grant: GrantId,
        offset: u32,
        add: u64,
    },
    Open(Opening),
    Close {
        service: ServiceId,
    },
    /// The number of a function, by which it is called.
    Resolve {
        name: ShortText,
        version: u32,
    },
    /// What `status` is to show of this session.
    Note {
        text: ShortText,
    },
    Call(Call<'a>),
    /// About functions that are pushed. Not known to older versions.
    Wics(WicsRequest),
}

impl<'a> Request<'a> {
    pub fn decode(header: &Header, body: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        if header.status != 0 {
            return Err(DecodeError::Value);
        }
        if header.kind == Kind::Wics && header.version < VERSION_WICS {
            return Err(DecodeError::Kind(header.kind as u8));
        }
        let mut r = Reader::new(body);
        let request = match header.kind {
            Kind::Hello => Request::Hello(Hello::decode(r.rest())?),
            Kind::Prove => Request::Prove {
                proof: r.array()?,
                noise: r.rest(),
            },
            Kind::Heartbeat => Request::Heartbeat,
            Kind::Goodbye => Request::Goodbye,
            Kind::TakeOver => Request::TakeOver,
            Kind::Grant => Request::Grant { bytes: r.u64()? },
            Kind::Release => Request::Release(GrantList::decode(r.rest())?),
            Kind::Share => Request::Share(GrantList::decode(r.rest())?),
            Kind::Adopt => Request::Adopt { ticket: r.array()? },
            Kind::Revoke => Request::Revoke { ticket: r.array()? },
            Kind::Status => Request::Status {
                after: SessionId(r.u64()?),
            },
            Kind::Drain => Request::Drain {
                deadline_ms: r.u64()?,
            },
            Kind::Agent => Request::Agent(r.rest()),
            Kind::Read => Request::Read(Segs::decode(r.rest())?),
            Kind::Write => Request::Write(Segs::decode(r.rest())?),
            Kind::CompareSwap => Request::CompareSwap {
                grant: GrantId(r.u64()?),
                offset: r.u32()?,
                expect: r.u64()?,
                new: r.u64()?,
            },
            Kind::FetchAdd => Request::FetchAdd {
                grant: GrantId(r.u64()?),
                offset: r.u32()?,
                add: r.u64()?,
            },
            Kind::Open => Request::Open(Opening::read(&mut r)?),
            Kind::Close => Request::Close {
                service: ServiceId(r.u64()?),
            },
            Kind::Resolve => Request::Resolve {
                name: r.text(MAX_WIC_NAME)?,
                version: r.u32()?,
            },
            Kind::Note => Request::Note {
                text: r.text(ShortText::MAX)?,
            },
            Kind::Call => Request::Call(Call::read(&mut r)?),
            Kind::Wics => Request::Wics(WicsRequest::decode(r.rest())?),
            reply => return Err(DecodeError::Kind(reply as u8)),
        };
        r.end()?;
        let expected = match &request {
            Request::Write(segs) => segs.total(),
            _ => 0,
        };
        if header.payload_len != expected {
            return Err(DecodeError::PayloadLength);
        }
        Ok(request)
    }

    pub const fn kind(&self) -> Kind {
        match self {
            Request::Hello(_) => Kind::Hello,
            Request::Prove { .. } => Kind::Prove,
            Request::Heartbeat => Kind::Heartbeat,
            Request::Goodbye => Kind::Goodbye,
            Request::TakeOver => Kind::TakeOver,
            Request::Grant { .. } => Kind::Grant,
            Request::Release(_) => Kind::Release,
            Request::Share(_) => Kind::Share,
            Request::Adopt { .. } => Kind::Adopt,
            Request::Revoke { .. } => Kind::Revoke,
            Request::Status { .. } => Kind::Status,
            Request::Drain { .. } => Kind::Drain,
            Request::Agent(_) => Kind::Agent,
            Request::Read(_) => Kind::Read,
            Request::Write(_) => Kind::Write,
            Request::CompareSwap { .. } => Kind::CompareSwap,
            Request::FetchAdd { .. } => Kind::FetchAdd,
            Request::Open(_) => Kind::Open,
            Request::Close { .. } => Kind::Close,
            Request::Resolve { .. } => Kind::Resolve,
            Request::Note { .. } => Kind::Note,
            Request::Call(_) => Kind::Call,
            Request::Wics(_) => Kind::Wics,
        }
    }

    /// Appends the whole frame (without payload) to `out`.
    pub fn encode(&self, class: Class, tag: Tag, out: &mut Vec<u8>) {
        let version = match self {
            Request::Wics(_) => VERSION_WICS,
            _ => VERSION_MIN,
        };
        self.encode_in(version, class, tag, out);
    }

    pub fn encode_in(&self, version: u8, class: Class, tag: Tag, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + HEADER_LEN, 0);
        let mut payload_len = 0;
        let mut w = Writer(out);
        match self {
            Request::Hello(hello) => hello.encode(w.0),
            Request::Prove { proof, noise } => {
                w.bytes(proof).bytes(noise);
            }
            Request::Heartbeat | Request::Goodbye | Request::TakeOver => {}
            Request::Grant { bytes } => {
                w.u64(*bytes);
            }
            Request::Release(grants) | Request::Share(grants) => {
                w.bytes(grants.0);
            }
            Request::Adopt { ticket } | Request::Revoke { ticket } => {
                w.bytes(ticket);
            }
            Request::Status { after } => {
                w.u64(after.0);
            }
            Request::Drain { deadline_ms } => {
                w.u64(*deadline_ms);
            }
            Request::Agent(body) => {
                w.bytes(body);
            }
            Request::Read(segs) | Request::Write(segs) => {
                for seg in segs.iter() {
                    w.bytes(&seg.encode());
                }
                if matches!(self, Request::Write(_)) {
                    payload_len = segs.total();
                }
            }
            Request::CompareSwap {
                grant,
                offset,
                expect,
                new,
            } => {
                w.u64(grant.0).u32(*offset).u64(*expect).u64(*new);
            }
            Request::FetchAdd { grant, offset, add } => {
                w.u64(grant.0).u32(*offset).u64(*add);
            }
            Request::Open(opening) => opening.write(&mut w),
            Request::Close { service } => {
                w.u64(service.0);
            }
            Request::Resolve { name, version } => {
                w.text(name).u32(*version);
            }
            Request::Note { text } => {
                w.text(text);
            }
            Request::Call(call) => call.write(&mut w),
            Request::Wics(request) => request.encode(w.0),
        }
        seal_frame(
            &mut out[start..],
            Header {
                version,
                ..Header::new(self.kind(), class, tag)
            },
            payload_len,
        );
    }
}

/// The bytes of a list of segments, as [`Segs::decode`] takes them.
impl Seg {
    pub fn encode_list(segs: &[Seg], body: &mut Vec<u8>) {
        for seg in segs {
            body.extend_from_slice(&seg.encode());
        }
    }
}
