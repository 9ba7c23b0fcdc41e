//! One connection of a session as its client sees it, and the requests under way on it.
//!
//! Every request stays here until it is answered. After a cut the lane is attached again and all
//! that was not answered is sent again, in the order of the tags; the server recognises what it has
//! done already and must not do twice. So a cut inside the lease loses nothing, and a lost session
//! fails every request, loudly.

use super::operation::{Answer, Completion, Control, OpError, Operation, Verb};
use crate::framing::FrameBuffer;
use muninn_types::Tag;
use muninn_wire::{
    Called, DecodeError, DrainReport, ErrorCode, GrantInfo, Header, Kind, Notice, Refusal, Request,
    ServiceInfo, StatusPage, TICKET_LEN, VERSION_MIN, VERSION_WICS, WicsReply, decode_adopted,
    decode_old_value,
};
use std::collections::VecDeque;

/// The stream makes no sense; the connection must be cut and attached again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    #[error("the server sent something that is no message: {0}")]
    Decode(#[from] DecodeError),
    #[error("the server answered what was not asked")]
    Unasked,
}

#[derive(Debug)]
struct Pending<D> {
    tag: Tag,
    operation: Operation<D>,
    /// Bytes of the segments.
    total: usize,
    sent: bool,
    /// Nobody waits for it any more; its answer is dropped.
    abandoned: bool,
}

#[derive(Debug)]
enum Receiving {
    Head,
    /// The payload of the reply to this slot.
    Data {
        slot: usize,
        done: usize,
    },
    /// A control reply's payload, and the reply's header.
    Small {
        slot: usize,
        left: usize,
    },
}

/// A frame to send: its head is in the caller's buffer, its payload stays with the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    slot: usize,
    pub payload_len: usize,
}

#[derive(Debug)]
pub struct Lane<D> {
    slots: Vec<Option<Pending<D>>>,
    free: Vec<usize>,
    /// Slots not sent yet (on this connection), oldest first.
    unsent: VecDeque<usize>,
    next_seq: u64,
    unrepeatable: usize,
    frame: FrameBuffer,
    receiving: Receiving,
    small: Vec<u8>,
    /// The version that came with it.
    small_version: u8,
    /// The service whose grants are arriving.
    opened: Option<ServiceInfo>,
    done: VecDeque<Completion<D>>,
    notices: VecDeque<Notice>,
    scratch: Vec<u8>,
    /// Of the protocol, which the server at the other end speaks.
    version: u8,
}

const SLOT_BITS: u32 = 8;

impl<D: AsRef<[u8]> + AsMut<[u8]>> Lane<D> {
    /// The most requests under way.
    pub const WINDOW_MAX: usize = 1 << SLOT_BITS;
    /// The most requests under way that must not be done twice: half of what a server remembers.
    pub const UNREPEATABLE_MAX: usize = 16;
    const NOTICES_MAX: usize = 16;

    /// A lane with at most `window` requests under way.
    pub fn new(window: usize) -> Lane<D> {
        assert!(
            (1..=Self::WINDOW_MAX).contains(&window),
            "a window is 1 to 256 requests"
        );
        Lane {
            slots: (0..window).map(|_| None).collect(),
            free: (0..window).rev().collect(),
            unsent: VecDeque::with_capacity(window),
            next_seq: 1,
            unrepeatable: 0,
            frame: FrameBuffer::default(),
            receiving: Receiving::Head,
            small: Vec::new(),
            small_version: VERSION_MIN,
            opened: None,
            done: VecDeque::with_capacity(window),
            notices: VecDeque::new(),
            scratch: Vec::new(),
            version: VERSION_MIN,
        }
    }

