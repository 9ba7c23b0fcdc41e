//! A connection after its handshake: a socket, and records where what it carries is protected.

use muninn_proto::secure::{RECORD_MAX, Records};
use muninn_sys::socket::{Piece, Stream, Transfer};
use rustix::io::Errno;

/// Bytes read from the socket at a time.
const READ: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct Link {
    pub stream: Stream,
    pub guard: Option<Box<Guard>>,
}

impl Link {
    pub(crate) fn new(stream: Stream, records: Option<Records>) -> Link {
        let guard = records.map(|records| {
            Box::new(Guard {
                records,
                wire: Vec::new(),
                sent: 0,
                raw: vec![0; READ],
                plain: Vec::new(),
            })
        });
        Link { stream, guard }
    }

    /// Whether records wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        let guard = self.guard.as_ref();
        guard.is_some_and(|guard| guard.sent < guard.wire.len())
    }
}

/// Both directions of a protected connection.
#[derive(Debug)]
pub(crate) struct Guard {
    records: Records,
    wire: Vec<u8>,
    sent: usize,
    raw: Vec<u8>,
    plain: Vec<u8>,
}

impl Guard {
    /// Sends what waits. False: some of it still does.
    pub(crate) fn flush(&mut self, stream: &Stream) -> Result<bool, Errno> {
        while self.sent < self.wire.len() {
            let rest = &mut self.wire[self.sent..];
            let pieces = [Piece::new(rest.as_mut_ptr(), rest.len())];
            // SAFETY: the piece is our own buffer, which the kernel only reads.
            match unsafe { stream.write_pieces(&pieces) }? {
                Transfer::Bytes(n) => self.sent += n,
                Transfer::WouldBlock => return Ok(false),
                Transfer::Closed => return Err(Errno::PIPE),
            }
        }
        Ok(true)
    }

    /// Takes some of the text in two pieces and sends it as one record, as far as the socket takes it;
    /// how much text was taken.
    pub(crate) fn write(
        &mut self,
        stream: &Stream,
        head: &[u8],
        tail: &[u8],
    ) -> Result<Transfer, Errno> {
        if !self.flush(stream)? {
            return Ok(Transfer::WouldBlock);
        }
        self.plain.clear();
        for piece in [head, tail] {
            let room = RECORD_MAX - self.plain.len();
            self.plain
                .extend_from_slice(&piece[..piece.len().min(room)]);
        }
        self.wire.clear();
        self.sent = 0;
        let taken = self.plain.len();
        self.records.seal(&self.plain, &mut self.wire);
        self.flush(stream)?;
        Ok(Transfer::Bytes(taken))
    }

    /// Reads what there is and hands the text on; how much arrived.
    pub(crate) fn read<E>(
        &mut self,
        stream: &Stream,
        take: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Transfer, Errno> {
        let pieces = [Piece::new(self.raw.as_mut_ptr(), self.raw.len())];
        // SAFETY: the piece is our own buffer.
        let got = unsafe { stream.read_pieces(&pieces) }?;
        if let Transfer::Bytes(n) = got {
            self.plain.clear();
            let opened = self.records.open(&self.raw[..n], &mut self.plain);
            opened.map_err(|_| Errno::BADMSG)?;
            take(&self.plain).map_err(|_| Errno::BADMSG)?;
        }
        Ok(got)
    }
}
