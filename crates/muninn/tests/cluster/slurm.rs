//! A whole Slurm with three nodes on this machine: munge, slurmctld, three slurmd, in a folder of the test,
//! at ports of its own, all ended by their numbers.

use crate::common::{BINARY, Running, far_memory_possible};
use crate::rack::{Agent, Rack, eventually, limit, size};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Of each node, in MiB.
const MEMORY: u32 = 160;
const MIB: u64 = 1 << 20;
const PLUG_INS: &str = "/usr/lib/x86_64-linux-gnu/slurm-wlm";

struct Slurm {
    rack: Rack,
    munge: Option<Running>,
    controller: Option<Running>,
    daemons: Vec<Option<Running>>,
    coordinator: Option<Running>,
    agents: Vec<Option<Agent>>,
}

/// What is not installed.
fn missing() -> Option<String> {
    let programs = [
        "munged",
        "slurmctld",
        "slurmd",
        "sbatch",
        "squeue",
        "scontrol",
        "scancel",
    ];
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let there = |program: &&str| {
        folders
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    if let Some(program) = programs.into_iter().find(|program| !there(program)) {
        return Some(format!("{program} is not installed"));
    }
    let lua = Path::new(PLUG_INS).join("job_submit_lua.so");
    (!lua.exists()).then(|| "Slurm is here without job_submit/lua".to_string())
}

/// A port that nobody has at the moment.
fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The plug-in, built as whoever installs it does.
fn plug_in() -> PathBuf {
    let folder = Path::new(BINARY).parent().unwrap();
    let status = Command::new(env!("CARGO"))
        .args(["build", "--locked", "-p", "muninn-spank", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .env("CARGO_TARGET_DIR", folder.parent().unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "the plug-in could not be built");
    folder.join("libmuninn_spank.so")
}

impl Slurm {
    fn start() -> Slurm {
        let rack = Rack::new();
        let plug_in = plug_in();
        let folder = rack.place.path("");
        let agent = format!("{}%n.sock", folder.display());
        let for_slurm = rack.path("for-slurm");
        let setup = rack.place.run(&[
            "cluster",
            "setup",
            &for_slurm,
            "--largest",
            &format!("{MEMORY}MiB"),
            "--dead-man",
            "20s",
            "--plug-in",
            plug_in.to_str().unwrap(),
            "--agent",
            &agent,
        ]);
        assert_eq!(setup.code, Some(0), "{setup:?}");
        for piece in ["job_submit.lua", "plugstack.conf"] {
            std::fs::copy(
                rack.place.path(&format!("for-slurm/{piece}")),
                rack.place.path(piece),
            )
            .unwrap();
        }
        std::fs::create_dir_all(rack.place.path("ctld")).unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap().to_string();
        let at = |name: &str| rack.path(name);
        let mut lines = vec![
            "ClusterName=test".to_string(),
            format!("SlurmctldHost={host}(127.0.0.1)"),
            format!("SlurmctldPort={}", port()),
            "SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge".to_string(),
            format!("AuthInfo=socket={}", at("munge.socket")),
            format!("StateSaveLocation={}", at("ctld")),
            format!("SlurmdSpoolDir={}", at("spool-%n")),
            format!("SlurmctldPidFile={}", at("ctld.pid")),
            format!("SlurmdPidFile={}", at("%n.pid")),
            format!("SlurmctldLogFile={}", at("ctld.log")),
            format!("SlurmdLogFile={}", at("%n.log")),
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none".to_string(),
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory".to_string(),
            "SlurmdParameters=config_overrides\nJobSubmitPlugins=lua\nReturnToService=2"
                .to_string(),
            format!("PlugStackConfig={}", at("plugstack.conf")),
            "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=2".to_string(),
            "KillWait=2\nSlurmdTimeout=10\nMessageTimeout=30\nMinJobAge=10".to_string(),
        ];
        for node in NODES {
            lines.push(format!(
                "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=4 RealMemory={MEMORY}",
                port()
            ));
        }
        lines.push("PartitionName=all Nodes=n1,n2,n3 Default=YES MaxTime=60 State=UP".to_string());
        rack.place.write("slurm.conf", &(lines.join("\n") + "\n"));
        let mut slurm = Slurm {
            rack,
            munge: None,
            controller: None,
            daemons: Vec::new(),
            coordinator: None,
            agents: Vec::new(),
        };
        slurm.start_munge();
        let controller = slurm.daemon("slurmctld", &["-D", "-i"]);
        slurm.controller = Some(controller);
        for node in NODES {
            let daemon = slurm.daemon("slurmd", &["-D", "-N", node]);
            slurm.daemons.push(Some(daemon));
        }
        slurm.start_coordinator();
        for node in NODES {
            let agent = slurm.agent(node);
            slurm.agents.push(Some(agent));
        }
        eventually("all nodes idle", || {
            let out = slurm.try_run("sinfo", &["-h", "-o", "%D %t"])?;
            (out.trim() == "3 idle").then_some(())
        });
        for node in NODES {
            slurm
                .rack
                .until(node, "coordinated", |state| state["coordinated"] == true);
        }
        slurm
    }

    fn start_munge(&mut self) {
        use std::os::unix::fs::OpenOptionsExt;
        let key = self.rack.place.path("munge.key");
        let mut options = std::fs::File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key)
            .unwrap();
        let mut bytes = [0; 1024];
        muninn_sys::rand::fill(&mut bytes);
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let mut command = Command::new("munged");
        command.args(["--force", "--foreground"]);
        for (option, name) in [
            ("key-file", "munge.key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            command.arg(format!("--{option}={}", self.rack.path(name)));
        }
        self.munge = Some(Running::start(command));
        let socket = self.rack.place.path("munge.socket");
        eventually("munge", || socket.exists().then_some(()));
    }

    fn daemon(&self, program: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg("-f")
            .arg(self.rack.place.path("slurm.conf"));
        command.stdin(Stdio::null());
        Running::start(command)
    }

    fn start_coordinator(&mut self) {
        let mut command = self
            .rack
            .coordinator_command(&["--slurm", "--dead-man", "20s"]);
        command.env("SLURM_CONF", self.rack.place.path("slurm.conf"));
        let running = Running::start(command);
        assert_eq!(running.json()["event"], "listening");
        self.coordinator = Some(running);
    }

    fn kill_coordinator(&mut self) {
        let coordinator = self.coordinator.take().unwrap();
        coordinator.signal(Signal::KILL);
        coordinator.end();
    }

    /// Two that take, and one that gives.
    fn agent(&self, node: &str) -> Agent {
        let memory = format!("{MEMORY}MiB");
        match node {
            "n3" => self.rack.agent(node, &memory, &["--donate", "480MiB"]),
            // With it everybody is shrunk, so it can be said beforehand who.
            _ => (self.rack).agent(node, &memory, &["--no-server", "--policy", "uniform"]),
        }
    }

    fn try_run(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.env("SLURM_CONF", self.rack.place.path("slurm.conf"));
        let output = command.output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(out)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.try_run(program, arguments);
        done.unwrap_or_else(|| panic!("{program} {arguments:?} failed: {}", self.logs()))
    }

    fn logs(&self) -> String {
        let log = |name: &str| std::fs::read_to_string(self.rack.path(name)).unwrap_or_default();
        let all = ["ctld.log", "n1.log", "n2.log", "n3.log"]
            .map(log)
            .join("\n");
        let lines: Vec<&str> = all.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// A job that fills so much memory; its number.
    fn submit(&self, name: &str, mib: u32, options: &[&str]) -> u64 {
        let script = format!(
            "#!/bin/sh\nexec python3 {} {mib} {}\n",
            self.rack.path("job.py"),
            self.rack.stop_file(name).display()
        );
        let script = self.rack.place.write(&format!("{name}.sh"), &script);
        let out = format!("--output={}", self.rack.path(&format!("{name}.out")));
        let profile = format!("--far-profile={name}");
        let fixed = ["--parsable", &out, &profile, script.to_str().unwrap()];
        let (first, last) = fixed.split_at(3);
        let number = self.run("sbatch", &[first, options, last].concat());
        number.trim().parse().unwrap()
    }

    fn begun(&self, name: &str) {
        let begun = self.rack.stop_file(name).with_extension("stop.begun");
        eventually_or(
            &format!("{name} begun"),
            || begun.exists().then_some(()),
            || self.logs(),
        );
    }

    fn state_of(&self, job: u64) -> String {
        let shown = self.try_run("scontrol", &["show", "job", "-o", &job.to_string()]);
        let shown = shown.unwrap_or_default();
        let words = shown.split_whitespace();
        let state = words
            .filter_map(|word| word.strip_prefix("JobState="))
            .next();
        state.unwrap_or("GONE").to_string()
    }

    fn finish(&self, name: &str, job: u64, mib: u32) {
        std::fs::write(self.rack.stop_file(name), "").unwrap();
        eventually("ended", || {
            let over = ["COMPLETED", "FAILED", "GONE"];
            over.contains(&self.state_of(job).as_str()).then_some(())
        });
        let out = std::fs::read_to_string(self.rack.path(&format!("{name}.out"))).unwrap();
        let right = format!("right {mib}");
        assert!(out.lines().any(|line| line == right), "{name}: {out}");
        // Whatever happened to agents and coordinators, no server left the pool.
        assert!(
            !out.contains("[[server]]") && !out.contains("left the pool"),
            "{name}: {out}"
        );
    }

    fn explain(&self, job: u64) -> String {
        let at = format!("unix:{}", self.rack.path("c.sock"));
        let ended =
            self.rack
                .place
                .run(&["cluster", "--coordinator", &at, "explain", &job.to_string()]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out
    }

    /// Nobody has far memory any more, nothing is promised, and no node has a job.
    fn nothing_left(&self) {
        self.rack.nothing_left(&["n3"]);
        eventually("no promise", || {
            let cluster = self.rack.cluster();
            let none = size(&cluster["far_promised"]) == Some(0);
            (none && cluster["jobs"].as_array().unwrap().is_empty()).then_some(())
        });
    }
}

fn eventually_or<T>(what: &str, look: impl FnMut() -> Option<T>, more: impl Fn() -> String) -> T {
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(what, look)));
    found.unwrap_or_else(|_| panic!("never {what}: {}", more()))
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Tasks that are left belong to slurmstepd, which goes on without slurmd.
        if self.controller.is_some() {
            let _ = self.try_run("scancel", &["--signal=KILL", "--full", "-u", "root"]);
            let _ = self.try_run("scancel", &["-u", "root"]);
            let ends = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while std::time::Instant::now() < ends {
                match self.try_run("squeue", &["-h"]) {
                    Some(left) if !left.trim().is_empty() => {
                        std::thread::sleep(std::time::Duration::from_millis(200));
                    }
                    _ => break,
                }
            }
        }
        for agent in self.agents.drain(..).flatten() {
            let _ = agent.stop();
        }
        let daemons = self.daemons.drain(..).flatten();
        let rest = [
            self.coordinator.take(),
            self.controller.take(),
            self.munge.take(),
        ];
        for daemon in daemons.chain(rest.into_iter().flatten()) {
            daemon.signal(Signal::TERM);
            let _ = daemon.end();
        }
    }
}

#[test]
fn jobs_start_because_far_memory_holds_what_does_not_fit() {
    if !far_memory_possible() {
        return;
    }
    if let Some(why) = missing() {
        muninn_testing::skip(why);
        return;
    }
    if muninn_sys::proc::own_uid() != 0 {
        muninn_testing::skip("only root can start a Slurm of its own");
        return;
    }
    let mut slurm = Slurm::start();

    // No node has so much, and it starts at once.
    let large = slurm.submit(
        "large",
        165,
        &["--far-memory=auto", "--mem=190", "-w", "n1"],
    );
    slurm.begun("large");
    // The job tells before its agent has told the coordinator.
    eventually("known to run", || {
        let why = slurm.explain(large);
        (why.contains("runs at n1") && why.contains("far memory holds")).then_some(())
    });
    slurm.finish("large", large, 165);
    slurm.nothing_left();

    // A second job shrinks the first one's share, and its end gives it back.
    let first = slurm.submit(
        "first",
        100,
        &["--far-memory=auto", "--mem=120", "-w", "n1"],
    );
    slurm.begun("first");
    slurm.rack.until("n1", "all of it", |state| {
        limit(state, "first") == Some(120 * MIB)
    });
    let second = slurm.submit("second", 55, &["--far-memory=auto", "--mem=70", "-w", "n1"]);
    slurm.begun("second");
    let state = slurm.rack.until("n1", "shared", |state| {
        limit(state, "second").is_some() && limit(state, "first") < Some(120 * MIB)
    });
    assert!(
        size(&state["limits"]).unwrap() <= u64::from(MEMORY) * MIB,
        "{state:#}"
    );
    // A third has to wait, and it is said why.
    let third = slurm.submit("third", 60, &["--far-memory=auto", "--mem=80", "-w", "n1"]);
    eventually("waits", || {
        slurm
            .explain(third)
            .contains("cannot shrink its jobs so far")
            .then_some(())
    });
    assert_eq!(slurm.state_of(third), "PENDING");

    // The agent is killed, and then the coordinator: nothing happens to anybody.
    slurm.agents[0].as_mut().unwrap().kill();
    slurm.agents[0] = Some(slurm.agent("n1"));
    slurm.rack.until("n1", "back", |state| {
        limit(state, "first").is_some() && limit(state, "second").is_some()
    });
    slurm.kill_coordinator();
    slurm.start_coordinator();
    slurm.finish("second", second, 55);
    slurm.begun("third");
    slurm.finish("first", first, 100);
    slurm.finish("third", third, 60);
    slurm.nothing_left();

    // Cancelled, and killed.
    let cancelled = slurm.submit(
        "cancelled",
        165,
        &["--far-memory=auto", "--mem=190", "-w", "n1"],
    );
    let killed = slurm.submit(
        "killed",
        165,
        &["--far-memory=auto", "--mem=190", "-w", "n2"],
    );
    slurm.begun("cancelled");
    slurm.begun("killed");
    slurm.run("scancel", &[&cancelled.to_string()]);
    let state = slurm
        .rack
        .until("n2", "there", |state| limit(state, "killed").is_some());
    let launcher = state["jobs"][0]["pid"].as_u64().unwrap();
    PidFd::open(launcher as i32).unwrap().kill().unwrap();
    for job in [cancelled, killed] {
        eventually("ended", || {
            let over = ["CANCELLED", "FAILED", "GONE"];
            over.contains(&slurm.state_of(job).as_str()).then_some(())
        });
    }
    slurm.nothing_left();

    // A drained node gets none.
    slurm.run(
        "scontrol",
        &["update", "NodeName=n2", "State=DRAIN", "Reason=test"],
    );
    let drained = slurm.submit(
        "drained",
        40,
        &["--far-memory=auto", "--mem=60", "-w", "n2"],
    );
    eventually("waits", || {
        slurm
            .explain(drained)
            .contains("away or drained")
            .then_some(())
    });
    slurm.run("scontrol", &["update", "NodeName=n2", "State=RESUME"]);
    slurm.begun("drained");
    slurm.finish("drained", drained, 40);

    // Without its coordinator Slurm starts by itself what waited.
    slurm.kill_coordinator();
    let alone = slurm.submit("alone", 40, &["--far-memory=auto", "--mem=60"]);
    let plain = slurm.submit("plain", 40, &["--mem=60"]);
    slurm.begun("plain");
    slurm.finish("plain", plain, 40);
    slurm.begun("alone");
    slurm.finish("alone", alone, 40);
    slurm.start_coordinator();
    slurm.nothing_left();
}
