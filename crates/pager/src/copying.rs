//! The way without UFFDIO_MOVE: pages leave by being copied, for kernels before 6.8.
//!
//! A run of pages is write-protected, then copied to frames, and then given back to the kernel.
//! A thread that writes to one of them meanwhile waits for us, and finds it absent afterwards. Pages
//! come in by a copy, too. Otherwise everything is as with moves, so the engine does not know the
//! difference ([`Kernel::take_out`](muninn_pager_core::Kernel::take_out)).
//!
//! Reading and giving back is done by a thread of its own, the *carrier*: the kernel tells of memory
//! that is given back with an event, and whoever gives it back waits until that is read. The pager
//! reads it, and sets everything else aside that it reads on the way. The program stands still
//! meanwhile ([`Still`]): it could unmap the memory and map other memory there, and what is given
//! back then would be that.
//!
//! Invariants: nothing is given back of which there is no copy. A page into which a device writes
//! (direct I/O) is written to behind our back, which a move would refuse; so nothing is given back
//! while the program has a file open for direct I/O, or an io_uring, nor while a thread is in the
//! middle of `process_vm_writev`, which has got hold of pages that it writes to later. What was taken is sure
//! before the program goes on ([`Copying::is_sure`]): a thread that slept may have woken up and changed its
//! memory. Should it move memory away under the carrier's hands (`mremap`), the carrier waits for a
//! page like any thread of the program; it is given zeros, and nothing is given back.
//!
//! Known limits: two to four times the cost of moves; memory with direct I/O cannot leave. Another process
//! that writes to the program's memory by `process_vm_writev` is seen only while it waits for a page.

use crate::keeper::Keeper;
use muninn_pager_core::Stillness;
use muninn_sys::affinity::Thread;
use muninn_sys::clock;
use muninn_sys::memory::program;
use muninn_sys::own::{self, Priority, Program};
use muninn_sys::proc::{self, LateWrites};
use muninn_sys::still::Still;
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, PageRange, Partial, Userfaultfd, Wake,
};
use muninn_types::{Nanos, PageNo};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the carrier is looked after.
const LOOK: Duration = Duration::from_micros(200);
/// How often the other thread's state is looked at before sleeping: some microseconds.
const SPINS: u32 = 400;
/// How often events are looked for before pausing.
const POLLS: u32 = 32;
const SOON: Duration = Duration::from_micros(20);
/// How long a change that is under way may take to pass.
const SETTLE: Nanos = Nanos::millis(5);

const HIDDEN: &str = "neither its companion nor the launcher may see whether a device writes to its memory (it is not \
                      to be looked at, as after PR_SET_DUMPABLE), and this kernel cannot move pages (Linux 6.8 can)";
const DIRECT_IO: &str = "it has a file open for direct I/O, or an io_uring, and this kernel cannot \
                         move pages that a device may write to (Linux 6.8 can)";

/// What the carrier is to do, does, or has done.
#[derive(Clone, Copy, Debug)]
enum Work {
    None,
    Wanted(Errand),
    /// Copies were made; an event is about to tell that the pages are given back.
    GivesBack,
    Done(Result<Carried, Cause>),
}

/// What became of pages that there is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    All,
    /// Some may be where they were: their memory is locked, or a part of it is not mapped any more.
    Some,
}

#[derive(Clone, Copy, Debug)]
struct Errand {
    from: PageRange,
    /// Which of them are there.
    present: u64,
    to: PageNo,
}

/// The thread that reads pages and gives them back.
#[derive(Debug)]
pub struct Carrier {
    work: Mutex<Work>,
    changed: Condvar,
    /// Its number, once it runs.
    thread: std::sync::atomic::AtomicU32,
}

impl Default for Carrier {
    fn default() -> Carrier {
        Carrier {
            work: Mutex::new(Work::None),
            changed: Condvar::new(),
            thread: std::sync::atomic::AtomicU32::new(0),
        }
    }
}

