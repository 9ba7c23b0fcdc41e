//! Memory that the kernel writes to when a thread ends, and that must be near then.
//!
//! A thread that ends does not wait for userfaultfd. If the word that its joiner waits for is far then, or the
//! head of its list of robust mutexes, or one of these, the kernel leaves them as they are, says so to nobody,
//! and whoever waits does so for ever. So such memory never leaves: it is *noted* here before it can matter, by
//! the thread that it belongs to ([`note_thread`]) or where it is named to the kernel or the C library
//! ([`note`]). Both are called from what the preloaded library puts in the place of the C library's functions.
//!
//! What makes it sure is that neither side can miss the other. Who takes pages out says so ([`Taking`]) before
//! he looks at what was noted; who notes waits, after having written it down, until nobody is taking who began
//! before. So memory that was noted is near from the next touch on.
//!
//! One who notes is a thread of the program: it may allocate nothing, hold no lock that the pager takes, and make
//! no system call that the program did not have to expect there. The notes are a hash table of words, in lines
//! of eight: all that is noted in one chunk of memory is in one line of each level. A note of a thread bears its
//! number and is worth nothing once that thread is gone, which the pager finds out when the page is to leave.
//! Other notes are for good.
//!
//! Known limits: a word that is named to the kernel past the C library is not known; a page with a robust mutex
//! stays near after that is destroyed; addresses beyond 47 bits are not noted.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};

use crate::memory::Reserve;
use muninn_types::{Bytes, PAGE_SIZE, PageNo};

/// Words that are noted: a granule of an address, and the number of a thread or [`FOR_GOOD`].
const THREAD_BITS: u32 = 22;
const FOR_GOOD: u64 = 0;
const GRANULE_BITS: u32 = 6;
const ADDRESS_BITS: u32 = 47;
/// Of all that is noted in so many bytes a line has everything.
const CHUNK_BITS: u32 = 16;
const PAGE_BITS: u32 = PAGE_SIZE.trailing_zeros();

/// The notes of a few chunks.
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// Lines of each level, powers of two; the next one is made when a line of the one before is full.
const LINES: [usize; 4] = [512, 1 << 13, 1 << 17, 1 << 21];
static FIRST: [Line; LINES[0]] = [const { Line([const { AtomicU64::new(0) }; 8]) }; LINES[0]];
/// Where the other levels are; 0 before they are made, 1 while they are.
static LEVELS: [AtomicUsize; LINES.len() - 1] = [const { AtomicUsize::new(0) }; LINES.len() - 1];
const BEING_MADE: usize = 1;

/// Something could not be noted: nothing leaves any more, which is right and will be noticed.
static LOST: AtomicU32 = AtomicU32::new(0);

/// Odd while pages are taken out.
static TAKING: AtomicU32 = AtomicU32::new(0);
/// Threads that sleep until that is over.
static SLEEPING: AtomicU32 = AtomicU32::new(0);
const SPINS: u32 = 200;
/// After so long it is asked whether there is anybody who would end it.
static NAP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Where in a thread's descriptor the kernel writes, as distances from it: from the first to the end.
static FROM: AtomicUsize = AtomicUsize::new(0);
static TO: AtomicUsize = AtomicUsize::new(0);
/// Where the number of the thread is, if it is known.
static NUMBER_AT: AtomicUsize = AtomicUsize::new(0);
/// What is taken for the part that matters where the kernel does not tell: all of glibc's `struct pthread`.
const DESCRIPTOR: usize = 2304;

const PR_GET_TID_ADDRESS: i32 = 40;

/// The calling thread's descriptor.
fn descriptor() -> usize {
    // SAFETY: no arguments; it is the address that the thread register has.
    unsafe { libc::pthread_self() as usize }
}

/// Finds out, from the calling thread, where the C library lets the kernel write when a thread ends.
pub fn learn() {
    if TO.load(Acquire) != 0 {
        return;
    }
    let own = descriptor();
    let inside = |at: usize| at.checked_sub(own).filter(|&at| at < DESCRIPTOR);
    let mut word: usize = 0;
    // SAFETY: the kernel writes one word there, or refuses.
    let told = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut word) } == 0;
    let (mut head, mut len): (usize, usize) = (0, 0);
    // SAFETY: of the calling thread (0); two words are written.
    let asked = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    let word = told.then(|| inside(word)).flatten();
    let head = (asked == 0).then(|| inside(head)).flatten();
    let (from, to) = match (word, head) {
        (Some(word), Some(head)) => (word.min(head), (word + 4).max(head + len)),
        _ => (0, DESCRIPTOR),
    };
    NUMBER_AT.store(word.unwrap_or(0), Relaxed);
    FROM.store(from, Relaxed);
    TO.store(to, Release);
}

