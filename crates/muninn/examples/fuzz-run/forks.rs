//! Children of every kind. Each goes on with the memory as it was at its birth, takes steps of its
//! own, and sends its digest through a pipe.

use crate::actor::{Actor, Role, wrong};
use crate::calls::{self, PRIVATE, RW, check};
use crate::dice::{Digest, nth};
use crate::model::{Content, PAGE, Page};
use crate::step::{Forking, Part, Pick, Step};
use crate::transfer::pipe;
use std::os::fd::{AsRawFd, OwnedFd};

const CHILDREN_MAX: usize = 3;

/// How a child of a burst ends.
const BURST_CODE: i32 = 7;

pub struct Child {
    /// The step that it comes from.
    id: String,
    /// None: an orphan, whose parent was waited for.
    pid: Option<i32>,
    output: OwnedFd,
}

impl Actor {
    pub fn fork(
        &mut self,
        how: Forking,
        later: bool,
        steps: &[Step],
        id: &str,
    ) -> Result<(), String> {
        while self.children.len() >= CHILDREN_MAX {
            self.collect()?;
        }
        // With other threads about, only libc knows how to leave no lock locked.
        let how = match how {
            Forking::Orphan => Forking::Orphan,
            how if self.is_alone() => how,
            _ => Forking::Libc,
        };
        let (output, input) = pipe()?;
        let pid = start(how)?;
        if pid == 0 {
            if how == Forking::Orphan && calls::fork()? != 0 {
                calls::exit_now(0);
            }
            drop(output);
            let raw = !matches!(how, Forking::Libc | Forking::Orphan);
            self.go_on_as_child(raw, steps, id, &input);
        }
        drop(input);
        let mut child = Child {
            id: id.to_string(),
            pid: Some(pid),
            output,
        };
        if how == Forking::Orphan {
            calls::wait_good(pid, "the parent of an orphan")?;
            child.pid = None;
        }
        self.children.push_back(child);
        if !later {
            while !self.children.is_empty() {
                self.collect()?;
            }
        }
        Ok(())
    }

    fn go_on_as_child(&mut self, raw: bool, steps: &[Step], id: &str, input: &OwnedFd) -> ! {
        self.become_child(raw);
        match self.play(steps) {
            Ok(Digest(sum)) => {
                let sent = calls::write_from(input.as_raw_fd(), &raw const sum as usize, 8);
                calls::exit_now(i32::from(sent.is_err()));
            }
            Err(text) => wrong(&format!("child of step {id}: {text}")),
        }
    }

    /// What is different from the parent.
    fn become_child(&mut self, raw: bool) {
        self.role = match self.role {
            Role::RawChild => Role::RawChild,
            _ if raw => Role::RawChild,
            _ => Role::Process,
        };
        self.is_child = true;
        // The threads are not here, and nobody else's children are collected.
        self.workers.drain(..).for_each(std::mem::forget);
        self.children.clear();
        self.transfers.clear();
        for slot in &mut self.areas {
            let Some(area) = slot else { continue };
            if area.pages.iter().any(|page| page.not_forked) {
                *slot = None;
                continue;
            }
            for page in &mut area.pages {
                page.held = 0;
                page.locked = false;
                if page.wiped_on_fork {
                    page.content = Content::default();
                }
            }
        }
    }

    /// The oldest child's digest.
    pub fn collect(&mut self) -> Result<(), String> {
        let Some(child) = self.children.pop_front() else {
            return Ok(());
        };
        let mut sum = 0u64;
        let got = calls::read_to(child.output.as_raw_fd(), &raw mut sum as usize, 8);
        let what = format!("the child of step {}", child.id);
        if let Some(pid) = child.pid {
            // How it ended says more than that nothing came.
            calls::wait_good(pid, &what).map_err(without_pid)?;
        }
        got.map_err(|_| format!("{what} ended without a digest"))?;
        self.digest.fold(sum);
        Ok(())
    }

    pub fn burst(&mut self, count: u8) -> Result<(), String> {
        let mut pids = Vec::new();
        for _ in 0..count {
            match calls::fork()? {
                0 => calls::exit_now(BURST_CODE),
                pid => pids.push(pid),
            }
        }
        for pid in pids {
            let status = calls::wait(pid)?;
            if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != BURST_CODE {
                return Err(format!(
                    "a child that ends at once ended with status {status:#x}"
                ));
            }
        }
        Ok(())
    }

