//! What the tests against the real kernel share. Nothing here sleeps to wait for something: all
//! waits end at the event, or fail at a deadline.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use muninn_sys::memory::{HugeAdvice, Mapping};
use muninn_sys::uffd::{
    CopyMode, Event, EventBuffer, FaultDevice, Features, OpenError, PageRange, Partial,
    RegisterMode, Userfaultfd,
};
use muninn_testing::skip;
use muninn_types::{Bytes, PAGE_SIZE, PageNo};

pub const DEADLINE: Duration = Duration::from_secs(20);
/// Long enough for a thread that was wrongly woken to show itself.
const A_WHILE: Duration = Duration::from_millis(60);

/// A descriptor with these features, or `None` after saying why the test is skipped.
pub fn open(features: Features) -> Option<Userfaultfd> {
    match Userfaultfd::open(features, Features::NONE) {
        Ok(device) => Some(device),
        Err(
            error @ (OpenError::NotPermitted { .. }
            | OpenError::NotHere
            | OpenError::Missing { .. }
            | OpenError::ForkNotPermitted),
        ) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens a descriptor or leaves the test with a printed reason.
#[macro_export]
macro_rules! open_or_skip {
    ($features:expr) => {
        match common::open($features) {
            Some(device) => device,
            None => return,
        }
    };
}

static TURN: Mutex<()> = Mutex::new(());

/// Keeps tests apart that fork from those that a fork disturbs: it is told to every descriptor
/// with EVENT_FORK, and makes all private pages shared, which cannot be moved.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Private memory of small pages. Declare it before the descriptor it is registered with, so that
/// the descriptor is closed first: unmapping a registered range waits for its event to be read.
/// Clones are the same memory, so that a thread keeps it alive.
#[derive(Clone)]
pub struct Area(pub Arc<Mapping>);

impl Area {
    pub fn new(pages: u64) -> Area {
        let map = Mapping::options()
            .huge(HugeAdvice::Never)
            .anonymous(Bytes::pages(pages))
            .unwrap();
        Area(Arc::new(map))
    }

    pub fn range(&self) -> PageRange {
        PageRange::of_bytes(self.0.addr(), self.0.len() as u64).unwrap()
    }

    pub fn page(&self, index: u64) -> PageNo {
        PageNo(self.range().first().0 + index)
    }

    pub fn run(&self, index: u64, pages: u64) -> PageRange {
        PageRange::new(self.page(index), pages)
    }

    pub fn ptr(&self, index: u64) -> *mut u8 {
        // SAFETY: tests name pages inside of the area.
        unsafe { self.0.as_ptr().add(index as usize * PAGE_SIZE) }
    }

    /// Reads the first byte of a page: may block in the kernel.
    pub fn read(&self, index: u64) -> u8 {
        // SAFETY: a byte of mapped memory, read as the program would.
        unsafe { self.ptr(index).read_volatile() }
    }

    /// Writes the first byte of a page: may block in the kernel.
    pub fn write(&self, index: u64, value: u8) {
        // SAFETY: a byte of mapped memory to which no references exist.
        unsafe { self.ptr(index).write_volatile(value) }
    }

    /// Writes `value + index` to each page.
    pub fn fill(&self, value: u8) {
        for index in 0..self.range().pages() {
            self.write(index, value.wrapping_add(index as u8));
        }
    }

    pub fn discard(&self, index: u64, pages: u64) {
        self.0
            .discard(index * PAGE_SIZE as u64, Bytes::pages(pages))
            .unwrap();
    }
}

pub fn register(device: &Userfaultfd, range: PageRange, mode: RegisterMode) {
    // SAFETY: all ranges of the tests lie in areas of their own.
    unsafe { device.register(range, mode) }.unwrap();
}

/// Copies pages filled with `value` to the range.
pub fn copy(device: &Userfaultfd, to: PageRange, value: u8, mode: CopyMode) -> Result<(), Partial> {
    let source = vec![value; to.len_bytes() as usize];
    // SAFETY: the source is as long as the range.
    unsafe { device.copy(to, source.as_ptr(), mode) }
}

/// The next event.
pub fn next_event(device: &Userfaultfd) -> Event<Userfaultfd> {
    let mut buffer = EventBuffer::new();
    let deadline = Instant::now() + DEADLINE;
    loop {
        assert!(device.wait(Some(DEADLINE)).unwrap(), "no event came");
        device.read_events(&mut buffer).unwrap();
        if let Some(event) = buffer.pop() {
            assert!(buffer.is_empty(), "more events than expected: {buffer:?}");
            return event;
        }
        assert!(Instant::now() < deadline, "no event came");
    }
}

/// Tries again until it is done, for what the kernel does in its own time.
pub fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < deadline, "did not happen in time");
        std::thread::yield_now();
    }
}

/// A thread that may hang in the kernel: it is waited for with a deadline, never joined.
pub struct Running<T> {
    result: Receiver<T>,
    pub thread: i32,
}

pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (give_id, id) = channel();
    let (give, result) = channel();
    std::thread::spawn(move || {
        give_id
            .send(muninn_sys::affinity::current_thread_id())
            .unwrap();
        // Nobody listens when the test has failed already.
        let _ = give.send(work());
    });
    Running {
        result,
        thread: id.recv().unwrap(),
    }
}

impl<T> Running<T> {
    pub fn finish(self) -> T {
        self.result
            .recv_timeout(DEADLINE)
            .expect("the thread hangs")
    }

    /// Fails if the thread ends within a while.
    pub fn assert_waits(&self) {
        match self.result.recv_timeout(A_WHILE) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => panic!("the thread went on, but should wait"),
        }
    }

    /// Returns when the thread sleeps in a page fault.
    pub fn until_faulted(&self) {
        let path = format!("/proc/self/task/{}/syscall", self.thread);
        eventually(|| {
            // "running", the number of a system call, or -1 for a sleep outside of any.
            let text = std::fs::read_to_string(&path).ok()?;
            text.starts_with("-1 ").then_some(())
        });
    }
}

/// A child process that ends with the test, whatever happens.
pub struct Child(pub i32);

/// Forks; the child runs `work`, which must do nothing but system calls and memory accesses.
pub fn fork(work: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child only runs `work`, which by contract neither allocates nor locks.
    match unsafe { libc::fork() } {
        0 => {
            let code = work();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0, "fork failed");
            Child(pid)
        }
    }
}

impl Child {
    pub fn exit_code(self) -> Option<i32> {
        let handle = muninn_sys::signal::PidFd::open(self.0).unwrap();
        assert!(handle.wait_end(Some(DEADLINE)).unwrap(), "the child hangs");
        let mut status = 0;
        // SAFETY: reaps our own child into a local.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        std::mem::forget(self);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: ends and reaps our own child, which was not reaped before.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
