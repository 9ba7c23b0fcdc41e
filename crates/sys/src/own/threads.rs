//! Functions of the C library that make threads, and what threads wait for: replaced in the preloaded
//! library, so that what must be near when a thread ends is known ([`staying`]).
//!
//! A thread that is made notes its own descriptor before it does anything else. What it was to do is handed over in
//! a *cell*, as nothing may be allocated: not from the runtime's heap, whose lock the pager would wait for while
//! its holder waits for a page, and not from the program's, which could tell. There is no frame of ours below
//! what the thread does: it is jumped to, so that it may be unwound and traced as ever.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::*};

use super::staying;

/// What a thread does; that of C11 returns a number in the same place.
pub type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// A function of the C library, looked up past this one when it is first called.
struct Real {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real {
            name,
            at: AtomicUsize::new(0),
        }
    }

    /// 0 if there is none.
    fn find(&self) -> usize {
        match self.at.load(Acquire) {
            0 => {
                // SAFETY: a string; what is found is only called as what it is.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
                self.at.store(found.expose_provenance(), Release);
                found.expose_provenance()
            }
            at => at,
        }
    }
}

static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static THRD_CREATE: Real = Real::new(c"thrd_create");
static CLONE: Real = Real::new(c"clone");
static MUTEX_INIT: Real = Real::new(c"pthread_mutex_init");

/// What a thread is to do that has not begun: a function, and what it is given.
struct Cell {
    start: AtomicUsize,
    argument: AtomicUsize,
}

/// Threads that may be between being made and their first instruction. More of them wait.
const CELLS: usize = 256;
static ALL: [Cell; CELLS] = [const {
    Cell {
        start: AtomicUsize::new(0),
        argument: AtomicUsize::new(0),
    }
}; CELLS];
/// Where a free one is likely.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// How often somebody looks who finds none free, and how long he sleeps in between: ten seconds in all.
const TRIES: u32 = 10_000;
static NAP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// What is to be done, where the machine's calling convention returns two words.
#[repr(C)]
struct Task {
    start: usize,
    argument: usize,
}

impl Cell {
    fn take(start: usize, argument: usize) -> Option<&'static Cell> {
        for _ in 0..TRIES {
            for _ in 0..CELLS {
                let cell = &ALL[NEXT.fetch_add(1, Relaxed) % CELLS];
                if cell
                    .start
                    .compare_exchange(0, start, AcqRel, Relaxed)
                    .is_ok()
                {
                    cell.argument.store(argument, Release);
                    return Some(cell);
                }
            }
            // SAFETY: a time that stays.
            unsafe { libc::nanosleep(&NAP, std::ptr::null_mut()) };
        }
        None
    }

    fn pointer(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn empty(&self) -> Task {
        let argument = self.argument.load(Acquire);
        let start = self.start.swap(0, AcqRel);
        Task { start, argument }
    }
}

/// The first that a thread does: it notes itself, and learns what to do.
extern "C" fn take_up(cell: *mut c_void) -> Task {
    staying::note_thread();
    // SAFETY: the cell that `make` gave to this thread alone; cells are never freed.
    unsafe { &*cell.cast::<Cell>() }.empty()
}

/// Where each thread begins.
///
/// # Safety
///
/// Once in a new thread, with its cell.
#[unsafe(naked)]
unsafe extern "C" fn begin(_cell: *mut c_void) -> *mut c_void {
    std::arch::naked_asm!(
        "push rbx", // only so that the stack is aligned
        "call {take_up}",
        "pop rbx",
        "mov rdi, rdx",
        "jmp rax",
        take_up = sym take_up,
    )
}

/// Makes a thread by `make`, which is given what it is to begin with; `busy` if that cannot be tried.
fn make(
    start: Start,
    argument: *mut c_void,
    busy: c_int,
    make: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    let Some(cell) = Cell::take(start as usize, argument.expose_provenance()) else {
        return busy;
    };
    let result = make(begin, cell.pointer());
    if result != 0 {
        cell.empty();
    }
    result
}

/// In place of `pthread_create`. `is_on`: this process has a pager.
///
/// # Safety
///
/// As the C library says.
pub unsafe fn create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: Start,
    argument: *mut c_void,
    is_on: bool,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut c_void, *const c_void, Start, *mut c_void) -> c_int;
    let real = PTHREAD_CREATE.find();
    if real == 0 {
        return libc::EAGAIN;
    }
    // SAFETY: the function of that name.
    let real: Create = unsafe { std::mem::transmute(real) };
    // SAFETY: as the caller says; `begin` does what `start` would have.
    let call = |start, argument| unsafe { real(thread, attributes, start, argument) };
    match is_on {
        true => make(start, argument, libc::EAGAIN, call),
        false => call(start, argument),
    }
}

