//! A whole Slurm on this machine: munge, slurmctld and a slurmd for each node, in a folder, at ports of
//! their own. For tests and benches; nothing of a Slurm that may be installed here for use is touched.
//!
//! All of it are children of ours in the foreground and are ended by their numbers, jobs first. Known limits:
//! root only (slurmd starts jobs as their users); tasks belong to slurmstepd, which goes on without slurmd, so
//! whoever is killed without being asked leaves tasks that run to their end.

use crate::failure::{Exit, Failure};
use muninn_sys::child;
use muninn_sys::proc::own_uid;
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use std::fmt::Display;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where Debian has Slurm's plug-ins.
const PLUG_INS: &str = "/usr/lib/x86_64-linux-gnu/slurm-wlm";
const PROGRAMS: [&str; 7] = [
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "scontrol",
    "scancel",
];
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Far more than a start, an end, or an answer takes.
const PATIENCE: Duration = Duration::from_secs(100);
const LOOK: Duration = Duration::from_millis(50);
const PORT_FIRST: u16 = 10_000;
const PORTS: u64 = 22_000;
const PORT_TRIES: usize = 10_000;
/// Somebody else may take a port all the same.
const STARTS: usize = 3;
/// Jobs get so long to be gone, and a daemon to end, before they are killed.
const FAREWELL: Duration = Duration::from_secs(20);

/// What kind of rack.
#[derive(Clone, Debug)]
pub struct Layout {
    /// For everything that it keeps. Must be there.
    pub folder: PathBuf,
    pub nodes: u32,
    pub cores: u32,
    /// Of each node, as Slurm is told.
    pub memory_mib: u64,
    /// Folder with the job_submit.lua and the plugstack.conf that `muninn cluster setup` wrote.
    pub pieces: Option<PathBuf>,
}

/// One of Slurm's programs. Ended when dropped.
#[derive(Debug)]
struct Daemon(Child);

#[derive(Debug)]
pub struct SlurmRack {
    folder: PathBuf,
    /// By name; `None`: it died.
    nodes: Vec<(String, Option<Daemon>)>,
    controller: Option<Daemon>,
    munge: Option<Daemon>,
}

/// Why there can be no Slurm here.
pub fn missing() -> Option<String> {
    let there = |program: &&str| {
        FOLDERS
            .iter()
            .any(|at| Path::new(at).join(program).exists())
    };
    if let Some(program) = PROGRAMS.iter().find(|program| !there(program)) {
        return Some(format!(
            "{program} is not installed (Debian: slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)"
        ));
    }
    if !Path::new(PLUG_INS).join("job_submit_lua.so").exists() {
        return Some("Slurm is here without job_submit/lua".to_string());
    }
    (own_uid() != 0).then(|| "only root can start a Slurm of its own".to_string())
}

/// The plug-in for Slurm beside this program, where there is one. Under cargo it is built first, as whoever
/// installs it does, so that it is never older than the program.
pub fn plug_in(program: &Path) -> Result<PathBuf, Failure> {
    const NAME: &str = "libmuninn_spank.so";
    let folder = program.parent().unwrap_or(Path::new("."));
    let (cargo, source) = (
        std::env::var_os("CARGO"),
        std::env::var_os("CARGO_MANIFEST_DIR"),
    );
    if let (Some(cargo), Some(source), Some(target)) = (cargo, source, folder.parent()) {
        let mut command = Command::new(cargo);
        command.args([
            "build",
            "--quiet",
            "--locked",
            "-p",
            "muninn-spank",
            "--manifest-path",
        ]);
        command.arg(Path::new(&source).join("Cargo.toml"));
        if folder.ends_with("release") {
            command.arg("--release");
        }
        let status = command.env("CARGO_TARGET_DIR", target).status()?;
        if !status.success() {
            return Err(failed("the plug-in could not be built"));
        }
    }
    let places = [folder.join(NAME), Path::new("/usr/lib/muninn").join(NAME)];
    let found = places.into_iter().find(|path| path.exists());
    found.ok_or_else(|| {
        Failure::new(
            Exit::Unsupported,
            format!("there is no {NAME} beside this program: 'cargo build --release -p muninn-spank' makes it"),
        )
    })
}

