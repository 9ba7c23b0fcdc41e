//! System calls whose buffers lie in memory that may be far: the kernel is the one that faults.

use crate::args::Args;
use crate::calls::{self, check};
use crate::maps::tempfile_of;
use crate::span::{PAGE, Span};
use crate::{Done, Outcome, ok};
use std::os::fd::AsRawFd;

/// Larger than a pipe, not a divisor of anything.
const CHUNK: usize = 40 * PAGE;

/// Source and destination are each half of the memory: going through them makes both far.
pub fn syscalls(args: &Args) -> Outcome {
    let half = args.size / 2 / CHUNK * CHUNK;
    let from = Span::map(half, args.seed)?;
    let to = from.moved(calls::map(half)?);
    from.write(1);
    to.write(9);
    through_a_pipe(&from, &to)?;
    to.verify(1)?;
    from.write(2);
    through_a_file(&from, &to)?;
    to.verify(2)?;
    from.write(3);
    through_a_socket(&from, &to)?;
    to.verify(3)?;
    from.write(4);
    between_processes(&from, &to)?;
    to.verify(4)?;
    small_structs(&from)?;
    from.part(CHUNK, from.len - CHUNK).verify(4)?;
    ok(format!(
        "{} pages by pipe, file, socket and process_vm",
        from.pages()
    ))
}

fn through_a_pipe(from: &Span, to: &Span) -> Result<(), String> {
    let (output, input) = calls::pipe()?;
    let (from, to) = (*from, *to);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let sent = (0..from.len / CHUNK)
                .try_for_each(|n| calls::write_from(input, from.at + n * CHUNK, CHUNK));
            calls::close(input);
            sent
        });
        let read =
            (0..to.len / CHUNK).try_for_each(|n| calls::read_to(output, to.at + n * CHUNK, CHUNK));
        calls::close(output);
        let sent = writer
            .join()
            .map_err(|_| "the writer panicked".to_string())?;
        read.and(sent)
    })
}

/// Four pieces of a chunk, in another order than they lie in.
fn pieces(at: usize) -> [libc::iovec; 4] {
    [0, 1, 2, 3].map(|n| libc::iovec {
        iov_base: (at + n * (CHUNK / 4)) as *mut _,
        iov_len: CHUNK / 4,
    })
}

fn whole(what: &str, answer: isize) -> Result<(), String> {
    match check(what, answer as i64)? {
        n if n == CHUNK as i64 => Ok(()),
        n => Err(format!("{what}: {n} of {CHUNK} bytes")),
    }
}

fn through_a_file(from: &Span, to: &Span) -> Result<(), String> {
    let file = tempfile_of(from.len)?;
    let fd = file.as_raw_fd();
    for n in 0..from.len / CHUNK {
        let list = pieces(from.at + n * CHUNK);
        // SAFETY: the four pieces are mapped memory of ours.
        whole("writev", unsafe { libc::writev(fd, list.as_ptr(), 4) })?;
    }
    for n in 0..to.len / CHUNK {
        let (at, offset) = (to.at + n * CHUNK, (n * CHUNK) as i64);
        let list = pieces(at);
        // SAFETY: the pieces are mapped memory of ours.
        let answer = unsafe {
            if n % 2 == 0 {
                libc::preadv(fd, list.as_ptr(), 4, offset)
            } else {
                libc::pread(fd, at as *mut _, CHUNK, offset)
            }
        };
        whole("preadv or pread", answer)?;
    }
    Ok(())
}

fn through_a_socket(from: &Span, to: &Span) -> Result<(), String> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let answer =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    check("socketpair", answer.into())?;
    let (from, to) = (*from, *to);
    let message = |list: &mut [libc::iovec]| {
        // SAFETY: all zeros is an empty message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = list.as_mut_ptr();
        header.msg_iovlen = list.len();
        header
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut sent = 0;
            while sent < from.len {
                let len = CHUNK.min(from.len - sent);
                let base = (from.at + sent) as *mut libc::c_void;
                let mut list = [libc::iovec {
                    iov_base: base,
                    iov_len: len,
                }];
                let header = message(&mut list);
                // SAFETY: header and list live until the call returns, and name our memory.
                let answer = unsafe { libc::sendmsg(ends[0], &header, 0) };
                sent += check("sendmsg", answer as i64)? as usize;
            }
            Ok::<(), String>(())
        });
        let mut got = 0;
        while got < to.len {
            let len = (3 * CHUNK).min(to.len - got);
            let base = (to.at + got) as *mut libc::c_void;
            let mut list = [libc::iovec {
                iov_base: base,
                iov_len: len,
            }];
            let mut header = message(&mut list);
            // SAFETY: as above.
            let answer = unsafe { libc::recvmsg(ends[1], &mut header, 0) };
            got += check("recvmsg", answer as i64)? as usize;
        }
        sender
            .join()
            .map_err(|_| "the sender panicked".to_string())?
    })?;
    ends.into_iter().for_each(calls::close);
    Ok(())
}

