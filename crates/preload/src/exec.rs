//! The C library's functions that execute a program, led through [`muninn_sys::own::exec`].
//!
//! Each calls the function of its name that comes after this library, with the environment that also carries the
//! runtime. `execv` and `execvp` are done by those that take an environment. They were looked up when the
//! library was loaded: a child that shares its parent's memory calls them, too.

use muninn_sys::own::exec::{self, Environment, Next};
use std::ffi::{c_char, c_int, c_void};

type Words = *const *const c_char;

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static EXECVEAT: Next = Next::new(c"execveat");
static SPAWN: Next = Next::new(c"posix_spawn");
static SPAWNP: Next = Next::new(c"posix_spawnp");

/// Looks them all up, while nothing else happens.
pub fn prepare() {
    for next in [&EXECVE, &EXECVPE, &FEXECVE, &EXECVEAT, &SPAWN, &SPAWNP] {
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
