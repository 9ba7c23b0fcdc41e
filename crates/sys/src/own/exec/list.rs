//! The list of an environment that carries the runtime: where it is kept while another program is executed.

use super::{
    CARRIED, ENTRIES_FEW, ENTRIES_MAX, ENTRIES_SOME, Entries, Environment, Library, Missing,
    PRELOAD, TEXT_MAX, Text, carried, is_carried, own_library, value_of, write,
};
use crate::own::calls;
use std::ffi::c_char;

/// # Safety
///
/// An environment as `execve` takes it, of so many entries with those that are added.
pub(super) unsafe fn with<R>(
    given: Environment,
    missing: Missing,
    entries: usize,
    execute: impl FnOnce(Environment) -> R,
) -> R {
    let mut execute = execute;
    if entries > ENTRIES_SOME && std::process::id() == crate::own::program_pid() {
        // SAFETY: as the caller says.
        match unsafe { mapped(given, missing, entries, execute) } {
            Ok(result) => return result,
            Err(untried) => execute = untried,
        }
    }
    // SAFETY: as the caller says.
    unsafe {
        if entries <= ENTRIES_FEW {
            extended::<ENTRIES_FEW, R>(given, missing, execute)
        } else if entries <= ENTRIES_SOME {
            extended::<ENTRIES_SOME, R>(given, missing, execute)
        } else {
            extended::<ENTRIES_MAX, R>(given, missing, execute)
        }
    }
}

/// Not part of [`with`], so that only who needs it takes the stack.
#[inline(never)]
unsafe fn extended<const MAX: usize, R>(
    given: Environment,
    missing: Missing,
    execute: impl FnOnce(Environment) -> R,
) -> R {
    let mut list = [std::ptr::null::<c_char>(); MAX];
    if missing.library != Library::InFront {
        // SAFETY: as the caller says.
        unsafe { write_list(given, missing, &mut list, None) };
        return execute(list.as_ptr());
    }
    // SAFETY: as the caller says.
    unsafe { merging(given, missing, &mut list, execute) }
}

/// Where a variable is put together of ours and the program's there must be room for it.
#[inline(never)]
unsafe fn merging<R>(
    given: Environment,
    missing: Missing,
    list: &mut [*const c_char],
    execute: impl FnOnce(Environment) -> R,
) -> R {
    let mut merged: Text = [0; TEXT_MAX];
    // SAFETY: as the caller says.
    unsafe { write_list(given, missing, list, Some(&mut merged)) };
    execute(list.as_ptr())
}

/// A long list, which a small stack would not hold, in a mapping for as long as this takes. Not in a child that shares
/// its parent's memory: it would stay there when that has executed another program.
#[inline(never)]
unsafe fn mapped<R, F: FnOnce(Environment) -> R>(
    given: Environment,
    missing: Missing,
    entries: usize,
    execute: F,
) -> Result<R, F> {
    let list_bytes = (entries + 1) * size_of::<*const c_char>();
    let bytes = list_bytes + TEXT_MAX;
    let Some(start) = map(bytes) else {
        return Err(execute);
    };
    let list: *mut *const c_char = std::ptr::with_exposed_provenance_mut(start);
    let merged: *mut Text = std::ptr::with_exposed_provenance_mut(start + list_bytes);
    // SAFETY: new memory of this size, zeros, which is nobody else's; the rest as the caller says.
    let result = unsafe {
        let list = std::slice::from_raw_parts_mut(list, entries + 1);
        write_list(given, missing, list, Some(&mut *merged));
        execute(list.as_ptr())
    };
    unmap(start, bytes);
    Ok(result)
}

/// Writes the environment that carries the runtime; what is behind it in the list are nulls.
unsafe fn write_list(
    given: Environment,
    missing: Missing,
    list: &mut [*const c_char],
    mut merged: Option<&mut Text>,
) {
    let mut len = 0;
    let mut push = |entry: *const c_char| {
        list[len] = entry;
        len += 1;
    };
    // SAFETY: as the caller says; nothing is written to the entries.
    for entry in unsafe { Entries::of(given) } {
        let at = entry.as_ptr().cast();
        match value_of(entry, PRELOAD) {
            Some(value) if missing.library == Library::InFront => {
                let all = [PRELOAD, b"=", own_library(), b":", value];
                // Too long for us: as it was meant.
                let written = merged
                    .as_deref_mut()
                    .and_then(|merged| write(merged, &all).then_some(merged.as_ptr().cast()));
                push(written.unwrap_or(at));
            }
            _ if missing.variables && is_carried(entry) => {}
            _ => push(at),
        }
    }
    if missing.library == Library::Absent {
        push(CARRIED.library.get().cast());
    }
    if missing.variables {
        carried().for_each(|text| push(text.as_ptr().cast()));
    }
    push(missing.letters().as_ptr());
    if !missing.added().is_multiple_of(2) {
        push(missing.letters().as_ptr());
    }
}

/// New memory for a moment, past the C library, and past what is looked at there.
pub(super) fn map(bytes: usize) -> Option<usize> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let wanted = [0, bytes, access, flags, usize::MAX, 0];
    usize::try_from(calls::call(libc::SYS_mmap, &wanted)).ok()
}

pub(super) fn unmap(start: usize, bytes: usize) {
    calls::call(libc::SYS_munmap, &[start, bytes, 0, 0, 0, 0]);
}