    pub fn exec(&mut self) -> Result<(), String> {
        let words = [c"true".as_ptr(), std::ptr::null()];
        let pid = calls::fork()?;
        if pid == 0 {
            // SAFETY: strings with their ends, and a list with its own.
            unsafe { libc::execv(c"/bin/true".as_ptr(), words.as_ptr()) };
            calls::exit_now(126);
        }
        calls::wait_good(pid, "a child that became /bin/true").map_err(without_pid)
    }

    pub fn spawn(&mut self) -> Result<(), String> {
        unsafe extern "C" {
            static environ: *const *mut libc::c_char;
        }
        let words = [c"true".as_ptr().cast_mut(), std::ptr::null_mut()];
        let mut pid = 0;
        // SAFETY: strings with their ends, and lists with theirs.
        let answer = unsafe {
            let (none, nothing) = (std::ptr::null(), std::ptr::null());
            let path = c"/bin/true".as_ptr();
            libc::posix_spawn(&mut pid, path, none, nothing, words.as_ptr(), environ)
        };
        if answer != 0 {
            return Err(format!("posix_spawn answered {answer}"));
        }
        calls::wait_good(pid, "a spawned /bin/true").map_err(without_pid)
    }

    /// A child in this very memory, while this thread stands still.
    pub fn vfork(&mut self, pick: Pick, part: Part, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, Page::is_writable) else {
            return Ok(());
        };
        let stack_len = 16 * PAGE;
        let stack = calls::map_at(0, stack_len, RW, PRIVATE | libc::MAP_STACK, -1)?;
        let mut work = Filled {
            at: self.area(slot).address(from),
            count,
            salt,
        };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: a stack of its own; what it is given lives until it has ended, as the flags say.
        let pid = unsafe {
            let top = (stack + stack_len) as *mut libc::c_void;
            libc::clone(fill, top, flags, (&raw mut work).cast())
        };
        let pid = check("clone", pid.into())? as i32;
        calls::wait_good(pid, "a child in the same memory").map_err(without_pid)?;
        calls::unmap(stack, stack_len)?;
        for n in 0..count {
            self.area_mut(slot).pages[from + n].content = work.content(n);
        }
        Ok(())
    }
}

struct Filled {
    at: usize,
    count: usize,
    salt: u64,
}

impl Filled {
    fn content(&self, n: usize) -> Content {
        Content::of(nth(self.salt, n as u64) | 1)
    }
}

extern "C" fn fill(work: *mut libc::c_void) -> i32 {
    // SAFETY: the parent stands still, with this on its stack.
    let work = unsafe { &*work.cast::<Filled>() };
    for n in 0..work.count {
        work.content(n).write(work.at + n * PAGE);
    }
    0
}

/// The same in every run.
fn without_pid(text: String) -> String {
    match (text.find(" (process "), text.find(") ")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &text[..from], &text[to + 1..]),
        _ => text,
    }
}

/// The number of the child, or 0 in it.
fn start(how: Forking) -> Result<i32, String> {
    let signal = libc::SIGCHLD as u64;
    // The kernel's `clone_args`: flags, pidfd, child_tid, parent_tid, exit_signal, and more zeros.
    let args: [u64; 11] = [0, 0, 0, 0, signal, 0, 0, 0, 0, 0, 0];
    // SAFETY: this is the only thread, so the child finds every lock free; it shares nothing.
    let pid = unsafe {
        match how {
            Forking::Libc | Forking::Orphan => return calls::fork(),
            Forking::RawClone => libc::syscall(libc::SYS_clone, signal, 0, 0, 0, 0),
            Forking::RawClone3 => {
                libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args))
            }
            #[cfg(target_arch = "x86_64")]
            Forking::RawFork => libc::syscall(libc::SYS_fork),
            #[cfg(not(target_arch = "x86_64"))]
            Forking::RawFork => libc::syscall(libc::SYS_clone, signal, 0, 0, 0, 0),
        }
    };
    check("fork by a raw call", pid).map(|pid| pid as i32)
}
