//! In place of the C library's `syscall`: what a program says to the kernel by number.
//!
//! Most calls go to the kernel as they are. A few are looked at by what the C library's functions of the same
//! purpose are looked at: words that the kernel writes to when a thread ends ([`staying`]), programs that are
//! executed ([`exec`]), and what is said of memory ([`advise`](super::advise)).
//!
//! Futexes are tried again. Operations that *write* to the word (`FUTEX_LOCK_PI` and its kind, `FUTEX_WAKE_OP`) do not
//! wait for userfaultfd: of a word that is far the kernel says EFAULT. Then it is brought near, and the
//! operation tried anew.
//!
//! Known limit: on processors other than x86-64 there is no such function yet.

use std::ffi::{c_char, c_int, c_long, c_void};

use super::{exec, staying};

/// As often is a futex tried whose word is far, which may leave again before it is tried.
const TRIES: u32 = 1000;

/// # Safety
///
/// To be called as the C library's: with the number and up to six arguments.
#[unsafe(naked)]
pub unsafe extern "C" fn call_kernel() {
    std::arch::naked_asm!(
        // A thread that is cancelled in here, or a debugger, finds the way out.
        ".cfi_startproc",
        "cmp rdi, {futex}",
        "je 6f",
        "cmp rdi, {set_tid_address}",
        "je 2f",
        "cmp rdi, {set_robust_list}",
        "je 2f",
        "cmp rdi, {execve}",
        "je 2f",
        "cmp rdi, {execveat}",
        "je 2f",
        "cmp rdi, {madvise}",
        "je 2f",
        "cmp rdi, {process_madvise}",
        "je 2f",
        "cmp rdi, {clone}",
        "je 3f",
        "cmp rdi, {clone3}",
        "je 3f",
        "4:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 5f",
        "ret",
        "5:",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "mov edi, eax",
        "call {fail}",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        // Done by a function, which is given the number and where the arguments are.
        "2:",
        "push [rsp + 8]",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "mov rsi, rsp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {instead}",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "cmp rax, -4095",
        "jae 5b",
        "ret",
        // Looked at before. It may return twice, on another stack, so nothing may be left on this one.
        "3:",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "lea rsi, [rsp + 8]",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {look}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "jmp 4b",
        // A thread may wait here for long, and be cancelled: with no function of ours on its stack.
        "6:",
        "mov eax, {futex}",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -{fault}",
        "je 7f",
        "cmp rax, -4095",
        "jae 5b",
        "ret",
        "7:",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r10",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rsp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {again}",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "cmp rax, -4095",
        "jae 5b",
        "ret",
        ".cfi_endproc",
        fault = const libc::EFAULT,
        again = sym call_futex_again,
        futex = const libc::SYS_futex,
        set_tid_address = const libc::SYS_set_tid_address,
        set_robust_list = const libc::SYS_set_robust_list,
        execve = const libc::SYS_execve,
        execveat = const libc::SYS_execveat,
        madvise = const libc::SYS_madvise,
        process_madvise = const libc::SYS_process_madvise,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        instead = sym call_instead,
        look = sym look_at_clone,
        fail = sym fail,
    )
}

pub(super) extern "C" fn fail(result: c_int) -> c_long {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = -result };
    -1
}

type Arguments = [usize; 6];