    /// What was agreed upon with the server that the lane is attached to from now on.
    pub fn speak(&mut self, version: u8) {
        self.version = version;
    }

    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && self.unrepeatable < Self::UNREPEATABLE_MAX
    }

    /// Takes an operation, or gives it back when the window is full. One that makes no sense
    /// completes at once, with the reason.
    pub fn post(&mut self, operation: Operation<D>) -> Result<Tag, Operation<D>> {
        if !self.has_room() {
            return Err(operation);
        }
        if matches!(operation.verb, Verb::Control(Control::Wics(_))) && self.version < VERSION_WICS
        {
            let (theirs, ours) = (u64::from(self.version), u64::from(VERSION_WICS));
            let refusal = Refusal::with(ErrorCode::WrongVersion, theirs, ours);
            return Ok(self.refuse(operation, OpError::Refused(refusal)));
        }
        let checked = operation.verb.total(&mut self.scratch);
        let total = match checked {
            Ok(total) if total <= operation.data.as_ref().len() => total,
            Ok(_) => return Ok(self.refuse(operation, OpError::DataTooShort)),
            Err(error) => return Ok(self.refuse(operation, error)),
        };
        let Some(slot) = self.free.pop() else {
            return Err(operation);
        };
        let tag = Tag(self.next_seq << SLOT_BITS | slot as u64);
        self.next_seq += 1;
        self.unrepeatable += usize::from(!operation.verb.is_idempotent());
        let pending = Pending {
            tag,
            operation,
            total,
            sent: false,
            abandoned: false,
        };
        self.slots[slot] = Some(pending);
        self.unsent.push_back(slot);
        Ok(tag)
    }

    fn refuse(&mut self, operation: Operation<D>, error: OpError) -> Tag {
        self.done.push_back(Completion {
            operation,
            result: Err(error),
        });
        Tag(0)
    }

    /// The next frame to send: its head is appended to `head`.
    pub fn transmit(&mut self, head: &mut Vec<u8>) -> Option<Transmit> {
        let slot = self.unsent.pop_front()?;
        let pending = self.slots[slot].as_mut()?;
        pending.sent = true;
        let operation = &pending.operation;
        match operation.verb {
            // Their answers depend on the version; all else is as it was in the oldest.
            Verb::Control(Control::Heartbeat) => {
                let (class, tag) = (operation.class, pending.tag);
                Request::Heartbeat.encode_in(self.version, class, tag, head);
            }
            Verb::Control(Control::Status { after }) => {
                let (class, tag) = (operation.class, pending.tag);
                Request::Status { after }.encode_in(self.version, class, tag, head);
            }
            _ => operation.verb.encode(
                operation.class,
                pending.tag,
                operation.data.as_ref(),
                &mut self.scratch,
                head,
            ),
        }
        let payload_len = match operation.verb {
            Verb::Write(_) => pending.total,
            _ => 0,
        };
        Some(Transmit { slot, payload_len })
    }

    /// The payload that belongs behind the head.
    pub fn payload(&self, transmit: Transmit) -> &[u8] {
        match &self.slots[transmit.slot] {
            Some(pending) => &pending.operation.data.as_ref()[..transmit.payload_len],
            None => &[],
        }
    }
    pub fn wants_to_send(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The connection is gone: everything unanswered will be sent again, oldest first. What was
    /// abandoned is dropped: once the lane is attached again it is certain not to be done any more.
    pub fn cut(&mut self) {
        self.frame.clear();
        self.receiving = Receiving::Head;
        self.small.clear();
        self.unsent.clear();
        for slot in 0..self.slots.len() {
            if self.slots[slot]
                .as_ref()
                .is_some_and(|pending| pending.abandoned)
            {
                self.complete(slot, Ok(Answer::Done));
            }
        }
        let mut open: Vec<(Tag, usize)> = (self.slots.iter().enumerate())
            .filter_map(|(slot, pending)| pending.as_ref().map(|p| (p.tag, slot)))
            .collect();
        open.sort_unstable();
        for (_, slot) in open {
            if let Some(pending) = &mut self.slots[slot] {
                pending.sent = false;
            }
            self.unsent.push_back(slot);
        }
    }

    /// The session is lost: everything unanswered fails.
    pub fn fail(&mut self, reason: &str) {
        self.cut();
        while let Some(slot) = self.unsent.pop_front() {
            self.complete(slot, Err(OpError::SessionLost(reason.to_string())));
        }
    }

    /// The caller stopped waiting for this request; its answer will be dropped.
    pub fn abandon(&mut self, tag: Tag) {
        let slot = (tag.0 & ((1 << SLOT_BITS) - 1)) as usize;
        if let Some(Some(pending)) = self.slots.get_mut(slot)
            && pending.tag == tag
        {
            pending.abandoned = true;
        }
    }

    /// The same for every request that `given_up` names; what is done already is dropped too.
    pub fn abandon_where(&mut self, given_up: impl Fn(&Operation<D>) -> bool) {
        for pending in self.slots.iter_mut().flatten() {
            pending.abandoned |= given_up(&pending.operation);
        }
        self.done.retain(|done| !given_up(&done.operation));
    }

    fn complete(&mut self, slot: usize, result: Result<Answer, OpError>) {
        let Some(pending) = self.slots[slot].take() else {
            return;
        };
        self.free.push(slot);
        self.unrepeatable -= usize::from(!pending.operation.verb.is_idempotent());
        if !pending.abandoned {
            self.done.push_back(Completion {
                operation: pending.operation,
                result,
            });
        }
    }

    pub fn pop(&mut self) -> Option<Completion<D>> {
        self.done.pop_front()
    }
    pub fn pop_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Takes all bytes of `input`.
    pub fn receive(&mut self, mut input: &[u8]) -> Result<(), LaneError> {
        while !input.is_empty() {
            match self.receiving {
                Receiving::Head => {
                    if let Some(header) = self.frame.advance(&mut input)? {
                        self.reply(&header)?;
                    }
                }
                Receiving::Data { .. } => {
                    let target = self.target();
                    let n = target.len().min(input.len());
                    target[..n].copy_from_slice(&input[..n]);
                    input = &input[n..];
                    self.filled(n);
                }
                Receiving::Small { slot, left } => {
                    let n = left.min(input.len());
                    self.small.extend_from_slice(&input[..n]);
                    input = &input[n..];
                    self.receiving = Receiving::Small {
                        slot,
                        left: left - n,
                    };
                    if left == n {
                        self.small_done(slot)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Where the next bytes of the stream belong, while a read's payload arrives; else empty.
    pub fn target(&mut self) -> &mut [u8] {
        let Receiving::Data { slot, done } = self.receiving else {
            return &mut [];
        };
        match &mut self.slots[slot] {
            Some(pending) => &mut pending.operation.data.as_mut()[done..pending.total],
            None => &mut [],
        }
    }

    /// `n` more bytes are in [`Lane::target`].
    pub fn filled(&mut self, n: usize) {
        let Receiving::Data { slot, done } = &mut self.receiving else {
            return;
        };
        *done += n;
        let (slot, done) = (*slot, *done);
        if self.slots[slot]
            .as_ref()
            .is_none_or(|pending| pending.total == done)
        {
            self.receiving = Receiving::Head;
            self.complete(slot, Ok(Answer::Done));
        }
    }

    /// A whole header and body are in `self.frame`.
    fn reply(&mut self, header: &Header) -> Result<(), LaneError> {
        if header.kind == Kind::Notice {
            if header.payload_len != 0 {
                return Err(LaneError::Unasked);
            }
            if self.notices.len() == Self::NOTICES_MAX {
                // The latest is what holds.
                self.notices.pop_front();
            }
            self.notices.push_back(Notice::decode(self.frame.body())?);
            self.frame.clear();
            return Ok(());
        }
        let slot = (header.tag.0 & ((1 << SLOT_BITS) - 1)) as usize;
        let pending = match self.slots.get(slot) {
            Some(Some(pending)) if pending.tag == header.tag && pending.sent => pending,
            _ => return Err(LaneError::Unasked),
        };
        let body = self.frame.body();
        if let Some(code) = header.error() {
            if header.payload_len != 0 {
                return Err(LaneError::Unasked);
            }
            let refusal = Refusal::decode(code, body)?;
            self.frame.clear();
            self.complete(slot, Err(OpError::Refused(refusal)));
            return Ok(());
        }
        let payload = header.payload_len as usize;
        let no_payload = || {
            if payload == 0 {
                Ok(())
            } else {
                Err(LaneError::Unasked)
            }
        };
        let answer = match (&pending.operation.verb, header.kind) {
            (Verb::Read(_), Kind::ReadReply) if payload == pending.total => {
                self.frame.clear();
                self.receiving = Receiving::Data { slot, done: 0 };
                return Ok(());
            }
            (Verb::Control(Control::Status { .. }), Kind::StatusReply)
            | (Verb::Control(Control::Adopt { .. }), Kind::AdoptReply)
            | (Verb::Control(Control::Open(_)), Kind::OpenReply) => {
                self.opened = match header.kind {
                    Kind::OpenReply => Some(ServiceInfo::decode(body)?),
                    _ => None,
                };
                self.small_version = header.version;
                self.frame.clear();
                self.small.clear();
                self.receiving = Receiving::Small {
                    slot,
                    left: payload,
                };
                return if payload == 0 {
                    self.small_done(slot)
                } else {
                    Ok(())
                };
            }
            (Verb::Call { .. }, Kind::CallReply) => {
                let called = Called::decode(body)?;
                let answer = Answer::Called {
                    reply_len: called.reply.len() as u32,
                    accesses: called.accesses,
                    took_ns: called.took_ns,
                };
                let reply = called.reply.len();
                let from = body.len() - reply;
                if let Some(Some(pending)) = self.slots.get_mut(slot) {
                    // Checked when it was posted: there is room for the longest reply.
                    pending.operation.data.as_mut()[..reply].copy_from_slice(&body[from..]);
                }
                answer
            }
            (Verb::Control(Control::Resolve { .. }), Kind::ResolveReply) => {
                let number = body.try_into().map_err(|_| DecodeError::Short)?;
                Answer::Resolved(u32::from_le_bytes(number))
            }
            (Verb::Control(Control::Wics(_)), Kind::WicsReply) => {
                Answer::Wics(WicsReply::decode(body)?)
            }
            (Verb::Control(Control::Close { .. }), Kind::CloseReply)
            | (Verb::Control(Control::Note { .. }), Kind::NoteReply) => Answer::Done,
            (Verb::Write(_), Kind::WriteReply)
            | (Verb::Control(Control::Goodbye), Kind::GoodbyeReply)
            | (Verb::Control(Control::TakeOver), Kind::TakeOverReply)
            | (Verb::Control(Control::Release(_)), Kind::ReleaseReply)
            | (Verb::Control(Control::Revoke { .. }), Kind::RevokeReply) => Answer::Done,
            (Verb::CompareSwap { .. }, Kind::CompareSwapReply)
            | (Verb::FetchAdd { .. }, Kind::FetchAddReply) => Answer::Old(decode_old_value(body)?),
            (Verb::Control(Control::Grant { .. }), Kind::GrantReply) => {
                Answer::Granted(GrantInfo::decode(body)?)
            }
            (Verb::Control(Control::Agent(_)), Kind::AgentReply) => Answer::Agent(body.to_vec()),
            (Verb::Control(Control::Share(_)), Kind::ShareReply) => {
                let ticket: [u8; TICKET_LEN] = body.try_into().map_err(|_| DecodeError::Short)?;
                Answer::Ticket(ticket)
            }
            (Verb::Control(Control::Heartbeat), Kind::HeartbeatReply)
            | (Verb::Control(Control::Drain { .. }), Kind::DrainReply) => {
                Answer::Report(DrainReport::decode(header.version, body)?)
            }
            _ => return Err(LaneError::Unasked),
        };
        no_payload()?;
        self.frame.clear();
        self.complete(slot, Ok(answer));
        Ok(())
    }

    fn small_done(&mut self, slot: usize) -> Result<(), LaneError> {
        self.receiving = Receiving::Head;
        let adopts = self.slots[slot]
            .as_ref()
            .is_some_and(|p| matches!(p.operation.verb, Verb::Control(Control::Adopt { .. })));
        let answer = if let Some(info) = self.opened.take() {
            Answer::Opened(info, decode_adopted(&self.small)?)
        } else if adopts {
            Answer::Adopted(decode_adopted(&self.small)?)
        } else {
            Answer::Status(Box::new(StatusPage::decode(
                self.small_version,
                &self.small,
            )?))
        };
        self.complete(slot, Ok(answer));
        Ok(())
    }
}
