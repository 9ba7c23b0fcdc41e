//! Where a program is run to be measured: alone, with far memory, or beside the kernel's own swap.
//!
//! The same command runs on every [`Backend`] with the same limit, one after the other, watched by
//! the same [`Sampler`]. Everything that is set up (a server, a zram device, a swap file, a cgroup)
//! belongs to the [`Arena`] and goes with it, also when something fails or somebody presses Ctrl-C.
//! What cannot be had here is left out, with the reason in [`Arena::skipped`].
//!
//! Known limit: a bench that is killed without being asked leaves its swap behind.

mod running;
mod sampler;

pub use running::{End, Ran, Running};
pub use sampler::Sampler;

use crate::embedded::{EmbeddedServer, Scratch};
use crate::failure::{Exit, Failure};
use clap::ValueEnum;
use muninn_sys::cgroup::Hierarchy;
use muninn_sys::pm_qos::{self, LatencyGuard};
use muninn_sys::signal::Termination;
use muninn_sys::swap::{SwapArea, SwapFile, SwapOn, Zram};
use muninn_types::Bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Not limited, without Muninn
    Plain,
    /// Muninn with an embedded server, through shared memory
    Shm,
    /// Muninn with a server on the loopback interface
    Tcp,
    /// As shm, with sealed pages
    ShmSealed,
    /// As tcp, with sealed pages
    TcpSealed,
    /// A memory cgroup with zram as its swap
    Zram,
    /// A memory cgroup with a swap file
    SwapFile,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Plain => "plain",
            Backend::Shm => "shm",
            Backend::Tcp => "tcp",
            Backend::ShmSealed => "shm-sealed",
            Backend::TcpSealed => "tcp-sealed",
            Backend::Zram => "zram",
            Backend::SwapFile => "swap-file",
        }
    }

    pub fn is_muninn(self) -> bool {
        matches!(self, Backend::Shm | Backend::Tcp) || self.is_sealed()
    }

    pub fn is_sealed(self) -> bool {
        matches!(self, Backend::ShmSealed | Backend::TcpSealed)
    }

    /// The same with sealed pages.
    pub fn sealed(self) -> Option<Backend> {
        match self {
            Backend::Shm => Some(Backend::ShmSealed),
            Backend::Tcp => Some(Backend::TcpSealed),
            _ => None,
        }
    }

    fn is_tcp(self) -> bool {
        matches!(self, Backend::Tcp | Backend::TcpSealed)
    }
}

/// A backend that is not there, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    pub what: String,
    pub reason: String,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Job {
    pub words: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Longer is too long: it is ended.
    pub patience: Duration,
}

impl Job {
    pub fn new<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Job {
        Job {
            words: words.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            patience: Duration::from_secs(180),
        }
    }
}

#[derive(Debug)]
pub struct Arena {
    scratch: Scratch,
    server: Option<EmbeddedServer>,
    zram: Option<Zram>,
    swap_file: Option<SwapFile>,
    cgroups: Option<Hierarchy>,
    termination: Termination,
    pub skipped: Vec<Skipped>,
    _awake: Option<LatencyGuard>,
}

impl Arena {
    /// Sets up what these backends need; `far` is the most that any program may push out.
    pub fn new(wanted: &[Backend], far: Bytes) -> Result<Arena, Failure> {
        // First: threads and children that start later must not be ended in our place.
        let termination = Termination::watch().map_err(Failure::failed)?;
        let mut arena = Arena {
            scratch: Scratch::new()?,
            server: None,
            zram: None,
            swap_file: None,
            cgroups: None,
            termination,
            skipped: Vec::new(),
            // All backends alike: a CPU that has to wake up first is most of a fault's time.
            _awake: pm_qos::keep_awake().ok(),
        };
        for backend in wanted {
            if let Err(reason) = arena.set_up(*backend, far) {
                arena.skipped.push(Skipped {
                    what: backend.name().to_string(),
                    reason,
                });
            }
        }
        Ok(arena)
    }