/// The kernel's own answer, without `errno`.
pub(super) fn call(number: c_long, arguments: &Arguments) -> isize {
    let [a, b, c, d, e, f] = *arguments;
    let result: isize;
    // SAFETY: what the program asked for, and nothing that returns twice.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// What a function of the C library's kind answered, as the kernel would.
fn answered(result: c_int) -> isize {
    match result {
        // SAFETY: the calling thread's own.
        -1 => -(unsafe { *libc::__errno_location() } as isize),
        result => result as isize,
    }
}

/// As the C library answers: -1, and the error in `errno`.
pub fn answer(result: isize) -> isize {
    match result {
        -4095..=-1 => fail(result as c_int) as isize,
        result => result,
    }
}

extern "C-unwind" fn call_instead(number: c_long, arguments: *const Arguments) -> isize {
    // SAFETY: six words that were put on the stack.
    let arguments = unsafe { &*arguments };
    match number {
        libc::SYS_set_tid_address => staying::note(arguments[0], size_of::<c_int>()),
        libc::SYS_set_robust_list => staying::note(arguments[0], 3 * size_of::<usize>()),
        libc::SYS_execve => return execute(number, arguments, 2),
        libc::SYS_execveat => return execute(number, arguments, 3),
        libc::SYS_madvise => {
            let start: *mut c_void = std::ptr::with_exposed_provenance_mut(arguments[0]);
            // SAFETY: as the caller of `syscall` says. In a program it is the one of the preloaded library.
            return answered(unsafe { libc::madvise(start, arguments[1], arguments[2] as c_int) });
        }
        // SAFETY: as the caller of `syscall` says.
        libc::SYS_process_madvise => return unsafe { super::advise_ranges(arguments) },
        _ => {}
    }
    call(number, arguments)
}

/// With the environment that is at this place among the arguments, and what carries the runtime.
fn execute(number: c_long, arguments: &Arguments, environment: usize) -> isize {
    let given: exec::Environment =
        std::ptr::with_exposed_provenance::<*const c_char>(arguments[environment]);
    let run = |carrying: exec::Environment| {
        let mut arguments = *arguments;
        arguments[environment] = carrying.expose_provenance();
        call(number, &arguments)
    };
    // SAFETY: as the caller of `syscall` says.
    unsafe { exec::with_runtime(given, run) }
}

extern "C-unwind" fn call_futex_again(arguments: *const Arguments) -> isize {
    // SAFETY: six words that were put on the stack.
    let arguments = unsafe { &*arguments };
    let mut result = -(libc::EFAULT as isize);
    let mut tries = 0;
    while result == -(libc::EFAULT as isize) && tries < TRIES && bring_near(arguments) {
        result = call(libc::SYS_futex, arguments);
        tries += 1;
    }
    result
}

/// Brings the words of a futex near, as writing would; whether there are any that can be written to.
fn bring_near(arguments: &Arguments) -> bool {
    const FUTEX_CMD: usize = !((libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as usize);
    let words: &[usize] = match (arguments[1] & FUTEX_CMD) as c_int {
        libc::FUTEX_WAKE_OP | libc::FUTEX_CMP_REQUEUE_PI | libc::FUTEX_WAIT_REQUEUE_PI => &[0, 4],
        libc::FUTEX_LOCK_PI
        | libc::FUTEX_LOCK_PI2
        | libc::FUTEX_UNLOCK_PI
        | libc::FUTEX_TRYLOCK_PI => &[0],
        _ => return false,
    };
    words.iter().all(|&at| {
        let page = arguments[at] & !(muninn_types::PAGE_SIZE - 1);
        let populate = libc::MADV_POPULATE_WRITE as usize;
        let whole = [page, muninn_types::PAGE_SIZE, populate, 0, 0, 0];
        call(libc::SYS_madvise, &whole) == 0
    })
}

extern "C" fn look_at_clone(number: c_long, arguments: *const usize) {
    // SAFETY: five of them were put on the stack.
    let argument = |n: usize| unsafe { *arguments.add(n) };
    let wanted = (libc::CLONE_CHILD_CLEARTID | libc::CLONE_VM) as u64;
    let (flags, word) = match number {
        libc::SYS_clone3 => {
            let described: *const libc::clone_args = std::ptr::with_exposed_provenance(argument(0));
            let (flags_end, word_end) = (8, 24);
            if described.is_null() || argument(1) < word_end.max(flags_end) {
                return;
            }
            // SAFETY: the program says that a description of this length is there.
            unsafe { ((*described).flags, (*described).child_tid as usize) }
        }
        _ => (argument(0) as u64, argument(3)),
    };
    if flags & wanted == wanted {
        staying::note(word, size_of::<c_int>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

    fn kernel() -> Call {
        // SAFETY: it takes them as they are given here.
        unsafe { std::mem::transmute(call_kernel as *const ()) }
    }

    #[test]
    fn the_kernel_is_called_with_all_that_was_given() {
        let call = kernel();
        // SAFETY: plain system calls, and a mapping that is given back.
        unsafe {
            assert_eq!(
                call(libc::SYS_getpid, 0, 0, 0, 0, 0, 0),
                i64::from(std::process::id())
            );
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
            assert_eq!(call(libc::SYS_mmap, 0, 4096, 1, flags, usize::MAX, 1), -1);
            assert_eq!(
                *libc::__errno_location(),
                libc::EINVAL,
                "the sixth is no page"
            );
            let at = call(libc::SYS_mmap, 0, 4096, 1, flags, usize::MAX, 0);
            assert!(at > 0);
            assert_eq!(call(libc::SYS_munmap, at as usize, 4096, 0, 0, 0, 0), 0);
            let mut word: c_int = 0;
            let same = libc::gettid();
            let before = {
                let mut before: usize = 0;
                libc::prctl(40, &raw mut before);
                before
            };
            let address = (&raw mut word).expose_provenance();
            let said = call(libc::SYS_set_tid_address, address, 0, 0, 0, 0, 0);
            assert_eq!(said, i64::from(same));
            call(libc::SYS_set_tid_address, before, 0, 0, 0, 0, 0);
        }
    }

    #[test]
    fn what_is_done_by_a_function_is_done_as_the_kernel_does_it() {
        let call = kernel();
        let mut word: c_int = 5;
        let at = (&raw mut word).expose_provenance();
        // SAFETY: plain system calls with a word of ours, or with addresses that nobody has.
        unsafe {
            let wait = libc::FUTEX_WAIT as usize;
            assert_eq!(call(libc::SYS_futex, at, wait, 4, 0, 0, 0), -1);
            assert_eq!(*libc::__errno_location(), libc::EAGAIN);
            let lock = libc::FUTEX_LOCK_PI as usize;
            assert_eq!(call(libc::SYS_futex, 4096, lock, 0, 0, 0, 0), -1);
            assert_eq!(*libc::__errno_location(), libc::EFAULT, "nothing is there");
            assert_eq!(call(libc::SYS_madvise, 1, 4096, 4, 0, 0, 0), -1);
            assert_eq!(*libc::__errno_location(), libc::EINVAL);
            assert_eq!(
                call(libc::SYS_execve, c"/none".as_ptr() as usize, 0, 0, 0, 0, 0),
                -1
            );
            assert_eq!(*libc::__errno_location(), libc::ENOENT);
            let folder = libc::AT_FDCWD as usize;
            let none = c"/none".as_ptr() as usize;
            assert_eq!(call(libc::SYS_execveat, folder, none, 0, 0, 0, 0), -1);
            assert_eq!(*libc::__errno_location(), libc::ENOENT);
        }
        assert_eq!(word, 5);
    }
}
