//! Memory servers that a command starts for itself: this same program, as a child process, so that
//! it can be killed and looked at like any other.

use crate::failure::Failure;
use muninn_sys::epoll::{Interest, wait_for};
use muninn_sys::signal::PidFd;
use muninn_types::format_duration;
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take until it listens, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server process. Ended, and waited for, when dropped.
#[derive(Debug)]
pub struct EmbeddedServer {
    child: Child,
    addresses: Vec<String>,
}

/// The part of `serve --json`'s first line that is needed here.
#[derive(Deserialize)]
struct Listening {
    listen: Vec<String>,
}

impl EmbeddedServer {
    /// Starts `muninn serve` with these arguments and waits until it listens.
    pub fn start<S: AsRef<std::ffi::OsStr>>(
        args: impl IntoIterator<Item = S>,
    ) -> Result<EmbeddedServer, Failure> {
        EmbeddedServer::start_as("serve", args)
    }

    /// Starts `muninn nic` with these arguments and waits until it listens.
    pub fn start_nic<S: AsRef<std::ffi::OsStr>>(
        args: impl IntoIterator<Item = S>,
    ) -> Result<EmbeddedServer, Failure> {
        EmbeddedServer::start_as("nic", args)
    }

    fn start_as<S: AsRef<std::ffi::OsStr>>(
        command_name: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<EmbeddedServer, Failure> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        // Settings meant for a server that someone else runs must not reach this one.
        command
            .args(["--config", "/dev/null", command_name, "--json"])
            .args(args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MUNINN_") {
                command.env_remove(name);
            }
        }
        // A group of its own: ctrl-c is for whoever uses the server, who then ends it.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = muninn_sys::child::die_with_parent(&mut command).spawn()?;
        let out = child.stdout.take();
        // From here on it ends with the server's handle, whatever is returned.
        let mut server = EmbeddedServer {
            child,
            addresses: Vec::new(),
        };
        let mut line = String::new();
        if let Some(out) = out {
            if !wait_for(&out, Interest::READ, Some(PATIENCE)).map_err(Failure::failed)? {
                return Err(Failure::failed(format!(
                    "an embedded memory server was started but did not listen within {}: is this \
                     machine short of memory or processors?",
                    format_duration(PATIENCE)
                )));
            }
            BufReader::new(out).read_line(&mut line)?;
        }
        match serde_json::from_str::<Listening>(&line) {
            Ok(listening) => {
                server.addresses = listening.listen;
                Ok(server)
            }
            Err(_) => {
                // It ends by itself when it has said why, and else is ended.
                let handle = PidFd::open(server.pid() as i32);
                let _ = handle.and_then(|handle| handle.wait_end(Some(PATIENCE)));
                let _ = server.child.kill();
                let status = server.child.wait()?;
                Err(Failure::failed(format!(
                    "an embedded memory server did not start ({status}); its message is above"
                )))
            }
        }
    }

    /// Where it listens, in the order of its arguments' kinds: sockets first, then addresses.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Ends it without warning, as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A directory of our own for sockets, removed with everything in it when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch, Failure> {
        let name = format!("muninn-{:016x}", muninn_sys::rand::u64());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch(path))
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
