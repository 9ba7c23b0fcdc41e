//! System calls, each with the error as a sentence.
//!
//! Addresses are plain numbers: the checker unmaps and maps over its own memory by intent, and no
//! reference ever points into it.

use std::io::Error;

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The answer of a call, or what failed and why.
pub fn check(what: &str, answer: i64) -> Result<i64, String> {
    if answer < 0 {
        return Err(format!("{what}: {}", Error::last_os_error()));
    }
    Ok(answer)
}

pub fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Writes text without any lock: also fit for a child of a process with threads.
pub fn say(fd: i32, text: &str) {
    // SAFETY: the text is readable for its length.
    unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
}

pub fn map_at(at: usize, len: usize, prot: i32, flags: i32, fd: i32) -> Result<usize, String> {
    // SAFETY: a fixed place is memory of the checker itself, to which no reference exists.
    let got = unsafe { libc::mmap(at as *mut _, len, prot, flags, fd, 0) };
    if got == libc::MAP_FAILED {
        let error = Error::last_os_error();
        return Err(format!("mmap of {len} bytes at {at:#x}: {error}"));
    }
    Ok(got as usize)
}

pub fn map(len: usize) -> Result<usize, String> {
    map_at(0, len, RW, PRIVATE, -1)
}

/// Takes a part's place with fresh anonymous memory.
pub fn map_fixed(at: usize, len: usize, prot: i32) -> Result<(), String> {
    map_at(at, len, prot, PRIVATE | libc::MAP_FIXED, -1).map(|_| ())
}

pub fn unmap(at: usize, len: usize) -> Result<(), String> {
    // SAFETY: memory of the checker itself, to which no reference exists.
    check("munmap", unsafe { libc::munmap(at as *mut _, len) }.into()).map(|_| ())
}

pub fn remap(at: usize, old: usize, new: usize, flags: i32, to: usize) -> Result<usize, String> {
    // SAFETY: memory of the checker itself, to which no reference exists.
    let got = unsafe { libc::mremap(at as *mut _, old, new, flags, to as *mut libc::c_void) };
    if got == libc::MAP_FAILED {
        let error = Error::last_os_error();
        return Err(format!(
            "mremap of {old} bytes at {at:#x} to {new}: {error}"
        ));
    }
    Ok(got as usize)
}

pub fn advise(at: usize, len: usize, advice: i32) -> Result<(), String> {
    // SAFETY: memory of the checker itself, to which no reference exists.
    let answer = unsafe { libc::madvise(at as *mut _, len, advice) };
    check(&format!("madvise {advice}"), answer.into()).map(|_| ())
}

pub fn protect(at: usize, len: usize, prot: i32) -> Result<(), String> {
    // SAFETY: memory of the checker itself, to which no reference exists.
    check(
        "mprotect",
        unsafe { libc::mprotect(at as *mut _, len, prot) }.into(),
    )
    .map(|_| ())
}

/// The number of the child, or 0 in it.
pub fn fork() -> Result<i32, String> {
    // SAFETY: the child calls nothing that needs a lock another thread may hold, but malloc's,
    // which the C library puts right.
    check("fork", unsafe { libc::fork() }.into()).map(|pid| pid as i32)
}

/// A child that does this and ends with 0, or says what is wrong and ends with 1.
pub fn fork_doing(work: impl FnOnce() -> Result<(), String>) -> Result<i32, String> {
    let pid = fork()?;
    if pid == 0 {
        let code = match work() {
            Ok(()) => 0,
            Err(wrong) => {
                say(
                    2,
                    &format!("checker: child {}: {wrong}\n", std::process::id()),
                );
                1
            }
        };
        exit_now(code);
    }
    Ok(pid)
}

pub fn kill(pid: i32, signal: i32) -> Result<(), String> {
    // SAFETY: a plain system call.
    check("kill", unsafe { libc::kill(pid, signal) }.into()).map(|_| ())
}

pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// How a child ended, as `wait` puts it.
pub fn wait(pid: i32) -> Result<i32, String> {
    let mut status = 0;
    loop {
        // SAFETY: the status is ours.
        let got = unsafe { libc::waitpid(pid, &mut status, 0) };
        if got == pid {
            return Ok(status);
        }
        if errno() != libc::EINTR {
            return Err(format!("waitpid {pid}: {}", Error::last_os_error()));
        }
    }
}

/// Waits for a child that must end with 0.
pub fn wait_good(pid: i32, what: &str) -> Result<(), String> {
    let status = wait(pid)?;
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(());
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return Err(format!(
            "{what} (process {pid}) was ended by signal {signal}"
        ));
    }
    let code = libc::WEXITSTATUS(status);
    Err(format!("{what} (process {pid}) ended with code {code}"))
}

/// The reading and the writing end.
pub fn pipe() -> Result<(i32, i32), String> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let answer = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    check("pipe", answer.into())?;
    Ok((ends[0], ends[1]))
}

pub fn close(fd: i32) {
    // SAFETY: a descriptor of the checker itself.
    unsafe { libc::close(fd) };
}

/// Reads exactly `len` bytes to an address; fails on an early end.
pub fn read_to(fd: i32, at: usize, len: usize) -> Result<(), String> {
    let mut done = 0;
    while done < len {
        // SAFETY: the caller's memory is mapped and writable for `len` bytes.
        let got = unsafe { libc::read(fd, (at + done) as *mut _, len - done) };
        match got {
            0 => return Err(format!("read: the end after {done} of {len} bytes")),
            n if n > 0 => done += n as usize,
            _ if errno() == libc::EINTR => {}
            _ => return Err(format!("read to {at:#x}: {}", Error::last_os_error())),
        }
    }
    Ok(())
}

pub fn write_from(fd: i32, at: usize, len: usize) -> Result<(), String> {
    let mut done = 0;
    while done < len {
        // SAFETY: the caller's memory is mapped and readable for `len` bytes.
        let got = unsafe { libc::write(fd, (at + done) as *const _, len - done) };
        match got {
            n if n >= 0 => done += n as usize,
            _ if errno() == libc::EINTR => {}
            _ => return Err(format!("write from {at:#x}: {}", Error::last_os_error())),
        }
    }
    Ok(())
}

/// One byte through a pipe: "go on".
pub fn signal_byte(fd: i32) -> Result<(), String> {
    let byte = 1u8;
    write_from(fd, &raw const byte as usize, 1)
}

pub fn wait_byte(fd: i32) -> Result<(), String> {
    let mut byte = 0u8;
    read_to(fd, &raw mut byte as usize, 1)
}

/// Resident memory of this process that is not of files, in pages.
pub fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut numbers = text
        .split(' ')
        .skip(1)
        .map_while(|n| n.parse::<usize>().ok());
    let resident = numbers.next().unwrap_or(0);
    resident.saturating_sub(numbers.next().unwrap_or(0))
}
