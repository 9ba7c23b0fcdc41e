//! Functions that are pushed to a running server, as modules of WebAssembly: `Wics` and its answers.
//!
//! A module is known by the SHA-256 of its bytes and travels in parts, each at an offset: who sends a
//! part twice, or goes on after a cut, changes nothing. Invariant: a module's length is bounded, and known
//! before its first byte; so nothing here makes the other side allocate more than that.

use crate::codec::{DecodeError, Reader, ShortText, Writer};
use crate::{MAX_BODY, MAX_NAME, MAX_WIC_NAME};

/// The longest module.
pub const MAX_MODULE: usize = 256 << 10;
/// Bytes of the hash that names a module.
pub const HASH_LEN: usize = 32;
/// Numbers of functions that were pushed begin here; below are those that a server was built with.
pub const FIRST_PUSHED: u32 = 1 << 16;
/// The most bytes of a module in one message.
pub const MODULE_PART: usize = 960;

/// The hash of a module's bytes.
pub type ModuleHash = [u8; HASH_LEN];

/// What is asked about pushed functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WicsRequest {
    /// A part of a module; with the last one the server looks at the whole. No bytes: how far is it?
    Part {
        hash: ModuleHash,
        /// Of the whole module.
        len: u32,
        offset: u32,
        bytes: Vec<u8>,
    },
    /// What became of a module.
    State { hash: ModuleHash },
    /// Functions with numbers above this one.
    List { after: u32 },
    /// A module and all of its functions.
    Remove { hash: ModuleHash },
    /// One function. Whose it is may be said by a nic only, which asks for its clients.
    Find {
        owner: ShortText,
        name: ShortText,
        version: u32,
    },
    /// The bytes of a module, from there on.
    Fetch { hash: ModuleHash, offset: u32 },
}

impl WicsRequest {
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        match self {
            WicsRequest::Part {
                hash,
                len,
                offset,
                bytes,
            } => w.u8(1).bytes(hash).u32(*len).u32(*offset).bytes(bytes),
            WicsRequest::State { hash } => w.u8(2).bytes(hash),
            WicsRequest::List { after } => w.u8(3).u32(*after),
            WicsRequest::Remove { hash } => w.u8(4).bytes(hash),
            WicsRequest::Find {
                owner,
                name,
                version,
            } => w.u8(5).text(owner).text(name).u32(*version),
            WicsRequest::Fetch { hash, offset } => w.u8(6).bytes(hash).u32(*offset),
        };
    }

    pub fn decode(body: &[u8]) -> Result<WicsRequest, DecodeError> {
        let mut r = Reader::new(body);
        let request = match r.u8()? {
            1 => {
                let (hash, len, offset) = (r.array()?, r.u32()?, r.u32()?);
                let bytes = r.rest();
                let end = u64::from(offset) + bytes.len() as u64;
                if len == 0 || len as usize > MAX_MODULE || end > u64::from(len) {
                    return Err(DecodeError::Value);
                }
                WicsRequest::Part {
                    hash,
                    len,
                    offset,
                    bytes: bytes.to_vec(),
                }
            }
            2 => WicsRequest::State { hash: r.array()? },
            3 => WicsRequest::List { after: r.u32()? },
            4 => WicsRequest::Remove { hash: r.array()? },
            5 => WicsRequest::Find {
                owner: r.text(MAX_NAME)?,
                name: r.text(MAX_WIC_NAME)?,
                version: r.u32()?,
            },
            6 => WicsRequest::Fetch {
                hash: r.array()?,
                offset: r.u32()?,
            },
            _ => return Err(DecodeError::Value),
        };
        r.end()?;
        Ok(request)
    }

    /// Whether it changes what the server has.
    pub const fn is_change(&self) -> bool {
        matches!(self, WicsRequest::Part { .. } | WicsRequest::Remove { .. })
    }
}

/// How far a module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleState {
    Missing,
    /// So many bytes of it are here.
    Receiving(u32),
    /// It is being looked at and translated.
    Translating,
    /// Its functions can be called: so many.
    Ready(u32),
    /// It is none that could be run; why.
    Refused(ShortText),
}

