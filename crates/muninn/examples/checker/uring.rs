//! Registered buffers of io_uring: pages that the kernel has pinned must stay where they are.
//!
//! Raw system calls, one ring, one request at a time. If a pinned page were moved away, the device
//! would read from and write to a page that is the program's no more.

use crate::args::Args;
use crate::calls::{self, check};
use crate::maps::tempfile_of;
use crate::span::{PAGE, Span};
use crate::{Done, Outcome, ok};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

const SETUP: i64 = 425;
const ENTER: i64 = 426;
const REGISTER: i64 = 427;
const REGISTER_BUFFERS: usize = 0;
const OP_READ_FIXED: u8 = 4;
const OP_WRITE_FIXED: u8 = 5;
const GETEVENTS: u32 = 1;
const SQES_OFFSET: i64 = 0x1000_0000;

const BUFFERS: usize = 16;
const BUFFER: usize = 16 * PAGE;

/// The kernel's `io_uring_params`: ten words, then where things are in the two rings.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    rest: [u32; 7],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, resv1, user_addr.
    sq: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1, user_addr.
    cq: [u32; 10],
}

#[repr(C)]
#[derive(Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    user_data: u64,
    buf_index: u16,
    rest: [u16; 11],
}

struct Ring {
    fd: i32,
    params: Params,
    rings: usize,
    sqes: usize,
}

impl Ring {
    fn new() -> Result<Ring, String> {
        let mut params = Params::default();
        // SAFETY: the struct has the size and layout that the kernel wants.
        let fd = check("io_uring_setup", unsafe {
            libc::syscall(SETUP, 8, &mut params)
        })? as i32;
        let sq_len = params.sq[6] + params.sq_entries * 4;
        let cq_len = params.cq[5] + params.cq_entries * 16;
        let len = sq_len.max(cq_len) as usize;
        let rings = map(fd, len, 0)?;
        let sqes = map(fd, params.sq_entries as usize * 64, SQES_OFFSET)?;
        Ok(Ring {
            fd,
            params,
            rings,
            sqes,
        })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: a word of the mapped ring, shared with the kernel, for as long as the ring lives.
        unsafe { &*((self.rings + offset as usize) as *const AtomicU32) }
    }

    /// One request to its end; the kernel's answer.
    fn run(&self, sqe: Sqe) -> Result<i32, String> {
        let tail = self.word(self.params.sq[1]);
        let n = tail.load(Ordering::Relaxed);
        let slot = n & self.word(self.params.sq[2]).load(Ordering::Relaxed);
        // SAFETY: the slot is one of the mapped entries, and free: there is one request at a time.
        unsafe { ((self.sqes + slot as usize * 64) as *mut Sqe).write(sqe) };
        self.word(self.params.sq[6] + slot * 4)
            .store(slot, Ordering::Relaxed);
        tail.store(n.wrapping_add(1), Ordering::Release);
        let mut to_submit = 1u32;
        loop {
            let head = self.word(self.params.cq[0]);
            let at = head.load(Ordering::Relaxed);
            if at != self.word(self.params.cq[1]).load(Ordering::Acquire) {
                let mask = self.word(self.params.cq[2]).load(Ordering::Relaxed);
                let entry = self.params.cq[5] + (at & mask) * 16 + 8;
                let answer = self.word(entry).load(Ordering::Relaxed) as i32;
                head.store(at.wrapping_add(1), Ordering::Release);
                return Ok(answer);
            }
            // SAFETY: no pointers are passed.
            let entered =
                unsafe { libc::syscall(ENTER, self.fd, to_submit, 1, GETEVENTS, 0usize, 0usize) };
            match entered {
                n if n >= 0 => to_submit = 0,
                _ if calls::errno() == libc::EINTR => {}
                _ => {
                    return Err(format!(
                        "io_uring_enter: {}",
                        std::io::Error::last_os_error()
                    ));
                }
            }
        }
    }
}

fn map(fd: i32, len: usize, offset: i64) -> Result<usize, String> {
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a fresh mapping of the ring's memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, calls::RW, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(format!(
            "mmap of the ring: {}",
            std::io::Error::last_os_error()
        ));
    }
    Ok(at as usize)
}

pub fn uring(args: &Args) -> Outcome {
    let ring = match Ring::new() {
        Ok(ring) => ring,
        Err(reason) => return Ok(Done::Skip(reason)),
    };
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    // Buffers spread over the memory; some of their pages are far by now.
    let step = span.len / BUFFERS / PAGE * PAGE;
    let buffer = |n: usize| span.part(n * step, BUFFER);
    let list: Vec<libc::iovec> = (0..BUFFERS)
        .map(|n| libc::iovec {
            iov_base: buffer(n).at as *mut _,
            iov_len: BUFFER,
        })
        .collect();
    // SAFETY: the list lives until the call returns and names mapped memory, which stays mapped
    // until the ring is closed.
    let registered =
        unsafe { libc::syscall(REGISTER, ring.fd, REGISTER_BUFFERS, list.as_ptr(), BUFFERS) };
    if let Err(reason) = check("registering buffers", registered) {
        return Ok(Done::Skip(reason));
    }
    let file = tempfile_of(BUFFER * BUFFERS + 2)?;
    let request = |opcode: u8, n: usize| Sqe {
        opcode,
        fd: file.as_raw_fd(),
        offset: (n * BUFFER) as u64,
        addr: buffer(n).at as u64,
        len: BUFFER as u32,
        buf_index: n as u16,
        ..Sqe::default()
    };
    let whole = |what: &str, answer: i32| match answer {
        n if n == BUFFER as i32 => Ok(()),
        n => Err(format!("{what} answered {n} instead of {BUFFER}")),
    };
    let rest = |generation: u32| {
        (0..BUFFERS).try_for_each(|n| {
            span.part(n * step + BUFFER, step - BUFFER)
                .verify(generation)
        })
    };
    for round in 1..=3 {
        for n in 0..BUFFERS {
            buffer(n).write(round * 10);
        }
        // Everything else is touched, so that whatever can go far goes.
        rest(1)?;
        for n in 0..BUFFERS {
            whole("a fixed write", ring.run(request(OP_WRITE_FIXED, n))?)?;
            buffer(n).write(round * 10 + 1);
        }
        rest(1)?;
        for n in 0..BUFFERS {
            whole("a fixed read", ring.run(request(OP_READ_FIXED, n))?)?;
            buffer(n).verify(round * 10)?;
        }
    }
    calls::close(ring.fd);
    rest(1)?;
    ok(format!(
        "{BUFFERS} pinned buffers of {BUFFER} bytes among {} pages",
        span.pages()
    ))
}