/// Notes what the kernel writes to when the calling thread ends, and makes sure that it is near.
pub fn note_thread() {
    learn();
    let own = descriptor();
    let thread = match NUMBER_AT.load(Relaxed) {
        0 => FOR_GOOD,
        // SAFETY: in the thread's own descriptor, where the kernel has put its number.
        at => u64::from(unsafe { number_at(own + at).load(Relaxed) }),
    };
    note_for(own + FROM.load(Relaxed), own + TO.load(Relaxed), thread);
    let mut at = own + FROM.load(Relaxed);
    while at < own + TO.load(Relaxed) {
        // SAFETY: inside of the thread's own descriptor. It is only touched, so that it comes.
        unsafe { number_at(at & !3).load(Relaxed) };
        at = (at | (PAGE_SIZE - 1)) + 1;
    }
}

/// # Safety
///
/// A word of the calling thread's descriptor.
unsafe fn number_at(address: usize) -> &'static AtomicU32 {
    let word: *const AtomicU32 = std::ptr::with_exposed_provenance(address);
    // SAFETY: as the caller says; the thread uses it no longer than it lives.
    unsafe { &*word }
}

/// Notes memory for good. It stays from when it is touched next.
pub fn note(start: usize, len: usize) {
    note_for(start, start.saturating_add(len), FOR_GOOD);
}

fn note_for(start: usize, end: usize, thread: u64) {
    if end >> ADDRESS_BITS != 0 || start == 0 || thread >> THREAD_BITS != 0 {
        return;
    }
    let mut at = start;
    while at < end {
        let granule = match thread {
            // One note for a page.
            FOR_GOOD => at & !(PAGE_SIZE - 1),
            _ => at,
        };
        let note = (granule as u64 >> GRANULE_BITS) << THREAD_BITS | thread;
        loop {
            if !write_down(note) {
                LOST.store(1, SeqCst);
            }
            wait_until_taken();
            // Who took pages out meanwhile may have cleared it, as that of a thread of this number before.
            if is_noted(note) || LOST.load(SeqCst) != 0 {
                break;
            }
        }
        at = (at | (PAGE_SIZE - 1)) + 1;
    }
}

fn chunk_of(note: u64) -> u64 {
    note >> (THREAD_BITS + CHUNK_BITS - GRANULE_BITS)
}

fn line(level: usize, chunk: u64) -> Option<&'static Line> {
    let hash = chunk
        .wrapping_add(level as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        >> 32;
    let at = hash as usize & (LINES[level] - 1);
    if level == 0 {
        return Some(&FIRST[at]);
    }
    match LEVELS[level - 1].load(Acquire) {
        0 | BEING_MADE => None,
        // SAFETY: so many lines, made below and never given back.
        start => Some(unsafe { &*std::ptr::with_exposed_provenance::<Line>(start).add(at) }),
    }
}

fn lines(chunk: u64) -> impl Iterator<Item = &'static Line> {
    (0..LINES.len()).map_while(move |level| line(level, chunk))
}

/// Whether it is there; one of the same memory for good is as well.
fn is_noted(note: u64) -> bool {
    lines(chunk_of(note)).any(|line| line.0.iter().any(|slot| slot.load(SeqCst) == note))
}

fn write_down(note: u64) -> bool {
    for level in 0..LINES.len() {
        let Some(line) = line(level, chunk_of(note)).or_else(|| make(level, chunk_of(note))) else {
            return false;
        };
        if write_to(line, note) {
            return true;
        }
    }
    false
}

fn write_to(line: &Line, note: u64) -> bool {
    let replaces = |before: u64| {
        let same = before >> THREAD_BITS == note >> THREAD_BITS;
        // Of two threads whose words are in the same place the first has ended.
        before == note || same && before & ((1 << THREAD_BITS) - 1) != FOR_GOOD
    };
    let put = |slot: &AtomicU64, wanted: &dyn Fn(u64) -> bool| {
        let change = |before| wanted(before).then_some(note);
        slot.fetch_update(SeqCst, SeqCst, change).is_ok()
    };
    line.0.iter().any(|slot| put(slot, &replaces))
        || line.0.iter().any(|slot| put(slot, &|v| v == 0))
}

/// Makes a level, or waits until somebody has.
fn make(level: usize, chunk: u64) -> Option<&'static Line> {
    let place = &LEVELS[level - 1];
    if place
        .compare_exchange(0, BEING_MADE, SeqCst, SeqCst)
        .is_ok()
    {
        let bytes = LINES[level] * size_of::<Line>();
        let made = Reserve::addresses(Bytes(bytes as u64))
            .ok()
            .and_then(|start| {
                // Before there is anything that could be taken for the program's.
                super::claim(start, bytes as u64);
                Reserve::commit(start, bytes).ok()
            });
        place.store(made.map_or(0, |start| start.expose_provenance()), SeqCst);
    }
    while place.load(Acquire) == BEING_MADE {
        nap(&TAKING, TAKING.load(SeqCst));
    }
    line(level, chunk)
}

/// Waits for who takes pages out and may have begun before something was written down.
fn wait_until_taken() {
    fence(SeqCst);
    let seen = TAKING.load(SeqCst);
    let is_over = || seen.is_multiple_of(2) || TAKING.load(SeqCst) != seen;
    for _ in 0..SPINS {
        if is_over() {
            return;
        }
        std::hint::spin_loop();
    }
    SLEEPING.fetch_add(1, SeqCst);
    while !is_over() {
        nap(&TAKING, seen);
        // A child that was made past the C library has nobody who takes anything.
        if !is_over() && std::process::id() != super::program_pid() {
            break;
        }
    }
    SLEEPING.fetch_sub(1, SeqCst);
}