/// A pushed function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedInfo {
    /// By which it is called.
    pub number: u32,
    pub hash: ModuleHash,
    /// Of its module.
    pub module_len: u32,
    pub version: u32,
    /// Doing it twice is the same as doing it once.
    pub idempotent: bool,
    /// Everybody may call it; else only sessions of its owner.
    pub common: bool,
    pub owner: ShortText,
    pub name: ShortText,
    /// How often it was begun there.
    pub calls: u64,
}

impl PushedInfo {
    /// The longest that one is when written down.
    const LEN_MAX: usize = 4 + HASH_LEN + 4 + 4 + 1 + 1 + (1 + MAX_NAME) + (1 + MAX_WIC_NAME) + 8;

    fn write(&self, w: &mut Writer<'_>) {
        w.u32(self.number).bytes(&self.hash).u32(self.module_len);
        w.u32(self.version).u8(u8::from(self.idempotent));
        w.u8(u8::from(self.common)).text(&self.owner);
        w.text(&self.name).u64(self.calls);
    }
    fn read(r: &mut Reader<'_>) -> Result<PushedInfo, DecodeError> {
        let info = PushedInfo {
            number: r.u32()?,
            hash: r.array()?,
            module_len: r.u32()?,
            version: r.u32()?,
            idempotent: r.bool()?,
            common: r.bool()?,
            owner: r.text(MAX_NAME)?,
            name: r.text(MAX_WIC_NAME)?,
            calls: r.u64()?,
        };
        // A client makes room for so much.
        if info.module_len as usize > MAX_MODULE || info.number < FIRST_PUSHED {
            return Err(DecodeError::Value);
        }
        Ok(info)
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WicsReply {
    State(ModuleState),
    /// By number, as many as fit; none: those were all.
    List(Vec<PushedInfo>),
    Found(PushedInfo),
    /// Bytes of a module.
    Part(Vec<u8>),
}

impl WicsReply {
    /// Functions that surely fit one answer.
    pub const LIST_MAX: usize = (MAX_BODY - 2) / PushedInfo::LEN_MAX;

    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        match self {
            WicsReply::State(state) => {
                w.u8(1);
                match state {
                    ModuleState::Missing => w.u8(0),
                    ModuleState::Receiving(bytes) => w.u8(1).u32(*bytes),
                    ModuleState::Translating => w.u8(2),
                    ModuleState::Ready(functions) => w.u8(3).u32(*functions),
                    ModuleState::Refused(why) => w.u8(4).text(why),
                };
            }
            WicsReply::List(all) => {
                w.u8(2).u8(all.len() as u8);
                all.iter().for_each(|info| info.write(&mut w));
            }
            WicsReply::Found(info) => {
                w.u8(3);
                info.write(&mut w);
            }
            WicsReply::Part(bytes) => {
                w.u8(4).bytes(bytes);
            }
        }
    }

    pub fn decode(body: &[u8]) -> Result<WicsReply, DecodeError> {
        let mut r = Reader::new(body);
        let reply = match r.u8()? {
            1 => WicsReply::State(match r.u8()? {
                0 => ModuleState::Missing,
                1 => ModuleState::Receiving(r.u32()?),
                2 => ModuleState::Translating,
                3 => ModuleState::Ready(r.u32()?),
                4 => ModuleState::Refused(r.text(ShortText::MAX)?),
                _ => return Err(DecodeError::Value),
            }),
            2 => {
                let count = r.u8()?;
                let all: Result<Vec<_>, _> = (0..count).map(|_| PushedInfo::read(&mut r)).collect();
                WicsReply::List(all?)
            }
            3 => WicsReply::Found(PushedInfo::read(&mut r)?),
            4 => WicsReply::Part(r.rest().to_vec()),
            _ => return Err(DecodeError::Value),
        };
        r.end()?;
        Ok(reply)
    }
}
