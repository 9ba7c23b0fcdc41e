//! The header of a frame.
//!
//! ```text
//!  0 u16 magic "MN"      8 u64 tag            24 u32 reserved, 0
//!  2 u8  version        16 u32 body length    28 u32 check over bytes 0..28 and the body
//!  3 u8  kind           20 u32 payload length
//!  4 u8  class
//!  5 u8  reserved, 0
//!  6 u16 status (replies: 0 or an error code)
//! ```
//!
//! The check is there because TCP's 16 bits let a wrong grant or offset through once in a while. A
//! page's own contents are checked end to end by the client's hash, so the payload is not covered.

use crate::codec::DecodeError;
use crate::error::ErrorCode;
use crate::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD, VERSION, VERSION_MIN};
use muninn_types::{Class, Tag};

const MAGIC: u16 = u16::from_le_bytes(*b"MN");
const REPLY_BIT: u8 = 0x80;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a frame is. A reply has the number of its request with the top bit set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            pub const fn from_byte(byte: u8) -> Result<Kind, DecodeError> {
                match byte {
                    $($number => Ok(Kind::$name),)*
                    _ => Err(DecodeError::Kind(byte)),
                }
            }
        }
    };
}

kinds! {
    Hello = 1,
    Prove = 2,
    Heartbeat = 3,
    Goodbye = 4,
    Grant = 5,
    Release = 6,
    Share = 7,
    Adopt = 8,
    Status = 9,
    Drain = 10,
    Open = 11,
    Close = 12,
    Resolve = 13,
    Note = 14,
    /// For the agent of a managed heap.
    Agent = 15,
    Read = 16,
    Write = 17,
    CompareSwap = 18,
    FetchAdd = 19,
    Call = 20,
    /// A ticket that nobody will use.
    Revoke = 21,
    /// The next process of a server asks for all that it has.
    TakeOver = 22,
    /// Functions that are pushed: their own language.
    Wics = 23,
    /// From the server, unasked.
    Notice = 32,
    HelloReply = 0x81,
    ProveReply = 0x82,
    HeartbeatReply = 0x83,
    GoodbyeReply = 0x84,
    GrantReply = 0x85,
    ReleaseReply = 0x86,
    ShareReply = 0x87,
    AdoptReply = 0x88,
    StatusReply = 0x89,
    DrainReply = 0x8a,
    OpenReply = 0x8b,
    CloseReply = 0x8c,
    ResolveReply = 0x8d,
    NoteReply = 0x8e,
    AgentReply = 0x8f,
    ReadReply = 0x90,
    WriteReply = 0x91,
    CompareSwapReply = 0x92,
    FetchAddReply = 0x93,
    CallReply = 0x94,
    RevokeReply = 0x95,
    TakeOverReply = 0x96,
    WicsReply = 0x97,
}

impl Kind {
    pub const fn is_reply(self) -> bool {
        self as u8 & REPLY_BIT != 0
    }
    /// The kind of the reply to this request.
    pub fn reply(self) -> Kind {
        Kind::from_byte(self as u8 | REPLY_BIT).unwrap_or(self)
    }
    /// Data operations touch grants; all else is control.
    pub const fn is_data(self) -> bool {
        matches!(
            self,
            Kind::Read | Kind::Write | Kind::CompareSwap | Kind::FetchAdd
        )
    }
    /// Whether doing it twice is the same as doing it once. What is not must be recognised by its
    /// tag when a client repeats it after a cut. A call says for itself what it is.
    pub const fn is_idempotent(self) -> bool {
        matches!(
            self,
            Kind::Read
                | Kind::Write
                | Kind::Heartbeat
                | Kind::Status
                | Kind::Goodbye
                | Kind::Resolve
                | Kind::Note
                | Kind::Revoke
                | Kind::Wics
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// In which the frame is written. A reply is in that of its request.
    pub version: u8,
    pub kind: Kind,
    pub class: Class,
    /// 0, or the number of an [`ErrorCode`].
    pub status: u16,
    pub tag: Tag,
    pub body_len: u32,
    pub payload_len: u32,
}

impl Header {
    pub const fn new(kind: Kind, class: Class, tag: Tag) -> Header {
        Header {
            version: VERSION_MIN,
            kind,
            class,
            status: 0,
            tag,
            body_len: 0,
            payload_len: 0,
        }
    }

    pub fn error(&self) -> Option<ErrorCode> {
        (self.status != 0).then(|| ErrorCode::from_number(self.status))
    }

    fn encode(&self) -> [u8; HEADER_LEN - 4] {
        let mut bytes = [0; HEADER_LEN - 4];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = self.version;
        bytes[3] = self.kind as u8;
        bytes[4] = self.class.to_byte();
        bytes[6..8].copy_from_slice(&self.status.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes
    }

    /// Reads a header; the check is verified later, with the body, by [`Header::verify`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, DecodeError> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if u16::from_le_bytes([bytes[0], bytes[1]]) != MAGIC {
            return Err(DecodeError::Magic);
        }
        if !(VERSION_MIN..=VERSION).contains(&bytes[2]) {
            return Err(DecodeError::Version(bytes[2]));
        }
        let header = Header {
            version: bytes[2],
            kind: Kind::from_byte(bytes[3])?,
            class: Class::from_byte(bytes[4]).map_err(|e| DecodeError::Class(e.0))?,
            status: u16::from_le_bytes([bytes[6], bytes[7]]),
            tag: Tag(u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32),
            body_len: u32_at(16),
            payload_len: u32_at(20),
        };
        if bytes[5] != 0 || u32_at(24) != 0 {
            return Err(DecodeError::Value);
        }
        if header.body_len as usize > MAX_BODY {
            return Err(DecodeError::BodyTooLong(header.body_len));
        }
        if header.payload_len as usize > MAX_PAYLOAD {
            return Err(DecodeError::PayloadTooLong(header.payload_len));
        }
        Ok(header)
    }

    /// Whether header and body arrived as they were sent.
    pub fn verify(bytes: &[u8; HEADER_LEN], body: &[u8]) -> Result<(), DecodeError> {
        let sent = u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]);
        if check(&bytes[..28], body) == sent {
            Ok(())
        } else {
            Err(DecodeError::Check)
        }
    }
}

