//! A lane over a socket: drives the protocol's lane machine, and connects again after a cut.
//!
//! A cut is repaired here for as long as the lease lasts, without the caller noticing more than the
//! time it takes. When the lease is over, or the server says that it does not know the session,
//! every request fails.

use crate::buffer::Buffer;
use crate::error::NetError;
use crate::lane::{Done, Lane, Op};
use crate::link::Link;
use crate::session::{SessionCore, open_stream};
use muninn_proto::client::{Answer, HandshakeError, Lane as LaneMachine, Purpose, Transmit};
use muninn_sys::clock::{self, Courtesy};
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{Address, Piece, ReceivedFds, Stream, Transfer};
use muninn_types::{LaneId, LaneKind, Nanos, SessionId};
use muninn_wire::{ErrorCode, Notice};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes read at a time while a header is expected: a page's reply and the next header fit.
const HEAD_READ: usize = 8192;
/// Heads of requests that travel together.
const BATCH_BYTES: usize = 4096;
/// Pauses between two attempts to connect again.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);
/// How long an attempt to connect again may take.
const ATTACH_MIN: Duration = Duration::from_millis(100);
const ATTACH_MAX: Duration = Duration::from_millis(500);
/// The most descriptors that wait for the replies they belong to.
const DESCRIPTORS_MAX: usize = 64;
/// Reads from a connection on which nothing can be sent any more.
const LAST_READS_MAX: usize = 64;

/// What is on its way out.
#[derive(Debug, Default)]
struct Sending {
    head: Vec<u8>,
    head_sent: usize,
    /// Belongs behind the last head.
    payload: Option<Transmit>,
    payload_sent: usize,
}

#[derive(Debug)]
pub(crate) struct WireLane {
    courtesy: Courtesy,
    core: Arc<SessionCore>,
    id: LaneId,
    kind: LaneKind,
    machine: LaneMachine<Buffer>,
    stream: Option<Link>,
    sending: Sending,
    scratch: Box<[u8; HEAD_READ]>,
    stash: VecDeque<Done>,
    /// Operations posted and not yet given back, those that are complete included.
    outstanding: usize,
    /// Has been connected before: the next time is after a cut.
    attached: bool,
    retry_at: Nanos,
    retry_pause: Duration,
    /// Memory files that arrived, in order, before the replies they belong to were looked at. Only
    /// control lanes over a Unix socket get any.
    arrived: VecDeque<OwnedFd>,
    /// Those of replies that were looked at.
    descriptors: VecDeque<OwnedFd>,
    /// What the server said unasked and nobody has looked at yet; on control lanes.
    notice: Option<Notice>,
}

impl WireLane {
    pub(crate) fn new(
        core: Arc<SessionCore>,
        id: LaneId,
        kind: LaneKind,
        stream: Option<Link>,
        machine: LaneMachine<Buffer>,
    ) -> WireLane {
        if let Some(link) = &stream {
            core.mark(&link.stream, kind);
        }
        WireLane {
            courtesy: Courtesy::default(),
            core,
            id,
            kind,
            machine,
            attached: stream.is_some(),
            stream,
            sending: Sending::default(),
            scratch: Box::new([0; HEAD_READ]),
            stash: VecDeque::new(),
            outstanding: 0,
            retry_at: Nanos::ZERO,
            retry_pause: RETRY_FIRST,
            arrived: VecDeque::new(),
            descriptors: VecDeque::new(),
            notice: None,
        }
    }

    pub(crate) fn pop_notice(&mut self) -> Option<Notice> {
        self.notice.take().or_else(|| self.machine.pop_notice())
    }

    /// The socket, which is used for something else from now on.
    pub(crate) fn take_stream(&mut self) -> Option<Stream> {
        self.stream.take().map(|link| link.stream)
    }

    /// Nothing can be sent any more; what the server said last (that it stops) is still to be read.
    fn hang_up(&mut self) {
        let _ = (0..LAST_READS_MAX).find(|_| self.receive().is_none_or(|n| n == 0));
        self.cut();
    }

    /// Breaks the connection, as a fault would; it is made again on the next use.
    pub(crate) fn cut(&mut self) {
        self.stream = None;
        // What is complete keeps its descriptors; those of replies in the middle come again.
        while let Some(done) = self.pop_done() {
            self.stash.push_back(done);
        }
        self.arrived.clear();
        self.machine.cut();
        self.sending = Sending::default();
    }

    /// The next completion, its descriptors put in place.
    fn pop_done(&mut self) -> Option<Done> {
        let done = self.machine.pop()?;
        let with_it = match &done.result {
            Ok(Answer::Granted(info)) => usize::from(info.descriptor),
            Ok(Answer::Adopted(infos) | Answer::Opened(_, infos)) => {
                infos.iter().filter(|info| info.descriptor).count()
            }
            _ => 0,
        };
        let with_it = with_it.min(self.arrived.len());
        self.descriptors.extend(self.arrived.drain(..with_it));
        Some(done)
    }