fn between_processes(from: &Span, to: &Span) -> Result<(), String> {
    for n in 0..from.len / CHUNK {
        let local = pieces(to.at + n * CHUNK);
        let remote = pieces(from.at + n * CHUNK);
        // SAFETY: both lists name memory of this process.
        let answer = unsafe {
            libc::process_vm_readv(libc::getpid(), local.as_ptr(), 4, remote.as_ptr(), 4, 0)
        };
        whole("process_vm_readv", answer)?;
    }
    Ok(())
}

/// Answers that the kernel writes into far pages, and names that it reads from them.
fn small_structs(span: &Span) -> Result<(), String> {
    // One page for each call, as far apart as they can be; the last words of a page.
    let spots: Vec<usize> = (0..8)
        .map(|n| span.at + n * (span.len / 8) / PAGE * PAGE)
        .collect();
    for round in 0..4 {
        let at = |n: usize| (spots[n] + round * PAGE) as *mut libc::c_void;
        // SAFETY: every spot has a whole page of mapped memory, and what is read back was written
        // by the call just before.
        unsafe {
            let room = PAGE - 8;
            check("getcwd", libc::getcwd(at(0).cast(), room) as i64)?;
            let told = std::ffi::CStr::from_ptr(at(0).cast())
                .to_string_lossy()
                .into_owned();
            let known = std::env::current_dir().map_err(|error| error.to_string())?;
            if std::path::Path::new(&told) != known {
                return Err(format!(
                    "getcwd wrote '{told}' instead of {}",
                    known.display()
                ));
            }
            // The name that was just written, read by the kernel; the answer into another page.
            check("stat", libc::stat(at(0).cast(), at(1).cast()).into())?;
            let mode = (*at(1).cast::<libc::stat>()).st_mode;
            if mode & libc::S_IFMT != libc::S_IFDIR {
                return Err(format!("stat of the current directory says mode {mode:o}"));
            }
            check("uname", libc::uname(at(2).cast()).into())?;
            let system = std::ffi::CStr::from_ptr(at(2).cast()).to_bytes();
            if system != b"Linux" {
                return Err(format!("uname says {system:?}"));
            }
            let time = at(3).cast::<libc::timespec>();
            check(
                "clock_gettime",
                libc::clock_gettime(libc::CLOCK_MONOTONIC, time).into(),
            )?;
            if (*time).tv_sec == 0 && (*time).tv_nsec == 0 {
                return Err("clock_gettime wrote nothing".to_string());
            }
            check("getrandom", libc::getrandom(at(4), 4096, 0) as i64)?;
            let ends = calls::pipe()?;
            let polled = at(5).cast::<libc::pollfd>();
            polled.write(libc::pollfd {
                fd: ends.1,
                events: libc::POLLOUT,
                revents: 0,
            });
            check("poll", libc::poll(polled, 1, 1000).into())?;
            if (*polled).revents & libc::POLLOUT == 0 {
                return Err("poll did not write its answer".to_string());
            }
            let zeros = std::fs::File::open("/dev/zero").map_err(|error| error.to_string())?;
            calls::read_to(zeros.as_raw_fd(), at(6) as usize, PAGE)?;
            Span::new(at(6) as usize, PAGE, 0).verify(0)?;
            calls::close(ends.0);
            calls::close(ends.1);
            let waiter = libc::epoll_create1(0);
            check("epoll_create1", waiter.into())?;
            check(
                "epoll_wait",
                libc::epoll_wait(waiter, at(7).cast(), 16, 0).into(),
            )?;
            calls::close(waiter);
        }
        for (n, at) in spots.iter().enumerate() {
            let from = at + round * PAGE - span.at;
            span.part(from, PAGE).write(4);
            span.page((n * 977 + round) % span.pages()).verify(4)?;
        }
    }
    Ok(())
}

pub fn directio(args: &Args) -> Outcome {
    let half = args.size / 2 / CHUNK * CHUNK;
    let from = Span::map(half, args.seed)?;
    let to = from.moved(calls::map(half)?);
    from.write(1);
    let file = tempfile_of(half + 1)?;
    let fd = file.as_raw_fd();
    // SAFETY: flags of a descriptor of ours.
    let answer = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_DIRECT) };
    if answer < 0 {
        let error = std::io::Error::last_os_error();
        return Ok(Done::Skip(format!(
            "this file system refuses O_DIRECT: {error}"
        )));
    }
    for n in 0..half / CHUNK {
        let (at, offset) = (from.at + n * CHUNK, (n * CHUNK) as i64);
        // SAFETY: a chunk of mapped memory.
        let answer = unsafe { libc::pwrite(fd, at as *const _, CHUNK, offset) };
        if n == 0 && answer < 0 && calls::errno() == libc::EINVAL {
            return Ok(Done::Skip(
                "this file system refuses direct writes".to_string(),
            ));
        }
        whole("direct pwrite", answer)?;
    }
    from.write(2);
    to.write(3);
    for n in 0..half / CHUNK {
        let (at, offset) = (to.at + n * CHUNK, (n * CHUNK) as i64);
        // SAFETY: as above.
        whole("direct pread", unsafe {
            libc::pread(fd, at as *mut _, CHUNK, offset)
        })?;
        // Memory around it changes while the device writes.
        from.part(n * CHUNK, CHUNK).verify(2)?;
    }
    to.verify(1)?;
    ok(format!("{} pages out and in", from.pages()))
}
