//! The one SIGBUS handler of the process, shared by everything here that needs one.
//!
//! Two users: [`guarded_copy`](crate::memory::guarded_copy) and its atomic kin, whose instructions
//! the handler knows by address and steps out of, and a *resolver*, a function that makes a missing page present
//! (userfaultfd in SIGBUS mode) so that the touching instruction is run again. Everything else is
//! passed to the handler that was there before (the Rust runtime and language runtimes have their
//! own). Invariant: the handler only reads atomics, changes the saved registers, or calls the
//! resolver or the previous handler; it never allocates, locks or unwinds.
//!
//! Known limit: a runtime that installs its own handler *later* without passing on hides ours;
//! [`is_active`] tells.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::memory::{guarded_copy_bounds, guarded_word_bounds};

/// Makes the page at this address present and returns true, or returns false if it is not ours.
/// Runs inside of the signal handler: no allocation, no locks, no panics.
pub type Resolver = fn(addr: usize) -> bool;

/// The handler could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum SigbusError {
    #[error("cannot install the SIGBUS handler: {0}; a sandbox may forbid sigaction")]
    Install(std::io::Error),
    #[error("a SIGBUS resolver is set already: only one can answer for missing pages")]
    ResolverTaken,
}

/// What SIGBUS did before we came.
struct Previous(libc::sigaction);

static PREVIOUS: OnceLock<Result<Previous, i32>> = OnceLock::new();
static RESOLVER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether the touch that is being resolved on this thread is a write.
    static IS_WRITE: Cell<bool> = const { Cell::new(false) };
}

/// Bit of the page-fault error code that the kernel saves with the registers: a write.
const FAULT_WRITE: i64 = 2;

/// For a resolver, while it runs: whether the touch is a write.
pub fn touch_is_write() -> bool {
    IS_WRITE.get()
}

/// Installs the handler if that has not been done yet. Cheap when it has.
pub fn install() -> Result<(), SigbusError> {
    match PREVIOUS.get_or_init(install_now) {
        Ok(_) => Ok(()),
        Err(errno) => Err(SigbusError::Install(std::io::Error::from_raw_os_error(
            *errno,
        ))),
    }
}

/// Lets `resolver` answer touches of missing pages, for the rest of the life of the process.
pub fn set_resolver(resolver: Resolver) -> Result<(), SigbusError> {
    install()?;
    RESOLVER
        .compare_exchange(
            std::ptr::null_mut(),
            resolver as *mut (),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .map(|_| ())
        .or_else(|current| {
            if std::ptr::eq(current, resolver as *mut ()) {
                Ok(())
            } else {
                Err(SigbusError::ResolverTaken)
            }
        })
}

/// Whether SIGBUS still comes to us: false where another runtime replaced the handler.
pub fn is_active() -> bool {
    current_action().is_some_and(|action| action.sa_sigaction == on_sigbus as *const () as usize)
}

fn current_action() -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; the kernel fills `now` when it returns 0.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: filled, as the call succeeded.
    (asked == 0).then(|| unsafe { now.assume_init() })
}

fn install_now() -> Result<Previous, i32> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let previous = current_action().ok_or_else(errno)?;
    let ours = libc::sigaction {
        sa_sigaction: on_sigbus as *const () as usize,
        // What the previous handler wants blocked while it runs stays blocked when we call it.
        sa_mask: previous.sa_mask,
        sa_flags: libc::SA_SIGINFO
            | libc::SA_ONSTACK
            | (previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART)),
        sa_restorer: None,
    };
    // SAFETY: `ours` is a complete action whose handler only does what a handler may do.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut()) };
    if set != 0 {
        return Err(errno());
    }
    Ok(Previous(previous))
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // 1 to 4: raised by the instruction itself. Others were sent, and say nothing about it.
    if (1..=4).contains(&code) {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes the saved registers of this thread, ours to change.
        let rip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        for bounds in [guarded_copy_bounds(), guarded_word_bounds()] {
            if bounds.code.contains(&(*rip as usize)) {
                *rip = bounds.landing as i64;
                return;
            }
        }
        let resolver = RESOLVER.load(Ordering::Acquire);
        if !resolver.is_null() {
            // SAFETY: only `set_resolver` stores here, and it stores a `Resolver`.
            let resolver = unsafe { std::mem::transmute::<*mut (), Resolver>(resolver) };
            // SAFETY: a fault carries an address.
            let addr = unsafe { (*info).si_addr() }.addr();
            // SAFETY: as above, the saved registers of this thread.
            let error = unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] };
            IS_WRITE.set(error & FAULT_WRITE != 0);
            if resolver(addr) {
                return;
            }
        }
    }
    pass_on(signal, info, context, code);
}

/// Does what would have happened without us.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void, code: i32) {
    let previous = match PREVIOUS.get() {
        Some(Ok(previous)) => &previous.0,
        // A signal between `sigaction` and the end of `install`: the default is all we know.
        _ => return die_of(signal, code),
    };
    match previous.sa_sigaction {
        libc::SIG_DFL => die_of(signal, code),
        // A fault cannot be ignored: running the instruction again would loop for ever.
        libc::SIG_IGN if (1..=4).contains(&code) => die_of(signal, code),
        libc::SIG_IGN => {}
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: an action with SA_SIGINFO holds a function of this type.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void)>(
                    handler,
                )
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: an action without SA_SIGINFO holds a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
            handler(signal);
        }
    }
}

/// Sets the default action, and sends the signal again where no instruction will raise it again.
fn die_of(signal: i32, code: i32) {
    // SAFETY: all zeros is a valid sigaction: the default action with an empty mask.
    let default = unsafe { std::mem::zeroed::<libc::sigaction>() };
    // SAFETY: a complete action; `sigaction` and `raise` may be called in a handler.
    unsafe {
        libc::sigaction(signal, &default, std::ptr::null_mut());
        if !(1..=4).contains(&code) {
            libc::raise(signal);
        }
    }
}
