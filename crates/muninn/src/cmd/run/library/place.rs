//! Where the library is kept as a file, and why nobody else can put his own in its place.
//!
//! Whoever can exchange the file runs code in all of this user's programs. So: the folder and all above it
//! are this user's or root's and nobody else may write there, the file is this user's, of one name and no
//! link, and it is compared with the library in this binary, byte by byte, before each run. A place where
//! any of this does not hold is passed over, whoever prepared it so.

use super::loadable;
use muninn_sys::files;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

/// Libraries of other versions go when they were not used for so long.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const PREFIX: &str = "libmuninn_preload-";
/// Folders of all users, in which each makes one of his own.
const SHARED: [&str; 3] = ["/var/tmp", "/tmp", "/dev/shm"];
/// Where root keeps it: programs of root become other users, who must reach it.
const OF_ROOT: &str = "/var/cache/muninn";

/// A folder that may become one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
    owner: u32,
}

/// The places of a user, the best first.
pub fn all(owner: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<Place> {
    let named = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let of_root = (owner == 0).then(|| PathBuf::from(OF_ROOT));
    let home = named("HOME").map(|home| home.join(".cache"));
    let own = [named("XDG_CACHE_HOME"), home, named("XDG_RUNTIME_DIR")];
    let own = own
        .into_iter()
        .flatten()
        .map(|folder| folder.join("muninn"));
    let shared = SHARED.map(|folder| PathBuf::from(format!("{folder}/muninn-library-{owner}")));
    let folders = of_root.into_iter().chain(own).chain(shared);
    folders.map(|folder| Place { folder, owner }).collect()
}

/// The one that a package has put beside this binary, if it is the same.
pub fn installed(path: &Path, library: &[u8]) -> Result<PathBuf, String> {
    let path = path.canonicalize().map_err(text)?;
    let file = files::open_found(&path).map_err(text)?;
    if let Some(why) = files::distrusted(&path, &file) {
        return Err(why);
    }
    check(&path, &file, library)?;
    Ok(path)
}

impl Place {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The library's file here, made if there is none, or why there can be none.
    pub fn keep(&self, library: &[u8]) -> Result<PathBuf, String> {
        if library.is_empty() {
            return Err("this binary has no library in it: build it with cargo".to_string());
        }
        self.make_folder()?;
        let name = format!("{PREFIX}{:016x}.so", xxh3_64(library));
        let path = self.folder.canonicalize().map_err(text)?.join(name);
        let kept = self.usable(&path, library);
        if kept.is_ok() {
            return kept;
        }
        self.write(&path, library)?;
        self.forget_old(&path);
        self.usable(&path, library)
    }

    fn make_folder(&self) -> Result<(), String> {
        let mode = if self.owner == 0 { 0o755 } else { 0o700 };
        let above = self.folder.parent().unwrap_or(Path::new("/"));
        // A cache folder may not be there yet; what is above it is for others to make.
        for (folder, mode) in [(above, 0o700), (&self.folder, mode)] {
            match DirBuilder::new().mode(mode).create(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(text(error)),
                _ => {}
            }
        }
        let about = self.folder.symlink_metadata().map_err(text)?;
        if !about.is_dir() {
            return Err("it is not a folder".to_string());
        }
        if about.uid() != self.owner {
            return Err(format!("it belongs to another user (uid {})", about.uid()));
        }
        Ok(())
    }

    /// Whether what lies there is the library, and will be until the loader has it.
    fn usable(&self, path: &Path, library: &[u8]) -> Result<PathBuf, String> {
        let file = files::open_plain(path, self.owner, false).map_err(text)?;
        let about = file.metadata().map_err(text)?;
        if about.mode() & 0o022 != 0 {
            return Err("others may write to the file there".to_string());
        }
        check(path, &file, library)?;
        // So that it is not taken for one that nobody uses; that it may fail costs a copy in a month.
        let _ = file.set_modified(SystemTime::now());
        Ok(path.to_path_buf())
    }

    /// In one step: whoever looks meanwhile sees all of it or nothing.
    fn write(&self, path: &Path, library: &[u8]) -> Result<(), String> {
        let number = muninn_sys::rand::u64();
        let begun = path.with_extension(format!("{number:016x}.new"));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&begun)
            .and_then(|mut file| {
                file.write_all(library)?;
                // Whatever the mask of this user is: what root's programs become must read it.
                file.set_permissions(Permissions::from_mode(0o555))
            })
            .and_then(|()| std::fs::rename(&begun, path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&begun);
            text(error)
        })
    }

    fn forget_old(&self, keep: &Path) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let unused = entry.metadata().and_then(|about| about.modified());
            let unused = unused.ok().and_then(|used| used.elapsed().ok());
            let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
            if ours && entry.path() != keep && unused.is_some_and(|time| time > UNUSED_MAX) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// What must hold of a file that the loader is told of, whoever's it is.
