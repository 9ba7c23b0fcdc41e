//! The library that goes into programs: where it lies, and how the loader is told of it.

use crate::failure::{Exit, Failure};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names the library's file, where it lies somewhere else.
pub const VARIABLE: &str = "MUNINN_PRELOAD";
const NAME: &str = "libmuninn_preload.so";
/// Where it may be, seen from the binary's folder.
const PLACES: [&str; 4] = ["", "deps", "../lib/muninn", "../lib"];

pub fn find() -> Result<PathBuf, Failure> {
    let binary = std::env::current_exe()?;
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    find_for(&binary, named.as_deref())
}

fn find_for(binary: &Path, named: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let lacking = |message: String| Failure::new(Exit::Unsupported, message);
    let library = match named {
        Some(path) if Path::new(path).is_file() => PathBuf::from(path),
        Some(path) => {
            return Err(lacking(format!(
                "{VARIABLE} names {}, which is not a file: correct it, or unset it to have the \
                 library looked for beside the binary",
                path.display()
            )));
        }
        None => {
            let folder = binary.parent().unwrap_or(Path::new("/"));
            let places = PLACES.iter().map(|place| folder.join(place).join(NAME));
            // The newest: a build leaves one in deps/ and may leave an older one beside the binary.
            let built = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
            let newest = places.filter(|path| path.is_file()).max_by_key(built);
            newest.ok_or_else(|| {
                lacking(format!(
                    "{NAME}, the library that goes into programs, is not beside {}, nor in deps/ \
                     or ../lib/muninn/ there: build it ('cargo build --release --workspace'), or \
                     name the file in {VARIABLE}",
                    binary.display()
                ))
            })?
        }
    };
    let library = std::fs::canonicalize(library)?;
    // The loader takes these for the ends of names, and there is no way to quote them.
    if library
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :\t\n".contains(b))
    {
        return Err(lacking(format!(
            "the loader cannot be told of {}: its path has a space or a colon in it; copy the \
             library elsewhere and name it in {VARIABLE}",
            library.display()
        )));
    }
    Ok(library)
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
    fn it_is_found_beside_the_binary() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let binary = root.join("muninn");
        let refusal = |named: Option<&str>| {
            let failure = find_for(&binary, named.map(OsStr::new)).unwrap_err();
            assert_eq!(failure.exit, Exit::Unsupported);
            failure.message
        };
        assert_eq!(
            refusal(None),
            format!(
                "libmuninn_preload.so, the library that goes into programs, is not beside {}, nor \
                 in deps/ or ../lib/muninn/ there: build it ('cargo build --release \
                 --workspace'), or name the file in MUNINN_PRELOAD",
                binary.display()
            )
        );
        assert_eq!(
            refusal(Some("/not/there.so")),
            "MUNINN_PRELOAD names /not/there.so, which is not a file: correct it, or unset it to \
             have the library looked for beside the binary"
        );
        let deps = root.join("deps").join(NAME);
        std::fs::create_dir(root.join("deps")).unwrap();
        std::fs::write(&deps, "").unwrap();
        assert_eq!(find_for(&binary, None).unwrap(), deps);
        let beside = root.join(NAME);
        std::fs::write(&beside, "").unwrap();
        let built = |path: &Path, minute: u64| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(minute);
            file.set_modified(at).unwrap();
        };
        for (minute, newer) in [(1, &deps), (3, &beside)] {
            built(&deps, 2);
            built(&beside, minute);
            assert_eq!(&find_for(&binary, None).unwrap(), newer);
        }
        let odd = root.join("a b.so");
        std::fs::write(&odd, "").unwrap();
        assert_eq!(
            refusal(odd.to_str()),
            format!(
                "the loader cannot be told of {}: its path has a space or a colon in it; copy the \
                 library elsewhere and name it in MUNINN_PRELOAD",
                odd.display()
            )
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