    /// The next memory file of the replies that were polled, in their order.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Connects again if need be. False: not now; the session may be lost for good.
    fn connected(&mut self, wait: Duration) -> bool {
        if self.stream.is_some() {
            return true;
        }
        if let Some(why) = self.core.lost() {
            self.machine.fail(&why);
            return false;
        }
        if self.core.id == SessionId(0) {
            self.core.lose("the connection was closed");
            return false;
        }
        let now = clock::now();
        if now < self.retry_at {
            return false;
        }
        let purpose = Purpose::Attach {
            session: self.core.id,
            secret: self.core.secret.clone(),
            lane: self.id,
            kind: self.kind,
        };
        // Who waits for a moment only, as there are others to ask, is not to be held up for long.
        let patience = wait.clamp(ATTACH_MIN, ATTACH_MAX).min(self.core.lease);
        let who = (&self.core.key, self.core.server_user);
        let failed = match open_stream(&self.core.address, who, purpose, patience, None) {
            Ok((link, opened)) => {
                self.machine.speak(opened.version);
                self.core.mark(&link.stream, self.kind);
                self.stream = Some(link);
                self.retry_pause = RETRY_FIRST;
                self.core.heard(now);
                if std::mem::replace(&mut self.attached, true) {
                    self.core.count_resume();
                }
                return true;
            }
            Err(failed) => failed,
        };
        match &failed {
            NetError::Handshake(_, HandshakeError::Refused(refusal))
                if refusal.code == ErrorCode::NoSession =>
            {
                self.core.lose(&refusal.to_string());
            }
            _ if clock::now() > self.core.worth_trying_until() => {
                self.core.lose(&format!(
                    "the lease of {:?} ran out without contact ({failed})",
                    self.core.lease
                ));
            }
            _ => {}
        }
        self.retry_at = clock::now() + Nanos::from(self.retry_pause);
        self.retry_pause = (self.retry_pause * 2).min(RETRY_MAX);
        false
    }

