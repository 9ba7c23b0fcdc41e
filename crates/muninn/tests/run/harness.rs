//! Starting `muninn run`, waiting for it without waiting for ever, and saying what hung if it did.

use crate::common::{BINARY, Place, Served};
use muninn_job::{Job, Snapshot};
use muninn_sys::signal::PidFd;
use muninn_testing::skip;
use muninn_types::Bytes;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Far more than anything here takes, on a slow machine with other work to do.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The limit at which most tests run, and the memory that they touch.
pub const LOCAL: &str = "16MiB";
pub const SIZE: &str = "64MiB";

/// Long forms are wanted.
pub fn full() -> bool {
    std::env::var_os("MUNINN_TEST_FULL").is_some_and(|value| value == "1")
}

/// Whether this kernel, or this user's rights, give no userfaultfd: counted as a skip of the test that
/// asks. That `muninn run` fails for another reason is for the test to find.
pub fn cannot_run() -> bool {
    !crate::common::far_memory_possible()
}

/// The first of these that is installed; prints which are missing if none is.
pub fn program(names: &[&'static str]) -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let there = |name: &&&str| {
        Path::new(name).is_absolute() && Path::new(name).exists()
            || folders.iter().any(|folder| folder.join(name).is_file())
    };
    let found = names.iter().find(there);
    if found.is_none() {
        skip(format!("none of {names:?} is installed"));
    }
    found.copied()
}

/// The checker, built if the tests are run without the examples.
pub fn checker() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = Path::new(BINARY).parent().expect("a binary is in a folder");
        let path = folder.join("examples/checker");
        if !path.exists() {
            let target = folder.parent().expect("profiles are in the target folder");
            let status = Command::new(env!("CARGO"))
                .args(["build", "--example", "checker", "--manifest-path"])
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
                .env("CARGO_TARGET_DIR", target)
                .status()
                .unwrap();
            assert!(status.success(), "the checker could not be built");
        }
        path.to_str().expect("a plain path").to_string()
    })
}

