//! The runtime goes along into whatever the program executes.
//!
//! It is carried by LD_PRELOAD and a few variables of ours. A program may give another an environment of its
//! own making (`env -i`, `subprocess.run(…, env={})`, a service's clean start), and that one would run with
//! neither limit nor far memory, without a word. So the C library's functions that execute are led through here:
//! what is missing is handed on ([`with_runtime`]), and taken out again before the other's `main`
//! ([`conceal`]), so that it finds the environment that it was meant to have.
//!
//! Invariant: nothing is allocated that stays, and no lock is taken. A child that shares its parent's memory (vfork)
//! may be the caller.
//!
//! Known limits: system calls past the C library; environments of more than [`ENTRIES_MAX`] variables; the shell of
//! `system` and `popen`, but not what it executes, after the program emptied its own environment.

mod list;
mod shell;

pub use shell::with_command;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PRELOAD: &[u8] = b"LD_PRELOAD";
/// What was handed on to a program, in letters: see [`Missing`].
const HANDED: &[u8] = b"MUNINN_HANDED";
/// Variables of ours that are handed on.
const CARRIED_MAX: usize = 3;
/// Room for one variable, name and end included.
const TEXT_MAX: usize = 4096;
/// Variables of an environment that is added to. The list is made on the caller's stack, which may be as small as
/// 16 KiB, so it takes no more than it must.
const ENTRIES_FEW: usize = 64;
const ENTRIES_SOME: usize = 512;
const ENTRIES_MAX: usize = 4096;
/// All that may be added: the library, what is carried, the letters, perhaps twice, and the end.
const ADDED_MAX: usize = CARRIED_MAX + 4;

/// The kernel's name for an entry without meaning in the list behind the environment.
const AT_IGNORE: usize = 1;

type Text = [u8; TEXT_MAX];
/// An environment as the kernel wants it.
pub type Environment = *const *const c_char;

/// What carries the runtime, as text that stays: a child has no other memory of ours.
struct Carried {
    known: AtomicBool,
    /// `LD_PRELOAD=` and the library alone.
    library: UnsafeCell<Text>,
    variables: [UnsafeCell<Text>; CARRIED_MAX],
}

// SAFETY: written once, before `known` is set, by the thread that loads the library, and only read since.
unsafe impl Sync for Carried {}

static CARRIED: Carried = Carried {
    known: AtomicBool::new(false),
    library: UnsafeCell::new([0; TEXT_MAX]),
    variables: [const { UnsafeCell::new([0; TEXT_MAX]) }; CARRIED_MAX],
};

/// Notes what carries the runtime: the first library of LD_PRELOAD, and the variables of these names. Too long
/// ones are not handed on. Called once, when the library is loaded.
pub fn remember(names: &[&str]) {
    // SAFETY: the environment of the program, which has one thread of its own so far.
    let all = unsafe { Entries::of(current()) };
    if CARRIED.known.load(Ordering::Relaxed) || names.len() > CARRIED_MAX {
        return;
    }
    let Some(value) = all.clone().find_map(|entry| value_of(entry, PRELOAD)) else {
        return;
    };
    let first = libraries(value).next().unwrap_or_default();
    // SAFETY: nobody reads it yet.
    let library = unsafe { &mut *CARRIED.library.get() };
    let mut fits = write(library, &[PRELOAD, b"=", first]);
    for (name, text) in names.iter().zip(&CARRIED.variables) {
        // SAFETY: as above.
        let text = unsafe { &mut *text.get() };
        if let Some(value) = (all.clone()).find_map(|entry| value_of(entry, name.as_bytes())) {
            fits &= write(text, &[name.as_bytes(), b"=", value]);
        }
    }
    CARRIED
        .known
        .store(fits && !first.is_empty(), Ordering::Release);
}