/// In place of `thrd_create`.
///
/// # Safety
///
/// As the C library says.
pub unsafe fn create_c11(
    thread: *mut c_void,
    start: Start,
    argument: *mut c_void,
    is_on: bool,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut c_void, Start, *mut c_void) -> c_int;
    /// `thrd_error`
    const FAILED: c_int = 2;
    let real = THRD_CREATE.find();
    if real == 0 {
        return FAILED;
    }
    // SAFETY: the function of that name.
    let real: Create = unsafe { std::mem::transmute(real) };
    // SAFETY: as the caller says; `begin` does what `start` would have.
    let call = |start, argument| unsafe { real(thread, start, argument) };
    match is_on {
        true => make(start, argument, FAILED, call),
        false => call(start, argument),
    }
}

/// In place of `clone`: a word that is to be cleared is noted. Some library may have another function of this
/// name, which then is the one that was meant: so whatever was given is handed on, and whatever it returns.
///
/// # Safety
///
/// As the C library says; of the last three those that the flags do not ask for may be anything.
pub unsafe fn clone(
    start: *const c_void,
    stack: *mut c_void,
    flags: usize,
    argument: *mut c_void,
    rest: [*mut c_void; 3],
    is_on: bool,
) -> isize {
    type Clone = unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> isize;
    let [parent, storage, child] = rest;
    let wanted = (libc::CLONE_CHILD_CLEARTID | libc::CLONE_VM) as usize;
    if is_on && flags & wanted == wanted {
        staying::note(child.expose_provenance(), size_of::<c_int>());
    }
    // SAFETY: the function of that name, which every C library of Linux has.
    let real: Clone = unsafe { std::mem::transmute(CLONE.find()) };
    // SAFETY: as the caller says.
    unsafe { real(start, stack, flags, argument, parent, storage, child) }
}

/// In place of `pthread_mutex_init`: a robust one is noted, and one that hands on priorities: the kernel writes to
/// that without waiting for userfaultfd, also when who waits for it no longer does.
///
/// # Safety
///
/// As the C library says.
pub unsafe fn init_mutex(mutex: *mut c_void, attributes: *const c_void, is_on: bool) -> c_int {
    type Init = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
    // SAFETY: the function of that name, which every C library has.
    let real: Init = unsafe { std::mem::transmute(MUTEX_INIT.find()) };
    // SAFETY: as the caller says.
    let result = unsafe { real(mutex, attributes) };
    if result == 0 && is_on && !attributes.is_null() {
        let (mut robust, mut protocol) = (0, 0);
        // SAFETY: attributes that were just used.
        let asked = unsafe {
            libc::pthread_mutexattr_getrobust(attributes.cast(), &mut robust)
                | libc::pthread_mutexattr_getprotocol(attributes.cast(), &mut protocol)
        };
        let written =
            robust == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT;
        if asked == 0 && written {
            staying::note(
                mutex.expose_provenance(),
                size_of::<libc::pthread_mutex_t>(),
            );
        }
    }
    result
}

/// In a child of a fork: threads that had not begun are not in it.
pub fn begin_anew() {
    for cell in &ALL {
        cell.start.store(0, Relaxed);
    }
    staying::begin_anew();
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn double(argument: *mut c_void) -> *mut c_void {
        assert!((&raw const argument).expose_provenance() != 0);
        argument.wrapping_byte_add(argument.expose_provenance())
    }

    #[test]
    fn a_thread_does_what_it_was_made_for() {
        let threads: Vec<libc::pthread_t> = (1..1000usize)
            .map(|number| {
                let mut thread: libc::pthread_t = 0;
                let argument = std::ptr::with_exposed_provenance_mut(number);
                let null = std::ptr::null();
                // SAFETY: a place for the thread, no attributes, and a function that returns a number.
                let made =
                    unsafe { create((&raw mut thread).cast(), null, double, argument, true) };
                assert_eq!(made, 0);
                thread
            })
            .collect();
        for (at, thread) in threads.into_iter().enumerate() {
            let mut said = std::ptr::null_mut();
            // SAFETY: joined once.
            assert_eq!(unsafe { libc::pthread_join(thread, &mut said) }, 0);
            assert_eq!(said.expose_provenance(), 2 * (at + 1));
        }
        assert!(ALL.iter().all(|cell| cell.start.load(Relaxed) == 0));
    }
}
