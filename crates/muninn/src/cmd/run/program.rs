//! Which file a command names, and whether Muninn can be put into it.
//!
//! Everything that would only show later, as a program that runs without far memory or does not
//! start at all, is found before anything is started. Known limit: what a program executes itself is
//! not looked at; a static or setuid program that it starts runs without far memory.

use super::elf::{Image, inspect};
use crate::failure::{Exit, Failure};
use muninn_sys::proc;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A script may be run by a script, this often; the kernel's own bound.
const SCRIPTS_MAX: usize = 4;

/// Why a command cannot be run with far memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "there is no program '{0}' in the folders of PATH: check the spelling, or give its path \
         (such as ./{0})"
    )]
    NotInPath(String),
    #[error("there is no program {0}: check the path")]
    NotThere(String),
    #[error("{0} is a folder or a device, not a program")]
    NotAFile(String),
    #[error("{0} may not be executed: if it is a program, 'chmod +x {0}' allows it")]
    NotExecutable(String),
    #[error("cannot read {0}: {1}; Muninn looks into programs before it starts them")]
    Unreadable(String, String),
    #[error("{0} is neither a program nor a script with a first line such as #!/bin/sh")]
    Unknown(String),
    #[error(
        "{0} is a static binary: it loads no libraries, so Muninn cannot be put into it; use a \
         build of it that is linked dynamically, with glibc"
    )]
    Static(String),
    #[error(
        "{0} is linked with musl ({1}), and Muninn's library needs glibc: use a build of it for glibc"
    )]
    Musl(String, String),
    #[error("{0} is a program for {1}: Muninn runs programs for x86-64, so use such a build of it")]
    Foreign(String, String),
    #[error("{0} needs the loader {1}, which is not there: install it (the system's C library)")]
    NoLoader(String, String),
    #[error(
        "{0} gets other rights when it starts ({1}), and then no library can be put into it: run \
         'muninn run' as the user that has these rights, or use a copy of the program without them"
    )]
    Privileged(String, &'static str),
    #[error(
        "{0} is a script for {1}, which is not there: install it, or correct the script's first line"
    )]
    NoInterpreter(String, String),
    #[error("{0} is a script, and what runs it will not do: {1}")]
    Interpreter(String, Box<Refusal>),
    #[error("{0} is a script that is run by a script, and so on: the kernel goes no further")]
    TooDeep(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let exit = match refusal {
            Refusal::NotInPath(_) | Refusal::NotThere(_) => Exit::NotFound,
            Refusal::NotExecutable(_) | Refusal::NotAFile(_) | Refusal::Unknown(_) => {
                Exit::CannotExecute
            }
            _ => Exit::Unsupported,
        };
        Failure::new(exit, refusal)
    }
}

/// The file that a command names, if it can run with far memory.
pub fn find(command: &OsStr) -> Result<PathBuf, Refusal> {
    find_in(command, std::env::var_os("PATH"))
}

fn find_in(command: &OsStr, path: Option<OsString>) -> Result<PathBuf, Refusal> {
    let program = if command.as_bytes().contains(&b'/') {
        PathBuf::from(command)
    } else {
        look_up(command, path)?
    };
    check(&program, 0)?;
    Ok(program)
}

/// The first that can be executed in the folders of PATH.
fn look_up(command: &OsStr, path: Option<OsString>) -> Result<PathBuf, Refusal> {
    let path = path.unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let mut found = std::env::split_paths(&path).map(|dir| match dir.as_os_str().is_empty() {
        true => Path::new(".").join(command),
        false => dir.join(command),
    });
    let usable = |path: &PathBuf| path.is_file() && may_execute(path);
    let missing = || Refusal::NotInPath(command.to_string_lossy().into_owned());
    if command.is_empty() {
        return Err(missing());
    }
    found.find(usable).ok_or_else(missing)
}

fn may_execute(path: &Path) -> bool {
    muninn_sys::files::may_execute(path)
}

