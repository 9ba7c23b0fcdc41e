//! A virtual machine that is about to start is told of the limit.
//!
//! It is told here, in the process where it starts, because only here everything is known that its user
//! said, whoever started it: a shell script, a build, another virtual machine. What decides is pure
//! ([`muninn_policy::tune`]); this file finds out what it needs to know.
//!
//! The machine asks the C library for `JAVA_TOOL_OPTIONS`, and [`getenv`] answers with what was decided,
//! followed by what the user has there. The environment itself stays as it is, so children inherit
//! nothing of it, and the program finds there what its user put there.
//!
//! Known limit: a machine that a program carries in itself (JNI) is left alone, since what it is given
//! cannot be seen; a machine is known by the library of its launcher.

use muninn_job::Job;
use muninn_policy::tune::jvm::{Jvm, advise};
use muninn_policy::tune::{Advice, words};
use muninn_sys::cgroup::Hierarchy;
use muninn_sys::proc::{self, RealProc};
use muninn_sys::{files, own};
use muninn_types::Bytes;
use std::ffi::{CString, c_char};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The library that every launcher of Java has had since version 6.
const LAUNCHER: &str = "libjli.so";
const VARIABLE: &str = "JAVA_TOOL_OPTIONS";
/// Old machines (before 9) keep a variable in a buffer of 1,024 bytes and forget all of a longer one, and
/// take 64 options of it.
const VARIABLE_MAX: usize = 1000;
const OPTIONS_MAX: usize = 56;
/// Argument files that are longer, or more of them, are not read; then nothing is set.
const FILE_MAX: u64 = 256 << 10;
const FILES_MAX: usize = 16;
/// Launchers are programs of a few KiB; the tables at the begin of an image are smaller than this.
const BINARY_MAX: u64 = 1 << 20;
const TABLES_MAX: u64 = 16 << 20;
const PIECE: usize = 64 << 10;

/// What `getenv` says; null for what the environment has. It is never freed.
static SAID: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// In the place of the C library's.
///
/// # Safety
///
/// As C says.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    let said = SAID.load(Ordering::Acquire);
    // SAFETY: a string, as the caller says.
    let is_asked = || unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes() == VARIABLE.as_bytes();
    if !said.is_null() && is_asked() {
        return said;
    }
    // SAFETY: as the caller says.
    unsafe { own::getenv(name) }
}

/// When the library is loaded: looks whether this is a virtual machine, and what to tell it.
pub(crate) fn look(job: &Job) {
    own::learn_getenv();
    let Some(launcher) = own::loaded_library(LAUNCHER) else {
        return;
    };
    let Some(machine) = machine_of(&launcher) else {
        return;
    };
    // A configuration that makes no sense is found by the companion, which says so.
    let tune = job.config().is_ok_and(|config| config.tune);
    let user = std::env::var(VARIABLE);
    let advice = Asked::gather(&machine).map_or_else(Advice::Leave, |asked| {
        advise(&asked.jvm(&machine), job.limit())
    });
    let advice = match (&advice, user) {
        (Advice::Set { options, .. }, user) => match together(options, user.unwrap_or_default()) {
            Some(text) if tune => {
                SAID.store(text.into_raw(), Ordering::Release);
                advice
            }
            Some(_) => advice,
            None => Advice::Leave(format!("there is no room left in {VARIABLE}")),
        },
        _ => advice,
    };
    let name = program_name();
    let Some(line) = advice.line(&name, tune) else {
        return;
    };
    if tune {
        job.leave_note(&line);
    }
    job.leave_advice(&line);
}

/// What was decided and what the user has, the latter last: there it counts more.
fn together(options: &[String], user: String) -> Option<CString> {
    let mut text = options.join(" ");
    if !user.is_empty() {
        text = format!("{text} {user}");
    }
    (text.len() <= VARIABLE_MAX)
        .then(|| CString::new(text).ok())
        .flatten()
}

/// The virtual machine that a launcher would load: `lib/server/libjvm.so`, before version 9
/// `lib/amd64/server/libjvm.so`.
fn machine_of(launcher: &Path) -> Option<PathBuf> {
    let folder = launcher.parent()?;
    [folder, folder.parent()?]
        .map(|folder| folder.join("server/libjvm.so"))
        .into_iter()
        .find(|path| path.is_file())
}

fn program_name() -> String {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.into_owned()
}

/// Everything that was said to the machine, in the order in which it reads it.
struct Asked {
    words: Vec<String>,
}

impl Asked {
    /// Or why it cannot be known.
    fn gather(machine: &Path) -> Result<Asked, String> {
        if has_options_in_image(machine) {
            return Err("its image has options of its own".to_string());
        }
        if contains(Path::new("/proc/self/exe"), BINARY_MAX, b"-XX:+Use") != Some(false) {
            return Err("its launcher has options of its own".to_string());
        }
        let mut asked = Asked { words: Vec::new() };
        let mut files = 0;
        let own = std::env::args_os().skip(1);
        let own = own.map(|word| word.to_string_lossy().into_owned());
        asked.hear_variable(VARIABLE)?;
        if asked.words.len() > OPTIONS_MAX {
            return Err(format!("there is no room left in {VARIABLE}"));
        }
        let mut line = Asked { words: Vec::new() };
        line.hear_variable("JDK_JAVA_OPTIONS")?;
        line.words.extend(own);
        for word in line.words {
            match word.strip_prefix('@').filter(|path| !path.is_empty()) {
                Some(path) => {
                    files += 1;
                    asked.hear_file(Path::new(path), files)?;
                }
                None => asked.words.push(word),
            }
        }
        asked.hear_variable("_JAVA_OPTIONS")?;
        Ok(asked)
    }

