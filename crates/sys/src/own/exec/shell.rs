//! A shell that the C library executes by itself (`system`, `popen`), with an environment that lacks the runtime: what
//! is missing is said in front of the command, so that what the shell executes has it. The shell itself goes
//! without.

use super::list::{map, unmap};
use super::{
    CARRIED, CARRIED_MAX, Entries, Library, Missing, carried, current, name_of, own_library,
};
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

/// Has a shell execute a command that carries what the environment of this program lacks.
///
/// # Safety
///
/// A string or null, as the C library says; what `execute` is given is to be had only until it returns.
pub unsafe fn with_command<R>(
    command: *const c_char,
    execute: impl FnOnce(*const c_char) -> R,
) -> R {
    if command.is_null() || !CARRIED.known.load(Ordering::Acquire) {
        return execute(command);
    }
    // SAFETY: the environment of this program, which it may change as little as with any of these functions.
    let missing = Missing::of(unsafe { Entries::of(current()) });
    if missing == Missing::NOTHING {
        return execute(command);
    }
    // SAFETY: a string, as the caller says.
    let command_bytes = unsafe { CStr::from_ptr(command) }.to_bytes();
    let (library, others): (&[u8], &[u8]) = match missing.library {
        Library::There => (b"", b""),
        Library::InFront => (own_library(), b":'\"$LD_PRELOAD\"'"),
        Library::Absent => (own_library(), b""),
    };
    let mut parts: [&[u8]; 8 + 4 * CARRIED_MAX] = [b""; 8 + 4 * CARRIED_MAX];
    let mut len = 0;
    let mut push = |part| {
        parts[len] = part;
        len += 1;
    };
    push(b"export ");
    if missing.library != Library::There {
        [b"LD_PRELOAD='", library, others, b"' "]
            .into_iter()
            .for_each(&mut push);
    }
    for text in carried().filter(|_| missing.variables) {
        let (name, value) = text.split_at((name_of(text).len() + 1).min(text.len()));
        [name, b"'", value, b"' "].into_iter().for_each(&mut push);
    }
    push(missing.letters().to_bytes());
    push(b"; ");
    push(command_bytes);
    let quoted = carried().any(|text| text.contains(&b'\'')) || library.contains(&b'\'');
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + 1;
    let Some(start) = map(bytes).filter(|_| !quoted) else {
        return execute(command);
    };
    // SAFETY: new memory of this size, zeros, which is nobody else's.
    let text = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(start), bytes)
    };
    let mut at = 0;
    for part in parts {
        text[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let result = execute(text.as_ptr().cast());
    unmap(start, bytes);
    result
}

#[cfg(test)]
mod tests {
    use super::super::tests::carry;
    use super::*;

    #[test]
    fn a_shell_hands_on_what_is_missing() {
        carry();
        let said = |command: &CStr| {
            // SAFETY: a string, and tests leave the environment alone.
            unsafe {
                with_command(command.as_ptr(), |command| {
                    CStr::from_ptr(command).to_string_lossy().into_owned()
                })
            }
        };
        let whole = said(c"x=1; echo 'a'");
        assert!(whole.ends_with("; x=1; echo 'a'"), "{whole}");
        assert!(whole.contains("MUNINN_JOB='/j' MUNINN_HANDED="), "{whole}");
        let shown = std::process::Command::new("sh")
            .env("LD_PRELOAD", "/x.so")
            .env_remove("LD_PRELOAD")
            .args(["-c", &said(c"echo $LD_PRELOAD $MUNINN_JOB $MUNINN_HANDED")])
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("/lib/ours.so /j av"), "{shown}");
    }
}
