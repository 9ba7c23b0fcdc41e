//! What every transport can do with data: post, wait, and the plain calls built on the two.

use crate::buffer::Buffer;
use crate::error::NetError;
use muninn_proto::client::{Answer, Completion, OpError, Operation, Verb};
use muninn_sys::socket::Address;
use muninn_types::{Class, GrantId, Nanos};
use muninn_wire::{DecodeError, MAX_GRANTS, MAX_PAYLOAD, MAX_SEGS, Seg};
use std::time::Duration;

pub type Op = Operation<Buffer>;
pub type Done = Completion<Buffer>;

/// The token of operations that the plain calls post. Those of callers should be below.
pub(crate) const PLAIN_TOKEN: u64 = u64::MAX;

/// Bytes of the segments, refused as a server's lane refuses them: no segments, too many, empty
/// ones, more than fit a frame, or a buffer that is too short.
pub(crate) fn checked_total(segs: &[Seg], room: usize) -> Result<usize, OpError> {
    let bad = || OpError::BadSegments(DecodeError::Value);
    if segs.is_empty() || segs.len() > MAX_SEGS {
        return Err(bad());
    }
    let mut total = 0;
    for seg in segs {
        if seg.len == 0 || seg.len as usize > MAX_PAYLOAD {
            return Err(bad());
        }
        total += seg.len as usize;
    }
    if total > MAX_PAYLOAD {
        return Err(bad());
    }
    if total > room {
        return Err(OpError::DataTooShort);
    }
    Ok(total)
}

/// Refuses lists of grants as a server's lane does: none, too many, or one of them twice.
pub(crate) fn check_grants(ids: &[GrantId]) -> Result<(), OpError> {
    let distinct = (ids.iter().enumerate()).all(|(i, id)| !ids[..i].contains(id));
    if ids.is_empty() || ids.len() > MAX_GRANTS || !distinct {
        return Err(OpError::BadSegments(DecodeError::Value));
    }
    Ok(())
}

/// Data operations of one thread at one server. Bounded: [`Lane::post`] gives an operation back
/// when too many are under way.
pub trait Lane: Send {
    fn address(&self) -> &Address;

    /// Starts an operation; its completion comes from [`Lane::poll`]. Given back when the window is
    /// full: poll, then post again.
    fn post(&mut self, op: Op) -> Result<(), Op>;

    /// As [`Lane::post`], but may wait to be sent together with others until the next
    /// [`Lane::poll`].
    fn post_later(&mut self, op: Op) -> Result<(), Op> {
        self.post(op)
    }

    /// The next completion. None after `wait` without one; zero only looks.
    fn poll(&mut self, wait: Duration) -> Option<Done>;

    /// The next completion that is here already: nothing is sent or received.
    fn poll_ready(&mut self) -> Option<Done> {
        self.poll(Duration::ZERO)
    }

    /// Operations posted and not yet given back.
    fn under_way(&self) -> usize;

    /// Puts back a completion that was polled for somebody else.
    fn put_back(&mut self, done: Done);

    /// Forgets the operations with this token: their buffers are not touched any more, and none of
    /// them is done later than the next operation posted. Others are not affected.
    fn abandon(&mut self, token: u64);

    /// How long the plain calls wait for an answer.
    fn deadline(&self) -> Duration;

    /// Reads segments, one after the other, into `into`.
    fn read_v(&mut self, class: Class, segs: &[Seg], into: &mut [u8]) -> Result<(), NetError> {
        // SAFETY: `into` is borrowed until this call returns, and `finish` returns only when the
        // operation is complete or abandoned.
        let data = unsafe { Buffer::from_raw(into.as_mut_ptr(), into.len()) };
        finish(
            self,
            Operation {
                verb: Verb::Read(segs.to_vec()),
                class,
                data,
                token: PLAIN_TOKEN,
            },
        )?;
        Ok(())
    }

    /// Writes `from` into segments, one after the other.
    fn write_v(&mut self, class: Class, segs: &[Seg], from: &[u8]) -> Result<(), NetError> {
        // SAFETY: as in `read_v`; a write only reads its buffer.
        let data = unsafe { Buffer::from_raw(from.as_ptr().cast_mut(), from.len()) };
        finish(
            self,
            Operation {
                verb: Verb::Write(segs.to_vec()),
                class,
                data,
                token: PLAIN_TOKEN,
            },
        )?;
        Ok(())
    }

    /// Replaces the word at `offset` if it is `expect`; the word found.
    fn compare_swap(
        &mut self,
        grant: GrantId,
        offset: u32,
        expect: u64,
        new: u64,
    ) -> Result<u64, NetError> {
        word(
            self,
            Verb::CompareSwap {
                grant,
                offset,
                expect,
                new,
            },
        )
    }

    /// Adds to the word at `offset`; the word found.
    fn fetch_add(&mut self, grant: GrantId, offset: u32, add: u64) -> Result<u64, NetError> {
        word(self, Verb::FetchAdd { grant, offset, add })
    }
}

fn word<L: Lane + ?Sized>(lane: &mut L, verb: Verb) -> Result<u64, NetError> {
    let op = Operation {
        verb,
        class: Class::Demand,
        data: Buffer::empty(),
        token: PLAIN_TOKEN,
    };
    match finish(lane, op)? {
        Answer::Old(old) => Ok(old),
        _ => unreachable!("an atomic operation is answered with a word"),
    }
}

/// Posts an operation and waits for it, keeping the completions of others for later.
fn finish<L: Lane + ?Sized>(lane: &mut L, op: Op) -> Result<Answer, NetError> {
    let mut others = Vec::new();
    let result = post_and_wait(lane, op, &mut others);
    for done in others {
        lane.put_back(done);
    }
    result.map_err(|error| NetError::from_op(lane.address(), error))
}

fn post_and_wait<L: Lane + ?Sized>(
    lane: &mut L,
    op: Op,
    others: &mut Vec<Done>,
) -> Result<Answer, OpError> {
    let mut waiting = lane.post(op).err();
    // A mapped transport is done already: then the clock need not be asked.
    let mut wait = Duration::ZERO;
    let mut ends = None;
    loop {
        match lane.poll(wait) {
            Some(done) if done.operation.token == PLAIN_TOKEN => return done.result,
            Some(done) => others.push(done),
            None => {}
        }
        if let Some(op) = waiting.take() {
            waiting = lane.post(op).err();
        }
        let deadline = lane.deadline();
        let now = muninn_sys::clock::now();
        let ends = *ends.get_or_insert(now + Nanos::from(deadline));
        if now >= ends {
            // Nothing may touch the caller's buffer after this call.
            lane.abandon(PLAIN_TOKEN);
            return Err(OpError::Timeout(deadline));
        }
        wait = ends.saturating_sub(now).into();
    }
}
