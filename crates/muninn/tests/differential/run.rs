//! One program, plainly and with far memory, and whether anybody can tell the difference.

use crate::common::{Place, Served, place};
use crate::plan::{Over, Plan, fuzz_run};
use crate::progress;
use muninn_sys::signal::PidFd;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fmt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::time::Duration;

/// A plain run takes less than a second; after that, whoever does nothing hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Lines of a failure that are worth printing.
const LINES_MAX: usize = 60;

/// What a program says when a child did not end well.
const CHILD: [&str; 5] = [
    "was ended by signal",
    "ended with code",
    "ended with status",
    "ended without a digest",
    "the parent of an orphan",
];

/// What a program looked like from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// 128 and the number, if a signal ended it. None: it did not end.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub far_pages: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Same,
    /// It does not even run plainly.
    Plain(Ran),
    Hang(Ran),
    /// It read a byte that it never wrote.
    Wrong(Ran),
    /// A call failed that must not.
    Call(Ran),
    /// One of its children did not end well, and not because it read something wrong.
    Child(Ran),
    /// It ended otherwise than it should.
    Ended(Ran),
    /// Everything seems right, and yet it read something else.
    Differs(Ran, Ran),
}

impl Outcome {
    pub fn kind(&self) -> &'static str {
        match self {
            Outcome::Same => "the same",
            Outcome::Plain(_) => "does not run plainly",
            Outcome::Hang(_) => "hangs",
            Outcome::Wrong(_) => "reads wrong bytes",
            Outcome::Call(_) => "a call fails",
            Outcome::Child(_) => "a child is ended",
            Outcome::Ended(_) => "ended",
            Outcome::Differs(..) => "reads something else",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let last = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES_MAX)..].join("\n    ")
        };
        let one = |f: &mut fmt::Formatter, ran: &Ran| {
            let (code, out, err) = (ran.code, last(&ran.out), last(&ran.err));
            write!(
                f,
                "  code {code:?}\n  stdout:\n    {out}\n  stderr:\n    {err}"
            )
        };
        match self {
            Outcome::Same => Ok(()),
            Outcome::Plain(ran) | Outcome::Hang(ran) => one(f, ran),
            Outcome::Wrong(ran) | Outcome::Ended(ran) => one(f, ran),
            Outcome::Call(ran) | Outcome::Child(ran) => one(f, ran),
            Outcome::Differs(plain, far) => {
                one(f, plain)?;
                writeln!(f, "\n  and with far memory:")?;
                one(f, far)
            }
        }
    }
}

/// Both runs; and how many pages went far.
pub fn compare(plan: &Plan) -> (Outcome, u64) {
    let place = place();
    let plain = plainly(&place, plan, &[], PATIENCE);
    if !plain.out.starts_with("digest ") || plain.code != Some(0) {
        return (Outcome::Plain(plain), 0);
    }
    let ran = again(plan, &[], PATIENCE);
    let far_pages = ran.far_pages;
    (judge(ran, Some(plain)), far_pages)
}

/// A run as the plan wants it.
pub fn again(plan: &Plan, skipped: &[String], patience: Duration) -> Ran {
    let place = place();
    match plan.over {
        Over::Plain => plainly(&place, plan, skipped, patience),
        _ => far(&place, plan, skipped, patience),
    }
}

/// What a run with far memory comes to. Without a plain run beside it, its own word is enough: the
/// program knows what it should read.
pub fn judge(ran: Ran, plain: Option<Ran>) -> Outcome {
    if ran.code.is_none() {
        return Outcome::Hang(ran);
    }
    let wrong: Vec<&str> = ran
        .out
        .lines()
        .filter(|line| line.contains("WRONG "))
        .collect();
    if wrong.iter().any(|line| line.contains("read again it is")) {
        return Outcome::Wrong(ran);
    }
    // A parent says that its child ended, also when the child has told why.
    let of_a_child = |line: &&str| CHILD.iter().any(|words| line.contains(words));
    if wrong.iter().any(|line| !of_a_child(line)) {
        return Outcome::Call(ran);
    }
    if !wrong.is_empty() {
        return Outcome::Child(ran);
    }
    if ran.code != Some(0) || !ran.out.starts_with("digest ") {
        return Outcome::Ended(ran);
    }
    match plain {
        Some(plain) if plain.out != ran.out => Outcome::Differs(plain, ran),
        _ => Outcome::Same,
    }
}

pub fn plainly(place: &Place, plan: &Plan, skipped: &[String], patience: Duration) -> Ran {
    let words = plan.program("play", skipped);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    finish(place, place.command_of(fuzz_run(), &words), patience)
}

fn far(place: &Place, plan: &Plan, skipped: &[String], patience: Duration) -> Ran {
    // Of its own: what one program leaves behind is not the next one's.
    let server = (plan.over == Over::Tcp).then(|| serve(place));
    let pool = server.as_ref().map(Served::tcp);
    let json = place.path("report.json");
    let mut words = vec!["run".to_string(), "--json".to_string()];
    words.push(json.to_str().unwrap().to_string());
    words.extend(plan.options(pool.as_deref()));
    words.push("--".to_string());
    words.push(fuzz_run().to_str().unwrap().to_string());
    words.extend(plan.program("play", skipped));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut ran = finish(place, place.command(&words), patience);
    let report = std::fs::read_to_string(&json).unwrap_or_default();
    let report: Value = serde_json::from_str(&report).unwrap_or(Value::Null);
    ran.far_pages = report["counters"]["evicted"].as_u64().unwrap_or(0);
    ran
}

fn serve(place: &Place) -> Served {
    place.serve(&["--memory", "1GiB", "--lease", "30s", "--insecure"])
}

/// Runs it to its end, or ends it with everybody in its group.
fn finish(place: &Place, mut command: Command, patience: Duration) -> Ran {
    let file = |name: &str| std::fs::File::create(place.path(name)).unwrap();
    command
        .stdout(file("out"))
        .stderr(file("err"))
        .env("TMPDIR", place.path(""))
        .process_group(0);
    // SAFETY: a plain call between fork and exec. Nobody stays behind when this test is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let handle = PidFd::open(child.id() as i32).unwrap();
    let ended = progress::ends(&handle, child.id(), patience);
    let threads = if ended {
        String::new()
    } else {
        threads_of(child.id())
    };
    // Whoever is left: a parent that found something wrong does not wait for its children.
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().unwrap();
    let read = |name: &str| {
        let bytes = std::fs::read(place.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ran {
        code: code.filter(|_| ended),
        out: read("out"),
        err: read("err") + &threads,
        far_pages: 0,
    }
}

/// What every thread of every process of a group waits for.
fn threads_of(group: u32) -> String {
    let mut text = String::new();
    for (process, parent) in progress::members(group) {
        let line = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').take(4).collect();
        let id = process.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("\nprocess {id}, child of {parent}: {}", words.join(" "));
        let tasks = std::fs::read_dir(process.join("task"));
        for task in tasks.into_iter().flatten().flatten() {
            let read =
                |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            let state = stat
                .rsplit(')')
                .next()
                .unwrap_or("")
                .get(1..2)
                .unwrap_or("");
            let call = read("syscall")
                .split(' ')
                .next()
                .unwrap_or("")
                .trim()
                .to_string();
            let stack = read("stack").replace('\n', "; ");
            text += &format!("\n  {} {state}, call {call}: {stack}", read("comm").trim());
        }
    }
    text
}
