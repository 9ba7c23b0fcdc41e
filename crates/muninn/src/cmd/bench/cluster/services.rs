//! Agents, a coordinator and the far memory of the way with Muninn, as processes of this same program.

use super::way::Memory;
use super::{Bench, near_far};
use crate::cmd::agent;
use crate::cmd::bench::arena::Arena;
use crate::embedded::EmbeddedServer;
use crate::failure::Failure;
use crate::slurm_rack::{self, SlurmRack};
use muninn_net::{Observer, SessionOptions};
use muninn_sys::epoll::{Interest, wait_for};
use muninn_sys::signal::PidFd;
use muninn_sys::socket::Address;
use rustix::process::Signal;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A service has so long to say that it listens, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Far memory of jobs that are over must be back by then: a lease, and what is wiped first.
const GIVEN_BACK: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
/// Longer than the queue takes: whatever waits, waits for the coordinator.
const DEAD_MAN: &str = "30min";
/// Clients take extents ahead of need; the memory server has so much for that beside what is promised.
const AHEAD_MIB: u64 = 48;
/// Agents divide anew so often.
const INTERVAL: &str = "2s";

/// What the services took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    /// The busiest agent's time on a CPU, in percent of the time that it ran.
    pub agent_cpu_pct: f64,
    pub coordinator_cpu_pct: f64,
    /// The longest division of a node's memory.
    pub rebalance_us_max: u64,
    pub rebalances: u64,
}

pub struct Services {
    agents: Vec<(Service, PathBuf)>,
    // Dropped after the agents that speak to it.
    coordinator: Service,
    address: Address,
    far: EmbeddedServer,
    begun: Instant,
}

/// What `muninn cluster setup` writes for such a rack.
pub fn plug_in_pieces(folder: &Path, memory: &Memory) -> Result<PathBuf, Failure> {
    let pieces = folder.join("pieces");
    let own = std::env::current_exe()?;
    let plug_in = slurm_rack::plug_in(&own)?;
    let mut command = Command::new(&own);
    command.args(["--config", "/dev/null", "cluster", "setup", "--json"]);
    command.args(["--largest", &format!("{}MiB", memory.near_mib)]);
    command
        .args(["--dead-man", DEAD_MAN, "--plug-in"])
        .arg(plug_in);
    command
        .arg("--agent")
        .arg(folder.join("%n.sock"))
        .arg(&pieces);
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(pieces),
        false => Err(Failure::failed(
            String::from_utf8_lossy(&output.stderr).trim(),
        )),
    }
}

impl Services {
    pub fn start(
        bench: &Bench,
        folder: &Path,
        memory: &Memory,
        slurm: &SlurmRack,
    ) -> Result<Services, Failure> {
        let profiles = folder.join("profiles.toml");
        let all: Vec<&str> = bench
            .kinds
            .iter()
            .map(|kind| kind.profile.as_str())
            .collect();
        std::fs::write(&profiles, all.join("\n"))?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let ahead = AHEAD_MIB * u64::from(memory.nodes * bench.rack.cores);
        let (far_socket, socket) = (text(folder.join("far.sock")), text(folder.join("c.sock")));
        let size = format!("{}MiB", memory.far_mib + ahead);
        let far = EmbeddedServer::start(["--memory", &size, "--socket", &far_socket])?;
        let (server, address) = (format!("unix:{far_socket}"), format!("unix:{socket}"));
        let promised = format!("{}MiB", memory.far_mib);
        let (state, profiles) = (text(folder.join("c.state")), text(profiles));
        let words = [
            "coordinator",
            "--json",
            "--slurm",
            "--dead-man",
            DEAD_MAN,
            "--socket",
            &socket,
            "--state",
            &state,
            "--server",
            &server,
            "--far",
            &promised,
            "--profiles",
            &profiles,
        ];
        let env = ("SLURM_CONF", slurm.config());
        let coordinator = Service::start(&words, Some(env), &folder.join("c.log"))?;
        let near = format!("{}MiB", memory.near_mib);
        let mut agents = Vec::new();
        for node in slurm.nodes() {
            let socket = folder.join(format!("{node}.sock"));
            let (own, at) = (text(folder.join(node)), text(socket.clone()));
            let words = [
                "agent",
                "--json",
                "--name",
                node,
                "--memory",
                &near,
                "--no-server",
                "--folder",
                &own,
                "--socket",
                &at,
                "--coordinator",
                &address,
                "--interval",
                INTERVAL,
                "--profiles",
                &profiles,
            ];
            let service = Service::start(&words, None, &folder.join(format!("{node}.agent")))?;
            agents.push((service, socket));
        }
        let services = Services {
            agents,
            coordinator,
            address: address.parse().map_err(Failure::failed)?,
            far,
            begun: Instant::now(),
        };
        services.wait_for_pool(bench)?;
        Ok(services)
    }

