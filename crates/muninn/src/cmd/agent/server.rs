//! The node's memory server: a process of its own, which outlives an agent that is killed.
//!
//! Its memory is in the hands of other nodes' jobs; an agent that ends by accident must not end it. So it
//! is neither killed with its parent nor of its group, and the next agent finds it by its socket.

use super::Args;
use crate::cmd::serve::ceiling;
use crate::failure::Failure;
use muninn_cluster::agent::{MemoryServer, ServerNews};
use muninn_net::{Key, Observer, ServerUser, SessionOptions};
use muninn_sys::proc::ProcessId;
use muninn_sys::signal::PidFd;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, format_duration};
use rustix::process::Signal;
use serde::Deserialize;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// It may take so long until it listens.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(20);
const ANSWER: Duration = Duration::from_secs(2);
/// What clients get to move away when it is stopped, and what it gets to end beyond that.
const GRACE: Duration = Duration::from_secs(10);
const BEYOND: Duration = Duration::from_secs(5);
/// Where the agent finds it, in the folder.
const SOCKET: &str = "memory.sock";

pub(super) struct NodeServer {
    process: ProcessId,
    child: Option<Child>,
    socket: Address,
    listen: Vec<String>,
    ceiling: PathBuf,
    key: Key,
}

#[derive(Deserialize)]
struct Listening {
    pid: u32,
    listen: Vec<String>,
}

impl NodeServer {
    /// The one that runs already, or a new one.
    pub(super) fn start(
        args: &Args,
        name: &str,
        memory: Bytes,
        key: &Key,
    ) -> Result<NodeServer, Failure> {
        let folder = std::path::absolute(&args.folder)?;
        let path = folder.join(SOCKET);
        let socket = Address::unix(&path).map_err(Failure::usage)?;
        let note = folder.join("server");
        let ceiling = folder.join("ceiling");
        if let Some((process, listen)) = running(&note)
            && look(&socket, key).is_some()
        {
            eprintln!(
                "muninn: the memory server of the agent before this one goes on (pid {})",
                process.pid()
            );
            return Ok(NodeServer {
                process,
                child: None,
                socket,
                listen,
                ceiling,
                key: key.clone(),
            });
        }
        ceiling::write(&ceiling, args.donate)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--config", "/dev/null", "serve", "--json", "--name", name]);
        command.args(["--memory", &(memory + args.donate).to_string()]);
        command.arg("--socket").arg(&path);
        command.arg("--ceiling-file").arg(&ceiling);
        command.args(["--stop-grace", &format_duration(GRACE)]);
        if let Some(listen) = &args.listen {
            command.args(["--listen", &listen.to_string()]);
        }
        if let Some(key_file) = &args.key_file {
            command.arg("--key-file").arg(key_file);
        }
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("MUNINN_") {
                command.env_remove(variable);
            }
        }
        // Files and not pipes: it outlives whoever would read them, and must not end with its first word
        // after that.
        let (said, log) = (folder.join("server.out"), folder.join("server.log"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&said)?)
            .stderr(File::create(&log)?)
            .process_group(0);
        let mut child = command.spawn()?;
        let Some(listening) = first_word(&mut child, &said)? else {
            let _ = child.kill();
            let _ = child.wait();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(Failure::failed(format!(
                "the node's memory server did not start: {}",
                log.trim().trim_start_matches("muninn: ")
            )));
        };
        let process = ProcessId::of(listening.pid);
        let process =
            process.ok_or_else(|| Failure::failed("the node's memory server has ended"))?;
        let kept = serde_json::json!({ "word": process.word(), "listen": listening.listen });
        std::fs::write(&note, kept.to_string())?;
        Ok(NodeServer {
            process,
            child: Some(child),
            socket,
            listen: listening.listen,
            ceiling,
            key: key.clone(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where others reach it: its tcp addresses, or, where there are none, its socket, which is of use on
    /// this machine only.
    pub(super) fn reached_at(&self) -> Vec<String> {
        let tcp: Vec<String> = self
            .listen
            .iter()
            .filter(|address| !address.starts_with("unix:"))
            .cloned()
            .collect();
        match tcp.is_empty() {
            true => self.listen.clone(),
            false => tcp,
        }
    }

    pub(super) fn watch(&self) -> Watch {
        Watch {
            socket: self.socket.clone(),
            ceiling: self.ceiling.clone(),
            key: self.key.clone(),
            observer: None,
        }
    }

    /// Ends it: its clients get a moment to move away.
    pub(super) fn stop(&mut self) {
        let handle = PidFd::open(self.process.pid() as i32);
        // Its own number, and not that of somebody who has it by now.
        if let Ok(handle) = handle
            && self.process.is_alive()
            && handle.send(Signal::TERM).is_ok()
            && !handle.wait_end(Some(GRACE + BEYOND)).unwrap_or(true)
        {
            let _ = handle.kill();
        }
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

/// What it says when it listens; `None` if it ended, or took too long.
fn first_word(child: &mut Child, said: &Path) -> Result<Option<Listening>, Failure> {
    let ends = Instant::now() + PATIENCE;
    while Instant::now() < ends && child.try_wait()?.is_none() {
        let text = std::fs::read_to_string(said)?;
        if let Some((line, _)) = text.split_once('\n') {
            return Ok(serde_json::from_str(line).ok());
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

#[derive(Deserialize)]
struct Note {
    word: u64,
    listen: Vec<String>,
}

/// The server that the note names, if it still runs.
fn running(note: &Path) -> Option<(ProcessId, Vec<String>)> {
    let note: Note = serde_json::from_slice(&std::fs::read(note).ok()?).ok()?;
    let process = ProcessId::from_word(note.word)?;
    process.is_alive().then_some((process, note.listen))
}

fn connect(socket: &Address, key: &Key) -> Option<Observer> {
    let options = SessionOptions {
        key: key.clone(),
        deadline: ANSWER,
        connect_timeout: ANSWER,
        server: ServerUser::OwnOrRoot,
        ..SessionOptions::default()
    };
    Observer::connect(socket, &options).ok()
}

fn look(socket: &Address, key: &Key) -> Option<Bytes> {
    let status = connect(socket, key)?.status().ok()?;
    Some(Bytes(status.server.granted_bytes))
}

/// The server, as the agent's second thread sees it.
pub(super) struct Watch {
    socket: Address,
    ceiling: PathBuf,
    key: Key,
    observer: Option<Observer>,
}

impl MemoryServer for Watch {
    fn set_ceiling(&mut self, ceiling: Bytes) -> Result<(), String> {
        ceiling::write(&self.ceiling, ceiling).map_err(|error| {
            let path = self.ceiling.display();
            format!("cannot tell the node's memory server what it may grant: {path}: {error}")
        })
    }

    fn look(&mut self) -> Option<ServerNews> {
        let mut observer = match self.observer.take() {
            Some(observer) => observer,
            None => connect(&self.socket, &self.key)?,
        };
        let status = observer.status().ok()?;
        self.observer = Some(observer);
        Some(ServerNews {
            granted: Bytes(status.server.granted_bytes + status.server.wiping_bytes),
        })
    }
}
