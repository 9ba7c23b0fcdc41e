//! One connection: bytes in, frames to the shard, replies out, never waiting.
//!
//! At most one reply is under way; while it is, nothing more is read. So a client that does not
//! take its replies holds back nobody but itself, and a connection's memory is bounded by a few
//! kilobytes whatever is sent to it.

use crate::calls::Calls;
use crate::guard::Guard;
use crate::segment::MemfdBacking;
use muninn_proto::server::{
    CONNECTION_BYTES, Entry, Inbound, Out, Peer, Progress, SegmentMemory, Shard, Span, Step,
};
use muninn_sys::socket::{FDS_MAX, Piece, Stream, Transfer};
use muninn_types::{Bytes, Class, ConnId, LaneKind, Nanos, Tag};
use muninn_wire::{Call, HEADER_LEN, Header, Kind, Notice, seal_frame};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

type Segment = <MemfdBacking as muninn_proto::server::Backing>::Segment;

/// Bytes read at a time while headers are expected: many small requests, or the start of a write.
pub(crate) const HEAD_READ: usize = 4096;
/// The most bytes moved by one system call, so that a turn stays short.
const CHUNK_MAX: usize = 64 << 10;
/// The most pieces handed to one system call.
const PIECES_MAX: usize = 72;

/// Bytes of an answer that is copied to travel with others, instead of being sent from the pool.
const KEPT_MAX: usize = 512;

/// Larger buffers are given back when they are empty.
const BUFFER_KEPT: usize = 4 << 10;

/// What may be on its way to us on a bulk lane.
const BULK_WINDOW: Bytes = Bytes::kib(128);

/// A reply on its way out.
#[derive(Debug, Default)]
struct Outgoing {
    frame: Vec<u8>,
    payload: Vec<u8>,
    spans: Vec<Span<MemfdBacking>>,
    descriptors: Vec<Arc<Segment>>,
    descriptors_sent: usize,
    sent: usize,
    total: usize,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub stream: Stream,
    pub peer: Peer,
    id: ConnId,
    inbound: Inbound<MemfdBacking>,
    outgoing: Outgoing,
    /// Read but not yet looked at: a reply was in the way.
    ahead: Vec<u8>,
    /// A reply that waits for a refused payload to pass by.
    after_discard: bool,
    /// Replies to calls that have ended, in whole frames, until there is room between two replies.
    /// Bounded by the calls that a loop takes.
    replies: Vec<u8>,
    /// The latest notice, until there is room between two replies.
    notice: Option<Notice>,
    closing: bool,
    /// Given away once the last reply is sent.
    giving: bool,
    /// What it takes beside the pool.
    entry: Entry,
    /// All of it is in records from now on.
    guard: Option<Box<Guard>>,
    /// Class of the request that was last seen, for the order in which connections are served.
    pub class: Class,
    /// Mark the packets with the class of the requests they answer, once that is known.
    to_mark: bool,
    /// Requests of each class that were answered in this turn.
    answered: [u32; Class::COUNT],
    /// In the scheduler's queue.
    pub queued: bool,
    /// Since when there is something to do, as far as the loop has looked.
    pub ready_since: Nanos,
    /// Since when nothing of a reply could be sent.
    pub blocked_since: Option<Nanos>,
    /// The descriptor is watched for room to write.
    pub watches_write: bool,
}

/// What a turn ended with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing to do before the descriptor is ready again.
    Idle,
    /// The budget is used up and there is more to do.
    More,
    /// Waits until the peer takes what was sent.
    Blocked,
    /// Done with: close it.
    Close,
    /// The other side closed it in good order.
    Left,
    /// Give the connection to whoever hands the server over.
    Give,
    /// Give the connection and these bytes to another shard.
    HandOff { shard: u8, bytes: Vec<u8> },
}

