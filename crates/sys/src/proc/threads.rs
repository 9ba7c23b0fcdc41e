//! The threads of a process, as `/proc` lists them.
//!
//! The first one may end before the others: it is listed as a corpse then, without memory and without files,
//! and whatever is asked of the process by its number is asked of that corpse.
//!
//! Invariant: nothing of the program's heap is used, as by the C library's `readdir`.

use super::{RawDir, open, pread};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;

pub(super) fn open_folder(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(crate::own::rooted(path), flags, Mode::empty())
}

/// What is asked of each thread of a process until it says so; by the numbers that `/proc` lists them under.
pub(super) fn any_thread(
    process: u32,
    mut ask: impl FnMut(u32) -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let tasks = open_folder(&format!("/proc/{process}/task"))?;
    let mut names = [const { MaybeUninit::uninit() }; 2048];
    let mut names = RawDir::new(tasks, &mut names);
    while let Some(entry) = names.next() {
        let entry = entry?;
        let thread = entry.file_name().to_str().ok().and_then(|n| n.parse().ok());
        if let Some(thread) = thread
            && ask(thread)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The thread of the program around us of which something holds, by the number that it knows itself by. `Err`
/// where its threads cannot be seen.
pub fn find_thread_of_program(holds: impl Fn(u32) -> bool) -> Result<Option<u32>, Errno> {
    let otherwise = crate::own::is_listed_otherwise();
    let mut found = None;
    any_thread(crate::own::listed_pid(), |listed| {
        let number = match otherwise {
            true => own_number(listed),
            false => Some(listed),
        };
        found = number.filter(|number| holds(*number));
        Ok(found.is_some())
    })?;
    Ok(found)
}

/// Whether one process has the memory of another, by any thread of that; `None` where the kernel does not say.
pub fn has_memory_of(one: u32, process: u32) -> Option<bool> {
    let shares = super::share_memory(one, process)?;
    let any = |thread| Ok(super::share_memory(one, thread) == Some(true));
    Some(shares || any_thread(process, any).unwrap_or(false))
}

/// By which number a thread knows itself.
fn own_number(listed: u32) -> Option<u32> {
    let mut text = [0; 2048];
    let file = open(&format!("/proc/{listed}/status")).ok()?;
    let len = pread(&file, &mut text, 0).ok()?;
    let mut lines = text[..len].split(|&byte| byte == b'\n');
    let numbers = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = numbers
        .rsplit(|byte| byte.is_ascii_whitespace())
        .find(|word| !word.is_empty())?;
    std::str::from_utf8(last).ok()?.parse().ok()
}

/// Another thread in the place of a process whose first one is a corpse: what is asked of a process by files of
/// its number is to be asked of that one. The process itself where nothing is better.
pub(super) fn living_thread(process: u32) -> u32 {
    let lives = |thread: u32| {
        let mut text = [0; 512];
        let read =
            open(&format!("/proc/{thread}/stat")).and_then(|file| pread(&file, &mut text, 0));
        let text = &text[..read.unwrap_or(0)];
        // After the name, which may hold anything.
        let end = text.iter().rposition(|&byte| byte == b')');
        let state = end.and_then(|end| text.get(end + 2));
        state.is_some_and(|state| !b"ZXx".contains(state))
    };
    if lives(process) {
        return process;
    }
    let mut living = process;
    let _ = any_thread(process, |thread| {
        if lives(thread) {
            living = thread;
        }
        Ok(living != process)
    });
    living
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_found_and_so_is_one_that_lives() {
        let own = std::process::id();
        assert_eq!(living_thread(own), own);
        let this = crate::affinity::current_thread_id() as u32;
        assert_eq!(
            find_thread_of_program(|thread| thread == this),
            Ok(Some(this))
        );
        assert_eq!(find_thread_of_program(|_| false), Ok(None));
        assert_eq!(own_number(this), Some(this));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_on() {
        let end = "import os, threading, ctypes, time\n\
                   threading.Thread(target=lambda: (print(1, flush=True), time.sleep(60))).start()\n\
                   ctypes.CDLL(None).syscall(60, 0)";
        let Ok(mut child) = std::process::Command::new("python3")
            .args(["-c", end])
            .stdout(std::process::Stdio::piped())
            .spawn()
        else {
            println!("skipped: no python3");
            return;
        };
        let pid = child.id();
        let began = std::time::Instant::now();
        while living_thread(pid) == pid {
            assert!(
                began.elapsed().as_secs() < 30,
                "its first thread did not end"
            );
            std::thread::yield_now();
        }
        assert!(super::super::ProcessId::of(pid).is_some_and(|process| process.is_alive()));
        assert_eq!(has_memory_of(std::process::id(), pid), Some(false));
        let other = living_thread(pid);
        assert_eq!(
            super::super::share_memory(other, pid),
            Some(false),
            "a corpse has none"
        );
        assert_eq!(has_memory_of(other, pid), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(super::super::ProcessId::of(pid).is_none());
    }
}
