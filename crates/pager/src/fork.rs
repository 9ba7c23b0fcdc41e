//! A fork, seen from the thread that forks.
//!
//! These functions run in threads of the program, by the C library's hooks: before a fork, and after
//! it in parent and child. They use nothing but atomics and a socket, and wait only for the pager,
//! never for another thread of the program. See [`birth`](crate::birth) for the other side.
//!
//! Without permission for fork events (CAP_SYS_PTRACE) the kernel would give a child zeros for what
//! is far; then everything is fetched before the fork, and nothing leaves until it is over.

use muninn_sys::memory::program;
use muninn_sys::own;
use muninn_sys::proc;
use muninn_sys::rand;
use muninn_sys::socket::{Door, Link};
use muninn_sys::uffd::PageRange;
use muninn_types::PageNo;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How far the runtime of this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nothing was taken over: a child is like any other process.
    Idle,
    /// This process is a child whose memory is still in its parent's care.
    TakingOver,
    /// A pager is at work and hears of forks.
    Active,
    /// A pager is at work and does not hear of forks.
    Deaf,
}

static STATE: AtomicU32 = AtomicU32::new(State::Idle as u32);
/// One fork at a time, so that a child's link is known by its time.
static FORKING: AtomicBool = AtomicBool::new(false);
static LINK: AtomicI32 = AtomicI32::new(-1);
/// Forks the pager heard of, and children that need it no more.
static FORKS: AtomicU64 = AtomicU64::new(0);
static BIRTHS: AtomicU64 = AtomicU64::new(0);
static FORKS_BEFORE: AtomicU64 = AtomicU64::new(0);
static BIRTHS_BEFORE: AtomicU64 = AtomicU64::new(0);
/// The page that wakes the pager when it is given back; see [`Shared`](crate::shared::Shared).
static BELL: AtomicU64 = AtomicU64::new(0);
/// Threads of a child with which it would end when its parent does.
static BOUND: AtomicU32 = AtomicU32::new(0);
/// The process that forks.
static PARENT: AtomicU32 = AtomicU32::new(0);
static NONCE: AtomicU64 = AtomicU64::new(0);
/// Everything is wanted near; it is.
static WANT_NEAR: AtomicBool = AtomicBool::new(false);
static IS_NEAR: AtomicBool = AtomicBool::new(false);

/// How long to wait for the pager before going on without it.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_micros(50);

pub fn set_state(state: State) {
    STATE.store(state as u32, SeqCst);
}

fn is(state: State) -> bool {
    STATE.load(SeqCst) == state as u32
}

pub(crate) fn set_bell(bell: PageNo) {
    BELL.store(bell.0, SeqCst);
}
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, SeqCst);
}
pub(crate) fn count_birth() {
    BIRTHS.fetch_add(1, SeqCst);
}
pub(crate) fn wants_near() -> bool {
    WANT_NEAR.load(SeqCst)
}
pub(crate) fn is_near() {
    IS_NEAR.store(true, SeqCst);
}
pub(crate) fn has_all_near() -> bool {
    IS_NEAR.load(SeqCst)
}

fn name() -> [u8; 40] {
    let mut name = [b'-'; 40];
    name[..13].copy_from_slice(b"muninn-births");
    name[14..22].copy_from_slice(&NONCE.load(SeqCst).to_le_bytes());
    name[23..27].copy_from_slice(&proc::own_pid().to_le_bytes());
    name
}

/// Opens the door at which this process's children knock.
pub(crate) fn open_door() -> Option<Door> {
    NONCE.store(u64::from_le_bytes(rand::bytes()), SeqCst);
    Door::open(&name()).ok()
}

fn wait_until(done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Keeps forks out while a pager gets to work: a child must either find nothing taken over, or a link
/// to who answers for it. Not for a child that takes its own memory over, whose forks wait anyway.
#[derive(Debug)]
pub(crate) struct NoForks(());

impl NoForks {
    pub fn begin() -> NoForks {
        wait_until(|| !FORKING.swap(true, SeqCst));
        NoForks(())
    }
}

impl Drop for NoForks {
    fn drop(&mut self) {
        FORKING.store(false, SeqCst);
    }
}

/// Before a fork.
pub fn prepare() {
    wait_until(|| !FORKING.swap(true, SeqCst));
    wait_until(|| !is(State::TakingOver));
    FORKS_BEFORE.store(FORKS.load(SeqCst), SeqCst);
    BIRTHS_BEFORE.store(BIRTHS.load(SeqCst), SeqCst);
    LINK.store(-1, SeqCst);
    PARENT.store(proc::own_pid(), SeqCst);
    if is(State::Active)
        && let Ok(link) = Link::connect(&name())
    {
        LINK.store(link.into_fd().into_raw_fd(), SeqCst);
    }
    if is(State::Deaf) {
        IS_NEAR.store(false, SeqCst);
        WANT_NEAR.store(true, SeqCst);
        wait_until(|| IS_NEAR.load(SeqCst));
    }
}

/// After a fork, in the parent: waits until the child can do without us.
pub fn parent() {
    close(LINK.swap(-1, SeqCst));
    if is(State::Active) {
        // The kernel went on as soon as the pager had read of the fork. When it reads the next event
        // it has followed that one, so that we know whether there was a fork at all.
        let bell = PageRange::one(PageNo(BELL.load(SeqCst)));
        // SAFETY: nothing is ever kept in the bell.
        let _ = unsafe { program::discard(bell) };
        if FORKS.load(SeqCst) != FORKS_BEFORE.load(SeqCst) {
            wait_until(|| BIRTHS.load(SeqCst) != BIRTHS_BEFORE.load(SeqCst));
        }
    }
    WANT_NEAR.store(false, SeqCst);
    FORKING.store(false, SeqCst);
}

/// After a fork, in the child: the link to the parent's pager, if there is memory to take over.
pub fn child() -> Option<RawFd> {
    BOUND.store(0, SeqCst);
    let link = LINK.swap(-1, SeqCst);
    let inherited = (link >= 0).then_some(link);
    set_state(if inherited.is_some() {
        State::TakingOver
    } else {
        State::Idle
    });
    WANT_NEAR.store(false, SeqCst);
    FORKING.store(false, SeqCst);
    inherited
}

/// The calling thread sees to it that this process ends when its parent does: nobody else would
/// answer for its memory. Until [`outlive_parent`].
pub fn end_with_parent() {
    BOUND.fetch_add(1, SeqCst);
    own::end_with_parent(PARENT.load(SeqCst));
}

pub fn outlive_parent() {
    own::outlive_parent();
    BOUND.fetch_sub(1, SeqCst);
}

/// Waits until no thread is bound to the parent any more, so that it may end.
pub(crate) fn until_unbound() {
    wait_until(|| BOUND.load(SeqCst) == 0);
}

/// Closes the program's copy of a link.
pub fn close(link: RawFd) {
    if link >= 0 {
        // SAFETY: opened in `prepare`, and closed once in each process.
        drop(unsafe { OwnedFd::from_raw_fd(link) });
    }
}
