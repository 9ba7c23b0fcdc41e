//! A fork, seen from the thread that forks.
//!
//! These functions run in threads of the program, by the C library's hooks: before a fork, and after
//! it in parent and child. They use nothing but atomics and one page of memory, take no lock, and wait
//! only for the companion, never for another thread of the program. See [`ward`](crate::ward) for the
//! other side.
//!
//! A child learns from its *mailbox* what it inherits: a page that is registered with the program's
//! device and never there. The child reads it, which is a fault like any other, and the parent's
//! companion answers with a [`Letter`] for this child alone. So nothing is open in the program
//! meanwhile, forks need no order, and a child that was not made by the C library's `fork` simply
//! does not look. Zeros in the mailbox mean that the parent's companion has ended: then nobody
//! answers for what is far, and the child must not go on.
//!
//! Without permission for fork events (CAP_SYS_PTRACE) the kernel would give a child zeros for what
//! is far; then everything is fetched before the fork, and nothing leaves until it is over. A child
//! of a fork for which that could not be done ends.

use muninn_sys::memory::program;
use muninn_sys::uffd::PageRange;
use muninn_types::{PAGE_SIZE, PageNo};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How far the runtime of this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nothing was taken over: a child is like any other process.
    Idle,
    /// A pager is at work and hears of forks.
    Active,
    /// A pager is at work and does not hear of forks.
    Deaf,
}

static STATE: AtomicU32 = AtomicU32::new(State::Idle as u32);
/// The page that a child looks into, and the one that wakes the pager when it is given back (see
/// [`Shared`](crate::shared::Shared)).
static MAILBOX: AtomicU64 = AtomicU64::new(0);
static BELL: AtomicU64 = AtomicU64::new(0);
/// Forks for which everything is wanted near; it is; and pages that have come near, as a sign of life.
static WANT_NEAR: AtomicU32 = AtomicU32::new(0);
static IS_NEAR: AtomicBool = AtomicBool::new(false);
static COME_NEAR: AtomicU64 = AtomicU64::new(0);

/// How long the pager may go without bringing a page near before a fork goes on without it.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_micros(50);
/// How a letter begins.
const MARK: u64 = u64::from_le_bytes(*b"MuninnLt");
/// Bytes of the name of a door.
pub const NAME_LEN: usize = 32;

/// What a child finds in its mailbox.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    mark: u64,
    /// The name of this child at its parent's door; 0 when there is nothing to be had there.
    pub token: u64,
    pub door: [u8; NAME_LEN],
}

impl Letter {
    pub fn new(token: u64, door: [u8; NAME_LEN]) -> Letter {
        let mark = MARK;
        Letter { mark, token, door }
    }

    /// As the contents of the mailbox.
    pub(crate) fn to_page(self) -> crate::vault::Page {
        let mut page = [0; PAGE_SIZE];
        page[..8].copy_from_slice(&self.mark.to_le_bytes());
        page[8..16].copy_from_slice(&self.token.to_le_bytes());
        page[16..16 + NAME_LEN].copy_from_slice(&self.door);
        page
    }
}

/// What a child has from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heritage {
    /// All of its memory: it is like any other process.
    Nothing,
    /// Memory that its parent's companion answers for.
    Letter(Letter),
    /// Its memory cannot be had.
    Lost(&'static str),
}

fn state_is(state: State) -> bool {
    STATE.load(SeqCst) == state as u32
}

/// From now on children may look into the mailbox.
pub(crate) fn set_state(state: State, mailbox: PageNo, bell: PageNo) {
    MAILBOX.store(mailbox.0, SeqCst);
    BELL.store(bell.0, SeqCst);
    STATE.store(state as u32, SeqCst);
}

/// Bell and mailbox, in a child that is somebody's ward.
pub(crate) fn inherited_pages() -> Option<(PageNo, PageNo)> {
    let pages = (bell_page(), PageNo(MAILBOX.load(SeqCst)));
    state_is(State::Active).then_some(pages)
}

/// Whether a fork wants everything near.
pub(crate) fn wants_near() -> bool {
    WANT_NEAR.load(SeqCst) > 0
}
pub(crate) fn set_near(near: bool) {
    IS_NEAR.store(near, SeqCst);
}
pub(crate) fn is_near() -> bool {
    IS_NEAR.load(SeqCst)
}
/// Pages have come near.
pub(crate) fn count_near(pages: u64) {
    COME_NEAR.fetch_add(pages, SeqCst);
}

fn bell_page() -> PageNo {
    PageNo(BELL.load(SeqCst))
}

/// Wakes the pager, and waits until it has followed what it was told before.
fn ring() {
    // SAFETY: nothing is ever kept in the bell.
    let _ = unsafe { program::discard_own(PageRange::one(bell_page())) };
}

/// Waits until the pager has followed all forks that are over: what children get is looked up after a
/// fork, and nobody may change it before. A fault is answered after everything that was told before it.
pub fn settle() {
    if !state_is(State::Active) {
        return;
    }
    ring();
    let bell: *const u8 = std::ptr::with_exposed_provenance(bell_page().addr() as usize);
    // SAFETY: the page is mapped for good, and is answered with zeros.
    unsafe { bell.read_volatile() };
}

/// Before a fork.
pub fn prepare() {
    if !state_is(State::Deaf) {
        return;
    }
    WANT_NEAR.fetch_add(1, SeqCst);
    ring();
    let mut come = COME_NEAR.load(SeqCst);
    let mut until = Instant::now() + PATIENCE;
    // Should it not come near, the child will end.
    while !is_near() && Instant::now() < until {
        std::thread::sleep(PAUSE);
        let now = COME_NEAR.load(SeqCst);
        if now != come {
            (come, until) = (now, Instant::now() + PATIENCE);
        }
    }
}

/// After a fork, in the parent.
pub fn parent() {
    if state_is(State::Deaf) {
        WANT_NEAR.fetch_sub(1, SeqCst);
    } else if state_is(State::Active) {
        // What the program does next to its memory must not be taken for something that the child
        // has, too.
        ring();
    }
}

/// After a fork, in the child: what it has from its parent. One without far pages begins as one of which
/// nothing is known.
pub fn child() -> Heritage {
    let heritage = if state_is(State::Active) {
        open_mailbox()
    } else if state_is(State::Deaf) && !is_near() {
        Heritage::Lost("its parent's memory could not be brought near for the fork")
    } else {
        Heritage::Nothing
    };
    if !matches!(heritage, Heritage::Letter(_)) {
        STATE.store(State::Idle as u32, SeqCst);
    }
    WANT_NEAR.store(0, SeqCst);
    IS_NEAR.store(false, SeqCst);
    heritage
}

fn open_mailbox() -> Heritage {
    let page = PageNo(MAILBOX.load(SeqCst));
    let letter: *const Letter = std::ptr::with_exposed_provenance(page.addr() as usize);
    // SAFETY: mapped for the life of the process; any bytes are a letter.
    let letter = unsafe { letter.read_volatile() };
    if letter.token != 0 {
        // Our own children must not find our letter there: while we are a ward, so are they.
        // SAFETY: nothing else is kept there.
        let _ = unsafe { program::discard_own(PageRange::one(page)) };
    }
    match letter {
        Letter {
            mark: MARK,
            token: 0,
            ..
        } => Heritage::Nothing,
        Letter { mark: MARK, .. } => Heritage::Letter(letter),
        _ => Heritage::Lost("the companion of its parent has ended, which had its memory"),
    }
}
