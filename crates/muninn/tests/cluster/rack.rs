//! A small rack on this machine: agents with their servers, a coordinator, and jobs that can be told when
//! to end.

use crate::common::{Ended, Place, Running, place};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// Fills so much memory, goes through it again and again until a file is there, and says whether every
/// byte was what it was to be.
const PROGRAM: &str = "\
import os, sys
mib, stop = int(sys.argv[1]), sys.argv[2]
blocks = [bytearray(bytes([i % 251]) * (1 << 20)) for i in range(mib)]
rounds = 0
open(stop + '.begun', 'w').close()
while True:
    last = os.path.exists(stop)
    for i, block in enumerate(blocks):
        want = (i + rounds) % 251
        if block[0] != want or block[-1] != want or block.count(want) != len(block):
            print('wrong', i, rounds); sys.exit(3)
        blocks[i][:] = bytes([(want + 1) % 251]) * (1 << 20)
    rounds += 1
    if last:
        break
print('right', len(blocks))
";

pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let ends = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < ends, "never {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An agent, and its memory server, which is ended with it whatever happens.
pub struct Agent {
    running: Option<Running>,
    pub listening: Value,
}

impl Agent {
    pub fn server_pid(&self) -> Option<u32> {
        Some(self.listening["server_pid"].as_u64()? as u32)
    }

    /// As a power cut would; its server goes on.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal(Signal::KILL);
            assert_eq!(running.end().code, None);
        }
    }

    pub fn stop(mut self) -> Ended {
        let running = self.running.take().unwrap();
        running.signal(Signal::TERM);
        running.end()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let left = self.running.take().is_some() || std::thread::panicking();
        if left && let Some(pid) = self.server_pid() {
            let server = PidFd::open(pid as i32);
            let _ = server.map(|server| server.kill());
        }
    }
}

pub struct Rack {
    pub place: Place,
    programs: RefCell<BTreeMap<String, PathBuf>>,
}

impl Rack {
    pub fn new() -> Rack {
        let place = place();
        place.write("job.py", PROGRAM);
        Rack {
            place,
            programs: RefCell::default(),
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.place.path(name).display().to_string()
    }

    pub fn coordinator_command(&self, more: &[&str]) -> Command {
        let (socket, state) = (self.path("c.sock"), self.path("c.state"));
        let all = [
            &[
                "coordinator",
                "--json",
                "--socket",
                &socket,
                "--state",
                &state,
            ],
            more,
        ];
        self.place.command(&all.concat())
    }

    pub fn coordinator(&self) -> Running {
        let running = Running::start(self.coordinator_command(&[]));
        assert_eq!(running.json()["event"], "listening");
        running
    }

    pub fn agent(&self, name: &str, memory: &str, more: &[&str]) -> Agent {
        let coordinator = format!("unix:{}", self.path("c.sock"));
        let (folder, socket) = (self.path(name), self.path(&format!("{name}.sock")));
        let all = [
            &[
                "agent",
                "--json",
                "--name",
                name,
                "--memory",
                memory,
                "--folder",
                &folder,
                "--socket",
                &socket,
                "--coordinator",
                &coordinator,
                "--interval",
                "1s",
            ],
            more,
        ];
        let running = Running::start(self.place.command(&all.concat()));
        let Some(line) = running.line() else {
            panic!("the agent did not start: {:?}", running.end());
        };
        Agent {
            listening: serde_json::from_str(&line).unwrap(),
            running: Some(running),
        }
    }

    pub fn stop_file(&self, job: &str) -> PathBuf {
        let mut programs = self.programs.borrow_mut();
        let path = || self.place.path(&format!("{job}.stop"));
        programs.entry(job.to_string()).or_insert_with(path).clone()
    }

    /// Of so many MiB, at a node; it has begun when all of them are filled.
    pub fn job(&self, name: &str, node: &str, mib: u32, peak: &str) -> Running {
        let running = Running::start(self.job_command(name, node, mib, peak));
        let begun = self.stop_file(name).with_extension("stop.begun");
        eventually("begun", || begun.exists().then_some(()));
        running
    }

    pub fn job_command(&self, name: &str, node: &str, mib: u32, peak: &str) -> Command {
        let pool = format!("agent:{}", self.path(&format!("{node}.sock")));
        let (program, stop) = (self.path("job.py"), self.stop_file(name));
        let mib = mib.to_string();
        let (name, stop) = (name.to_string(), stop.display().to_string());
        self.place.command(&[
            "run",
            "--pool",
            &pool,
            "--peak",
            peak,
            "--profile",
            &name,
            "--",
            "python3",
            &program,
            &mib,
            &stop,
        ])
    }

    /// Tells a job to end, and checks what it says.
    pub fn finish(&self, name: &str, job: Running, mib: u32) {
        std::fs::write(self.stop_file(name), "").unwrap();
        let ended = job.end();
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
        assert_eq!(ended.out, format!("right {mib}\n"), "{name}: {ended:?}");
    }

    pub fn state(&self, node: &str) -> Option<Value> {
        let socket = self.path(&format!("{node}.sock"));
        let ended = self
            .place
            .run(&["agent", "--show", "--json", "--socket", &socket]);
        (ended.code == Some(0)).then(|| serde_json::from_str(&ended.out).unwrap())
    }

    pub fn until(&self, node: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let ends = Instant::now() + PATIENCE;
        while Instant::now() < ends {
            if let Some(state) = self.state(node) {
                if holds(&state) {
                    return state;
                }
                last = state;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("never {what}: {last:#}");
    }

    pub fn cluster(&self) -> Value {
        let coordinator = format!("unix:{}", self.path("c.sock"));
        let ended = self
            .place
            .run(&["cluster", "--json", "--coordinator", &coordinator]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.out).unwrap()
    }

    /// What clients hold at the memory server of a node.
    pub fn granted(&self, node: &str) -> u64 {
        let pool = format!("unix:{}/memory.sock", self.path(node));
        let ended = self.place.run(&["status", "--json", "--pool", &pool]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let status: Value = serde_json::from_str(&ended.out).unwrap();
        status["servers"][0]["granted_bytes"].as_u64().unwrap()
    }

    /// No far memory is left behind at these nodes, as soon as leases have run out.
    pub fn nothing_left(&self, nodes: &[&str]) {
        for node in nodes {
            eventually("given back", || (self.granted(node) == 0).then_some(()));
        }
    }
}

pub fn limit(state: &Value, name: &str) -> Option<u64> {
    let jobs = state["jobs"].as_array()?;
    let job = jobs.iter().find(|job| job["name"] == name)?;
    size(&job["limit"])
}

/// A size as JSON has it.
pub fn size(value: &Value) -> Option<u64> {
    value.as_u64()
}
