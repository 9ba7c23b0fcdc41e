//! When the library is loaded, and when the program forks.

use muninn_job::{DOOR_VARIABLE, Job, VARIABLE, Visit};
use muninn_pager::Runtime;
use muninn_pager::fork::{self, Heritage, Letter};
use muninn_sys::{own, uffd};
#[cfg(not(test))]
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the job's page is mapped. A child has it at the same place; what is in the heap it has not.
static JOB: AtomicU64 = AtomicU64::new(0);
/// The program was not started by `muninn run`.
static OFF: AtomicBool = AtomicBool::new(false);

/// A program that cannot be run as asked for is not run at all; the code is that of shells for one
/// that cannot be executed.
const CANNOT_EXECUTE: i32 = 126;

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    #[cfg(not(test))]
    crate::exec::prepare();
    let Some(path) = std::env::var_os(VARIABLE) else {
        OFF.store(true, Ordering::Release);
        return;
    };
    own::exec::remember(&[VARIABLE, DOOR_VARIABLE]);
    if own::lead_past_program().is_none() {
        refuse(
            "a function of the C library that the runtime needs is only to be had from the program",
        );
    }
    // Another user than the launcher, or another root: then the launcher hands it over.
    let door = || Visit::pay(&std::env::var(DOOR_VARIABLE).ok()?, std::process::id());
    let opened = Job::open(path).or_else(|why| match door() {
        Some(visit) => visit.job(),
        None => Err(why),
    });
    let job = match opened {
        Ok(job) => job,
        Err(why) => refuse(&why.to_string()),
    };
    job.note_loaded();
    JOB.store(job.range().0, Ordering::Release);
    if !own::learn_storage() {
        refuse("it has more libraries with thread-local variables than can be managed");
    }
    own::staying::note_thread();
    own::at_fork(before_fork, in_parent, in_child);
    crate::tune::look(&job);
    if let Err(why) = start(job, None) {
        refuse(&format!("its companion could not be started: {why}"));
    }
    own::ceiling::balance();
    // SAFETY: `main` has not begun, and the companion does not ask for variables.
    unsafe { own::exec::conceal() };
}

/// Whether this process has a pager, or may still get one.
#[cfg(not(test))]
pub fn is_on() -> bool {
    !OFF.load(Ordering::Acquire)
}

/// Ends the program before it has begun.
fn refuse(why: &str) -> ! {
    own::refuse(
        &format!("muninn: the program cannot be run on far memory: {why}\n"),
        CANNOT_EXECUTE,
    )
}

/// In the place of the C library's: what children get of a range is looked up after a fork, and must not be
/// changed before ([`fork::settle`]). Known limit: who calls the kernel himself, right after a fork, may
/// be ahead of the pager. The same with guards (MADV_GUARD_INSTALL): the pager must know that there are some.
///
/// # Safety
///
/// As the kernel says.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    if own::tells_of_forks(advice) {
        fork::settle();
    }
    own::guards_begin(advice, fork::settle);
    // SAFETY: as the caller says.
    unsafe { own::advise(start, len, advice) }
}

/// # Safety
///
/// As the kernel says.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const c_void,
    count: usize,
    advice: c_int,
    flags: u32,
) -> isize {
    let arguments = [
        process as usize,
        ranges.expose_provenance(),
        count,
        advice as usize,
        flags as usize,
        0,
    ];
    own::guards_begin(advice, fork::settle);
    // SAFETY: as the caller says.
    own::calls::answer(unsafe { own::advise_ranges(&arguments) })
}

extern "C" fn before_fork() {
    fork::prepare();
}

extern "C" fn in_parent() {
    fork::parent();
}

extern "C" fn in_child() {
    let heritage = fork::child();
    own::reset_claims();
    own::threads::begin_anew();
    muninn_sys::still::reset();
    uffd::use_device(None);
    // SAFETY: the child has one thread, this one, and the heap's memory is not in it; what is kept
    // from before (atomics) is not in the heap.
    unsafe { crate::HEAP.begin_anew() };
    // SAFETY: the parent's page, which nobody else in this process uses.
    let job = unsafe { Job::inherited(JOB.load(Ordering::Acquire)) };
    let (job, letter) = match (job, heritage) {
        (None, _) => refuse("the job's page is not there"),
        (Some(job), Heritage::Lost(why)) => {
            job.leave_message(std::process::id(), why);
            refuse(why)
        }
        (Some(job), Heritage::Nothing) => (job, None),
        (Some(job), Heritage::Letter(letter)) => (job, Some(letter)),
    };
    // A child that cannot have a companion stays in the care of its parent's.
    if let Err(why) = start(job.clone(), letter)
        && letter.is_none()
    {
        job.leave_message(std::process::id(), &why.to_string());
        refuse(&format!(
            "a companion could not be started for a child: {why}"
        ));
    }
    own::ceiling::balance();
    std::mem::forget(job);
}

/// Starts the runtime of this process.
fn start(job: Job, letter: Option<Letter>) -> std::io::Result<()> {
    let work = move || Runtime::run(&crate::OwnThreads, job, letter);
    crate::start_companion(Box::new(work))
}