/// Turns `frame`, which holds room for a header and then a body, into a whole frame: fills in the
/// body's length and the check. `payload_len` bytes are to follow it on the wire.
pub fn seal_frame(frame: &mut [u8], mut header: Header, payload_len: u32) {
    let (head, body) = frame.split_at_mut(HEADER_LEN);
    header.body_len = body.len() as u32;
    header.payload_len = payload_len;
    head[..28].copy_from_slice(&header.encode());
    let sum = check(&head[..28], body);
    head[28..].copy_from_slice(&sum.to_le_bytes());
}

/// A 32-bit check: multiply-and-rotate over 8-byte words. Detects accidents; it is no signature.
fn check(head: &[u8], body: &[u8]) -> u32 {
    let sum = sum_of(&[head, body]);
    (sum ^ (sum >> 32)) as u32
}

/// The same with all of its 64 bits, for what is longer than a frame.
pub(crate) fn check_all(bytes: &[u8]) -> u64 {
    sum_of(&[bytes])
}

#[inline]
fn sum_of(parts: &[&[u8]]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut sum = K ^ (parts.last().map_or(0, |last| last.len()) as u64);
    let mut eat = |bytes: &[u8]| {
        let mut words = bytes.chunks_exact(8);
        let mut step = |word: u64| sum = (sum ^ word).wrapping_mul(K).rotate_left(29);
        for word in &mut words {
            step(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        let mut last = [0; 8];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        step(u64::from_le_bytes(last));
    };
    for part in parts {
        eat(part);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut frame = vec![0; HEADER_LEN];
        frame.extend_from_slice(b"a body of no meaning");
        seal_frame(
            &mut frame,
            Header::new(Kind::Read, Class::Demand, Tag(77)),
            4096,
        );
        frame
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let head: [u8; HEADER_LEN] = bad[..HEADER_LEN].try_into().unwrap();
            let noticed = Header::decode(&head).is_err()
                || Header::verify(&head, &bad[HEADER_LEN..]).is_err();
            assert!(noticed, "bit {bit} went unnoticed");
        }
    }

    #[test]
    fn lengths_over_the_limits_are_refused_by_the_header_alone() {
        let mut head: [u8; HEADER_LEN] = sample()[..HEADER_LEN].try_into().unwrap();
        head[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            Header::decode(&head),
            Err(DecodeError::BodyTooLong(u32::MAX))
        );
        head[16..20].copy_from_slice(&0u32.to_le_bytes());
        head[20..24].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert_eq!(
            Header::decode(&head),
            Err(DecodeError::PayloadTooLong(MAX_PAYLOAD as u32 + 1))
        );
    }

    #[test]
    fn every_request_has_its_reply() {
        for kind in Kind::ALL
            .iter()
            .filter(|k| !k.is_reply() && **k != Kind::Notice)
        {
            assert!(kind.reply().is_reply(), "{kind:?} has no reply");
        }
    }
}