    /// Until every agent has heard where far memory is, and the coordinator starts jobs.
    fn wait_for_pool(&self, bench: &Bench) -> Result<(), Failure> {
        let ends = Instant::now() + PATIENCE;
        for (_, socket) in &self.agents {
            while !agent::ask(socket).is_ok_and(|state| state.coordinated) {
                if Instant::now() > ends {
                    return Err(Failure::failed("an agent never heard of the coordinator"));
                }
                bench.arena.pause(LOOK)?;
            }
        }
        let mut channel = None;
        loop {
            match near_far::cluster(&mut channel, &self.address) {
                Some(state) if state.safe_mode.is_none() => return Ok(()),
                _ if Instant::now() > ends => {
                    return Err(Failure::failed("the coordinator never left its safe mode"));
                }
                Some(_) => {}
                None => channel = None,
            }
            bench.arena.pause(LOOK)?;
        }
    }

    pub fn coordinator(&self) -> &Address {
        &self.address
    }

    pub fn costs(&self) -> Costs {
        let took_s = self.begun.elapsed().as_secs_f64();
        let percent = |service: &Service| 100.0 * cpu_s(service.child.id()) / took_s;
        let states = self
            .agents
            .iter()
            .filter_map(|(_, socket)| agent::ask(socket).ok());
        let states: Vec<(u64, u64)> = states
            .map(|state| (state.rebalance_us_max, state.rebalances))
            .collect();
        Costs {
            agent_cpu_pct: self
                .agents
                .iter()
                .map(|(agent, _)| percent(agent))
                .fold(0.0, f64::max),
            coordinator_cpu_pct: percent(&self.coordinator),
            rebalance_us_max: states.iter().map(|state| state.0).max().unwrap_or(0),
            rebalances: states.iter().map(|state| state.1).sum(),
        }
    }

    /// What is still granted when all jobs are over.
    pub fn left_behind(&self, arena: &Arena) -> Result<u64, Failure> {
        let address: Address = self.far.addresses()[0].parse().map_err(Failure::failed)?;
        let mut observer = Observer::connect(&address, &SessionOptions::default());
        let ends = Instant::now() + GIVEN_BACK;
        loop {
            let observer = observer
                .as_mut()
                .map_err(|error| Failure::failed(&*error))?;
            let status = observer.status().map_err(Failure::failed)?;
            let left = status.server.granted_bytes;
            if left == 0 || Instant::now() > ends {
                return Ok(left);
            }
            arena.pause(LOOK)?;
        }
    }
}

/// Time on a CPU, user and system.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks = after.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|word| word.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// An agent or a coordinator. Ended when dropped.
struct Service {
    child: Child,
}

impl Service {
    fn start(
        words: &[&str],
        env: Option<(&str, PathBuf)>,
        complaints: &Path,
    ) -> Result<Service, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--config", "/dev/null"]).args(words);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MUNINN_") {
                command.env_remove(name);
            }
        }
        command.envs(env);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(complaints)?)
            .process_group(0);
        let mut child = muninn_sys::child::die_with_parent(&mut command).spawn()?;
        let out = child.stdout.take();
        let service = Service { child };
        let mut line = String::new();
        if let Some(out) = out
            && wait_for(&out, Interest::READ, Some(PATIENCE)).map_err(Failure::failed)?
        {
            BufReader::new(out).read_line(&mut line)?;
        }
        match line.contains("\"listening\"") {
            true => Ok(service),
            false => {
                let why = std::fs::read_to_string(complaints).unwrap_or_default();
                Err(Failure::failed(format!(
                    "muninn {} did not start: {}",
                    words[0],
                    why.trim()
                )))
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Ok(handle) = PidFd::open(self.child.id() as i32) {
            let _ = handle.send(Signal::TERM);
            let _ = handle.wait_end(Some(PATIENCE));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_on_a_cpu_is_counted() {
        let begun = std::time::Instant::now();
        let before = super::cpu_s(std::process::id());
        while super::cpu_s(std::process::id()) <= before {
            assert!(begun.elapsed().as_secs() < 60, "it never grew");
        }
    }
}