/// Takes out of this program's environment what was handed on to it and was not meant for it.
///
/// # Safety
///
/// Nobody else reads or changes the environment: the program's `main` has not begun.
pub unsafe fn conceal() {
    // SAFETY: the environment is the C library's, and nobody else is at it.
    unsafe {
        let environment = current().cast_mut();
        let handed = Entries::of(current()).find_map(|entry| value_of(entry, HANDED));
        let Some(missing) = handed.map(Missing::from_letters) else {
            return;
        };
        let (mut from, mut to) = (environment, environment);
        while !(*from).is_null() {
            let entry = CStr::from_ptr(*from).to_bytes();
            let ours = missing.variables && is_carried(entry) || value_of(entry, HANDED).is_some();
            let preload = value_of(entry, PRELOAD).is_some();
            if preload && missing.library == Library::InFront {
                drop_first_library((*from).cast_mut().cast());
            }
            let added = ours || preload && missing.library == Library::Absent;
            if !added {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        // The kernel's own list of values comes right behind the environment, and some look for it there: they
        // pass over pairs of this kind. It is an even number that was handed on.
        let mut behind = to.cast::<usize>().add(1);
        *to = std::ptr::null();
        while behind < from.cast() {
            behind.write(AT_IGNORE);
            behind.add(1).write(0);
            behind = behind.add(2);
        }
    }
}

/// Has a program executed with an environment that carries the runtime: the one given, or that and more.
///
/// # Safety
///
/// An environment as `execve` takes it; what `execute` is given is to be had only until it returns.
pub unsafe fn with_runtime<R>(given: Environment, execute: impl FnOnce(Environment) -> R) -> R {
    if !CARRIED.known.load(Ordering::Acquire) {
        return execute(given);
    }
    // SAFETY: as the caller says.
    let all = unsafe { Entries::of(given) };
    let missing = Missing::of(all.clone());
    let entries = all.count() + ADDED_MAX;
    if missing == Missing::NOTHING || entries > ENTRIES_MAX {
        return execute(given);
    }
    // SAFETY: as the caller says.
    unsafe { list::with(given, missing, entries, execute) }
}

/// The environment of this program.
pub fn current() -> Environment {
    unsafe extern "C" {
        static mut environ: Environment;
    }
    // SAFETY: a word of the C library, read as it is; who changes it meanwhile is the program.
    unsafe { (&raw const environ).read() }
}

/// The function of a name that comes after the one of this library.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        let at = AtomicUsize::new(0);
        Next { name, at }
    }

    /// Looks it up. Not in a child that shares its parent's memory.
    pub fn find(&self) -> usize {
        // SAFETY: a name, and the libraries after the one that asks.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found.expose_provenance(), Ordering::Release);
        found.expose_provenance()
    }

    /// Its address; 0 where there is none.
    pub fn address(&self) -> *const c_void {
        let at = match self.at.load(Ordering::Acquire) {
            0 => self.find(),
            at => at,
        };
        std::ptr::with_exposed_provenance(at)
    }
}

/// What a function answers that executes nothing because there is none like it.
pub const NOT_THERE: c_int = libc::ENOSYS;

/// The same for those that leave the reason in `errno`.
pub fn not_there() -> c_int {
    // SAFETY: the word of this thread.
    unsafe { *libc::__errno_location() = NOT_THERE };
    -1
}

/// What is added to the library's place in LD_PRELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    There,
    /// There is such a variable, with others in it.
    InFront,
    Absent,
}

/// What an environment lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missing {
    library: Library,
    variables: bool,
}

impl Missing {
    const NOTHING: Missing = Missing {
        library: Library::There,
        variables: false,
    };

    fn of(all: Entries<'_>) -> Missing {
        let preload = all.clone().find_map(|entry| value_of(entry, PRELOAD));
        let library = match preload {
            None => Library::Absent,
            Some(value) if libraries(value).any(|one| one == own_library()) => Library::There,
            Some(_) => Library::InFront,
        };
        let has = |text: &[u8]| all.clone().any(|entry| name_of(entry) == name_of(text));
        let variables = carried().any(|text| !has(text));
        Missing { library, variables }
    }

    /// How many variables are more than there should be, the letters included.
    fn added(self) -> usize {
        let variables = if self.variables { carried().count() } else { 0 };
        usize::from(self.library == Library::Absent) + variables + 1
    }

