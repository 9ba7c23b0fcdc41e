//! Starting the binary, hearing what it says, and ending it.

use muninn_net::{Pool, PoolOptions};
use muninn_sys::signal::PidFd;
use muninn_sys::uffd::OpenError;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Far more than anything here takes; a test that reaches it has found a hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const BINARY: &str = env!("CARGO_BIN_EXE_muninn");

/// A folder of a test, in which the binary runs.
pub struct Place {
    dir: tempfile::TempDir,
}

pub fn place() -> Place {
    Place {
        dir: tempfile::tempdir().unwrap(),
    }
}

/// Whether programs can have far memory here: false, counted as a skip, only where the kernel or the
/// user's rights give no userfaultfd.
#[allow(dead_code)] // not every suite that shares this file asks
pub fn far_memory_possible() -> bool {
    match muninn::cmd::run::userfaultfd() {
        Ok(()) => true,
        Err(
            error @ (OpenError::NotPermitted { .. }
            | OpenError::NotHere
            | OpenError::Missing { .. }),
        ) => {
            muninn_testing::skip(error);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Place {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The binary, with nothing of this machine's configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of(Path::new(BINARY), args)
    }

    pub fn command_of(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MUNINN_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("MUNINN_CONFIG", "/dev/null")
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("XDG_CONFIG_HOME", self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        Running::start(self.command(args)).end()
    }

    /// A server at `m.sock` and a free port, which has said where it listens.
    pub fn serve(&self, args: &[&str]) -> Served {
        let all = [
            &[
                "serve",
                "--socket",
                "m.sock",
                "--listen",
                "127.0.0.1:0",
                "--json",
            ],
            args,
        ];
        Served::start(self.command(&all.concat()))
    }
}

/// A command that runs.
pub struct Running {
    child: Child,
    out: Receiver<String>,
    err: Option<JoinHandle<String>>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, out) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let mut pipe = child.stderr.take().unwrap();
        let err = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            text
        });
        Running {
            child,
            out,
            err: Some(err),
        }
    }

    /// The next line of its output; None when there are no more.
    pub fn line(&self) -> Option<String> {
        match self.out.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no output within {PATIENCE:?}"),
        }
    }

    pub fn json(&self) -> Value {
        let line = self.line().expect("one more line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[allow(dead_code)] // not every suite that shares this file asks
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let process = PidFd::open(self.child.id() as i32).unwrap();
        process.send(signal).unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn end(mut self) -> Ended {
        let mut out = String::new();
        while let Some(line) = self.line() {
            out += &line;
            out.push('\n');
        }
        let process = PidFd::open(self.child.id() as i32).unwrap();
        assert!(
            process.wait_end(Some(PATIENCE)).unwrap(),
            "did not end within {PATIENCE:?}"
        );
        let code = self.child.wait().unwrap().code();
        let err = self.err.take().unwrap().join().unwrap();
        Ended { code, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a test that failed; one that has ended is not hurt.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that runs.
pub struct Served {
    pub running: Running,
    /// What it said first.
    pub listening: Value,
}

impl Served {
    pub fn start(command: Command) -> Served {
        let running = Running::start(command);
        let Some(line) = running.line() else {
            panic!("the server did not start: {:?}", running.end());
        };
        let listening = serde_json::from_str(&line).unwrap();
        Served { running, listening }
    }

    fn address(&self, unix: bool) -> String {
        let all = self.listening["listen"].as_array().unwrap().iter();
        let mut all = all.map(|address| address.as_str().unwrap());
        let found = all.find(|address| address.starts_with("unix:") == unix);
        found.expect("it listens there").to_string()
    }

    pub fn tcp(&self) -> String {
        self.address(false)
    }

    #[allow(dead_code)] // not every suite that shares this file asks
    pub fn unix(&self) -> String {
        self.address(true)
    }

    /// A session at its port.
    pub fn client(&self, name: &str) -> Pool {
        Pool::connect(&self.tcp(), options(name)).unwrap()
    }

    /// Tells it to stop and waits for that.
    pub fn stop(self) -> Ended {
        self.running.signal(Signal::TERM);
        self.running.end()
    }
}

pub fn options(name: &str) -> PoolOptions {
    PoolOptions {
        name: name.to_string(),
        deadline: Duration::from_secs(20),
        ..PoolOptions::default()
    }
}
