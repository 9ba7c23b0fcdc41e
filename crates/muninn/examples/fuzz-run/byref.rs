//! Transfers by reference: the kernel takes the pages themselves and hands them over later.
//!
//! Until then the program does not write to them, as it may not; it may do anything else, also
//! unmap them. What comes out at the other end must be what was in them when they were handed over.

use crate::actor::Actor;
use crate::calls::{self, check, errno};
use crate::model::{Content, Kind, PAGE, Page};
use crate::step::{Part, Pick};
use crate::transfer::{all, pipe};
use std::io::Error;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

const TRANSFERS_MAX: usize = 3;
const SPLICED_MAX: usize = 200;
const SENT_MAX: usize = 512;

/// So little that most of what is sent waits at the sender.
const RECEIVE_BUFFER: i32 = 64 << 10;
const SEND_BUFFER: i32 = 8 << 20;

pub struct Transfer {
    /// In the shadows of the pages.
    token: u32,
    contents: Vec<Content>,
    end: End,
}

enum End {
    Pipe {
        output: OwnedFd,
        /// Open for as long as the transfer lasts.
        _input: OwnedFd,
    },
    Tcp {
        sender: TcpStream,
        receiver: TcpStream,
        /// What the socket did not take: how much that is depends on time, so it goes by value.
        rest: Vec<u8>,
        sent: usize,
    },
}

impl Actor {
    /// Pages that can be handed over: whole ones that nobody else has.
    fn given(&self, pick: Pick, part: Part, most: usize) -> Option<(usize, usize, usize)> {
        if self.transfers.len() == TRANSFERS_MAX {
            return None;
        }
        let slot = self.find(pick, |area| area.kind != Kind::Heap)?;
        let free = |page: &Page| page.is_steady() && page.held == 0;
        let (from, count) = self.run(slot, part, free)?;
        Some((slot, from, count.min(most)))
    }

    fn hand_over(&mut self, slot: usize, from: usize, count: usize, end: End) {
        self.transfers_made += 1;
        let token = self.transfers_made;
        let pages = &mut self.area_mut(slot).pages[from..from + count];
        let contents = pages.iter().map(|page| page.content.clone()).collect();
        pages.iter_mut().for_each(|page| page.held = token);
        self.transfers.push_back(Transfer {
            token,
            contents,
            end,
        });
    }

    pub fn vmsplice(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let (output, input) = pipe()?;
        // SAFETY: plain calls; that a pipe stays small is no failure.
        let room = unsafe {
            libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20);
            libc::fcntl(input.as_raw_fd(), libc::F_GETPIPE_SZ)
        };
        let room = check("F_GETPIPE_SZ", room.into())? as usize / PAGE;
        let Some((slot, from, count)) = self.given(pick, part, SPLICED_MAX.min(room)) else {
            return Ok(());
        };
        let at = self.area(slot).address(from);
        let len = count * PAGE;
        all("vmsplice", len, |done| {
            let piece = libc::iovec {
                iov_base: (at + done) as *mut _,
                iov_len: len - done,
            };
            // SAFETY: the shadow says that these pages may be read, and nobody writes to them
            // until they are received.
            unsafe { libc::vmsplice(input.as_raw_fd(), &piece, 1, 0) }
        })?;
        let end = End::Pipe {
            output,
            _input: input,
        };
        self.hand_over(slot, from, count, end);
        Ok(())
    }

    pub fn zero_copy(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let Some((slot, from, count)) = self.given(pick, part, SENT_MAX) else {
            return Ok(());
        };
        let (sender, receiver) = tcp_pair().map_err(|error| format!("a pair of TCP: {error}"))?;
        let fd = sender.as_raw_fd();
        let by_reference = set(fd, libc::SO_ZEROCOPY, 1).is_ok();
        let flags = libc::MSG_DONTWAIT | if by_reference { libc::MSG_ZEROCOPY } else { 0 };
        let at = self.area(slot).address(from);
        let len = count * PAGE;
        let mut done = 0;
        while done < len {
            // SAFETY: the shadow says that these pages may be read, and nobody writes to them
            // until they are received.
            let sent = unsafe { libc::send(fd, (at + done) as *const _, len - done, flags) };
            match sent {
                n if n >= 0 => done += n as usize,
                _ => match errno() {
                    libc::EINTR => {}
                    libc::EAGAIN | libc::ENOBUFS => break,
                    _ => return Err(format!("send: {}", Error::last_os_error())),
                },
            }
        }
        let mut rest = vec![0u8; len - done];
        crate::memory::copy(at + done, rest.len(), rest.as_mut_ptr() as usize);
        let end = End::Tcp {
            sender,
            receiver,
            rest,
            sent: 0,
        };
        self.hand_over(slot, from, count, end);
        Ok(())
    }

    /// The oldest transfer, into a part as far as there is room, and past the program else.
    pub fn receive(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let Some(mut transfer) = self.transfers.pop_front() else {
            return Ok(());
        };
        let slot = self.find(pick, |_| true);
        let into = slot.and_then(|slot| Some((slot, self.run(slot, part, Page::is_writable)?)));
        let count = transfer.contents.len();
        let mut scratch = vec![0u64; PAGE / 8];
        for (n, content) in transfer.contents.iter().enumerate() {
            let (at, target) = match into {
                Some((slot, (from, room))) if n < room => {
                    (self.area(slot).address(from + n), Some((slot, from + n)))
                }
                _ => (scratch.as_mut_ptr() as usize, None),
            };
            transfer.end.pull(at)?;
            let mut digest = self.digest;
            let checked = content.check(at, &mut digest);
            checked.map_err(|wrong| format!("page {n} of {count} that were sent: {wrong}"))?;
            self.digest = digest;
            if let Some((slot, page)) = target {
                self.area_mut(slot).pages[page].content = content.clone();
            }
        }
        for area in self.areas.iter_mut().flatten() {
            let held = area
                .pages
                .iter_mut()
                .filter(|page| page.held == transfer.token);
            held.for_each(|page| page.held = 0);
        }
        Ok(())
    }
}