/// So many ports that nobody has at the moment, below those that the kernel hands out by itself: nobody gets
/// one of them by chance before we have it.
fn ports(count: usize) -> Result<Vec<u16>, Failure> {
    let mut held = Vec::new();
    for _ in 0..PORT_TRIES {
        if held.len() == count {
            break;
        }
        let port = PORT_FIRST + (muninn_sys::rand::u64() % PORTS) as u16;
        // Held until all are found, so that they differ.
        held.extend(std::net::TcpListener::bind(("127.0.0.1", port)));
    }
    if held.len() < count {
        return Err(failed("there are no free ports from 10000 to 32000"));
    }
    let port = |listener: &std::net::TcpListener| Ok(listener.local_addr()?.port());
    held.iter().map(port).collect()
}

fn failed(what: impl Display) -> Failure {
    Failure::new(Exit::Failed, format!("a Slurm for this: {what}"))
}

impl SlurmRack {
    /// Starts all of it and waits until all nodes are idle.
    pub fn start(layout: &Layout) -> Result<SlurmRack, Failure> {
        if let Some(why) = missing() {
            return Err(Failure::new(Exit::Unsupported, why));
        }
        let mut last = None;
        for _ in 0..STARTS {
            match SlurmRack::start_once(layout) {
                Ok(rack) => return Ok(rack),
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.unwrap_or_else(|| failed("it was never tried")))
    }

    fn start_once(layout: &Layout) -> Result<SlurmRack, Failure> {
        std::fs::create_dir_all(layout.folder.join("ctld"))?;
        let nodes = (1..=layout.nodes).map(|n| (format!("n{n}"), None));
        let mut rack = SlurmRack {
            folder: layout.folder.clone(),
            nodes: nodes.collect(),
            controller: None,
            munge: None,
        };
        rack.configure(layout)?;
        rack.start_munge()?;
        rack.controller = Some(rack.daemon("slurmctld", &["-D", "-i"])?);
        for node in 0..rack.nodes.len() {
            rack.start_node(node)?;
        }
        match rack.wait_idle() {
            Ok(()) => Ok(rack),
            Err(failure) => {
                // It has no jobs to be ended first.
                rack.controller = None;
                Err(failure)
            }
        }
    }

    /// The names of the nodes: n1, n2, ….
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|(name, _)| name.as_str())
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn configure(&self, layout: &Layout) -> Result<(), Failure> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let host = host
            .trim()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_string();
        let ports = ports(self.nodes.len() + 1)?;
        let at = |name: &str| self.at(name);
        let mut lines = vec![
            "ClusterName=test".to_string(),
            format!("SlurmctldHost={host}(127.0.0.1)"),
            format!("SlurmctldPort={}", ports[0]),
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
            "SlurmdParameters=config_overrides\nReturnToService=2".to_string(),
            "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=2".to_string(),
            "KillWait=2\nSlurmdTimeout=10\nMessageTimeout=30\nMinJobAge=10".to_string(),
            // A time limit tells the scheduler something and ends nothing.
            "OverTimeLimit=UNLIMITED".to_string(),
        ];
        if let Some(pieces) = &layout.pieces {
            for piece in ["job_submit.lua", "plugstack.conf"] {
                std::fs::copy(pieces.join(piece), self.folder.join(piece))?;
            }
            lines.push("JobSubmitPlugins=lua".to_string());
            lines.push(format!("PlugStackConfig={}", at("plugstack.conf")));
        }
        for (node, port) in self.nodes().zip(&ports[1..]) {
            lines.push(format!(
                "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={} RealMemory={}",
                layout.cores,
                layout.memory_mib
            ));
        }
        let all: Vec<&str> = self.nodes().collect();
        let all = all.join(",");
        lines.push(format!(
            "PartitionName=all Nodes={all} Default=YES MaxTime=60 State=UP"
        ));
        std::fs::write(self.folder.join("slurm.conf"), lines.join("\n") + "\n")?;
        Ok(())
    }

    fn start_munge(&mut self) -> Result<(), Failure> {
        let mut options = std::fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(self.folder.join("munge.key"))?;
        let mut bytes = [0; 1024];
        muninn_sys::rand::fill(&mut bytes);
        std::io::Write::write_all(&mut file, &bytes)?;
        let mut command = Command::new("munged");
        command.args(["--force", "--foreground"]);
        for (option, name) in [
            ("key-file", "munge.key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            command.arg(format!("--{option}={}", self.at(name)));
        }
        self.munge = Some(Daemon::start(command)?);
        let socket = self.folder.join("munge.socket");
        until("munge", || socket.exists().then_some(()))
    }

    fn daemon(&self, program: &str, arguments: &[&str]) -> Result<Daemon, Failure> {
        let mut command = Command::new(program);
        command.args(arguments).arg("-f").arg(self.config());
        Daemon::start(command)
    }

    /// Starts the slurmd of a node, by its place in the list.
    pub fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        let name = self.nodes[node].0.clone();
        self.nodes[node].1 = Some(self.daemon("slurmd", &["-D", "-N", &name])?);
        Ok(())
    }

    /// Kills the slurmd of a node. What runs there goes on under its slurmstepd.
    pub fn kill_node(&mut self, node: usize) {
        if let Some(mut daemon) = self.nodes[node].1.take() {
            daemon.kill();
        }
    }

    /// Until all nodes may have jobs and none has one.
    fn wait_idle(&mut self) -> Result<(), Failure> {
        let wanted = format!("{} idle", self.nodes.len());
        let ends = Instant::now() + PATIENCE;
        while Instant::now() < ends {
            let dead = self.controller.as_mut().is_none_or(Daemon::has_ended);
            if dead {
                return Err(failed(format!("slurmctld has ended\n{}", self.logs())));
            }
            let out = self.ask("sinfo", &["-h", "-o", "%D %t"]);
            if out.is_ok_and(|out| out.trim() == wanted) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        Err(failed(format!(
            "its nodes never became idle\n{}",
            self.logs()
        )))
    }

    /// Its configuration, for what asks it by itself.
    pub fn config(&self) -> PathBuf {
        self.folder.join("slurm.conf")
    }

    /// One of Slurm's commands, for this Slurm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("SLURM_CONF", self.config())
            .stdin(Stdio::null());
        command
    }

    /// What such a command prints.
    pub fn ask<S: AsRef<std::ffi::OsStr>>(
        &self,
        program: &str,
        arguments: &[S],
    ) -> Result<String, Failure> {
        let output = self.command(program).args(arguments).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(failed(format!("{program}: {}", why.trim())))
    }

    /// The last words of all daemons.
    pub fn logs(&self) -> String {
        let logs = self.nodes().map(|node| format!("{node}.log"));
        let all: Vec<String> = ["ctld.log".to_string()]
            .into_iter()
            .chain(logs)
            .map(|name| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default())
            .collect();
        let all = all.join("\n");
        let lines: Vec<&str> = all.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Ends all jobs, and waits until they are gone.
    pub fn end_jobs(&self) {
        let _ = self.ask("scancel", &["--signal=KILL", "--full", "-u", "root"]);
        let _ = self.ask("scancel", &["-u", "root"]);
        let ends = Instant::now() + FAREWELL;
        while Instant::now() < ends {
            match self.ask("squeue", &["-h"]) {
                Ok(left) if !left.trim().is_empty() => std::thread::sleep(4 * LOOK),
                _ => return,
            }
        }
    }
}

