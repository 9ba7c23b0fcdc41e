//! Compiling a program, running it plainly and under `muninn run`, and comparing the two.

use crate::common::{Place, Served, place};
use crate::harness::{self, Ran, Run, Turn};
use crate::watcher::descendants;
use muninn_sys::signal::PidFd;
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Far more than any of the programs takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The limit at which most of the programs run; they touch 48 MiB.
pub const LOCAL: &str = "16MiB";

/// How a program meets far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Shm,
    Tcp,
    NoMove,
}

/// What a plain run printed, and its exit code (128 and the number of a signal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain {
    pub code: i32,
    pub out: String,
}

/// Prints why if there is no userfaultfd here, without which nothing of this can be tried.
pub fn cannot_run() -> bool {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let reason = REASON.get_or_init(|| {
        if std::fs::File::open("/dev/userfaultfd").is_ok() {
            return None;
        }
        // SAFETY: a flags word and nothing else; the descriptor is closed below.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Some(format!("no userfaultfd here: {error}"));
        }
        // SAFETY: just made, and of nobody else.
        unsafe { libc::close(fd as i32) };
        None
    });
    let reason = reason.as_deref().or_else(crate::known::reason);
    if let Some(reason) = reason {
        muninn_testing::skip(reason);
    }
    reason.is_some()
}

/// Prints why if the tests are not run by root.
pub fn not_root() -> bool {
    let other = muninn_sys::proc::own_uid() != 0;
    if other {
        println!("skipped: only root may become somebody else");
    }
    other
}

static BUILT: OnceLock<PathBuf> = OnceLock::new();

/// Where compiled programs are. Everybody may execute them: some become other users.
fn built() -> &'static Path {
    extern "C" fn remove() {
        if let Some(folder) = BUILT.get() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    BUILT.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("torture-").tempdir();
        let folder = folder.unwrap().keep();
        open_to_all(&folder);
        // SAFETY: the function takes and returns nothing, and lives as long as the program.
        unsafe { libc::atexit(remove) };
        folder
    })
}

fn open_to_all(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The program of this name, compiled when it is first asked for.
pub fn program(name: &str) -> String {
    static DONE: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut done = DONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(path) = done.get(name) {
        return path.clone();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture/programs");
    let path = built().join(name);
    let source = source.join(format!("{name}.c"));
    let text = std::fs::read_to_string(&source).unwrap();
    // A program may want to be compiled otherwise, and says so in its first line.
    let first = text.lines().next().unwrap_or_default();
    let flags = first.strip_prefix("// cc: ").unwrap_or_default();
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-pthread", "-o"])
        .arg(&path)
        .arg(&source)
        .args(flags.split_whitespace())
        .output()
        .expect("cc is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}.c: {said}");
    let path = path.to_str().expect("a plain path").to_string();
    done.insert(name.to_string(), path.clone());
    path
}

/// A folder in which also processes of other users may look around.
pub fn open_place() -> Place {
    let place = place();
    open_to_all(&place.path(""));
    place
}

/// Runs it without Muninn until the last process that holds its standard output has ended.
pub fn plainly(words: &[&str]) -> Plain {
    let place = open_place();
    let _turn = Turn::wait();
    let mut command = place.command_of(Path::new(words[0]), &words[1..]);
    command
        .env("TMPDIR", place.path(""))
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let (send, all) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        send.send(bytes)
    });
    let handle = PidFd::open(child.id() as i32).unwrap();
    let out = handle
        .wait_end(Some(PATIENCE))
        .unwrap()
        .then(|| all.recv_timeout(PATIENCE).ok())
        .flatten();
    let Some(out) = out else {
        let group = Pid::from_raw(child.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = child.wait();
        panic!("{words:?} hung in a plain run");
    };
    let status = child.wait().unwrap();
    Plain {
        code: (status.code()).unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        out: String::from_utf8_lossy(&out).into_owned(),
    }
}

/// As [`plainly`], once for all ways of one program. It must be right by itself.
fn plainly_once(words: &[&str]) -> Plain {
    static DONE: Mutex<BTreeMap<String, Plain>> = Mutex::new(BTreeMap::new());
    let key = words.join(" ");
    let lock = || DONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(plain) = lock().get(&key) {
        return plain.clone();
    }
    let plain = plainly(words);
    let right = plain.code == 0 && !plain.out.contains("WRONG");
    assert!(right, "{words:?} is wrong by itself: {plain:?}");
    lock().insert(key, plain.clone());
    plain
}

/// One program at one limit, and what is expected beside the same output and exit code.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub words: &'a [&'a str],
    pub local: &'a str,
    /// So many pages must have gone out at least.
    pub far: u64,
    pub patience: Duration,
    /// Without moves it may also be ended, if these words say why.
    pub refused: Option<&'a str>,
}

