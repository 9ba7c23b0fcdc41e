//! Who may write to the program's memory later, although nobody of the program runs: devices, by files that are
//! open for direct I/O or an io_uring, and threads in the middle of `process_vm_writev`, which have got hold of
//! pages already.
//!
//! Invariant: an answer that could not be had is never taken for "nobody". Known limit: a thread of another
//! process that has got hold of pages is not seen here.

use super::threads::{any_thread, living_thread, open_folder};
use super::{RawDir, pread};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Whether what is in memory now may change while the program stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateWrites {
    Nobody,
    /// A thread runs, or may have got hold of pages to write to them.
    Thread,
    /// A device: a file is open for direct I/O, or an io_uring.
    Device,
    /// That is not for us to see.
    Hidden,
}

/// What may still be written to the memory of a program, as `/proc` lists it, whose threads stand still.
pub fn late_writes(program: u32) -> Result<LateWrites, Errno> {
    // In this order: with all threads still nobody opens a file any more.
    let found = match threads_write_later(program) {
        Ok(true) => return Ok(LateWrites::Thread),
        Ok(false) => has_direct_io(program),
        Err(errno) => Err(errno),
    };
    match found {
        Ok(true) => Ok(LateWrites::Device),
        Ok(false) => Ok(LateWrites::Nobody),
        Err(Errno::ACCESS | Errno::PERM) => Ok(LateWrites::Hidden),
        Err(errno) => Err(errno),
    }
}

/// For threads that must not use the program's heap: the C library's `readdir` would.
fn has_direct_io(program: u32) -> Result<bool, Errno> {
    // A first thread that has ended has no files any more.
    let program = living_thread(program);
    let fds = open_folder(&format!("/proc/{program}/fd"))?;
    let mut names = [const { MaybeUninit::uninit() }; 2048];
    let mut names = RawDir::new(fds, &mut names);
    let mut info = [0; 2048];
    while let Some(entry) = names.next() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let file = match super::open(&format!("/proc/{program}/fdinfo/{name}")) {
            Ok(file) => file,
            // Closed meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let len = rustix::io::read(&file, &mut info)?;
        let text = String::from_utf8_lossy(&info[..len]);
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
        // Only an io_uring tells of its queues there.
        if flags.is_some_and(|flags| flags & libc::O_DIRECT as u32 != 0) || text.contains("SqMask")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a thread that waits for a page, of whatever process, may have got hold of others of the program
/// meanwhile, to write to them later. Not seen where the kernel does not let us look (Yama).
pub fn holds_pages(thread: u32) -> bool {
    if !crate::own::is_listed_otherwise() {
        return writes_later(thread).unwrap_or(false);
    }
    // By which number it is listed here nobody has told.
    threads_write_later(crate::own::listed_pid()).unwrap_or(false)
}

/// Whether any thread of a program may have got hold of pages to write to them later, or runs.
fn threads_write_later(program: u32) -> Result<bool, Errno> {
    any_thread(program, writes_later)
}

/// Whether a thread, as it is listed, is in the middle of `process_vm_writev`, or runs, so that nobody can
/// say: with a signal to come it asks for its page again and again.
pub(crate) fn writes_later(thread: u32) -> Result<bool, Errno> {
    let mut text = [0; 256];
    let read =
        super::open(&format!("/proc/{thread}/syscall")).and_then(|file| pread(&file, &mut text, 0));
    let len = match read {
        Ok(len) => len,
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => return Err(errno),
        // It is gone.
        Err(_) => 0,
    };
    let Ok(text) = std::str::from_utf8(&text[..len]) else {
        return Ok(false);
    };
    let first = text.split_ascii_whitespace().next();
    Ok(first.is_some_and(|first| {
        first == "running" || first.parse() == Ok(libc::SYS_process_vm_writev)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn who_sleeps_with_ordinary_files_writes_nothing_later() {
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        // Until it reads.
        while late_writes(cat.id()) != Ok(LateWrites::Nobody) {
            assert!(
                start.elapsed().as_secs() < 30,
                "{:?}",
                late_writes(cat.id())
            );
            std::thread::yield_now();
        }
        cat.kill().unwrap();
        cat.wait().unwrap();
    }

    #[test]
    fn a_file_for_direct_io_is_a_device() {
        use std::os::unix::fs::OpenOptionsExt;
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("direct");
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true);
        if options.custom_flags(libc::O_DIRECT).open(&path).is_err() {
            println!("skipped: no direct I/O in this file system");
            return;
        }
        let script = "exec 3>&1; exec sleep 60";
        let direct = options.open(&path).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(direct)
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        while late_writes(child.id()) != Ok(LateWrites::Device) {
            assert!(start.elapsed().as_secs() < 30);
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_that_is_gone_is_no_answer() {
        assert!(late_writes(0x3fff_fff0).is_err());
    }
}