impl Drop for SlurmRack {
    fn drop(&mut self) {
        // Tasks that are left belong to slurmstepd, which goes on without slurmd.
        if self.controller.is_some() {
            self.end_jobs();
        }
        let nodes = self.nodes.drain(..).filter_map(|(_, daemon)| daemon);
        let all: Vec<Daemon> = nodes.chain(self.controller.take()).collect();
        // Asked together and not one after the other; munge when they have spoken their last.
        for daemon in &all {
            daemon.ask_to_end();
        }
        drop(all);
        drop(self.munge.take());
    }
}

impl Daemon {
    fn start(mut command: Command) -> Result<Daemon, Failure> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        // Jobs inherit from slurmd what it may hear.
        let command = child::hears_signals(child::die_with_parent(&mut command));
        let child = command.spawn();
        let child = child.map_err(|error| failed(format!("{program} cannot be started: {error}")));
        child.map(Daemon)
    }

    fn ask_to_end(&self) {
        let handle = PidFd::open(self.0.id() as i32);
        let _ = handle.and_then(|handle| handle.send(Signal::TERM));
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Ok(handle) = PidFd::open(self.0.id() as i32) {
            let _ = handle.wait_end(Some(FAREWELL));
        }
        self.kill();
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let ends = Instant::now() + PATIENCE;
    while Instant::now() < ends {
        if let Some(found) = look() {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
    Err(failed(format!("never {what}")))
}