    /// Sends what there is to send, as far as the socket takes it. False: the connection is gone.
    fn flush(&mut self) -> bool {
        loop {
            let s = &mut self.sending;
            if s.head_sent == s.head.len() && s.payload.is_none() {
                s.head.clear();
                s.head_sent = 0;
                while s.payload.is_none() && s.head.len() < BATCH_BYTES {
                    let Some(transmit) = self.machine.transmit(&mut s.head) else {
                        break;
                    };
                    if transmit.payload_len > 0 {
                        s.payload = Some(transmit);
                        s.payload_sent = 0;
                    }
                }
                if s.head.is_empty() {
                    return match &mut self.stream {
                        Some(Link {
                            stream,
                            guard: Some(guard),
                        }) => guard.flush(stream).is_ok(),
                        _ => true,
                    };
                }
            }
            let payload = s.payload.map_or(&[][..], |t| self.machine.payload(t));
            let Some(link) = &mut self.stream else {
                return false;
            };
            let pieces = [
                Piece::new(
                    s.head[s.head_sent..].as_ptr().cast_mut(),
                    s.head.len() - s.head_sent,
                ),
                Piece::new(
                    payload[s.payload_sent..].as_ptr().cast_mut(),
                    payload.len() - s.payload_sent,
                ),
            ];
            let stream = &link.stream;
            let written = match &mut link.guard {
                Some(guard) => {
                    let (head, payload) = (&s.head[s.head_sent..], &payload[s.payload_sent..]);
                    guard.write(stream, head, payload)
                }
                // SAFETY: both pieces are borrowed slices, and the kernel only reads them.
                None => unsafe { stream.write_pieces(&pieces) },
            };
            match written {
                Ok(Transfer::Bytes(n)) => {
                    let of_head = n.min(s.head.len() - s.head_sent);
                    s.head_sent += of_head;
                    s.payload_sent += n - of_head;
                    if s.payload.is_some_and(|t| t.payload_len == s.payload_sent) {
                        s.payload = None;
                        s.payload_sent = 0;
                    }
                }
                Ok(Transfer::WouldBlock) => return true,
                Ok(Transfer::Closed) | Err(_) => return false,
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.sending.head_sent < self.sending.head.len()
            || self.stream.as_ref().is_some_and(Link::has_unsent)
            || self.sending.payload.is_some()
            || self.machine.wants_to_send()
    }

    /// Takes in what has arrived: how many bytes, or None when the connection is gone.
    fn receive(&mut self) -> Option<usize> {
        let link = self.stream.as_mut()?;
        if self.kind == LaneKind::Control && link.stream.is_unix() {
            return self.receive_with_descriptors();
        }
        if let Some(guard) = &mut link.guard {
            let machine = &mut self.machine;
            return match guard.read(&link.stream, |plain| machine.receive(plain)) {
                Ok(Transfer::Bytes(n)) => Some(n),
                Ok(Transfer::WouldBlock) => Some(0),
                Ok(Transfer::Closed) | Err(_) => None,
            };
        }
        let stream = &link.stream;
        let target = self.machine.target();
        let into_target = target.len();
        let pieces = [
            Piece::new(target.as_mut_ptr(), into_target),
            Piece::new(self.scratch.as_mut_ptr(), HEAD_READ),
        ];
        let pieces = if into_target == 0 {
            &pieces[1..]
        } else {
            &pieces[..]
        };
        // SAFETY: one piece is the target that the machine lends exclusively, the other our own
        // scratch buffer; neither is touched until the call returns.
        match unsafe { stream.read_pieces(pieces) } {
            Ok(Transfer::Bytes(n)) => {
                let direct = n.min(into_target);
                if direct > 0 {
                    self.machine.filled(direct);
                }
                self.machine.receive(&self.scratch[..n - direct]).ok()?;
                Some(n)
            }
            Ok(Transfer::WouldBlock) => Some(0),
            Ok(Transfer::Closed) | Err(_) => None,
        }
    }

    fn receive_with_descriptors(&mut self) -> Option<usize> {
        let stream = &self.stream.as_ref()?.stream;
        let mut fds = ReceivedFds::default();
        let received = stream.recv_fds(&mut self.scratch[..], &mut fds);
        self.arrived.extend(fds.drain());
        if self.arrived.len() > DESCRIPTORS_MAX {
            return None;
        }
        match received {
            Ok(Transfer::Bytes(n)) => {
                self.machine.receive(&self.scratch[..n]).ok()?;
                Some(n)
            }
            Ok(Transfer::WouldBlock) => Some(0),
            Ok(Transfer::Closed) | Err(_) => None,
        }
    }

    /// Waits for the socket, or for the next attempt to connect.
    fn sleep(&self, until: Nanos) {
        let left = until.saturating_sub(clock::now());
        match &self.stream {
            Some(Link { stream, .. }) => {
                let interest = if self.has_unsent() {
                    Interest::BOTH
                } else {
                    Interest::READ
                };
                let _ = stream.wait(interest, Some(left.into()));
            }
            None => {
                let pause = self.retry_at.saturating_sub(clock::now()).min(left);
                std::thread::sleep(pause.into());
            }
        }
    }
}

impl Lane for WireLane {
    fn address(&self) -> &Address {
        &self.core.address
    }

    fn post(&mut self, op: Op) -> Result<(), Op> {
        self.machine.post(op)?;
        self.outstanding += 1;
        // Out at once if the socket takes it; what goes wrong shows in the next poll.
        if self.stream.is_some() && !self.flush() {
            self.hang_up();
        }
        Ok(())
    }

    fn post_later(&mut self, op: Op) -> Result<(), Op> {
        self.machine.post(op)?;
        self.outstanding += 1;
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> Option<Done> {
        let done = self.poll_any(wait);
        self.outstanding -= usize::from(done.is_some());
        done
    }

    fn poll_ready(&mut self) -> Option<Done> {
        let done = self.stash.pop_front().or_else(|| self.pop_done());
        self.outstanding -= usize::from(done.is_some());
        done
    }

    fn under_way(&self) -> usize {
        self.outstanding
    }

    fn put_back(&mut self, done: Done) {
        self.outstanding += 1;
        self.stash.push_back(done);
    }

    fn abandon(&mut self, token: u64) {
        self.machine
            .abandon_where(|operation| operation.token == token);
        // Cutting makes it certain that the server does none of them later; the rest is sent again.
        self.cut();
        self.stash.retain(|done| done.operation.token != token);
        self.outstanding = self.machine.under_way() + self.stash.len();
        self.descriptors.clear();
    }

    fn deadline(&self) -> Duration {
        self.core.deadline
    }
}

impl WireLane {
    fn poll_any(&mut self, wait: Duration) -> Option<Done> {
        if let Some(done) = self.stash.pop_front().or_else(|| self.pop_done()) {
            return Some(done);
        }
        let started = clock::now();
        let ends = started.saturating_add(wait.into());
        let spin_ends = started.saturating_add(self.core.spin.into()).min(ends);
        let mut now = started;
        loop {
            if self.connected(wait) {
                if !self.flush() {
                    self.hang_up();
                } else {
                    match self.receive() {
                        Some(0) => {}
                        Some(_) => self.core.heard(now),
                        None => self.cut(),
                    }
                }
            }
            // Whoever waits here must hear that the server stops before it waits for it any longer.
            if self.kind == LaneKind::Control && self.notice.is_none() {
                self.notice = self.machine.pop_notice();
                if self.notice.is_some() {
                    return self.stash.pop_front().or_else(|| self.pop_done());
                }
            }
            if let Some(done) = self.stash.pop_front().or_else(|| self.pop_done()) {
                return Some(done);
            }
            now = clock::now();
            if now >= ends {
                return None;
            }
            if self.machine.under_way() == 0 && self.kind != LaneKind::Control {
                return None;
            }
            if now >= spin_ends || self.stream.is_none() {
                self.sleep(ends);
                now = clock::now();
            } else {
                self.courtesy.pause();
            }
        }
    }
}

impl Drop for WireLane {
    fn drop(&mut self) {
        self.machine.abandon_where(|_| true);
        self.cut();
        let machine = std::mem::replace(&mut self.machine, LaneMachine::new(1));
        self.core.give_back_lane(self.id, machine);
    }
}