fn check(path: &Path, depth: usize) -> Result<(), Refusal> {
    let shown = || path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Refusal::NotThere(shown())
        }
        _ => Refusal::Unreadable(shown(), error.to_string()),
    })?;
    if !metadata.is_file() {
        return Err(Refusal::NotAFile(shown()));
    }
    if !may_execute(path) {
        return Err(Refusal::NotExecutable(shown()));
    }
    let unreadable = |error: std::io::Error| Refusal::Unreadable(shown(), error.to_string());
    let file = File::open(path).map_err(unreadable)?;
    match inspect(&file).map_err(unreadable)? {
        Image::Unknown => Err(Refusal::Unknown(shown())),
        Image::Static => Err(Refusal::Static(shown())),
        Image::Foreign(machine) => Err(Refusal::Foreign(shown(), machine.to_string())),
        Image::Script { interpreter } => check_script(path, &interpreter, depth),
        Image::Dynamic { loader } if loader.contains("ld-musl") => {
            Err(Refusal::Musl(shown(), loader))
        }
        Image::Dynamic { loader } if !Path::new(&loader).exists() => {
            Err(Refusal::NoLoader(shown(), loader))
        }
        Image::Dynamic { .. } => {
            let rights = Rights::of(&metadata, muninn_sys::files::has_capabilities(path));
            match rights.gained(proc::own_uid(), proc::own_gid()) {
                Some(how) => Err(Refusal::Privileged(shown(), how)),
                None => Ok(()),
            }
        }
    }
}

fn check_script(script: &Path, interpreter: &str, depth: usize) -> Result<(), Refusal> {
    let shown = script.display().to_string();
    if depth >= SCRIPTS_MAX {
        return Err(Refusal::TooDeep(shown));
    }
    match check(Path::new(interpreter), depth + 1) {
        Ok(()) => Ok(()),
        Err(Refusal::NotThere(_)) => Err(Refusal::NoInterpreter(shown, interpreter.to_string())),
        Err(Refusal::TooDeep(_)) => Err(Refusal::TooDeep(shown)),
        Err(other) => Err(Refusal::Interpreter(shown, Box::new(other))),
    }
}

/// What a file gives to whoever executes it.
#[derive(Clone, Copy, Debug)]
struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
    capabilities: bool,
}

impl Rights {
    fn of(metadata: &Metadata, capabilities: bool) -> Rights {
        Rights {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            capabilities,
        }
    }

    /// How a user gains rights that make the loader careful; as the kernel decides it.
    fn gained(self, uid: u32, gid: u32) -> Option<&'static str> {
        if self.mode & 0o4000 != 0 && self.uid != uid {
            return Some("setuid");
        }
        // Without the right to execute for its group, the bit means something else.
        if self.mode & 0o2010 == 0o2010 && self.gid != gid {
            return Some("setgid");
        }
        // Root has them all already.
        (self.capabilities && uid != 0).then_some("file capabilities")
    }
}