fn check(path: &Path, file: &File, library: &[u8]) -> Result<(), String> {
    if !loadable(path) {
        return Err("its path has a space, a colon or a dollar sign in it".to_string());
    }
    if let Some(why) = files::exchangeable(path.parent().unwrap_or(Path::new("/"))) {
        return Err(why);
    }
    if file.metadata().map_err(text)?.len() != library.len() as u64 {
        return Err("another library lies there".to_string());
    }
    let mut contents = Vec::with_capacity(library.len() + 1);
    let mut part = file.take(library.len() as u64 + 1);
    part.read_to_end(&mut contents).map_err(text)?;
    if contents != library {
        return Err("another library lies there".to_string());
    }
    files::may_map_code(file).map_err(|error| format!("code cannot be loaded from there: {error}"))
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    fn own() -> u32 {
        muninn_sys::proc::own_uid()
    }

    /// A folder that only this user may write to.
    fn root() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        (dir, root)
    }

    fn place(folder: PathBuf) -> Place {
        Place {
            folder,
            owner: own(),
        }
    }

    const LIBRARY: &[u8] = b"\x7fELF, as it were";

    #[test]
    fn it_is_written_once_and_used_again() {
        let (_dir, root) = root();
        let place = place(root.join("cache/muninn"));
        let path = place.keep(LIBRARY).unwrap();
        let about = path.metadata().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        assert_eq!(about.mode() & 0o7777, 0o555);
        assert_eq!(place.keep(LIBRARY).unwrap(), path);
        assert_eq!(path.metadata().unwrap().ino(), about.ino(), "the same file");
        let newer = place.keep(b"a newer one").unwrap();
        assert_ne!(newer, path, "beside each other");
        assert!(path.exists());
        // Used a long time ago: it goes when another is written.
        let old = SystemTime::now() - UNUSED_MAX - Duration::from_secs(60);
        File::open(&path).unwrap().set_modified(old).unwrap();
        place.keep(b"the newest one").unwrap();
        assert!(!path.exists());
        let left = std::fs::read_dir(&place.folder).unwrap().count();
        assert_eq!(left, 2, "nothing that was begun only");
    }

    #[test]
    fn what_was_put_there_is_never_used() {
        let (_dir, root) = root();
        let good = place(root.join("one")).keep(LIBRARY).unwrap();
        let name = good.file_name().unwrap();
        let planted = |folder: &str, plant: &dyn Fn(&Path)| {
            let place = place(root.join(folder));
            std::fs::create_dir(&place.folder).unwrap();
            plant(&place.folder.join(name));
            let path = place.keep(LIBRARY).unwrap();
            let about = path.symlink_metadata().unwrap();
            assert!(about.is_file(), "{folder}");
            assert_eq!((about.nlink(), about.uid()), (1, own()), "{folder}");
            assert_eq!(about.mode() & 0o022, 0, "{folder}");
            assert_eq!(std::fs::read(path).unwrap(), LIBRARY, "{folder}");
        };
        let evil = root.join("evil.so");
        std::fs::write(&evil, b"\x7fELF, not as it ").unwrap();
        assert_eq!(evil.metadata().unwrap().len(), LIBRARY.len() as u64);
        planted("contents", &|path| std::fs::write(path, b"evil").unwrap());
        planted("same-length", &|path| {
            _ = std::fs::copy(&evil, path).unwrap()
        });
        planted("link", &|path| symlink(&evil, path).unwrap());
        planted("link-to-good", &|path| symlink(&good, path).unwrap());
        planted("dangling", &|path| symlink("/not/there", path).unwrap());
        planted("second-name", &|path| {
            std::fs::hard_link(&good, path).unwrap()
        });
        planted("writable", &|path| {
            std::fs::write(path, LIBRARY).unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        });
        if own() == 0 {
            planted("somebody-else's", &|path| {
                std::fs::write(path, LIBRARY).unwrap();
                chown(path, Some(1), None).unwrap();
            });
        }
        assert_eq!(
            std::fs::read(&evil).unwrap(),
            b"\x7fELF, not as it ",
            "links are not written through"
        );
    }

    #[test]
    fn folders_that_others_can_change_are_passed_over() {
        let (_dir, root) = root();
        let refusal = |place: &Place| place.keep(LIBRARY).unwrap_err();
        let open = place(root.join("open"));
        std::fs::create_dir(&open.folder).unwrap();
        std::fs::set_permissions(&open.folder, Permissions::from_mode(0o777)).unwrap();
        let said = format!("others may write to {} (mode 0777)", open.folder.display());
        assert_eq!(refusal(&open), said);
        let linked = place(root.join("linked"));
        std::fs::create_dir(root.join("real")).unwrap();
        symlink(root.join("real"), &linked.folder).unwrap();
        assert_eq!(refusal(&linked), "it is not a folder");
        let file = place(root.join("file"));
        std::fs::write(&file.folder, "").unwrap();
        assert_eq!(refusal(&file), "it is not a folder");
        let far = place(root.join("not/there/muninn"));
        assert_eq!(refusal(&far), "No such file or directory (os error 2)");
        let odd = place(root.join("a b"));
        assert_eq!(
            refusal(&odd),
            "its path has a space, a colon or a dollar sign in it"
        );
        if own() == 0 {
            let strange = place(root.join("strange"));
            std::fs::create_dir(&strange.folder).unwrap();
            chown(&strange.folder, Some(1), None).unwrap();
            assert_eq!(refusal(&strange), "it belongs to another user (uid 1)");
        }
    }

    #[test]
    fn a_package_s_own_is_used_if_it_is_the_same() {
        let (_dir, root) = root();
        let path = root.join("libmuninn_preload.so");
        assert!(installed(&path, LIBRARY).is_err(), "there is none");
        std::fs::write(&path, LIBRARY).unwrap();
        assert_eq!(installed(&path, LIBRARY).unwrap(), path);
        assert_eq!(
            installed(&path, b"\x7fELF, not as it ").unwrap_err(),
            "another library lies there"
        );
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(
            installed(&path, LIBRARY)
                .unwrap_err()
                .starts_with("others may write")
        );
    }

    #[test]
    fn places_come_from_what_the_user_says() {
        let folders = |owner: u32, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let places = all(owner, variable);
            places
                .iter()
                .map(|place| place.folder.display().to_string())
                .collect::<Vec<_>>()
        };
        let shared = [
            "/var/tmp/muninn-library-1000",
            "/tmp/muninn-library-1000",
            "/dev/shm/muninn-library-1000",
        ];
        assert_eq!(folders(1000, &[]), shared);
        let relative = [("HOME", "home"), ("XDG_CACHE_HOME", "")];
        assert_eq!(folders(1000, &relative), shared);
        let named = [("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(
            folders(1000, &named)[..2],
            ["/home/u/.cache/muninn", "/run/user/1000/muninn"]
        );
        assert_eq!(
            folders(0, &named)[..2],
            ["/var/cache/muninn", "/home/u/.cache/muninn"]
        );
    }
}