impl Connection {
    pub(crate) fn new(
        id: ConnId,
        stream: Stream,
        peer: Peer,
        entry: Entry,
        to_mark: bool,
    ) -> Connection {
        Connection {
            entry,
            stream,
            peer,
            id,
            inbound: Inbound::default(),
            outgoing: Outgoing::default(),
            ahead: Vec::new(),
            after_discard: false,
            replies: Vec::new(),
            notice: None,
            closing: false,
            giving: false,
            guard: None,
            class: Class::Control,
            to_mark,
            answered: [0; Class::COUNT],
            queued: false,
            ready_since: Nanos::ZERO,
            blocked_since: None,
            watches_write: false,
        }
    }

    /// Writes down what it holds; false if that is more than may be.
    pub(crate) fn settle(&mut self) -> bool {
        let o = &self.outgoing;
        let held = o.frame.capacity()
            + o.payload.capacity()
            + o.spans.capacity() * size_of::<Span<MemfdBacking>>()
            + self.ahead.capacity()
            + self.replies.capacity()
            + self.inbound.held()
            + self.guard.as_ref().map_or(0, |guard| guard.held());
        self.entry.set(CONNECTION_BYTES + held as u64)
    }

    /// Bytes that were read elsewhere, before anything else of this connection.
    pub(crate) fn preload(&mut self, bytes: Vec<u8>) {
        self.ahead = bytes;
    }

    /// Frames to send when there is room: answers to calls.
    pub(crate) fn answer(&mut self, frames: &[u8]) {
        self.replies.extend_from_slice(frames);
    }

    /// Sends answers to calls, as far as the socket takes them and nothing else is on its way.
    pub(crate) fn send_answers(&mut self) -> Turn {
        loop {
            if self.outgoing.total == 0 {
                if self.replies.is_empty() || self.after_discard {
                    return Turn::Idle;
                }
                self.take_replies();
            }
            match self.flush() {
                Ok(Transfer::Bytes(_)) => {}
                Ok(Transfer::WouldBlock) => return Turn::Blocked,
                Ok(Transfer::Closed) | Err(_) => return Turn::Close,
            }
            if self.outgoing.sent == self.outgoing.total {
                self.finish_outgoing();
                if self.closing {
                    return Turn::Close;
                }
                if !self.ahead.is_empty() {
                    return Turn::More;
                }
            }
        }
    }

    fn take_replies(&mut self) {
        let frame = &mut self.outgoing.frame;
        frame.clear();
        std::mem::swap(frame, &mut self.replies);
        self.outgoing.sent = 0;
        self.outgoing.total = self.outgoing.frame.len();
    }