#[cfg(test)]
mod tests {
    use super::super::elf::samples::elf;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn file(&self, name: &str, contents: &[u8], mode: u32) -> String {
            let path = self.0.path().join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path.display().to_string()
        }
    }

    fn folder() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn refusal(command: &str) -> String {
        find(OsStr::new(command)).unwrap_err().to_string()
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let sh = find(OsStr::new("sh")).unwrap();
        assert!(sh.ends_with("sh") && sh.is_absolute());
        assert_eq!(
            refusal("no-such-program"),
            "there is no program 'no-such-program' in the folders of PATH: check the spelling, or \
             give its path (such as ./no-such-program)"
        );
        assert!(matches!(find(OsStr::new("")), Err(Refusal::NotInPath(_))));
        let folder = folder();
        let shell = sh.display().to_string();
        let script = folder.file("tool", format!("#!{shell}\n").as_bytes(), 0o755);
        let path = Some(folder.0.path().as_os_str().to_os_string());
        let found = find_in(OsStr::new("tool"), path).unwrap();
        assert_eq!(found, Path::new(&script));
    }

    #[test]
    fn what_cannot_run_is_said_word_for_word() {
        let folder = folder();
        let missing = folder.0.path().join("gone").display().to_string();
        assert_eq!(
            refusal(&missing),
            format!("there is no program {missing}: check the path")
        );
        let dir = folder.0.path().display().to_string();
        assert_eq!(
            refusal(&dir),
            format!("{dir} is a folder or a device, not a program")
        );
        let plain = folder.file("plain", b"#!/bin/sh\n", 0o644);
        assert_eq!(
            refusal(&plain),
            format!(
                "{plain} may not be executed: if it is a program, 'chmod +x {plain}' allows it"
            )
        );
        let text = folder.file("text", b"echo hello\n", 0o755);
        assert_eq!(
            refusal(&text),
            format!("{text} is neither a program nor a script with a first line such as #!/bin/sh")
        );
        let fixed = folder.file("static", &elf(2, 62, None), 0o755);
        let is_static = format!(
            "{fixed} is a static binary: it loads no libraries, so Muninn cannot be put into it; \
             use a build of it that is linked dynamically, with glibc"
        );
        assert_eq!(refusal(&fixed), is_static);
        let old = folder.file("old", &elf(1, 3, Some("/lib/ld-linux.so.2")), 0o755);
        assert_eq!(
            refusal(&old),
            format!(
                "{old} is a program for 32-bit x86: Muninn runs programs for x86-64, so use such a \
                 build of it"
            )
        );
        let musl = folder.file("musl", &elf(2, 62, Some("/lib/ld-musl-x86_64.so.1")), 0o755);
        assert_eq!(
            refusal(&musl),
            format!(
                "{musl} is linked with musl (/lib/ld-musl-x86_64.so.1), and Muninn's library needs \
                 glibc: use a build of it for glibc"
            )
        );
        let lost = folder.file("lost", &elf(2, 62, Some("/lib/no-loader")), 0o755);
        assert_eq!(
            refusal(&lost),
            format!(
                "{lost} needs the loader /lib/no-loader, which is not there: install it (the \
                 system's C library)"
            )
        );
        let script = folder.file("script", b"#!/opt/no/such/shell -e\n", 0o755);
        assert_eq!(
            refusal(&script),
            format!(
                "{script} is a script for /opt/no/such/shell, which is not there: install it, or \
                 correct the script's first line"
            )
        );
        let by_static = folder.file("by-static", format!("#!{fixed}\n").as_bytes(), 0o755);
        assert_eq!(
            refusal(&by_static),
            format!("{by_static} is a script, and what runs it will not do: {is_static}")
        );
        let itself = folder.0.path().join("itself").display().to_string();
        folder.file("itself", format!("#!{itself}\n").as_bytes(), 0o755);
        assert_eq!(
            refusal(&itself),
            format!(
                "{itself} is a script that is run by a script, and so on: the kernel goes no \
                 further"
            )
        );
    }

    #[test]
    fn gained_rights_are_recognised_as_the_kernel_does() {
        let rights = |mode, capabilities| Rights {
            mode,
            uid: 0,
            gid: 5,
            capabilities,
        };
        assert_eq!(rights(0o755, false).gained(1000, 1000), None);
        assert_eq!(rights(0o4755, false).gained(1000, 1000), Some("setuid"));
        assert_eq!(rights(0o4755, false).gained(0, 0), None);
        assert_eq!(rights(0o2755, false).gained(1000, 1000), Some("setgid"));
        assert_eq!(rights(0o2745, false).gained(1000, 1000), None);
        assert_eq!(rights(0o2755, false).gained(0, 5), None);
        assert_eq!(
            rights(0o755, true).gained(1000, 1000),
            Some("file capabilities")
        );
        assert_eq!(rights(0o755, true).gained(0, 0), None);
        assert_eq!(
            Refusal::Privileged("/bin/su".to_string(), "setuid").to_string(),
            "/bin/su gets other rights when it starts (setuid), and then no library can be put into \
             it: run 'muninn run' as the user that has these rights, or use a copy of the program \
             without them"
        );
    }
}