/// Programs that run at a time.
const TURNS_ALL: u32 = 2;
static TURNS: Mutex<u32> = Mutex::new(TURNS_ALL);
static TURN_FREE: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, u32> {
    TURNS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A permission to have a program run: so many of all turns.
pub struct Turn(u32);

impl Turn {
    pub fn wait() -> Turn {
        Turn::take(1)
    }

    /// Once no other program of these tests runs: for what is to be seen on a machine with a CPU to spare.
    pub fn alone() -> Turn {
        Turn::take(TURNS_ALL)
    }

    fn take(turns_taken: u32) -> Turn {
        let mut free = turns();
        while *free < turns_taken {
            free = TURN_FREE
                .wait(free)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *free -= turns_taken;
        Turn(turns_taken)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *turns() += self.0;
        TURN_FREE.notify_all();
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ran {
    /// 128 and the number, if a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// What `--json` wrote.
    pub report: Value,
}

impl Ran {
    pub fn counter(&self, name: &str) -> u64 {
        self.report["counters"][name].as_u64().unwrap_or(0)
    }

    /// Much of its memory was far at some time.
    pub fn went_far(&self) -> bool {
        self.counter("evicted") > 1000
    }

    /// Ended well, and much of its memory was far.
    pub fn assert_good_and_far(&self) {
        assert_eq!(self.code, 0, "{self:#?}");
        assert!(self.went_far(), "nothing went far: {self:#?}");
    }
}

/// A program under `muninn run`, in a group of processes of its own.
pub struct Run {
    child: Child,
    handle: PidFd,
    dir: PathBuf,
    name: String,
    ended: bool,
    _turn: Turn,
}

/// Starts `muninn run OPTIONS -- WORDS`.
pub fn start(place: &Place, options: &[&str], words: &[&str]) -> Run {
    start_in(Turn::wait(), place, options, words)
}

/// The same with a turn that was waited for.
pub fn start_in(turn: Turn, place: &Place, options: &[&str], words: &[&str]) -> Run {
    let name = format!("run-{:08x}", muninn_sys::rand::u64() as u32);
    let file = |kind: &str| place.path(&format!("{name}.{kind}"));
    let json = file("json");
    let mut args = vec!["run", "--json", json.to_str().unwrap()];
    args.extend(options);
    args.push("--");
    args.extend(words);
    let mut command = place.command(&args);
    command
        .stdout(std::fs::File::create(file("out")).unwrap())
        .stderr(std::fs::File::create(file("err")).unwrap())
        .env("XDG_STATE_HOME", place.path(""))
        .env("TMPDIR", place.path(""))
        .process_group(0);
    // SAFETY: a plain call between fork and exec. Shells let what they start in the background ignore it.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    Run {
        handle: PidFd::open(child.id() as i32).unwrap(),
        child,
        dir: place.path(""),
        name,
        ended: false,
        _turn: turn,
    }
}

/// How often a program is tried that was done before the runtime had a chance: on a machine with
/// other work to do, one that lives for a fraction of a second may never meet it.
pub const ATTEMPTS: usize = 8;

/// Runs it until much of its memory was far, or it failed; the last of [`ATTEMPTS`] in any case.
pub fn run_far(place: &Place, options: &[&str], words: &[&str]) -> Ran {
    let mut ran = run(place, options, words);
    for _ in 1..ATTEMPTS {
        if ran.code != 0 || ran.went_far() {
            break;
        }
        ran = run(place, options, words);
    }
    ran
}

/// Runs `muninn run OPTIONS -- WORDS` to its end.
pub fn run(place: &Place, options: &[&str], words: &[&str]) -> Ran {
    start(place, options, words).end()
}

impl Run {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        self.handle.send(signal).unwrap();
    }

    /// To the launcher and to everybody in its group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        let group = Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process_group(group, signal).unwrap();
    }

    pub fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }

    fn file(&self, kind: &str) -> String {
        let bytes = std::fs::read(self.dir.join(format!("{}.{kind}", self.name)));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    pub fn out(&self) -> String {
        self.file("out")
    }

    pub fn err(&self) -> String {
        self.file("err")
    }

    /// The job's page, once the launcher has made it.
    pub fn job(&self) -> Job {
        let folder = self
            .dir
            .join(format!("muninn-{}", muninn_sys::proc::own_uid()));
        let find = || {
            let files = std::fs::read_dir(&folder).ok()?;
            let mut jobs = files
                .flatten()
                .filter_map(|file| Job::open(file.path()).ok());
            jobs.find(|job| job.launcher().is_some_and(|who| who.pid() == self.pid()))
        };
        let mut job = None;
        self.until("the launcher makes its page", || {
            job = find();
            job.is_some()
        });
        job.expect("just found")
    }

    /// Waits until this much has gone far; what was counted by then.
    pub fn until_far(&self, pages: u64) -> Snapshot {
        let job = self.job();
        self.until("pages go far", || job.total().evicted >= pages);
        job.total()
    }

    /// The processes in which the runtime is.
    pub fn programs(&self) -> Vec<u32> {
        let places = self.job().places().collect::<Vec<_>>();
        let alive = places.iter().filter(|place| place.is_alive());
        alive.map(|place| place.pid()).collect()
    }

    /// Waits for something while the program runs.
    pub fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let start = Instant::now();
        while !happened() {
            if !self.is_alive() {
                panic!("it ended before {what}: {}{}", self.out(), self.err());
            }
            if start.elapsed() > PATIENCE {
                panic!("{what}: not within {PATIENCE:?}; {}", self.evidence());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it has ended by itself.
    pub fn end(mut self) -> Ran {
        // The long forms work for two minutes, and then look at everything once more.
        let patience = PATIENCE * if full() { 4 } else { 1 };
        if !self.handle.wait_end(Some(patience)).unwrap() {
            let evidence = self.evidence();
            panic!("it did not end within {patience:?}; {evidence}");
        }
        self.ended = true;
        let status = self.child.wait().unwrap();
        let code = status.code();
        let report = serde_json::from_str(&self.file("json")).unwrap_or(Value::Null);
        Ran {
            code: code.unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: self.out(),
            err: self.err(),
            report,
        }
    }

    /// What every thread of every process waits for: the first thing one wants to know of a hang.
    pub fn evidence(&self) -> String {
        let mut text = format!("stdout: {}stderr: {}", self.out(), self.err());
        let group = self.child.id().to_string();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| std::fs::read_to_string(process.path().join(name));
            let Ok(stat) = read("stat") else { continue };
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
            if fields.get(3) != Some(&group.as_str()) {
                continue;
            }
            let line = read("cmdline").unwrap_or_default().replace('\0', " ");
            text += &format!(
                "\nprocess {}: {line}",
                process.file_name().to_string_lossy()
            );
            for task in std::fs::read_dir(process.path().join("task"))
                .into_iter()
                .flatten()
            {
                let Ok(task) = task else { continue };
                let read = |name: &str| {
                    std::fs::read_to_string(task.path().join(name)).unwrap_or_default()
                };
                let state = read("stat");
                let state = state
                    .rsplit(')')
                    .next()
                    .unwrap_or("")
                    .get(..2)
                    .unwrap_or("");
                let stack = read("stack").replace('\n', "; ");
                text += &format!(
                    "\n  {} {}{state} {} {stack}",
                    task.file_name().to_string_lossy(),
                    read("comm").trim(),
                    read("syscall").split(' ').next().unwrap_or("").trim(),
                );
            }
        }
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            // Of a test that failed: nobody of the group may stay.
            self.signal_group_quietly();
            let _ = self.child.wait();
        }
    }
}

impl Run {
    fn signal_group_quietly(&self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command without Muninn, which must end well; what it printed.
pub fn plainly(place: &Place, words: &[&str]) -> String {
    let _turn = Turn::wait();
    let mut command = place.command_of(Path::new(words[0]), &words[1..]);
    command
        .env("TMPDIR", place.path(""))
        .stderr(Stdio::inherit());
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{words:?} ended with {}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server for tests, with a short lease so that the dead are soon forgotten.
pub fn serve(place: &Place, memory: &str) -> Served {
    place.serve(&["--memory", memory, "--lease", "3s", "--insecure"])
}

/// What clients hold of a server's memory.
pub fn held(place: &Place, server: &Served) -> Bytes {
    let ended = place.run(&["status", "--pool", &server.tcp(), "--json"]);
    let report: Value = serde_json::from_str(&ended.out).unwrap_or(Value::Null);
    let granted = &report["servers"][0]["granted_bytes"];
    Bytes(
        granted
            .as_u64()
            .unwrap_or_else(|| panic!("no status: {ended:?}")),
    )
}

/// Waits until a server has all of its memory back.
pub fn until_returned(place: &Place, server: &Served) {
    let start = Instant::now();
    loop {
        let still = held(place, server);
        if still == Bytes::ZERO {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{still} are still held");
        std::thread::sleep(Duration::from_millis(100));
    }
}
