//! Keeps the pager on the processor of the thread it serves.
//!
//! While one thread faults, the pager has nothing to do when that thread runs and the thread has
//! nothing to do when the pager does; on one processor they change places without waking anybody and
//! without telling another processor to forget its page tables (which costs more than the rest of a
//! fault on a virtual machine). When several threads fault the scheduler knows better.

use muninn_sys::affinity::{self, Thread};

/// Faults between two looks.
const LOOK_EVERY: u32 = 64;

#[derive(Debug, Default)]
pub struct Follow {
    faults: u32,
    thread: u32,
    /// Another thread faulted since the last look.
    mixed: bool,
    pinned: Option<usize>,
}

impl Follow {
    pub fn handle_fault(&mut self, thread: u32) {
        self.mixed |= thread != self.thread;
        self.thread = thread;
        self.faults += 1;
        if self.faults < LOOK_EVERY {
            return;
        }
        self.faults = 0;
        let mixed = std::mem::take(&mut self.mixed);
        let wanted = match mixed {
            true => None,
            false => affinity::last_cpu(thread),
        };
        if wanted != self.pinned {
            self.pinned = wanted;
            let _ = match wanted {
                Some(cpu) => affinity::pin(Thread::Current, cpu),
                None => affinity::unpin(Thread::Current),
            };
        }
    }
}