fn nap(word: &AtomicU32, seen: u32) {
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that stays, and a time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, seen, &raw const NAP) };
}

/// Pages are being taken out, by the pager. What is noted is asked for only while this lives.
#[derive(Debug)]
pub struct Taking(());

impl Taking {
    pub fn begin() -> Taking {
        TAKING.fetch_add(1, SeqCst);
        fence(SeqCst);
        Taking(())
    }

    /// Which of the 16 pages from `first` on, the first of a chunk, must stay.
    pub fn staying(&self, first: PageNo) -> u16 {
        if LOST.load(SeqCst) != 0 {
            return u16::MAX;
        }
        let chunk = first.addr() >> CHUNK_BITS;
        let mut staying = 0;
        for slot in lines(chunk).flat_map(|line| &line.0) {
            let note = slot.load(SeqCst);
            if note == 0 || chunk_of(note) != chunk {
                continue;
            }
            let thread = note & ((1 << THREAD_BITS) - 1);
            if thread != FOR_GOOD && is_gone(thread) {
                let _ = slot.compare_exchange(note, 0, SeqCst, SeqCst);
                continue;
            }
            let addr = note >> THREAD_BITS << GRANULE_BITS;
            staying |= 1 << ((addr >> PAGE_BITS) & 15);
        }
        staying
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        TAKING.fetch_add(1, SeqCst);
        if SLEEPING.load(SeqCst) != 0 {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: a word that stays.
            unsafe { libc::syscall(libc::SYS_futex, TAKING.as_ptr(), wake, i32::MAX) };
        }
    }
}

/// Whether a thread of the program has ended, all of it: the kernel has written what it had to.
fn is_gone(thread: u64) -> bool {
    // SAFETY: sends nothing.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, super::program_pid(), thread, 0) };
    sent != 0 && super::last_errno() == rustix::io::Errno::SRCH
}

/// In a child of a fork: what was noted is its own now, and nobody takes anything from it yet.
pub fn begin_anew() {
    TAKING.store(0, SeqCst);
    SLEEPING.store(0, SeqCst);
    for (level, place) in LEVELS.iter().enumerate() {
        match place.load(SeqCst) {
            0 => {}
            // By a thread that is not in the child.
            BEING_MADE => place.store(0, SeqCst),
            start => {
                let bytes = LINES[level + 1] * size_of::<Line>();
                super::claim(start as u64, bytes as u64);
            }
        }
    }
    note_thread();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one pager in a process.
    static PAGER: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn staying(address: u64) -> u16 {
        let first = PageNo::of_addr(address & !((1 << CHUNK_BITS) - 1));
        let _one = PAGER.lock().unwrap();
        Taking::begin().staying(first)
    }

    #[test]
    fn what_is_noted_stays() {
        note(0x1234_5670_1ff0, 40);
        assert_eq!(staying(0x1234_5670_1000), 0b110, "it ends in the next page");
        assert_eq!(staying(0x1234_5671_1000), 0, "another chunk");
        note(0x1234_5670_1ff0, 40);
        assert_eq!(staying(0x1234_5670_1000), 0b110);
        // A chunk of which every page is noted, over several levels; and a few thousand more.
        for page in 0..16 {
            note(0x2000_0000_0000 + page * PAGE_SIZE, 1);
        }
        assert_eq!(staying(0x2000_0000_0000), u16::MAX);
        for chunk in 0..20_000 {
            note(0x3000_0000_0000 + (chunk << CHUNK_BITS), 1);
        }
        for chunk in 0..20_000 {
            assert_eq!(
                staying(0x3000_0000_0000 + (chunk << CHUNK_BITS)),
                1,
                "{chunk}"
            );
        }
    }

    #[test]
    fn a_thread_keeps_its_descriptor_until_it_is_gone() {
        let own = std::thread::spawn(|| {
            note_thread();
            let own = descriptor() as u64;
            let at = own + FROM.load(Relaxed) as u64;
            let page = (at >> PAGE_BITS) & 15;
            (at, page, staying(at) >> page & 1)
        });
        let (at, page, stayed) = own.join().unwrap();
        assert_eq!(stayed, 1);
        assert!(
            TO.load(Relaxed) - FROM.load(Relaxed) < 200,
            "it was asked for"
        );
        // The thread's word is cleared a little before it is gone.
        let began = std::time::Instant::now();
        while staying(at) >> page & 1 != 0 {
            assert!(began.elapsed().as_secs() < 20, "a thread that ended stays");
            std::thread::yield_now();
        }
    }

    #[test]
    fn whoever_notes_waits_for_who_takes() {
        let _one = PAGER.lock().unwrap();
        let taking = Taking::begin();
        let noting = std::thread::spawn(|| note(0x4000_0000_0000, 4));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!noting.is_finished());
        drop(taking);
        noting.join().unwrap();
    }
}
