//! The library that goes into programs: it is in this binary, and becomes a file when it is needed.
//!
//! The loader takes a library by its path only, in every program that the first one starts. So it is a
//! file in a place of this user's, kept from run to run (`place`), with a name of its own for each
//! content: a program that still runs with an older one finds that for whatever it starts.

mod place;

use crate::failure::{Exit, Failure};
use muninn_sys::memory::Memfd;
use muninn_sys::proc;
use place::Place;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names the library's file, where another than the one in this binary is to be used.
pub const VARIABLE: &str = "MUNINN_PRELOAD";
/// Where a package puts it, seen from the binary's folder.
const INSTALLED: &str = "../lib/muninn/libmuninn_preload.so";
/// It is empty in what was only checked, never in what was built (build.rs).
static EMBEDDED: &[u8] = include_bytes!(concat!(
    env!("OUT_DIR"),
    "/../../../deps/libmuninn_preload.so"
));

/// The library as the loader finds it, for as long as this is kept.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    /// What the path leads to, where it is no file.
    _memory: Option<Memfd>,
}

impl Library {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The bytes of the library.
pub fn embedded() -> &'static [u8] {
    EMBEDDED
}

/// A file with the library in it, made if there is none. Who is `hidden`, as whoever read a key is,
/// cannot lend what is in its memory to others.
pub fn find(hidden: bool) -> Result<Library, Failure> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let kept = |path| Library {
        path,
        _memory: None,
    };
    if let Some(path) = named {
        return named_by_user(Path::new(&path)).map(kept);
    }
    let binary = std::env::current_exe()?;
    let installed = binary.parent().unwrap_or(Path::new("/")).join(INSTALLED);
    if let Ok(path) = place::installed(&installed, EMBEDDED) {
        return Ok(kept(path));
    }
    let places = place::all(proc::own_uid(), |name| std::env::var_os(name));
    in_one_of(&places).map(kept).or_else(|tried| {
        let memory = if hidden {
            "memory: its descriptor cannot be lent by who reads a key".to_string()
        } else {
            match Memfd::of_code("muninn-library", EMBEDDED) {
                Ok(memory) => return Ok(in_memory(memory)),
                Err(error) => format!("memory: {error}"),
            }
        };
        Err(nowhere(&tried, &memory))
    })
}

fn named_by_user(path: &Path) -> Result<PathBuf, Failure> {
    if !path.is_file() {
        return Err(lacking(format!(
            "{VARIABLE} names {}, which is not a file: correct it, or unset it to have the one used \
             that is in this binary",
            path.display()
        )));
    }
    let path = std::fs::canonicalize(path)?;
    if !loadable(&path) {
        return Err(lacking(format!(
            "the loader cannot be told of {}: its path has a space, a colon or a dollar sign in it; copy the \
             library elsewhere and name it in {VARIABLE}",
            path.display()
        )));
    }
    Ok(path)
}

/// In the first place that will have it, or why none will.
fn in_one_of(places: &[Place]) -> Result<PathBuf, Vec<String>> {
    let mut tried = Vec::new();
    for place in places {
        match place.keep(EMBEDDED) {
            Ok(path) => return Ok(path),
            Err(why) => tried.push(format!("{}: {why}", place.folder().display())),
        }
    }
    Err(tried)
}

/// Known limit: programs that become other users cannot load it for what they start.
fn in_memory(memory: Memfd) -> Library {
    let number = memory.as_fd().as_raw_fd();
    Library {
        path: PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id())),
        _memory: Some(memory),
    }
}

fn nowhere(tried: &[String], memory: &str) -> Failure {
    lacking(format!(
        "there is no place for the library that goes into programs ({}; {memory}): name a folder of your \
         own, from which code may be loaded, in XDG_CACHE_HOME",
        tried.join("; ")
    ))
}

fn lacking(message: String) -> Failure {
    Failure::new(Exit::Unsupported, message)
}

/// The loader takes these for the ends of names, or for the beginning of one to replace, and there is
/// no way to quote them.
fn loadable(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes.iter().any(|b| b" :\t\n$".contains(b))
}

/// What LD_PRELOAD is to be: the library first, then what was there.
pub fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let separators = |b: &u8| b" :\t\n".contains(b);
    let before = before.unwrap_or_default();
    for other in before.as_bytes().split(separators) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_the_binary() {
        assert_eq!(&EMBEDDED[..4], b"\x7fELF");
        // What a runtime looks for: it is that library, and not something else of the kind.
        let name = muninn_job::VARIABLE.as_bytes();
        assert!(EMBEDDED.windows(name.len()).any(|part| part == name));
    }

    #[test]
    fn one_that_is_named_is_looked_at() {
        let refusal = |path: &Path| {
            let failure = named_by_user(path).unwrap_err();
            assert_eq!(failure.exit, Exit::Unsupported);
            failure.message
        };
        assert_eq!(
            refusal(Path::new("/not/there.so")),
            "MUNINN_PRELOAD names /not/there.so, which is not a file: correct it, or unset it to \
             have the one used that is in this binary"
        );
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let odd = root.join("a b.so");
        std::fs::write(&odd, "").unwrap();
        assert_eq!(
            refusal(&odd),
            format!(
                "the loader cannot be told of {}: its path has a space, a colon or a dollar sign in it; \
                 copy the library elsewhere and name it in MUNINN_PRELOAD",
                odd.display()
            )
        );
        let good = root.join("good.so");
        std::fs::write(&good, "").unwrap();
        assert_eq!(named_by_user(&good).unwrap(), good);
    }

    #[test]
    fn every_place_that_was_tried_is_said() {
        let tried = ["/a: no".to_string(), "/b: nor here".to_string()];
        let failure = nowhere(&tried, "memory: refused");
        assert_eq!(
            failure.message,
            "there is no place for the library that goes into programs (/a: no; /b: nor here; memory: \
             refused): name a folder of your own, from which code may be loaded, in XDG_CACHE_HOME"
        );
    }

    #[test]
    fn what_was_preloaded_stays() {
        let library = Path::new("/m.so");
        let value = |before: Option<&str>| preload(library, before.map(OsString::from));
        assert_eq!(value(None), "/m.so");
        assert_eq!(value(Some("")), "/m.so");
        assert_eq!(value(Some("/a.so:/b.so /c.so")), "/m.so:/a.so:/b.so:/c.so");
        assert_eq!(value(Some("/a.so:/m.so")), "/m.so:/a.so", "once");
    }
}
