//! Services and calls: memory that several sessions share, and functions that run beside it.
//!
//! A service is a named range of addresses, cut into grants of one size; its first bytes are a table
//! of lock words. `Open` and `Join` tie a session to it, `Resolve` finds a function by name and
//! version, `Call` runs one. Arguments and replies are small and travel in the body, so that many
//! calls fit one packet; what is larger lives in the service's memory.

use crate::codec::{DecodeError, Reader, ShortText, Writer};
use crate::{MAX_BODY, MAX_NAME};
use muninn_types::{GrantId, ServiceId};

/// The most bytes of arguments, and of a reply.
pub const MAX_ARGS: usize = MAX_BODY - Call::HEAD;
/// The most lock words of a service.
pub const MAX_LOCKS: u32 = 1 << 16;

/// Which service to tie a session to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The one of this name; made if there is none. It lives as long as a session that opened it.
    Named {
        name: ShortText,
        /// Of memory behind the lock table.
        bytes: u64,
        locks: u32,
    },
    /// One that is there, without keeping it alive.
    Guest(ServiceId),
}

impl Opening {
    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        match self {
            Opening::Named { name, bytes, locks } => w.u8(0).text(name).u64(*bytes).u32(*locks),
            Opening::Guest(service) => w.u8(1).u64(service.0),
        };
    }
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Opening, DecodeError> {
        match r.u8()? {
            0 => {
                let (name, bytes, locks) = (r.text(MAX_NAME)?, r.u64()?, r.u32()?);
                if name.as_str().is_empty() || locks > MAX_LOCKS {
                    return Err(DecodeError::Value);
                }
                Ok(Opening::Named { name, bytes, locks })
            }
            1 => Ok(Opening::Guest(ServiceId(r.u64()?))),
            _ => Err(DecodeError::Value),
        }
    }
}

/// A service as a session that was tied to it learns of it. Its grants travel as a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    pub service: ServiceId,
    /// Addresses go from 0 to here; every grant but the last is full.
    pub bytes: u64,
    /// A grant is 2^shift bytes.
    pub shift: u8,
    pub locks: u32,
    /// The first address behind the lock table.
    pub base: u64,
}

impl ServiceInfo {
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut w = Writer(body);
        w.u64(self.service.0).u64(self.bytes).u8(self.shift);
        w.u32(self.locks).u64(self.base);
    }
    pub fn decode(body: &[u8]) -> Result<ServiceInfo, DecodeError> {
        let mut r = Reader::new(body);
        let info = ServiceInfo {
            service: ServiceId(r.u64()?),
            bytes: r.u64()?,
            shift: r.u8()?,
            locks: r.u32()?,
            base: r.u64()?,
        };
        r.end()?;
        // A client shifts by it and divides its memory by it.
        let sane = (12..=40).contains(&info.shift)
            && info.base <= info.bytes
            && u64::from(info.locks) * 8 <= info.base;
        if sane {
            Ok(info)
        } else {
            Err(DecodeError::Value)
        }
    }
}

/// A function to be run, its arguments still in the bytes they arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    pub service: ServiceId,
    /// As `Resolve` gave it.
    pub wic: u32,
    /// Microseconds after which nobody waits for it any more.
    pub deadline_us: u32,
    /// May be done twice.
    pub idempotent: bool,
    pub args: &'a [u8],
}

impl<'a> Call<'a> {
    /// Bytes of the body before the arguments.
    pub const HEAD: usize = 17;

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u64(self.service.0).u32(self.wic).u32(self.deadline_us);
        w.u8(u8::from(self.idempotent)).bytes(self.args);
    }
    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Call<'a>, DecodeError> {
        Ok(Call {
            service: ServiceId(r.u64()?),
            wic: r.u32()?,
            deadline_us: r.u32()?,
            idempotent: r.bool()?,
            args: r.rest(),
        })
    }
}

/// What a function that ran gave back, still in the bytes it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called<'a> {
    /// Accesses to the service's memory.
    pub accesses: u32,
    /// From arrival to reply, at the side that ran it.
    pub took_ns: u32,
    pub reply: &'a [u8],
}

impl<'a> Called<'a> {
    pub fn encode(&self, body: &mut Vec<u8>) {
        Writer(body)
            .u32(self.accesses)
            .u32(self.took_ns)
            .bytes(self.reply);
    }
    pub fn decode(body: &'a [u8]) -> Result<Called<'a>, DecodeError> {
        let mut r = Reader::new(body);
        Ok(Called {
            accesses: r.u32()?,
            took_ns: r.u32()?,
            reply: r.rest(),
        })
    }
}

/// Where an address of a service lies.
pub fn place_of(grants: &[GrantId], shift: u8, at: u64) -> Option<(GrantId, u32)> {
    let grant = grants.get((at >> shift) as usize)?;
    Some((*grant, (at & ((1 << shift) - 1)) as u32))
}