    fn letters(self) -> &'static CStr {
        match (self.library, self.variables) {
            (Library::There, false) => c"MUNINN_HANDED=",
            (Library::There, true) => c"MUNINN_HANDED=v",
            (Library::InFront, false) => c"MUNINN_HANDED=f",
            (Library::InFront, true) => c"MUNINN_HANDED=fv",
            (Library::Absent, false) => c"MUNINN_HANDED=a",
            (Library::Absent, true) => c"MUNINN_HANDED=av",
        }
    }

    fn from_letters(letters: &[u8]) -> Missing {
        Missing {
            library: match letters.first() {
                Some(b'f') => Library::InFront,
                Some(b'a') => Library::Absent,
                _ => Library::There,
            },
            variables: letters.contains(&b'v'),
        }
    }
}

/// The variables that are carried, as far as there are any.
fn carried() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: written before `known` was set, which the caller saw.
    let texts = CARRIED.variables.iter().map(|text| unsafe { &*text.get() });
    texts.map(until_end).filter(|text| !text.is_empty())
}

fn is_carried(entry: &[u8]) -> bool {
    carried().any(|text| name_of(text) == name_of(entry))
}

fn own_library() -> &'static [u8] {
    // SAFETY: as in `carried`.
    let text = until_end(unsafe { &*CARRIED.library.get() });
    value_of(text, PRELOAD).unwrap_or_default()
}

fn until_end(text: &Text) -> &[u8] {
    let end = text.iter().position(|byte| *byte == 0);
    &text[..end.unwrap_or(TEXT_MAX)]
}

fn name_of(entry: &[u8]) -> &[u8] {
    let end = entry.iter().position(|byte| *byte == b'=');
    &entry[..end.unwrap_or(entry.len())]
}

fn value_of<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

/// The files of an LD_PRELOAD.
fn libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = value.split(|byte| b" :".contains(byte));
    parts.filter(|one| !one.is_empty())
}

/// Leaves out of `LD_PRELOAD=OURS:OTHERS` what was put in front.
///
/// # Safety
///
/// A string of the environment that nobody else is at.
unsafe fn drop_first_library(entry: *mut u8) {
    // SAFETY: as the caller says; what is left is shorter.
    unsafe {
        let bytes = CStr::from_ptr(entry.cast()).to_bytes();
        let value = PRELOAD.len() + 1;
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
            return;
        };
        let rest = bytes.len() - colon;
        std::ptr::copy(entry.add(colon + 1), entry.add(value), rest);
    }
}

