//! What a connection keeps while all that it carries is in records.
//!
//! Texts pass through buffers of the event loop's thread; a connection itself keeps only a record that
//! has arrived in part, and what of one the socket has not taken.

use muninn_proto::secure::{Broken, RECORD_MAX, Records};
use muninn_sys::socket::{Piece, Stream, Transfer};
use rustix::io::Errno;
use std::cell::RefCell;

/// Bytes read from the socket at a time.
const READ: usize = 64 << 10;
/// Larger buffers are given back when they are empty.
const KEPT: usize = 8 << 10;

thread_local! {
    static RAW: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(crate) struct Guard {
    records: Records,
    /// Records on their way out, how much of them was sent, and how much text they carry.
    wire: Vec<u8>,
    sent: usize,
    carries: usize,
}

impl Guard {
    pub(crate) fn new(records: Records) -> Guard {
        Guard {
            records,
            wire: Vec::new(),
            sent: 0,
            carries: 0,
        }
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> usize {
        self.wire.capacity() + self.records.held()
    }

    /// Reads what there is, and appends the texts in it.
    pub(crate) fn read(&mut self, stream: &Stream, plain: &mut Vec<u8>) -> Result<Transfer, Errno> {
        RAW.with_borrow_mut(|raw| {
            let pieces = [Piece::new(raw.as_mut_ptr(), raw.len())];
            // SAFETY: the piece is the buffer, borrowed for the length of the call.
            let got = unsafe { stream.read_pieces(&pieces) }?;
            if let Transfer::Bytes(n) = got
                && let Err(Broken) = self.records.open(&raw[..n], plain)
            {
                return Err(Errno::BADMSG);
            }
            Ok(got)
        })
    }

    /// Sends records; `fill` gives the next text when all before was sent. The bytes of text that are
    /// out since.
    pub(crate) fn write(
        &mut self,
        stream: &Stream,
        fill: impl FnOnce(&mut Vec<u8>, usize),
    ) -> Result<(usize, Transfer), Errno> {
        if self.sent == self.wire.len() {
            PLAIN.with_borrow_mut(|plain| {
                plain.clear();
                fill(plain, RECORD_MAX);
                self.wire.clear();
                self.sent = 0;
                self.carries = plain.len();
                self.records.seal(plain, &mut self.wire);
            });
        }
        let rest = &mut self.wire[self.sent..];
        let pieces = [Piece::new(rest.as_mut_ptr(), rest.len())];
        // SAFETY: the piece is our own buffer, which the kernel only reads.
        let sent = unsafe { stream.write_pieces(&pieces) }?;
        if let Transfer::Bytes(n) = sent {
            self.sent += n;
        }
        if self.sent < self.wire.len() {
            return Ok((0, sent));
        }
        if self.wire.capacity() > KEPT {
            (self.wire, self.sent) = (Vec::new(), 0);
        }
        Ok((std::mem::take(&mut self.carries), sent))
    }
}