    fn hear_variable(&mut self, name: &str) -> Result<(), String> {
        let Some(text) = std::env::var_os(name) else {
            return Ok(());
        };
        let unclear = || format!("{name} cannot be understood");
        let words = words::of_variable(text.to_str().ok_or_else(unclear)?);
        self.words.extend(words.ok_or_else(unclear)?);
        Ok(())
    }

    /// A file that is not there is no file of arguments, but an argument of the program.
    fn hear_file(&mut self, path: &Path, number: usize) -> Result<(), String> {
        if !path.exists() {
            return Ok(());
        }
        let unclear = || "an argument file cannot be read".to_string();
        let file = files::open_found(path).map_err(|_| unclear())?;
        let about = file.metadata().map_err(|_| unclear())?;
        if !about.is_file() || about.len() > FILE_MAX || number > FILES_MAX {
            return Err(unclear());
        }
        let mut text = Vec::new();
        let read = file.take(FILE_MAX).read_to_end(&mut text);
        read.map_err(|_| unclear())?;
        let text = String::from_utf8_lossy(&text);
        self.words.extend(words::of_argument_file(&text));
        Ok(())
    }

    fn jvm(self, machine: &Path) -> Jvm {
        Jvm {
            words: self.words,
            memory: memory(),
            // Another make of machine (OpenJ9) has other names, and is not known here.
            may_commit: proc::sysctl(&RealProc, "vm.overcommit_memory").is_ok_and(|how| how != 2),
            has_serial: contains(machine, u64::MAX, b"UseSerialGC\0") == Some(true),
        }
    }
}

/// Memory as the machine sees it.
fn memory() -> Bytes {
    let all = proc::meminfo(&RealProc).map_or(Bytes(u64::MAX), |info| info.total);
    let group = Hierarchy::find().and_then(|tree| tree.own().effective_limit());
    group.ok().flatten().map_or(all, |limit| limit.min(all))
}

/// Whether `jlink` put options into the image: a resource of this name, which else no image has, in
/// the table of names before the resources themselves.
fn has_options_in_image(machine: &Path) -> bool {
    let library = machine.ancestors().nth(2).unwrap_or(machine);
    let image = library.join("modules");
    image.is_file()
        && tables_len(&image).is_none_or(|len| contains(&image, len, b"\0options\0") != Some(false))
}

/// The bytes before the resources of an image: its head tells how long the tables are.
fn tables_len(image: &Path) -> Option<u64> {
    let mut head = [0u8; 28];
    files::open_found(image).ok()?.read_exact(&mut head).ok()?;
    let word = |at: usize| {
        head.get(at..at + 4)?
            .try_into()
            .ok()
            .map(u32::from_le_bytes)
    };
    if word(0)? != 0xcafe_dada {
        return None;
    }
    let (table, locations, names) = (word(16)?, word(20)?, word(24)?);
    let len = 28 + u64::from(table) * 8 + u64::from(locations) + u64::from(names);
    (len <= TABLES_MAX).then_some(len)
}

/// Whether these are among the first bytes of a file. `None`: it cannot be read.
fn contains(path: &Path, most: u64, wanted: &[u8]) -> Option<bool> {
    let mut file = files::open_found(path).ok()?.take(most);
    let (mut piece, mut kept) = (vec![0; PIECE + wanted.len()], 0);
    loop {
        let n = file.read(&mut piece[kept..]).ok()?;
        if n == 0 {
            return Some(false);
        }
        let filled = kept + n;
        if find(&piece[..filled], wanted) {
            return Some(true);
        }
        // What stands across the border of two pieces.
        kept = filled.min(wanted.len() - 1);
        piece.copy_within(filled - kept..filled, 0);
    }
}

/// By Horspool's rule: most bytes are not looked at. A library of 25 MB takes a few milliseconds.
fn find(text: &[u8], wanted: &[u8]) -> bool {
    let last = wanted.len() - 1;
    let mut step = [wanted.len(); 256];
    for (at, byte) in wanted[..last].iter().enumerate() {
        step[usize::from(*byte)] = last - at;
    }
    let mut end = last;
    while let Some(byte) = text.get(end) {
        if *byte == wanted[last] && text[end - last..=end] == *wanted {
            return true;
        }
        end += step[usize::from(*byte)];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_words_come_last_and_old_machines_have_room() {
        let text = |user: &str| together(&["-Xmn4m".to_string()], user.to_string());
        assert_eq!(text("").unwrap().to_str(), Ok("-Xmn4m"));
        assert_eq!(text("-Da='b c'").unwrap().to_str(), Ok("-Xmn4m -Da='b c'"));
        assert_eq!(text(&"x".repeat(VARIABLE_MAX)), None);
    }

    #[test]
    fn words_are_found_across_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for at in [0, 7, PIECE - 3, PIECE, PIECE + 5, 3 * PIECE - 1] {
            let mut bytes = vec![b'x'; 3 * PIECE + 50];
            bytes[at..at + 12].copy_from_slice(b"UseSerialGC\0");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(
                contains(&path, u64::MAX, b"UseSerialGC\0"),
                Some(true),
                "{at}"
            );
            assert_eq!(contains(&path, u64::MAX, b"UseSerialGd"), Some(false));
            assert_eq!(
                contains(&path, at as u64 + 11, b"UseSerialGC\0"),
                Some(false)
            );
        }
        assert_eq!(contains(&folder.path().join("none"), 9, b"a"), None);
    }
}