    fn set_up(&mut self, backend: Backend, far: Bytes) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        match backend {
            Backend::Plain | Backend::Shm | Backend::ShmSealed => return Ok(()),
            Backend::Tcp | Backend::TcpSealed if self.server.is_some() => return Ok(()),
            Backend::Tcp | Backend::TcpSealed => {
                // What the program before had may still be on its way back.
                let memory = Bytes(far.0 * 3).to_string();
                let args = ["--memory", &memory, "--listen", "127.0.0.1:0", "--insecure"];
                self.server = Some(EmbeddedServer::start(args).map_err(|e| text(&e))?);
                return Ok(());
            }
            Backend::Zram | Backend::SwapFile => {}
        }
        if self.cgroups.is_none() {
            if !rustix::process::geteuid().is_root() {
                return Err("limiting a program and switching swap need root".to_string());
            }
            let cgroups = Hierarchy::find().map_err(|e| text(&e))?;
            // One to see whether it can be done.
            cgroups.create(&group_name()).map_err(|e| text(&e))?;
            self.cgroups = Some(cgroups);
        }
        if backend == Backend::Zram {
            self.zram = Some(Zram::create(far, None).map_err(|e| text(&e))?);
        } else {
            let path =
                std::env::temp_dir().join(format!("muninn-bench-{}.swap", std::process::id()));
            self.swap_file = Some(SwapFile::create(&path, far).map_err(|e| text(&e))?);
        }
        // Whether it can be switched on is better known now than in the middle of the bench.
        let tried = self.swap_on(backend).map(drop);
        if tried.is_err() && backend == Backend::Zram {
            self.zram = None;
        } else if tried.is_err() {
            self.swap_file = None;
        }
        tried.map_err(|e| text(&e))
    }

    fn swap_on(&self, backend: Backend) -> Result<Option<SwapOn>, Failure> {
        let area: Option<&dyn SwapArea> = match backend {
            Backend::Zram => self.zram.as_ref().map(|area| area as &dyn SwapArea),
            Backend::SwapFile => self.swap_file.as_ref().map(|area| area as &dyn SwapArea),
            _ => return Ok(None),
        };
        let area = area.ok_or_else(|| missing(backend))?;
        area.on().map(Some).map_err(Failure::failed)
    }

    pub fn has(&self, backend: Backend) -> bool {
        match backend {
            Backend::Plain | Backend::Shm | Backend::ShmSealed => true,
            Backend::Tcp | Backend::TcpSealed => self.server.is_some(),
            Backend::Zram => self.zram.is_some(),
            Backend::SwapFile => self.swap_file.is_some(),
        }
    }

    /// A directory for files of the programs, gone with the arena.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs to the end.
    pub fn run(&self, backend: Backend, limit: Bytes, job: &Job) -> Result<Ran, Failure> {
        self.start(backend, limit, job)?.wait()
    }

    /// Starts a program that may use `limit` of local memory (without effect on [`Backend::Plain`]).
    pub fn start(&self, backend: Backend, limit: Bytes, job: &Job) -> Result<Running<'_>, Failure> {
        self.check_interrupt()?;
        let stats = self.dir().join("stats.json");
        let _ = std::fs::remove_file(&stats);
        let swap = self.swap_on(backend)?;
        let mut group = None;
        let mut command = match backend {
            Backend::Plain => Command::new(&job.words[0]),
            Backend::Shm | Backend::Tcp | Backend::ShmSealed | Backend::TcpSealed => {
                self.muninn_run(backend, limit, &stats, &job.words[0])?
            }
            Backend::Zram | Backend::SwapFile => {
                let cgroups = self.cgroups.as_ref().ok_or_else(|| missing(backend))?;
                let made = cgroups.create(&group_name()).map_err(Failure::failed)?;
                // As much swap as wanted, where the kernel counts it at all.
                made.set_limits(Some(limit), Some(None))
                    .or_else(|_| made.set_limits(Some(limit), None))
                    .map_err(Failure::failed)?;
                let members: PathBuf = made.path().join("cgroup.procs");
                group = Some(made);
                // The shell enters the group and becomes the program: not a page is charged elsewhere.
                let mut shell = Command::new("sh");
                let enter = r#"echo $$ > "$0" && exec "$@""#;
                shell.args(["-c", enter]).arg(members).arg(&job.words[0]);
                shell
            }
        };
        command.args(&job.words[1..]);
        command.envs(job.env.iter().map(|(name, value)| (name, value)));
        let launched = backend.is_muninn();
        Running::spawn(
            command,
            self,
            launched,
            limit,
            job.patience,
            stats,
            (group, swap),
        )
    }

    fn muninn_run(
        &self,
        backend: Backend,
        limit: Bytes,
        stats: &Path,
        program: &str,
    ) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "--config",
            "/dev/null",
            "run",
            "--local",
            &limit.to_string(),
        ]);
        command.arg("--json").arg(stats);
        // What a bench measures is not to be remembered as what its user runs.
        command.env("XDG_STATE_HOME", self.dir());
        command.arg(match backend.is_sealed() {
            true => "--seal",
            false => "--no-seal",
        });
        if backend.is_tcp() {
            let server = self.server.as_ref().ok_or_else(|| missing(backend))?;
            command.arg("--pool").arg(&server.addresses()[0]);
        }
        command.arg("--").arg(program);
        Ok(command)
    }

    /// Fails when somebody has asked us to end.
    pub fn check_interrupt(&self) -> Result<(), Failure> {
        match self.termination.take() {
            Some(_) => Err(interrupted()),
            None => Ok(()),
        }
    }
}

fn interrupted() -> Failure {
    Failure::new(Exit::Failed, "interrupted; what was set up is removed")
}

fn missing(backend: Backend) -> Failure {
    Failure::failed(format!("{} is not set up here", backend.name()))
}

fn group_name() -> String {
    format!(
        "muninn-bench-{}-{:08x}",
        std::process::id(),
        muninn_sys::rand::u64() as u32
    )
}
