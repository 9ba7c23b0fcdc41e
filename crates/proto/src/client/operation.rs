//! Requests as a client posts them, and what becomes of them.
//!
//! The data of an operation belongs to it while it is under way and comes back with its completion,
//! so nothing is borrowed across time and nothing is allocated for each request.

use muninn_types::{Class, GrantId, ServiceId, SessionId, Tag};
use muninn_wire::{
    Call, DecodeError, DrainReport, GrantInfo, GrantList, MAX_ARGS, MODULE_PART, Opening, Refusal,
    Request, Seg, Segs, ServiceInfo, ShortText, StatusPage, TICKET_LEN, WicsReply, WicsRequest,
};

/// A control request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Heartbeat,
    Goodbye,
    /// Of the next process of a server, without a session.
    TakeOver,
    Grant {
        bytes: u64,
    },
    Release(Vec<GrantId>),
    Share(Vec<GrantId>),
    Adopt {
        ticket: [u8; TICKET_LEN],
    },
    /// A ticket of this session that nobody will use; nothing happens if somebody has.
    Revoke {
        ticket: [u8; TICKET_LEN],
    },
    Status {
        after: SessionId,
    },
    Drain {
        deadline_ms: u64,
    },
    /// For the agent of a managed heap, in its own language; at most a body long.
    Agent(Vec<u8>),
    Open(Opening),
    Close {
        service: ServiceId,
    },
    Resolve {
        name: ShortText,
        version: u32,
    },
    Note {
        text: ShortText,
    },
    /// About functions that are pushed.
    Wics(WicsRequest),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read these into the operation's data, one after the other.
    Read(Vec<Seg>),
    /// Write the operation's data into these, one after the other.
    Write(Vec<Seg>),
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
    /// Run a function on the operation's data, and put its reply there.
    Call {
        service: ServiceId,
        wic: u32,
        deadline_us: u32,
        idempotent: bool,
        args_len: u32,
    },
    Control(Control),
}

#[derive(Debug)]
pub struct Operation<D> {
    pub verb: Verb,
    pub class: Class,
    /// At least as long as the segments together. Unused by other verbs.
    pub data: D,
    /// The caller's own mark.
    pub token: u64,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The value an atomic operation found.
    Old(u64),
    Granted(GrantInfo),
    Ticket([u8; TICKET_LEN]),
    Adopted(Vec<GrantInfo>),
    Report(DrainReport),
    Status(Box<StatusPage>),
    Opened(ServiceInfo, Vec<GrantInfo>),
    /// The number of a function.
    Resolved(u32),
    /// A function's reply is in the operation's data.
    Called {
        reply_len: u32,
        accesses: u32,
        took_ns: u32,
    },
    Agent(Vec<u8>),
    Wics(WicsReply),
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("the operation names no segments, too many, or more than 64 pages")]
    BadSegments(DecodeError),
    #[error("the operation's data is shorter than its segments")]
    DataTooShort,
    #[error("the session is lost: {0}")]
    SessionLost(String),
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
}

#[derive(Debug)]
pub struct Completion<D> {
    pub operation: Operation<D>,
    pub result: Result<Answer, OpError>,
}

impl Verb {
    /// Whether doing it twice is the same as doing it once.
    pub(super) fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Verb::Read(_)
                | Verb::Write(_)
                | Verb::Call {
                    idempotent: true,
                    ..
                }
                | Verb::Control(
                    Control::Heartbeat
                        | Control::Goodbye
                        | Control::Status { .. }
                        | Control::Resolve { .. }
                        | Control::Note { .. }
                        | Control::Wics(_)
                )
        )
    }

    /// Bytes of the segments, after checking them.
    pub(super) fn total(&self, scratch: &mut Vec<u8>) -> Result<usize, OpError> {
        match self {
            Verb::Read(segs) | Verb::Write(segs) => {
                scratch.clear();
                Seg::encode_list(segs, scratch);
                Ok(Segs::decode(scratch).map_err(OpError::BadSegments)?.total() as usize)
            }
            Verb::Control(Control::Release(ids) | Control::Share(ids)) => {
                encode_ids(ids, scratch);
                GrantList::decode(scratch).map_err(OpError::BadSegments)?;
                Ok(0)
            }
            // The reply may be longer than the arguments.
            Verb::Call { args_len, .. } if *args_len as usize > MAX_ARGS => {
                Err(OpError::BadSegments(DecodeError::BodyTooLong(*args_len)))
            }
            Verb::Call { .. } => Ok(MAX_ARGS),
            Verb::Control(Control::Agent(body)) if body.len() > muninn_wire::MAX_BODY => {
                Err(OpError::BadSegments(DecodeError::Value))
            }
            Verb::Control(Control::Wics(WicsRequest::Part { bytes, .. }))
                if bytes.len() > MODULE_PART =>
            {
                Err(OpError::BadSegments(DecodeError::Value))
            }
            _ => Ok(0),
        }
    }

    /// Appends the frame to `out`.
    pub(super) fn encode(
        &self,
        class: Class,
        tag: Tag,
        data: &[u8],
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        scratch.clear();
        let checked = "segments and lists were checked when the operation was posted";
        let request = match self {
            Verb::Read(segs) | Verb::Write(segs) => {
                Seg::encode_list(segs, scratch);
                let segs = Segs::decode(scratch).expect(checked);
                if matches!(self, Verb::Read(_)) {
                    Request::Read(segs)
                } else {
                    Request::Write(segs)
                }
            }
            Verb::CompareSwap {
                grant,
                offset,
                expect,
                new,
            } => Request::CompareSwap {
                grant: *grant,
                offset: *offset,
                expect: *expect,
                new: *new,
            },
            Verb::FetchAdd { grant, offset, add } => Request::FetchAdd {
                grant: *grant,
                offset: *offset,
                add: *add,
            },
            Verb::Call {
                service,
                wic,
                deadline_us,
                idempotent,
                args_len,
            } => Request::Call(Call {
                service: *service,
                wic: *wic,
                deadline_us: *deadline_us,
                idempotent: *idempotent,
                args: &data[..*args_len as usize],
            }),
            Verb::Control(control) => match control {
                Control::Heartbeat => Request::Heartbeat,
                Control::Goodbye => Request::Goodbye,
                Control::TakeOver => Request::TakeOver,
                Control::Grant { bytes } => Request::Grant { bytes: *bytes },
                Control::Release(ids) | Control::Share(ids) => {
                    encode_ids(ids, scratch);
                    let list = GrantList::decode(scratch).expect(checked);
                    if matches!(control, Control::Release(_)) {
                        Request::Release(list)
                    } else {
                        Request::Share(list)
                    }
                }
                Control::Adopt { ticket } => Request::Adopt { ticket: *ticket },
                Control::Revoke { ticket } => Request::Revoke { ticket: *ticket },
                Control::Status { after } => Request::Status { after: *after },
                Control::Drain { deadline_ms } => Request::Drain {
                    deadline_ms: *deadline_ms,
                },
                Control::Open(opening) => Request::Open(opening.clone()),
                Control::Close { service } => Request::Close { service: *service },
                Control::Resolve { name, version } => Request::Resolve {
                    name: name.clone(),
                    version: *version,
                },
                Control::Note { text } => Request::Note { text: text.clone() },
                Control::Agent(body) => Request::Agent(body),
                Control::Wics(request) => Request::Wics(request.clone()),
            },
        };
        request.encode(class, tag, out);
    }
}

fn encode_ids(ids: &[GrantId], scratch: &mut Vec<u8>) {
    scratch.clear();
    for id in ids {
        scratch.extend_from_slice(&id.0.to_le_bytes());
    }
}
