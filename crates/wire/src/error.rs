//! Refusals: a number on the wire, two details, and a sentence for a person.

use crate::codec::{DecodeError, Reader, ShortText, Writer};
use muninn_types::{Bytes, GrantId, ServiceId};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal / $text:literal,)*) => {
        /// Why a server refused. The names are those of the metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[$doc])* $name = $number,)* }

        impl ErrorCode {
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// A number this side does not know counts as [`ErrorCode::Internal`].
            pub const fn from_number(number: u16) -> ErrorCode {
                match number { $($number => ErrorCode::$name,)* _ => ErrorCode::Internal }
            }
            pub const fn name(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)* }
            }
        }
    };
}

codes! {
    Internal = 1 / "internal",
    Malformed = 2 / "malformed",
    WrongVersion = 3 / "wrong-version",
    WrongKey = 4 / "wrong-key",
    KeyRequired = 5 / "key-required",
    NotOpen = 6 / "not-open",
    /// The session is not known: its lease ran out or the server was started anew.
    NoSession = 7 / "no-session",
    TooManySessions = 8 / "too-many-sessions",
    TooManyLanes = 9 / "too-many-lanes",
    /// No chunk of that size is free. Details: bytes asked for, largest free chunk.
    PoolFull = 10 / "pool-full",
    /// Details: bytes held, bytes allowed.
    QuotaExceeded = 11 / "quota-exceeded",
    /// The server gives its memory back and hands out no more.
    Draining = 12 / "draining",
    /// Detail: the grant.
    NoGrant = 13 / "no-grant",
    /// Details: the grant, its size.
    OutOfBounds = 14 / "out-of-bounds",
    /// The grant was shared and is immutable. Detail: the grant.
    Frozen = 15 / "frozen",
    Misaligned = 16 / "misaligned",
    NoTicket = 17 / "no-ticket",
    /// Grants of one mapped segment can only be shared all together. Detail: a grant left out.
    ShareWhole = 18 / "share-whole-segment",
    TooManyGrants = 19 / "too-many-grants",
    TooManyTickets = 20 / "too-many-tickets",
    BadSize = 21 / "bad-size",
    NotPermitted = 22 / "not-permitted",
    WrongTransport = 23 / "wrong-transport",
    /// Freed memory is still being wiped; the same request may succeed in a moment.
    TryAgain = 24 / "try-again",
    Stopping = 25 / "stopping",
    TooManyObservers = 26 / "too-many-observers",
    /// Details: the version here (0: there is none of that name), the version asked for.
    NoWic = 27 / "no-wic",
    /// Detail: the service.
    NoService = 28 / "no-service",
    /// Details: bytes and locks of the service that has the name already.
    ServiceDiffers = 29 / "service-differs",
    /// Detail: the limit.
    TooManyServices = 30 / "too-many-services",
    /// The function ended with an error of its own. Details: which, and what about.
    WicFailed = 31 / "wic-failed",
    /// Detail: 1 if it had begun, and so may have changed something.
    CallDeadline = 32 / "call-deadline",
    /// Detail: the limit.
    TooManyCalls = 33 / "too-many-calls",
    /// The side that the function's memory lies at is gone. Detail: 1 if the call had begun.
    UpstreamLost = 34 / "upstream-lost",
    /// The server runs no agents of managed heaps.
    NoAgent = 35 / "no-agent",
    /// The agent could not do it; the remark says why.
    AgentRefused = 36 / "agent-refused",
    /// Of the client's source, that it began and did not end. Detail: the limit of a second.
    TooManyHandshakes = 37 / "too-many-handshakes",
    /// Of what the server would have to remember for the client's source. Detail: the limit.
    TooMuchBeside = 38 / "too-much-beside",
    /// That are kept here, or are on their way here. Detail: the limit.
    TooManyModules = 39 / "too-many-modules",
}

/// A refusal as it travels: the code, two details and a remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    pub a: u64,
    pub b: u64,
    pub remark: ShortText,
}

impl Refusal {
    pub fn new(code: ErrorCode) -> Refusal {
        Refusal::with(code, 0, 0)
    }
    pub fn with(code: ErrorCode, a: u64, b: u64) -> Refusal {
        Refusal {
            code,
            a,
            b,
            remark: ShortText::default(),
        }
    }
    pub fn remark(mut self, remark: &str) -> Refusal {
        self.remark = ShortText::lossy(remark, ShortText::MAX);
        self
    }