impl Carrier {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The carrier's thread: never ends.
    pub fn run(&self, reader: &program::Reader) {
        let thread = muninn_sys::affinity::current_thread_id() as u32;
        self.thread
            .store(thread, std::sync::atomic::Ordering::Release);
        loop {
            let errand = self.next_errand();
            let mut done = copy(reader, errand).map(|()| Carried::All);
            if done.is_ok() {
                self.set(Work::GivesBack);
                // SAFETY: there is a copy of all of them, and nobody could write since.
                if unsafe { program::discard(errand.from) }.is_err() {
                    done = Ok(Carried::Some);
                }
            }
            self.set(Work::Done(done));
        }
    }

    fn next_errand(&self) -> Errand {
        let wanted = |work: &Work| match *work {
            Work::Wanted(errand) => Some(errand),
            _ => None,
        };
        // One chunk follows another, with the program's processors idle meanwhile.
        for _ in 0..SPINS {
            if let Some(errand) = wanted(&self.work()) {
                return errand;
            }
            std::hint::spin_loop();
        }
        let mut work = self.work();
        loop {
            if let Some(errand) = wanted(&work) {
                return errand;
            }
            let waited = self.changed.wait(work);
            work = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set(&self, work: Work) {
        *self.work() = work;
        self.changed.notify_all();
    }

    /// Waits a little for news; what it does, or has done.
    fn wait(&self) -> Work {
        for _ in 0..SPINS {
            let work = *self.work();
            if matches!(work, Work::Done(_) | Work::GivesBack) {
                return work;
            }
            std::hint::spin_loop();
        }
        let waited = self.changed.wait_timeout(self.work(), LOOK);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn copy(reader: &program::Reader, errand: Errand) -> Result<(), Cause> {
    let mut rest = errand.present;
    while rest != 0 {
        let at = rest.trailing_zeros();
        let len = (rest >> at).trailing_ones();
        rest &= !(u64::MAX >> (64 - len) << at);
        let run = PageRange::new(PageNo(errand.from.first().0 + u64::from(at)), len.into());
        let to = PageNo(errand.to.0 + u64::from(at));
        // SAFETY: frames are the pager's, which waits for us and touches none of them.
        unsafe { reader.read(run, to) }.map_err(|_| Cause::Invalid)?;
    }
    Ok(())
}

/// What a [`Process`](crate::process::Process) does in place of moves.
#[derive(Debug)]
pub struct Copying {
    carrier: Arc<Carrier>,
    keeper: Arc<Keeper>,
    /// Whose threads are to stand still.
    program: Option<Program>,
    /// Events that were read while the carrier worked.
    aside: Mutex<VecDeque<Event<Userfaultfd>>>,
    /// While pages are taken out.
    still: Mutex<Option<Still>>,
    /// Threads that wait for pages.
    waiting: Mutex<Vec<u32>>,
    /// What is protected from writes because it is about to leave.
    protected: Mutex<Vec<PageRange>>,
}

impl Copying {
    pub fn new(carrier: Arc<Carrier>, keeper: Arc<Keeper>) -> Copying {
        Copying {
            carrier,
            keeper,
            program: Program::watch(),
            aside: Mutex::new(VecDeque::with_capacity(64)),
            still: Mutex::new(None),
            waiting: Mutex::new(Vec::with_capacity(64)),
            protected: Mutex::new(Vec::with_capacity(64)),
        }
    }

    /// Keeps the program's threads from running until [`Copying::let_go`], and from writing to pages that
    /// are to leave.
    pub fn hold_still(&self, device: &Userfaultfd, leaving: &[PageRange]) -> Stillness {
        if self.is_held() {
            return Stillness::NotBefore;
        }
        let waits = |thread: i32| {
            let thread = thread as u32;
            let asked = |event: &Event<Userfaultfd>| match event {
                Event::Fault(fault) => fault.thread == thread,
                _ => false,
            };
            self.aside().iter().any(asked) || self.waiting().contains(&thread)
        };
        // Who asks for a page meanwhile stands still, too. Who changes something must be heard first, and
        // who has got hold of pages must be served first.
        let goes_on = || {
            self.listen(device);
            !self.is_changing() && !self.is_held()
        };
        // Between a look whether it is still the same program and the signal nobody may keep us from the
        // processor: one that has executed another would be ended by it.
        own::set_priority(Thread::Current, Priority::Immediate);
        let still = Still::begin(self.program.as_ref(), waits, goes_on);
        own::set_priority(Thread::Current, Priority::Raised);
        // Nobody runs, so whoever wants a page has said so.
        self.listen(device);
        if self.is_held() {
            return Stillness::NotBefore;
        }
        let Some(still) = still else {
            return Stillness::NotNow;
        };
        self.protect(device, leaving);
        match self.keeper.late_writes() {
            Some(LateWrites::Nobody) => {
                *self.still() = Some(still);
                Stillness::Reached
            }
            // One that slept may be awake, and in the middle of what began before.
            Some(LateWrites::Thread) => {
                self.let_go(device);
                Stillness::NotBefore
            }
            Some(LateWrites::Device) => Stillness::Never(DIRECT_IO),
            Some(LateWrites::Hidden) => Stillness::Never(HIDDEN),
            None => Stillness::NotNow,
        }
    }

    pub fn let_go(&self, device: &Userfaultfd) {
        for range in self.protected().drain(..) {
            let _ = device.write_protect(range, false, Wake::Now);
        }
        self.still().take();
    }

    /// Protects pages from writes: those of a run that is refused one by one.
    fn protect(&self, device: &Userfaultfd, leaving: &[PageRange]) {
        let mut protected = self.protected();
        for &run in leaving {
            if device.write_protect(run, true, Wake::Later).is_ok() {
                protected.push(run);
                continue;
            }
            let pages = (0..run.pages()).map(|at| PageRange::one(PageNo(run.first().0 + at)));
            protected.extend(
                pages.filter(|&page| device.write_protect(page, true, Wake::Later).is_ok()),
            );
        }
    }

    /// Whether all of these pages are protected; from now on it is for the caller to undo that.
    fn take_protected(&self, pages: PageRange) -> bool {
        let mut protected = self.protected();
        let holds = |run: &PageRange| run.first() <= pages.first() && pages.end() <= run.end();
        let Some(at) = protected.iter().position(holds) else {
            return false;
        };
        let run = protected.swap_remove(at);
        let before = PageRange::new(run.first(), pages.first().0 - run.first().0);
        let after = PageRange::new(pages.end(), run.end().0 - pages.end().0);
        protected.extend([before, after].into_iter().filter(|rest| !rest.is_empty()));
        true
    }

    fn protected(&self) -> MutexGuard<'_, Vec<PageRange>> {
        self.protected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits for a page, or no longer.
    pub fn note_waiting(&self, thread: u32, waits: bool) {
        let mut waiting = self.waiting();
        if waits {
            waiting.push(thread);
        } else if let Some(at) = waiting.iter().position(|&known| known == thread) {
            waiting.swap_remove(at);
        }
    }

    /// Whether somebody who waits for a page has got hold of others.
    fn is_held(&self) -> bool {
        let asks = |event: &Event<Userfaultfd>| match event {
            Event::Fault(fault) => proc::holds_pages(fault.thread),
            _ => false,
        };
        self.waiting().iter().copied().any(proc::holds_pages) || self.aside().iter().any(asks)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<u32>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads events, and sets them aside.
    fn listen(&self, device: &Userfaultfd) {
        let mut events = EventBuffer::new();
        let _ = device.read_events(&mut events);
        while let Some(event) = events.pop() {
            self.set_aside(event);
        }
    }

    /// A thread with a signal to come asks again and again.
    fn set_aside(&self, event: Event<Userfaultfd>) {
        if let Event::Fork(device) = &event {
            self.keeper.leave_ward(device);
        }
        let mut aside = self.aside();
        let again = match &event {
            Event::Fault(new) => aside
                .iter()
                .any(|old| matches!(old, Event::Fault(old) if old == new)),
            _ => false,
        };
        if !again {
            aside.push_back(event);
        }
    }

    fn still(&self) -> MutexGuard<'_, Option<Still>> {
        self.still.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aside(&self) -> MutexGuard<'_, VecDeque<Event<Userfaultfd>>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest event that was read on the way.
    pub fn next_event(&self) -> Option<Event<Userfaultfd>> {
        self.aside().pop_front()
    }

    pub fn has_events(&self) -> bool {
        !self.aside().is_empty()
    }

    /// Whether a change of the address space was read that nobody has followed yet.
    pub fn is_changing(&self) -> bool {
        let is_change = |event: &Event<Userfaultfd>| !matches!(event, Event::Fault(_));
        self.aside().iter().any(is_change)
    }

    /// Whether nothing was changed in the place of pages that were just taken. Whatever is under way
    /// is waited for first: a bell that is rung looks like a change, too.
    pub fn is_sure(&self, device: &Userfaultfd, taken: PageRange) -> bool {
        let began = clock::now();
        while device.is_changing() {
            if clock::now().saturating_sub(began) > SETTLE {
                return false;
            }
            self.listen(device);
            std::thread::yield_now();
        }
        let meets = |range: PageRange| range.first() < taken.end() && taken.first() < range.end();
        let changed = |event: &Event<Userfaultfd>| match *event {
            Event::Unmap(range) => meets(range),
            Event::Remap { from, to } => meets(from) || meets(PageRange::new(to, from.pages())),
            _ => false,
        };
        !self.aside().iter().any(changed)
    }

    /// Takes pages out of the program, into frames from `to` on. `present_now` says which are there.
    pub fn take_out(
        &self,
        device: &Userfaultfd,
        from: PageRange,
        to: PageNo,
        present_now: impl Fn(PageRange) -> u64,
    ) -> Result<(), Partial> {
        let present = present_now(from);
        if present == 0 {
            return Ok(());
        }
        if !self.take_protected(from) {
            let cause = match device.is_changing() {
                true => Cause::Again,
                false => Cause::Invalid,
            };
            return Err(Partial::new(0, cause));
        }
        self.carrier.set(Work::Wanted(Errand { from, present, to }));
        let carried = self.attend(device, from);
        let stayed = match carried {
            Ok(Carried::All) => return Ok(()),
            Ok(Carried::Some) => present_now(from),
            Err(_) => u64::MAX,
        };
        let _ = device.write_protect(from, false, Wake::Now);
        for at in (0..from.pages()).filter(|at| stayed & 1 << at != 0) {
            // SAFETY: the page itself is where it was, so its copy is not needed.
            let _ = unsafe { program::discard(PageRange::one(PageNo(to.0 + at))) };
        }
        carried.map(|_| ()).map_err(|cause| Partial::new(0, cause))
    }

    /// Reads events while the carrier works; how that ended.
    fn attend(&self, device: &Userfaultfd, from: PageRange) -> Result<Carried, Cause> {
        let mut events = EventBuffer::new();
        // A range across several mappings is told of in parts.
        let mut heard = from.first();
        let mut quiet = 0;
        loop {
            if let Work::Done(done) = self.carrier.wait() {
                self.carrier.set(Work::None);
                return done;
            }
            if !matches!(device.read_events(&mut events), Ok(1..)) {
                quiet += 1;
                if quiet > POLLS {
                    // The carrier may need this very processor.
                    std::thread::sleep(SOON);
                }
            }
            while let Some(event) = events.pop() {
                match event {
                    Event::Remove(range) if range.first() == heard && range.end() <= from.end() => {
                        heard = range.end();
                    }
                    Event::Fault(fault) if fault.thread == self.thread() => {
                        // What was there is elsewhere; who comes to look for it here finds zeros.
                        let _ = device.zero(PageRange::one(fault.page()), Wake::Now);
                    }
                    other => self.set_aside(other),
                }
            }
        }
    }

    fn thread(&self) -> u32 {
        let thread = &self.carrier.thread;
        thread.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Puts frames into the program. They are absent afterwards, as after a move.
    pub fn put_in(&self, device: &Userfaultfd, to: PageNo, from: PageRange) -> Result<(), Partial> {
        let source = std::ptr::with_exposed_provenance(from.addr() as usize);
        let range = PageRange::new(to, from.pages());
        // SAFETY: frames are present and the pager's own.
        let copied = unsafe { device.copy(range, source, CopyMode::default()) };
        let done = match copied {
            Ok(()) => from.pages(),
            Err(Partial { done_pages, .. }) => done_pages,
        };
        if done > 0 {
            // SAFETY: the program has them now.
            let _ = unsafe { program::discard(PageRange::new(from.first(), done)) };
        }
        copied
    }
}
