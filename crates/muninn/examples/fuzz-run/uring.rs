//! Out and in through a ring of io_uring, by raw system calls, one request at a time.

use crate::calls::{self, check, errno};
use crate::transfer::all;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;
const GETEVENTS: u32 = 1;
const SQES_OFFSET: i64 = 0x1000_0000;

/// The kernel's `io_uring_params`: ten words, then where things are in the two rings.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    rest: [u32; 8],
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
    rest: [u64; 3],
}

struct Ring {
    fd: OwnedFd,
    params: Params,
    rings: (usize, usize),
    sqes: (usize, usize),
}

impl Ring {
    fn new() -> Result<Ring, String> {
        let mut params = Params::default();
        // SAFETY: the struct has the size and layout that the kernel wants.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, &mut params) };
        let fd = check("io_uring_setup", fd)? as i32;
        // SAFETY: made a moment ago, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let sq_len = params.sq[6] + params.sq_entries * 4;
        let cq_len = params.cq[5] + params.cq_entries * 16;
        let rings = map(&fd, sq_len.max(cq_len) as usize, 0)?;
        let sqes = map(&fd, params.sq_entries as usize * 64, SQES_OFFSET)?;
        Ok(Ring {
            fd,
            params,
            rings,
            sqes,
        })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: a word of the mapped ring, shared with the kernel, for as long as the ring lives.
        unsafe { &*((self.rings.0 + offset as usize) as *const AtomicU32) }
    }

    /// One request to its end; the kernel's answer.
    fn run(&self, sqe: Sqe) -> Result<i32, String> {
        let tail = self.word(self.params.sq[1]);
        let n = tail.load(Ordering::Relaxed);
        let slot = n & self.word(self.params.sq[2]).load(Ordering::Relaxed);
        // SAFETY: the slot is one of the mapped entries, and free: there is one request at a time.
        unsafe { ((self.sqes.0 + slot as usize * 64) as *mut Sqe).write(sqe) };
        let entry = self.word(self.params.sq[6] + slot * 4);
        entry.store(slot, Ordering::Relaxed);
        tail.store(n.wrapping_add(1), Ordering::Release);
        let mut to_submit = 1u32;
        loop {
            let head = self.word(self.params.cq[0]);
            let at = head.load(Ordering::Relaxed);
            if at != self.word(self.params.cq[1]).load(Ordering::Acquire) {
                let mask = self.word(self.params.cq[2]).load(Ordering::Relaxed);
                let answer = self.word(self.params.cq[5] + (at & mask) * 16 + 8);
                let answer = answer.load(Ordering::Relaxed) as i32;
                head.store(at.wrapping_add(1), Ordering::Release);
                return Ok(answer);
            }
            let (fd, call) = (self.fd.as_raw_fd(), libc::SYS_io_uring_enter);
            // SAFETY: no pointers are passed.
            let entered =
                unsafe { libc::syscall(call, fd, to_submit, 1, GETEVENTS, 0usize, 0usize) };
            match entered {
                n if n >= 0 => to_submit = to_submit.saturating_sub(n as u32),
                _ if errno() == libc::EINTR => {}
                _ => return Err(format!("io_uring_enter: {}", Error::last_os_error())),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = calls::unmap(self.rings.0, self.rings.1);
        let _ = calls::unmap(self.sqes.0, self.sqes.1);
    }
}

fn map(fd: &OwnedFd, len: usize, offset: i64) -> Result<(usize, usize), String> {
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    let fd = fd.as_raw_fd();
    // SAFETY: a fresh mapping of the ring's memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, calls::RW, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(format!("mmap of a ring: {}", Error::last_os_error()));
    }
    Ok((at as usize, len))
}

/// To a file and back. A machine without io_uring does nothing, and the plain calls take its place.
pub fn there_and_back(file: &File, from: usize, to: usize, len: usize) -> Result<(), String> {
    let fd = file.as_raw_fd();
    let ring = Ring::new().ok();
    let request = |opcode: u8, at: usize, done: usize| {
        let Some(ring) = &ring else {
            let (at, left) = (at + done, len - done);
            // SAFETY: the shadows say that the one may be read and the other written.
            return Ok(unsafe {
                match opcode {
                    OP_WRITE => libc::pwrite(fd, at as *const _, left, done as i64),
                    _ => libc::pread(fd, at as *mut _, left, done as i64),
                }
            });
        };
        loop {
            let answer = ring.run(Sqe {
                opcode,
                fd,
                offset: done as u64,
                addr: (at + done) as u64,
                len: (len - done) as u32,
                ..Sqe::default()
            })?;
            match -answer {
                n if n <= 0 => return Ok(-n as isize),
                // A signal came while the kernel made the thread that should do it.
                libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
                n => return Err(format!("io_uring: {}", Error::from_raw_os_error(n))),
            }
        }
    };
    for (what, opcode, at) in [("ring write", OP_WRITE, from), ("ring read", OP_READ, to)] {
        let mut failed = None;
        let done = all(what, len, |done| match request(opcode, at, done) {
            Ok(n) => n,
            Err(error) => {
                failed = Some(error);
                0
            }
        });
        failed.map_or(done, Err)?;
    }
    Ok(())
}
