//! A connection without a kernel, whose misfortunes are written down beforehand.
//!
//! [`FakeStream::pair`] gives two ends. Each end has a script for its reads and one for its writes;
//! a step is used up by each call, and an empty script lets everything through. So a test can cut
//! messages at any byte, answer "would block" at the worst moment, or end the connection. Known
//! limit: there is no descriptor to wait for; tests call again instead.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::{ByteStream, Transfer};

/// What the next call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Moves at most this many bytes.
    AtMost(usize),
    WouldBlock,
    /// The peer is gone, from now on.
    Close,
    Fail(Errno),
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    closed: bool,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a connection in memory.
#[derive(Debug)]
pub struct FakeStream {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    reads: Mutex<VecDeque<Step>>,
    writes: Mutex<VecDeque<Step>>,
}

impl FakeStream {
    pub fn pair() -> (FakeStream, FakeStream) {
        let (there, back) = (Arc::default(), Arc::default());
        (
            FakeStream::of(Arc::clone(&back), Arc::clone(&there)),
            FakeStream::of(there, back),
        )
    }

    fn of(incoming: Arc<Mutex<Pipe>>, outgoing: Arc<Mutex<Pipe>>) -> FakeStream {
        FakeStream {
            incoming,
            outgoing,
            reads: Mutex::default(),
            writes: Mutex::default(),
        }
    }

    pub fn script_reads(&self, steps: impl IntoIterator<Item = Step>) {
        lock(&self.reads).extend(steps);
    }

    pub fn script_writes(&self, steps: impl IntoIterator<Item = Step>) {
        lock(&self.writes).extend(steps);
    }

    /// Ends the connection for both ends; bytes under way are still read.
    pub fn close(&self) {
        lock(&self.incoming).closed = true;
        lock(&self.outgoing).closed = true;
    }

    /// `Err` holds an answer that needs no bytes moved, `Ok` the most that may be moved.
    fn next(&self, script: &Mutex<VecDeque<Step>>) -> Result<usize, Result<Transfer, Errno>> {
        match lock(script).pop_front() {
            None => Ok(usize::MAX),
            Some(Step::AtMost(n)) => Ok(n.max(1)),
            Some(Step::WouldBlock) => Err(Ok(Transfer::WouldBlock)),
            Some(Step::Fail(errno)) => Err(Err(errno)),
            Some(Step::Close) => {
                self.close();
                lock(&self.incoming).bytes.clear();
                Err(Ok(Transfer::Closed))
            }
        }
    }
}

impl ByteStream for FakeStream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> Result<Transfer, Errno> {
        let most = match self.next(&self.reads) {
            Ok(most) => most,
            Err(answer) => return answer,
        };
        let mut pipe = lock(&self.incoming);
        if pipe.bytes.is_empty() {
            return Ok(if pipe.closed {
                Transfer::Closed
            } else {
                Transfer::WouldBlock
            });
        }
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        let n = pipe.bytes.len().min(room).min(most);
        let slots = into.iter_mut().flat_map(|slice| slice.iter_mut());
        for (slot, byte) in slots.zip(pipe.bytes.drain(..n)) {
            *slot = byte;
        }
        Ok(Transfer::Bytes(n))
    }

    fn write(&self, from: &[IoSlice<'_>]) -> Result<Transfer, Errno> {
        let most = match self.next(&self.writes) {
            Ok(most) => most,
            Err(answer) => return answer,
        };
        let mut pipe = lock(&self.outgoing);
        if pipe.closed {
            return Ok(Transfer::Closed);
        }
        let before = pipe.bytes.len();
        let bytes = from.iter().flat_map(|slice| slice.iter().copied());
        pipe.bytes.extend(bytes.take(most));
        Ok(Transfer::Bytes(pipe.bytes.len() - before))
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_played_and_then_all_goes_through() {
        let (here, there) = FakeStream::pair();
        here.script_writes([Step::AtMost(3), Step::WouldBlock, Step::Fail(Errno::NOBUFS)]);
        let message = [IoSlice::new(b"ab"), IoSlice::new(b"cdef")];
        assert_eq!(here.write(&message), Ok(Transfer::Bytes(3)));
        assert_eq!(here.write(&message), Ok(Transfer::WouldBlock));
        assert_eq!(here.write(&message), Err(Errno::NOBUFS));
        assert_eq!(here.write(&message[1..]), Ok(Transfer::Bytes(4)));
        there.script_reads([Step::AtMost(1)]);
        let (mut a, mut b) = ([0; 4], [0; 4]);
        let mut into = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(there.read(&mut into), Ok(Transfer::Bytes(1)));
        assert_eq!(there.read(&mut into), Ok(Transfer::Bytes(6)));
        assert_eq!((&a, &b[..2]), (b"bccd", &b"ef"[..]));
        drop(here);
        assert_eq!(
            there.read(&mut [IoSliceMut::new(&mut a)]),
            Ok(Transfer::Closed)
        );
        assert_eq!(there.write(&[IoSlice::new(b"x")]), Ok(Transfer::Closed));
    }
}