impl End {
    /// A page, to this address.
    fn pull(&mut self, at: usize) -> Result<(), String> {
        let (sender, receiver, rest, sent) = match self {
            End::Pipe { output, .. } => return calls::read_to(output.as_raw_fd(), at, PAGE),
            End::Tcp {
                sender,
                receiver,
                rest,
                sent,
            } => (sender.as_raw_fd(), receiver.as_raw_fd(), rest, sent),
        };
        let mut done = 0;
        while done < PAGE {
            let left = &rest[*sent..];
            if !left.is_empty() {
                // SAFETY: the buffer is readable for its length.
                let took = unsafe {
                    libc::send(sender, left.as_ptr().cast(), left.len(), libc::MSG_DONTWAIT)
                };
                *sent += took.max(0) as usize;
            }
            // SAFETY: the caller's page may be written.
            let got = unsafe {
                libc::recv(
                    receiver,
                    (at + done) as *mut _,
                    PAGE - done,
                    libc::MSG_DONTWAIT,
                )
            };
            match got {
                0 => return Err("recv: the end came early".to_string()),
                n if n > 0 => done += n as usize,
                _ if errno() == libc::EINTR => {}
                _ if errno() == libc::EAGAIN => wait_for(receiver)?,
                _ => return Err(format!("recv: {}", Error::last_os_error())),
            }
        }
        Ok(())
    }
}

/// Until there is something to read, or for a moment in which more may be sent.
fn wait_for(receiver: i32) -> Result<(), String> {
    let mut polled = libc::pollfd {
        fd: receiver,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one struct, which is ours.
    let answer = unsafe { libc::poll(&mut polled, 1, 10) };
    if answer < 0 && errno() != libc::EINTR {
        return Err(format!("poll: {}", Error::last_os_error()));
    }
    Ok(())
}

fn set(fd: i32, option: i32, value: i32) -> Result<(), String> {
    let (at, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: a number of that length.
    let answer = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, len) };
    check("setsockopt", answer.into()).map(|_| ())
}

fn tcp_pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // Inherited by what is accepted; that a buffer has another size is no failure.
    let _ = set(listener.as_raw_fd(), libc::SO_RCVBUF, RECEIVE_BUFFER);
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let _ = set(sender.as_raw_fd(), libc::SO_SNDBUFFORCE, SEND_BUFFER)
        .or_else(|_| set(sender.as_raw_fd(), libc::SO_SNDBUF, SEND_BUFFER));
    let (receiver, _) = listener.accept()?;
    Ok((sender, receiver))
}