    /// Requests that were answered since this was asked last: how many of each class there is.
    pub(crate) fn take_answered(&mut self) -> impl Iterator<Item = (Class, u64)> + use<> {
        let answered = std::mem::take(&mut self.answered);
        let pairs = Class::ALL.into_iter().zip(answered);
        pairs.filter_map(|(class, n)| (n > 0).then_some((class, u64::from(n))))
    }

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.notice = Some(notice);
    }

    /// Serves the connection for about `budget` bytes; how many were moved, and how it ended.
    pub(crate) fn serve(
        &mut self,
        shard: &mut Shard<MemfdBacking>,
        out: &mut Out<MemfdBacking>,
        calls: &mut Calls,
        scratch: &mut [u8; HEAD_READ],
        budget: usize,
        now: Nanos,
    ) -> (usize, Turn) {
        let mut moved = 0;
        // A short read emptied the socket: the next one would only be told so.
        let mut emptied = false;
        loop {
            if self.outgoing.sent < self.outgoing.total {
                match self.flush() {
                    Ok(Transfer::Bytes(n)) => moved += n,
                    Ok(Transfer::WouldBlock) => return (moved, Turn::Blocked),
                    Ok(Transfer::Closed) | Err(_) => return (moved, Turn::Close),
                }
                if self.outgoing.sent < self.outgoing.total {
                    if moved >= budget {
                        return (moved, Turn::More);
                    }
                    continue;
                }
                self.finish_outgoing();
            }
            if self.closing {
                return (moved, Turn::Close);
            }
            if self.giving {
                return (moved, Turn::Give);
            }
            if let Some(notice) = self.notice.take() {
                self.send_notice(notice);
                continue;
            }
            if !self.replies.is_empty() && !self.after_discard {
                self.take_replies();
                continue;
            }
            if !self.ahead.is_empty() {
                if moved >= budget {
                    return (moved, Turn::More);
                }
                let bytes = std::mem::take(&mut self.ahead);
                if let Some(turn) = self.take_in(&bytes, shard, out, calls, now) {
                    return (moved, turn);
                }
                continue;
            }
            if emptied {
                return (moved, Turn::Idle);
            }
            if moved >= budget {
                return (moved, Turn::More);
            }
            if self.guard.is_some() {
                let mut plain = Vec::new();
                let read = self.read_protected(&mut plain);
                match read {
                    Ok(Transfer::Bytes(n)) => moved += n,
                    Ok(Transfer::WouldBlock) => return (moved, Turn::Idle),
                    Ok(Transfer::Closed) => return (moved, Turn::Left),
                    Err(error) => {
                        if error == rustix::io::Errno::BADMSG {
                            shard.shared().registry.refused("forged-record");
                        }
                        return (moved, Turn::Close);
                    }
                }
                if let Some(turn) = self.take_in(&plain, shard, out, calls, now) {
                    return (moved, turn);
                }
                continue;
            }
            let into_payload = !self.inbound.targets().0.is_empty();
            let (asked, read) = if into_payload {
                self.read_payload(budget)
            } else {
                (HEAD_READ, self.read_head(scratch))
            };
            let n = match read {
                Ok(Transfer::Bytes(n)) => n,
                Ok(Transfer::WouldBlock) => return (moved, Turn::Idle),
                Ok(Transfer::Closed) => return (moved, Turn::Left),
                Err(_) => return (moved, Turn::Close),
            };
            moved += n;
            emptied = n < asked;
            let bytes = if into_payload {
                self.inbound.filled(n);
                &[]
            } else {
                &scratch[..n]
            };
            if let Some(turn) = self.take_in(bytes, shard, out, calls, now) {
                return (moved, turn);
            }
        }
    }

    /// Replies carry the marks of what they answer: most bytes travel in them. A connection carries
    /// one kind of lane, so the first request that is not control decides, once.
    fn mark(&mut self) {
        if self.to_mark && self.class.lane() != LaneKind::Control {
            self.to_mark = false;
            self.stream.set_class(self.class.lane().mark());
            if self.class.lane() == LaneKind::Bulk {
                // Each acknowledgement lets the kernel send what the client has queued, on our CPU
                // and ahead of a demand read; a smaller window keeps that short.
                let _ = self.stream.set_receive_buffer(BULK_WINDOW);
            }
        }
    }

    fn read_protected(&mut self, plain: &mut Vec<u8>) -> Result<Transfer, rustix::io::Errno> {
        match &mut self.guard {
            Some(guard) => guard.read(&self.stream, plain),
            None => Ok(Transfer::WouldBlock),
        }
    }

    fn read_head(&self, scratch: &mut [u8; HEAD_READ]) -> Result<Transfer, rustix::io::Errno> {
        let pieces = [Piece::new(scratch.as_mut_ptr(), scratch.len())];
        // SAFETY: the piece is the scratch buffer, borrowed for the length of the call.
        unsafe { self.stream.read_pieces(&pieces) }
    }

    /// Straight from the socket into the pool.
    fn read_payload(&self, budget: usize) -> (usize, Result<Transfer, rustix::io::Errno>) {
        let (spans, mut done) = self.inbound.targets();
        let mut pieces = [Piece::new(std::ptr::null_mut(), 0); PIECES_MAX];
        let mut count = 0;
        let limit = budget.clamp(HEAD_READ, CHUNK_MAX);
        let mut room = limit;
        for span in spans.iter().take(PIECES_MAX) {
            let len = ((span.len - done) as usize).min(room);
            let start = span.extent.mem().at(span.at + u64::from(done), len as u64);
            pieces[count] = Piece::new(start, len);
            count += 1;
            room -= len;
            done = 0;
            if room == 0 {
                break;
            }
        }
        // SAFETY: every piece lies in the mapping of an extent that its span keeps alive, and
        // nothing holds a reference into mapped memory.
        let read = unsafe { self.stream.read_pieces(&pieces[..count]) };
        (limit - room, read)
    }

    /// Hands bytes to the shard until a reply is in the way or they are used up.
    fn take_in(
        &mut self,
        mut bytes: &[u8],
        shard: &mut Shard<MemfdBacking>,
        out: &mut Out<MemfdBacking>,
        calls: &mut Calls,
        now: Nanos,
    ) -> Option<Turn> {
        loop {
            let progress = match self.inbound.advance(&mut bytes) {
                Ok(progress) => progress,
                Err(error) => {
                    shard.malformed(error, out);
                    self.queue(out);
                    self.closing = true;
                    return None;
                }
            };
            match progress {
                Progress::NeedMore => return None,
                Progress::PayloadDone => {
                    if std::mem::take(&mut self.after_discard) {
                        self.outgoing.total = self.outgoing.frame.len();
                    } else if let Some(header) = self.inbound.header().copied() {
                        shard.written(self.id, &header, out);
                        self.answered[header.class.index()] += 1;
                        self.queue(out);
                    }
                }
                Progress::Frame(header) => {
                    self.class = header.class;
                    self.mark();
                    let step = shard.handle(self.id, &header, self.inbound.body(), now, out);
                    if let Some(records) = out.protect.take() {
                        // What came behind the proof did not come in a record: nobody vouches for it.
                        if !bytes.is_empty() || !self.replies.is_empty() {
                            return Some(Turn::Close);
                        }
                        self.guard = Some(Box::new(Guard::new(records)));
                    }
                    if step == Step::Reply {
                        self.answered[header.class.index()] += 1;
                    }
                    match step {
                        // More requests are here already: short answers travel together.
                        Step::Reply if !bytes.is_empty() && self.keep(out) => {}
                        Step::Reply => self.queue(out),
                        Step::ReplyThenClose => {
                            self.queue(out);
                            self.closing = true;
                        }
                        Step::ReplyThenGive => {
                            self.queue(out);
                            self.giving = true;
                        }
                        Step::Receive => self.inbound.receive(&mut out.spans),
                        Step::DiscardThenReply(len) => {
                            self.queue(out);
                            // Kept back until the payload has passed.
                            self.outgoing.total = 0;
                            self.after_discard = true;
                            self.inbound.discard(len);
                        }
                        Step::Call => {
                            if let Some(caller) = out.caller.take() {
                                let args = &self.inbound.body()[Call::HEAD..];
                                calls.submit(shard, &caller, args, now);
                            }
                        }
                        Step::Nothing => {}
                        Step::HandOff(shard) => {
                            let mut again = vec![0; HEADER_LEN];
                            again.extend_from_slice(self.inbound.body());
                            seal_frame(&mut again, header, 0);
                            again.extend_from_slice(bytes);
                            return Some(Turn::HandOff {
                                shard,
                                bytes: again,
                            });
                        }
                    }
                }
            }
            if self.outgoing.total > 0 || self.closing {
                self.ahead.extend_from_slice(bytes);
                return None;
            }
        }
    }

    /// Puts a short answer with those that are sent next; false if it is not short.
    fn keep(&mut self, out: &mut Out<MemfdBacking>) -> bool {
        let len: usize = out.spans.iter().map(|span| span.len as usize).sum();
        if len + out.payload.len() > KEPT_MAX || !out.descriptors.is_empty() {
            return false;
        }
        self.replies.extend_from_slice(&out.frame);
        self.replies.extend_from_slice(&out.payload);
        for span in out.spans.drain(..) {
            let start = self.replies.len();
            self.replies.resize(start + span.len as usize, 0);
            let memory = span.extent.mem();
            memory.read(span.at, &mut self.replies[start..]);
        }
        true
    }

    /// Takes what the shard wants sent; buffers change places, so that none is allocated anew.
    fn queue(&mut self, out: &mut Out<MemfdBacking>) {
        if !self.replies.is_empty() {
            // Answers to what was asked before go first.
            self.replies.extend_from_slice(&out.frame);
            std::mem::swap(&mut self.replies, &mut out.frame);
            self.replies.clear();
        }
        let o = &mut self.outgoing;
        std::mem::swap(&mut o.frame, &mut out.frame);
        std::mem::swap(&mut o.payload, &mut out.payload);
        std::mem::swap(&mut o.spans, &mut out.spans);
        std::mem::swap(&mut o.descriptors, &mut out.descriptors);
        if o.spans.len() > 1 {
            for span in &o.spans {
                span.extent.mem().prefetch(span.at);
            }
        }
        let streamed: usize = o.spans.iter().map(|span| span.len as usize).sum();
        o.sent = 0;
        o.descriptors_sent = 0;
        o.total = o.frame.len() + o.payload.len() + streamed;
    }

    fn finish_outgoing(&mut self) {
        let o = &mut self.outgoing;
        o.frame.clear();
        o.payload.clear();
        o.spans.clear();
        o.descriptors.clear();
        (o.sent, o.total) = (0, 0);
        // Long answers are rare; their buffers are not kept.
        for buffer in [&mut o.frame, &mut o.payload] {
            if buffer.capacity() > BUFFER_KEPT {
                *buffer = Vec::new();
            }
        }
    }

    fn send_notice(&mut self, notice: Notice) {
        let frame = &mut self.outgoing.frame;
        frame.clear();
        frame.resize(HEADER_LEN, 0);
        notice.encode(frame);
        seal_frame(frame, Header::new(Kind::Notice, Class::Control, Tag(0)), 0);
        self.outgoing.total = frame.len();
        self.outgoing.sent = 0;
    }

    fn flush(&mut self) -> Result<Transfer, rustix::io::Errno> {
        let o = &mut self.outgoing;
        if let Some(guard) = &mut self.guard {
            let (text, sent) = guard.write(&self.stream, |plain, most| gather(o, plain, most))?;
            o.sent += text;
            return Ok(sent);
        }
        if o.descriptors_sent < o.descriptors.len() {
            // A few bytes with each batch of descriptors; the frame is longer than there can be
            // batches.
            let batch = &o.descriptors[o.descriptors_sent..];
            let batch = &batch[..batch.len().min(FDS_MAX)];
            let fds: Vec<BorrowedFd<'_>> = batch.iter().map(|s| s.descriptor()).collect();
            let sent = self.stream.send_fds(&o.frame[o.sent..o.sent + 1], &fds)?;
            if let Transfer::Bytes(n) = sent {
                o.descriptors_sent += fds.len();
                o.sent += n;
            }
            return Ok(sent);
        }
        let mut pieces = [Piece::new(std::ptr::null_mut(), 0); PIECES_MAX];
        let mut count = 0;
        let mut skip = o.sent;
        let mut add = |start: *mut u8, len: usize| {
            let before = skip.min(len);
            skip -= before;
            if before < len && count < PIECES_MAX {
                pieces[count] = Piece::new(start.wrapping_add(before), len - before);
                count += 1;
            }
        };
        add(o.frame.as_mut_ptr(), o.frame.len());
        add(o.payload.as_mut_ptr(), o.payload.len());
        for span in &o.spans {
            add(
                span.extent.mem().at(span.at, u64::from(span.len)),
                span.len as usize,
            );
        }
        // SAFETY: the pieces are our own buffers and ranges of extents that the spans keep alive;
        // the kernel only reads them.
        let sent = unsafe { self.stream.write_pieces(&pieces[..count]) }?;
        if let Transfer::Bytes(n) = sent {
            o.sent += n;
        }
        Ok(sent)
    }
}

/// Copies what is to be sent next, at most so much.
fn gather(o: &Outgoing, plain: &mut Vec<u8>, most: usize) {
    let mut skip = o.sent;
    for part in [&o.frame, &o.payload] {
        let before = skip.min(part.len());
        skip -= before;
        let len = (part.len() - before).min(most - plain.len());
        plain.extend_from_slice(&part[before..before + len]);
    }
    for span in &o.spans {
        let before = skip.min(span.len as usize);
        skip -= before;
        let len = (span.len as usize - before).min(most - plain.len());
        let start = plain.len();
        plain.resize(start + len, 0);
        let memory = span.extent.mem();
        memory.read(span.at + before as u64, &mut plain[start..]);
    }
}