/// Writes these one after the other and an end; false if there is no room for it.
fn write(into: &mut Text, parts: &[&[u8]]) -> bool {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len >= TEXT_MAX {
        return false;
    }
    let mut at = 0;
    for part in parts {
        into[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    into[at] = 0;
    true
}

/// The strings of an environment, each with its end behind it.
#[derive(Clone)]
struct Entries<'a> {
    next: Environment,
    strings: std::marker::PhantomData<&'a [u8]>,
}

impl Entries<'_> {
    /// # Safety
    ///
    /// A list of strings that ends with a null, or null; both stay as they are while this is used.
    unsafe fn of(list: Environment) -> Self {
        Entries {
            next: list,
            strings: std::marker::PhantomData,
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: the list has not ended, as promised to `of`.
        let entry = unsafe { self.next.read() };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above, and each is a string.
        unsafe {
            self.next = self.next.add(1);
            Some(CStr::from_ptr(entry).to_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// An environment with its strings.
    struct Strings {
        _all: Vec<CString>,
        list: Vec<*const c_char>,
    }

    fn strings(all: &[&str]) -> Strings {
        let all: Vec<CString> = all.iter().map(|one| CString::new(*one).unwrap()).collect();
        let end = std::iter::once(std::ptr::null());
        let list = all.iter().map(|one| one.as_ptr()).chain(end).collect();
        Strings { _all: all, list }
    }

    pub(super) fn carry() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: only here, before anybody reads.
            unsafe {
                write(&mut *CARRIED.library.get(), &[b"LD_PRELOAD=/lib/ours.so"]);
                write(&mut *CARRIED.variables[0].get(), &[b"MUNINN_JOB=/j"]);
            }
            CARRIED.known.store(true, Ordering::Release);
        });
    }

    fn handed(given: &[&str]) -> Vec<String> {
        carry();
        let given = strings(given);
        let read = |list| {
            // SAFETY: the list is whole while this is called.
            let all = unsafe { Entries::of(list) };
            all.map(|entry| String::from_utf8_lossy(entry).into_owned())
                .collect()
        };
        // SAFETY: strings and an end.
        unsafe { with_runtime(given.list.as_ptr(), read) }
    }

    #[test]
    fn what_is_missing_is_handed_on() {
        let all = ["LD_PRELOAD=/lib/ours.so", "MUNINN_JOB=/j", "A=1"];
        assert_eq!(handed(&all), all);
        assert_eq!(
            handed(&[]),
            [
                "LD_PRELOAD=/lib/ours.so",
                "MUNINN_JOB=/j",
                "MUNINN_HANDED=av",
                "MUNINN_HANDED=av"
            ]
        );
        assert_eq!(
            handed(&["A=1", "LD_PRELOAD=/x.so:/y.so"]),
            [
                "A=1",
                "LD_PRELOAD=/lib/ours.so:/x.so:/y.so",
                "MUNINN_JOB=/j",
                "MUNINN_HANDED=fv"
            ]
        );
        assert_eq!(
            handed(&["MUNINN_JOB=/j"]),
            [
                "MUNINN_JOB=/j",
                "LD_PRELOAD=/lib/ours.so",
                "MUNINN_HANDED=a"
            ]
        );
        assert_eq!(
            handed(&["LD_PRELOAD=/x.so /lib/ours.so"]),
            [
                "LD_PRELOAD=/x.so /lib/ours.so",
                "MUNINN_JOB=/j",
                "MUNINN_HANDED=v"
            ]
        );
    }

    #[test]
    fn no_environment_is_an_empty_one() {
        carry();
        // SAFETY: null is an empty environment for the kernel.
        let given = unsafe { with_runtime(std::ptr::null(), |list| Entries::of(list).count()) };
        assert_eq!(given, 4, "an even number");
    }

    #[test]
    fn many_variables_are_kept_and_too_many_left_alone() {
        let many: Vec<String> = (0..1000).map(|i| format!("V{i}=x")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        let given = handed(&names);
        assert_eq!(given.len(), 1004);
        assert_eq!(given[..1000], many);
        for len in [ENTRIES_FEW, ENTRIES_SOME, ENTRIES_MAX].map(|max| max - ADDED_MAX - 1) {
            for first in ["A=1", "LD_PRELOAD=/x.so"] {
                let mut names = vec!["A=1"; len];
                names[0] = first;
                let given = handed(&names);
                assert_eq!(given[1..len], names[1..]);
                assert!(given.contains(&"MUNINN_JOB=/j".to_string()));
            }
        }
        let too_many = vec!["A=1"; ENTRIES_MAX];
        assert_eq!(handed(&too_many).len(), ENTRIES_MAX);
    }

    #[test]
    fn the_first_library_is_taken_out_in_place() {
        let mut text = *b"LD_PRELOAD=/lib/ours.so:/x.so:/y.so\0";
        // SAFETY: a string of this test.
        unsafe { drop_first_library(text.as_mut_ptr()) };
        let left = CStr::from_bytes_until_nul(&text).unwrap();
        assert_eq!(left.to_bytes(), b"LD_PRELOAD=/x.so:/y.so");
    }

    #[test]
    fn letters_say_what_was_missing() {
        for library in [Library::There, Library::InFront, Library::Absent] {
            for variables in [false, true] {
                let missing = Missing { library, variables };
                let text = missing.letters().to_bytes();
                let letters = value_of(text, HANDED).unwrap();
                assert_eq!(Missing::from_letters(letters), missing);
            }
        }
    }
}
