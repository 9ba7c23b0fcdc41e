//! A whole Slurm with three nodes on this machine ([`muninn::slurm_rack`]), agents and a coordinator.

use crate::common::{BINARY, Running, far_memory_possible};
use crate::rack::{Agent, Rack, eventually, limit, size};
use muninn::slurm_rack::{self, Layout, SlurmRack};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use std::path::Path;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Of each node, in MiB.
const MEMORY: u32 = 160;
const MIB: u64 = 1 << 20;

struct Slurm {
    /// Ended before the rest: jobs first.
    slurm: Option<SlurmRack>,
    rack: Rack,
    coordinator: Option<Running>,
    agents: Vec<Option<Agent>>,
}

impl Slurm {
    fn start() -> Slurm {
        let rack = Rack::new();
        let plug_in = slurm_rack::plug_in(Path::new(BINARY)).unwrap();
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
        let layout = Layout {
            folder,
            nodes: NODES.len() as u32,
            cores: 4,
            memory_mib: u64::from(MEMORY),
            pieces: Some(for_slurm.into()),
        };
        let slurm = SlurmRack::start(&layout).unwrap_or_else(|failure| panic!("{failure}"));
        let mut slurm = Slurm {
            slurm: Some(slurm),
            rack,
            coordinator: None,
            agents: Vec::new(),
        };
        slurm.start_coordinator();
        for node in NODES {
            let agent = slurm.agent(node);
            slurm.agents.push(Some(agent));
        }
        for node in NODES {
            slurm
                .rack
                .until(node, "coordinated", |state| state["coordinated"] == true);
        }
        slurm
    }

    fn slurm(&mut self) -> &mut SlurmRack {
        self.slurm.as_mut().unwrap()
    }

    fn start_coordinator(&mut self) {
        let mut command = self
            .rack
            .coordinator_command(&["--slurm", "--dead-man", "20s"]);
        command.env("SLURM_CONF", self.slurm().config());
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
        self.slurm.as_ref().unwrap().ask(program, arguments).ok()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.slurm.as_ref().unwrap().ask(program, arguments);
        done.unwrap_or_else(|failure| panic!("{failure}: {}", self.logs()))
    }

    fn logs(&self) -> String {
        self.slurm.as_ref().unwrap().logs()
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
        // Jobs first; then those who speak to Slurm, and Slurm last.
        if let Some(slurm) = &self.slurm {
            slurm.end_jobs();
        }
        for agent in self.agents.drain(..).flatten() {
            let _ = agent.stop();
        }
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.signal(Signal::TERM);
            let _ = coordinator.end();
        }
    }
}

/// The program that a launcher started.
fn task_of(launcher: u64) -> i32 {
    let children = format!("/proc/{launcher}/task/{launcher}/children");
    eventually("a task", || {
        let children = std::fs::read_to_string(&children).ok()?;
        let mut children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse::<i32>().ok());
        children.find(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("job.py")
        })
    })
}

#[test]
fn jobs_start_because_far_memory_holds_what_does_not_fit() {
    if !far_memory_possible() {
        return;
    }
    if let Some(why) = slurm_rack::missing() {
        muninn_testing::skip(why);
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

    // Cancelled, its launcher killed, its program killed.
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
    let struck = slurm.submit(
        "struck",
        100,
        &["--far-memory=auto", "--mem=120", "-w", "n1"],
    );
    slurm.begun("struck");
    let state = (slurm.rack).until("n1", "there", |state| limit(state, "struck").is_some());
    let jobs = state["jobs"].as_array().unwrap();
    let struck_at = jobs.iter().find(|job| job["name"] == "struck").unwrap();
    let program = task_of(struck_at["pid"].as_u64().unwrap());
    PidFd::open(program).unwrap().kill().unwrap();
    let state = slurm
        .rack
        .until("n2", "there", |state| limit(state, "killed").is_some());
    let launcher = state["jobs"][0]["pid"].as_u64().unwrap();
    PidFd::open(launcher as i32).unwrap().kill().unwrap();
    for job in [cancelled, killed, struck] {
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

    a_node_dies(&mut slurm);
    services_are_killed_at_any_moment(&mut slurm);

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

/// A node's slurmd dies with a job on it: Slurm queues the job again, and the coordinator finds it another node,
/// though it had bound it to the first. What still runs there ends when slurmd is back.
fn a_node_dies(slurm: &mut Slurm) {
    let job = slurm.submit("moved", 60, &["--far-memory=auto", "--mem=80"]);
    slurm.begun("moved");
    let node = eventually("placed", || {
        let cluster = slurm.rack.cluster();
        let jobs = cluster["jobs"].as_array()?;
        let found = jobs.iter().find(|found| found["job"] == job)?;
        Some(found["node"].as_str()?.to_string())
    });
    let place = NODES.iter().position(|name| *name == node).unwrap();
    std::fs::remove_file(slurm.rack.stop_file("moved").with_extension("stop.begun")).unwrap();
    slurm.slurm().kill_node(place);
    let name = format!("NodeName={node}");
    slurm.run("scontrol", &["update", &name, "State=DOWN", "Reason=test"]);
    slurm.begun("moved");
    let explained = slurm.explain(job);
    assert!(
        !explained.contains(&format!("runs at {node}")),
        "{explained}"
    );
    slurm.slurm().start_node(place).unwrap();
    slurm.rack.until(&node, "rid of it", |state| {
        state["jobs"].as_array().unwrap().is_empty()
    });
    slurm.finish("moved", job, 60);
    let _ = slurm.try_run("scontrol", &["update", &name, "State=RESUME"]);
    slurm.nothing_left();
}

/// Jobs come and end while agents and the coordinator are killed, each time at another moment.
fn services_are_killed_at_any_moment(slurm: &mut Slurm) {
    let mut dice = muninn_types::SplitMix64::new(5);
    let mut jobs = Vec::new();
    for number in 0..6u32 {
        let name = format!("any{number}");
        // It ends when it has gone through its memory once more.
        std::fs::write(slurm.rack.stop_file(&name), "").unwrap();
        let job = slurm.submit(&name, 90 + number, &["--far-memory=auto", "--mem=120"]);
        jobs.push((name, job, 90 + number));
        std::thread::sleep(std::time::Duration::from_millis(dice.below(700)));
        match dice.below(3) {
            0 => {
                slurm.kill_coordinator();
                slurm.start_coordinator();
            }
            node => {
                let node = node as usize - 1;
                slurm.agents[node].as_mut().unwrap().kill();
                slurm.agents[node] = Some(slurm.agent(NODES[node]));
            }
        }
    }
    for (name, job, mib) in jobs {
        slurm.finish(&name, job, mib);
    }
    slurm.nothing_left();
}
