//! The C library's functions that execute a program, led through [`muninn_sys::own::exec`].
//!
//! Each calls the function of its name that comes after this library, with the environment that also carries the
//! runtime. `execv` and `execvp` are done by those that take an environment, and so are those that take their words
//! one by one. They were looked up when the library was loaded: a child that shares its parent's memory calls
//! them, too.

use muninn_sys::own::exec::{self, Environment, Next};
use std::ffi::{c_char, c_int, c_void};

type Words = *const *const c_char;

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static EXECVEAT: Next = Next::new(c"execveat");
static SPAWN: Next = Next::new(c"posix_spawn");
static SPAWNP: Next = Next::new(c"posix_spawnp");
static SYSTEM: Next = Next::new(c"system");
static POPEN: Next = Next::new(c"popen");

/// Looks them all up, while nothing else happens.
pub fn prepare() {
    let all = [
        &EXECVE, &EXECVPE, &FEXECVE, &EXECVEAT, &SPAWN, &SPAWNP, &SYSTEM, &POPEN,
    ];
    for next in all {
        next.find();
    }
}

/// In the place of the next function of a name: it is called with the environment that carries the runtime.
macro_rules! next {
    ($next:ident as fn($($type:ty),*), $environment:expr, |$carrying:ident| ($($argument:expr),*), else $failed:expr) => {{
        let at = $next.address();
        if at.is_null() {
            return $failed;
        }
        // SAFETY: the C library's function of that name, which takes these.
        let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(at) };
        // SAFETY: as our caller says of what he gave.
        unsafe { exec::with_runtime($environment, |$carrying| function($($argument),*)) }
    }};
}

/// # Safety
///
/// As the C library says of each of these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    words: Words,
    environment: Environment,
) -> c_int {
    next!(EXECVE as fn(*const c_char, Words, Environment), environment,
        |carrying| (path, words, carrying), else exec::not_there())
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, words: Words) -> c_int {
    // SAFETY: as our caller says; the environment is the program's own.
    unsafe { execve(path, words, exec::current()) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    words: Words,
    environment: Environment,
) -> c_int {
    next!(EXECVPE as fn(*const c_char, Words, Environment), environment,
        |carrying| (file, words, carrying), else exec::not_there())
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, words: Words) -> c_int {
    // SAFETY: as our caller says; the environment is the program's own.
    unsafe { execvpe(file, words, exec::current()) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, words: Words, environment: Environment) -> c_int {
    next!(FEXECVE as fn(c_int, Words, Environment), environment,
        |carrying| (file, words, carrying), else exec::not_there())
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    words: Words,
    environment: Environment,
    flags: c_int,
) -> c_int {
    next!(EXECVEAT as fn(c_int, *const c_char, Words, Environment, c_int), environment,
        |carrying| (folder, path, words, carrying, flags), else exec::not_there())
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Words,
    environment: Environment,
) -> c_int {
    next!(SPAWN as fn(*mut c_int, *const c_char, *const c_void, *const c_void, Words, Environment), environment,
        |carrying| (pid, path, actions, attributes, words, carrying), else exec::NOT_THERE)
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Words,
    environment: Environment,
) -> c_int {
    next!(SPAWNP as fn(*mut c_int, *const c_char, *const c_void, *const c_void, Words, Environment), environment,
        |carrying| (pid, file, actions, attributes, words, carrying), else exec::NOT_THERE)
}

/// Makes a list of words that were given one by one, where they are: those in registers are put in front of those on
/// the stack, and `run` is called with the first argument and the list.
macro_rules! with_list {
    ($run:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "pop rax", // where to return to
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            "push rax",
            ".cfi_def_cfa_offset 48",
            ".cfi_offset rip, -48",
            "call {run}",
            "pop rcx",
            "add rsp, 40",
            "push rcx",
            "ret",
            ".cfi_endproc",
            run = sym $run,
        )
    };
}

/// # Safety
///
/// As the C library says: words, and a null behind them.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execl() {
    with_list!(execv)
}

/// # Safety
///
/// As above.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execlp() {
    with_list!(execvp)
}

/// # Safety
///
/// As above; behind the null is an environment.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execle() {
    with_list!(execute_list)
}

unsafe extern "C" fn execute_list(path: *const c_char, words: Words) -> c_int {
    let mut at = words;
    // SAFETY: as the caller says of the words: there is a null, and one more behind it.
    unsafe {
        while !(*at).is_null() {
            at = at.add(1);
        }
        execve(path, words, (*at.add(1)).cast())
    }
}

/// # Safety
///
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let at = SYSTEM.address();
    if at.is_null() {
        return exec::not_there();
    }
    // SAFETY: the C library's function of that name; as the caller says.
    unsafe {
        let system: unsafe extern "C" fn(*const c_char) -> c_int = std::mem::transmute(at);
        exec::with_command(command, |command| system(command))
    }
}

/// # Safety
///
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    let at = POPEN.address();
    if at.is_null() {
        exec::not_there();
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's function of that name; as the caller says.
    unsafe {
        let popen: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void =
            std::mem::transmute(at);
        exec::with_command(command, |command| popen(command, mode))
    }
}