/// Waits for its end; one that hung is killed with all it started.
pub fn finish(run: Run, patience: Duration) -> Ran {
    let handle = PidFd::open(run.pid() as i32).unwrap();
    if !handle.wait_end(Some(patience)).unwrap() {
        let evidence = run.evidence();
        // Daemons are in groups of their own.
        for pid in descendants(run.pid() as i32) {
            let _ = PidFd::open(pid).and_then(|process| process.send(Signal::KILL));
        }
        panic!("it hung: it did not end within {patience:?}; {evidence}");
    }
    run.end()
}

impl<'a> Case<'a> {
    pub fn new(words: &'a [&'a str]) -> Case<'a> {
        Case {
            words,
            local: LOCAL,
            far: 1000,
            patience: PATIENCE,
            refused: None,
        }
    }

    /// What a plain run does; prints so if this machine lacks what the program is about.
    pub fn plainly(&self) -> Plain {
        let plain = plainly_once(self.words);
        if plain.out.starts_with("none: ") {
            println!("skipped: {}", plain.out.trim());
        }
        plain
    }

    /// Runs it both ways; how it went with far memory. On a machine so busy that the program was over
    /// before much went out it runs again: what it said must be right each time.
    pub fn same(&self, way: Way) -> Ran {
        for _ in 0..2 {
            let ran = self.same_once(way);
            if ran.code != 0 || ran.counter("evicted") >= self.far {
                return ran;
            }
        }
        let ran = self.same_once(way);
        self.assert_far(&ran);
        ran
    }

    fn same_once(&self, way: Way) -> Ran {
        let plain = self.plainly();
        let place = open_place();
        // Three hundred children may all have extents of their own.
        // On two CPUs who has no turn for seconds is not dead.
        let options = ["--memory", "4GiB", "--lease", "30s", "--insecure"];
        let server = (way == Way::Tcp).then(|| place.serve(&options));
        let pool = server.as_ref().map(Served::tcp);
        let mut options = vec!["--local", self.local];
        options.extend(pool.iter().flat_map(|pool| ["--pool", pool.as_str()]));
        options.extend((way == Way::NoMove).then_some("--no-move"));
        let ran = finish(harness::start(&place, &options, self.words), self.patience);
        if way == Way::NoMove && self.refused.is_some_and(|why| ran.err.contains(why)) {
            assert_ne!(ran.code, 0, "{ran:#?}");
            return ran;
        }
        self.compare_words(&plain, &ran);
        ran
    }

    pub fn compare(&self, plain: &Plain, ran: &Ran) {
        self.compare_words(plain, ran);
        self.assert_far(ran);
    }

    pub fn compare_words(&self, plain: &Plain, ran: &Ran) {
        let words = self.words;
        assert_eq!(ran.out, plain.out, "{words:?} said another thing: {ran:#?}");
        assert_eq!(ran.code, plain.code, "{words:?} ended otherwise: {ran:#?}");
    }

    fn assert_far(&self, ran: &Ran) {
        let (words, far) = (self.words, ran.counter("evicted"));
        assert!(
            far >= self.far || ran.out.starts_with("none: "),
            "{words:?}: only {far} pages went out: {ran:#?}"
        );
    }
}

/// A test for each way of each program: `name: [PROGRAM, ARGUMENTS…] unless SKIPPED, FIELD = VALUE;`.
macro_rules! both {
    ($($(#[$note:meta])* $name:ident: [$program:literal $(, $word:literal)*]
       $(unless $unless:path)? $(, $field:ident = $value:expr)*;)+) => {
        $($(#[$note])* mod $name {
            #[allow(unused_imports)]
            use super::*;
            fn run(way: $crate::both::Way) {
                if $crate::both::cannot_run() $(|| $unless())? {
                    return;
                }
                let program = $crate::both::program($program);
                let words = [program.as_str() $(, $word)*];
                #[allow(unused_mut)]
                let mut case = $crate::both::Case::new(&words);
                $(case.$field = $value;)*
                case.same(way);
            }
            #[test]
            fn shm() {
                run($crate::both::Way::Shm);
            }
            #[test]
            fn tcp() {
                run($crate::both::Way::Tcp);
            }
            #[test]
            fn no_move() {
                run($crate::both::Way::NoMove);
            }
        })+
    };
}