    pub fn encode(&self, body: &mut Vec<u8>) {
        Writer(body).u64(self.a).u64(self.b).text(&self.remark);
    }
    pub fn decode(code: ErrorCode, body: &[u8]) -> Result<Refusal, DecodeError> {
        let mut r = Reader::new(body);
        let refusal = Refusal {
            code,
            a: r.u64()?,
            b: r.u64()?,
            remark: r.text(ShortText::MAX)?,
        };
        r.end()?;
        Ok(refusal)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (Bytes(self.a), Bytes(self.b));
        match self.code {
            ErrorCode::Internal => write!(f, "the server failed inside; its log says more"),
            ErrorCode::Malformed => write!(f, "the server could not read the request"),
            ErrorCode::WrongVersion => write!(
                f,
                "the server speaks protocol version {}, this client {}: use the same release of \
                 muninn on both sides",
                self.a, self.b
            ),
            ErrorCode::WrongKey => write!(
                f,
                "the key does not match the server's: use the key file the server was started with"
            ),
            ErrorCode::KeyRequired => write!(
                f,
                "the server requires a key: name the key file it was started with (--key-file)"
            ),
            ErrorCode::NotOpen => write!(f, "the connection has not opened a session"),
            ErrorCode::NoSession => write!(
                f,
                "the server does not know the session: its lease ran out or the server was \
                 restarted, and what it kept is gone"
            ),
            ErrorCode::TooManySessions => write!(
                f,
                "the server has {} sessions, as many as it accepts: start it with a larger \
                 --max-sessions or use another server",
                self.a
            ),
            ErrorCode::TooManyLanes => {
                write!(
                    f,
                    "the session has {} connections, as many as it may",
                    self.a
                )
            }
            ErrorCode::PoolFull => write!(
                f,
                "the pool is full: {} were asked for and the largest free piece is {}; free \
                 memory, add a server, or start this one with more --memory",
                a, b
            ),
            ErrorCode::QuotaExceeded => write!(
                f,
                "the quota is used up: this client holds {a} of {b}; release grants or raise its \
                 --quota at the server"
            ),
            ErrorCode::Draining => write!(
                f,
                "the server is giving its memory back and grants no more; use another server"
            ),
            ErrorCode::NoGrant => {
                write!(f, "the session has no grant {}", GrantId(self.a))
            }
            ErrorCode::OutOfBounds => {
                write!(
                    f,
                    "the access goes past the end of grant {} ({})",
                    GrantId(self.a),
                    b
                )
            }
            ErrorCode::Frozen => write!(
                f,
                "grant {} was shared and can no longer be written",
                GrantId(self.a)
            ),
            ErrorCode::Misaligned => {
                write!(
                    f,
                    "atomic operations need an offset that is a multiple of 8"
                )
            }
            ErrorCode::NoTicket => {
                write!(
                    f,
                    "the share ticket is not known: it was used up or its lease ran out"
                )
            }
            ErrorCode::ShareWhole => write!(
                f,
                "grants that are mapped together can only be shared together; {} was left out",
                GrantId(self.a)
            ),
            ErrorCode::TooManyGrants => {
                write!(
                    f,
                    "the session has {} grants, as many as it may; release some",
                    self.a
                )
            }
            ErrorCode::TooManyTickets => {
                write!(
                    f,
                    "the session has {} open share tickets, as many as it may",
                    self.a
                )
            }
            ErrorCode::BadSize => {
                write!(
                    f,
                    "a grant is 1 page to {b}, in powers of two; {a} was asked for"
                )
            }
            ErrorCode::NotPermitted => write!(
                f,
                "not permitted: operator commands need the server's Unix socket and its user, or \
                 a key"
            ),
            ErrorCode::WrongTransport => {
                write!(
                    f,
                    "shared memory is only to be had through the server's Unix socket"
                )
            }
            ErrorCode::TryAgain => {
                write!(
                    f,
                    "freed memory is still being wiped; try again in a moment"
                )
            }
            ErrorCode::TooManyObservers => write!(
                f,
                "the server answers {} connections without a session already; try again later",
                self.a
            ),
            ErrorCode::Stopping => write!(f, "the server is stopping"),
            ErrorCode::NoWic if self.a == 0 => write!(
                f,
                "the server has no function of that name: push it ('muninn wics push'), or start one \
                 that was built with it"
            ),
            ErrorCode::NoWic => write!(
                f,
                "the server has version {} of the function, this client asks for {}: build both \
                 from the same source",
                self.a, self.b
            ),
            ErrorCode::NoService => write!(
                f,
                "the session is not tied to {}: open it first",
                ServiceId(self.a)
            ),
            ErrorCode::ServiceDiffers => write!(
                f,
                "a service of that name is there with {a} and {} locks: open it with the same, or \
                 choose another name",
                self.b
            ),
            ErrorCode::TooManyServices => {
                write!(f, "there are {} services, as many as may be", self.a)
            }
            ErrorCode::WicFailed => write!(f, "the function failed"),
            ErrorCode::CallDeadline if self.a == 0 => {
                write!(f, "the call's time was over before it began")
            }
            ErrorCode::CallDeadline => write!(
                f,
                "the call's time was over while it ran; it may have changed something"
            ),
            ErrorCode::TooManyCalls => {
                write!(f, "{} calls are under way, as many as may be", self.a)
            }
            ErrorCode::UpstreamLost => write!(f, "the server that keeps the memory is lost"),
            ErrorCode::NoAgent => write!(f, "the server runs no agents of managed heaps"),
            ErrorCode::AgentRefused => write!(f, "the heap's agent refused"),
            ErrorCode::TooMuchBeside => write!(
                f,
                "the server remembers {a} for this client's address, as much as may be: close sessions, \
                 lanes or small grants"
            ),
            ErrorCode::TooManyModules => write!(
                f,
                "there are {} modules already, as many as may be: remove some, or wait for those that \
                 are on their way",
                self.a
            ),
            ErrorCode::TooManyHandshakes => write!(
                f,
                "more than {} handshakes a second come from this address that nobody ends; try again \
                 later",
                self.a
            ),
        }?;
        if !self.remark.as_str().is_empty() {
            write!(f, " ({})", self.remark)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
