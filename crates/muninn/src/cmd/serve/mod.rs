//! `muninn serve`: a memory server in the foreground, until it is told to stop.

pub mod ceiling;
mod donor;
mod settings;
mod stored;
mod take_over;

pub use settings::Args;

use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use crate::key_file::Watched;
use crate::ui;
use donor::Host;
use muninn_net::Key;
use muninn_server::{Server, ServerError};
use muninn_sys::epoll::wait_any;
use muninn_sys::limits;
use muninn_sys::notify;
use muninn_sys::proc::RealProc;
use muninn_sys::signal::{Reload, Termination};
use muninn_types::{Bytes, format_duration};
use serde::Serialize;
use settings::Settings;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
use stored::Stored;

/// How often the health of the threads is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often a server that drains looks whether it has its memory back.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// Sessions that are named when a drain did not succeed; the rest is counted.
const HOLDERS_NAMED: usize = 20;

/// What scripts wait for.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    Listening {
        pid: u32,
        name: &'a str,
        memory_bytes: u64,
        lease_ms: u64,
        listen: Vec<String>,
        metrics: Option<String>,
        key: bool,
        threads: usize,
        open_files_max: Option<u64>,
        /// Memory that clients hold here since before this process.
        took_over_bytes: Option<u64>,
    },
    Draining {
        held_bytes: u64,
        within_ms: u64,
    },
    HandedOver {
        /// Memory that clients go on holding at the next process.
        held_bytes: u64,
    },
    Left {
        /// Memory that clients go on holding once the next process begins.
        held_bytes: u64,
    },
    Stopped {
        /// Memory that clients still held and have lost.
        held_bytes: u64,
    },
}

struct Voice {
    json: bool,
}

impl Voice {
    fn say(&self, event: &Event<'_>, human: impl FnOnce() -> String) {
        let text = if self.json {
            serde_json::to_string(event).expect("plain data serialises")
        } else {
            human()
        };
        ui::print_out(&text);
    }
}

pub fn run(args: &Args, config: &Config) -> Outcome {
    let mut settings = args.resolve(&config.serve, &RealProc)?;
    let voice = Voice { json: args.json };
    // Before any other thread, so that all of them inherit the blocked signals.
    let termination = Termination::watch().map_err(Failure::failed)?;
    let mut keys = Keys::watch(settings.key_file.as_deref())?;
    // Fewer descriptors only mean fewer clients: worth a word, not a refusal.
    let files = limits::raise_open_files().unwrap_or_else(|error| {
        eprintln!("muninn: {error}");
        limits::limit(limits::Limited::OpenFiles)
    });
    let described = settings.server.clone();
    let old = match &settings.take_over {
        Some(socket) => take_over::ask(socket, &settings.server.key)?,
        None => None,
    };
    let mut store = match settings.fdstore {
        true => Some(Stored::find()?),
        false => None,
    };
    let left = store.as_mut().and_then(Stored::take);
    let took_over = old.is_some() || left.is_some();
    let mut server = match (old, left) {
        (Some(old), _) => Server::take_over(settings.server.clone(), old),
        (None, Some(left)) => Server::resume(settings.server.clone(), left),
        (None, None) => Server::start(settings.server.clone()),
    }
    .map_err(refused)?;
    if let Some(store) = &store {
        store.forget();
    }
    // Before anybody is told where it listens.
    let mut host = Host::new(settings.reserve, settings.ceiling.take());
    host.look_after(&server);
    let listening = Event::Listening {
        pid: muninn_sys::proc::own_pid(),
        name: &described.name,
        memory_bytes: described.memory.0,
        lease_ms: described.lease.as_millis() as u64,
        listen: server.addresses().iter().map(ToString::to_string).collect(),
        metrics: server
            .metrics_address()
            .map(|at| format!("http://{at}/metrics")),
        key: !described.key.is_none(),
        threads: described.threads,
        open_files_max: files.soft,
        took_over_bytes: took_over.then(|| server.pool().granted.0),
    };
    voice.say(&listening, || describe(&server, &settings, took_over));
    tell_manager(&format!("READY=1\nMAINPID={}", muninn_sys::proc::own_pid()));
    if let Wish::HandedOver(held) = wait(&mut server, &termination, &mut keys, &mut host)? {
        drop(server);
        voice.say(&Event::HandedOver { held_bytes: held.0 }, || {
            format!("another process goes on in this one's place, with {held} that clients hold")
        });
        return Ok(());
    }
    tell_manager("STOPPING=1");
    if let Some(store) = &store {
        match store.put(&mut server) {
            Ok(held) => {
                drop(server);
                voice.say(&Event::Left { held_bytes: held.0 }, || {
                    format!("left to the service manager, with {held} that clients hold")
                });
                return Ok(());
            }
            Err(why) => {
                eprintln!("muninn: not left to the service manager, this server stops: {why}")
            }
        }
    }
    if !settings.stop_grace.is_zero() {
        drain(&server, &termination, settings.stop_grace, &voice)?;
    }
    let held = server.pool().granted;
    // Stopping takes a moment; whoever asks again wants it now.
    let impatient = std::thread::Builder::new().spawn(move || {
        if let Ok(Some(_)) = termination.wait(None) {
            std::process::exit(Exit::Failed as i32);
        }
    });
    drop(impatient);
    server.stop();
    voice.say(&Event::Stopped { held_bytes: held.0 }, || match held {
        Bytes::ZERO => "stopped; no client held memory here".to_string(),
        held => format!("stopped; clients still held {held} here and have lost it"),
    });
    Ok(())
}

/// That the service manager was not told is no reason to stop serving.
fn tell_manager(words: &str) {
    if let Err(error) = notify::notify(words) {
        eprintln!(
            "muninn: the service manager was not told ({error}): it may take this server for one that hangs"
        );
    }
}

fn refused(error: ServerError) -> Failure {
    let exit = match &error {
        ServerError::Listen(_) | ServerError::Start(_) => Exit::Failed,
        ServerError::TakeOver(why) if !why.is_usage() => Exit::Failed,
        ServerError::Memory(..) => Exit::Unsupported,
        _ => Exit::Usage,
    };
    Failure::new(exit, error)
}

fn describe(server: &Server, settings: &Settings, took_over: bool) -> String {
    let config = &settings.server;
    let mut lines = vec![format!(
        "serving {} as '{}', lease {}, {}",
        config.memory,
        config.name,
        format_duration(config.lease),
        if config.key.is_none() {
            "no key"
        } else {
            "clients need the key"
        }
    )];
    for address in server.addresses() {
        lines.push(match address.is_unix() {
            true if settings.default_socket => {
                format!("listening at {address} (shared memory; the default, as none was named)")
            }
            true => format!("listening at {address} (shared memory)"),
            false => format!("listening at {address} (tcp)"),
        });
    }
    if let Some(at) = server.metrics_address() {
        lines.push(format!("metrics at http://{at}/metrics"));
    }
    if took_over {
        let held = server.pool().granted;
        lines.push(format!(
            "took over from another process, with {held} that clients hold"
        ));
    }
    lines.push("stop with ctrl-c".to_string());
    lines.join("\n")
}

/// Why a server no longer runs.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Stop,
    /// With what clients hold.
    HandedOver(Bytes),
}

/// Waits until somebody wants the server to end, or another process has it. That one of its threads has ended is an error.
fn wait(
    server: &mut Server,
    termination: &Termination,
    keys: &mut Option<Keys>,
    host: &mut Host,
) -> Result<Wish, Failure> {
    loop {
        let reload = keys.as_ref().map(|keys| keys.reload.as_fd());
        let always = [termination.as_fd(), server.heirs()];
        let fds: Vec<_> = reload.into_iter().chain(always).collect();
        wait_any(&fds, LOOK);
        if termination.take().is_some() {
            return Ok(Wish::Stop);
        }
        if let Some(heir) = server.next_heir() {
            match server.hand_over(heir) {
                Ok(held) => return Ok(Wish::HandedOver(held)),
                Err(error) => eprintln!("muninn: not handed over, this server goes on: {error}"),
            }
        }
        check_health(server)?;
        host.look_after(server);
        match keys.as_mut().and_then(Keys::changed) {
            Some(Ok(key)) => {
                server.set_key(key);
                eprintln!("muninn: the key file was read again; new connections need its key");
            }
            // Whatever happened to it: nobody is let in who was not before, or kept out.
            Some(Err(error)) => eprintln!("muninn: {error}; the old key stays in use"),
            None => {}
        }
    }
}

/// A key file that is read again when it has changed, and when we are told to (SIGHUP).
struct Keys {
    file: Watched,
    reload: Reload,
}

impl Keys {
    /// Without a key file SIGHUP is what it is for others.
    fn watch(path: Option<&Path>) -> Result<Option<Keys>, Failure> {
        let watch = |path| {
            Ok(Keys {
                file: Watched::new(path),
                reload: Reload::watch().map_err(Failure::failed)?,
            })
        };
        path.map(watch).transpose()
    }

    fn changed(&mut self) -> Option<Result<Key, Failure>> {
        match self.reload.take() {
            true => Some(self.file.read()),
            false => self.file.changed(),
        }
    }
}

fn check_health(server: &Server) -> Outcome {
    if server.is_healthy() {
        return Ok(());
    }
    Err(Failure::failed(
        "a thread of the server has died, what it said is above; the server ends, and what it kept \
         is lost: start it again",
    ))
}

/// Asks clients for the memory and waits; a second signal ends the waiting.
fn drain(server: &Server, termination: &Termination, grace: Duration, voice: &Voice) -> Outcome {
    let held = server.pool().granted;
    if held == Bytes::ZERO {
        return Ok(());
    }
    server.drain(Some(grace));
    let draining = Event::Draining {
        held_bytes: held.0,
        within_ms: grace.as_millis() as u64,
    };
    voice.say(&draining, || {
        format!(
            "asked clients to move {held} away within {}; ctrl-c again stops at once",
            format_duration(grace)
        )
    });
    let ends = Instant::now() + grace;
    while server.pool().granted > Bytes::ZERO && Instant::now() < ends {
        check_health(server)?;
        let wish = termination.wait(Some(DRAIN_LOOK));
        if wish.map_err(Failure::failed)?.is_some() {
            break;
        }
    }
    let status = server.status();
    let holders: Vec<_> = status
        .sessions
        .iter()
        .filter(|session| session.granted_bytes > 0)
        .collect();
    for session in holders.iter().take(HOLDERS_NAMED) {
        eprintln!(
            "muninn: {} (pid {}) still holds {}",
            session.name,
            session.pid,
            Bytes(session.granted_bytes)
        );
    }
    if holders.len() > HOLDERS_NAMED || status.next.is_some() {
        eprintln!("muninn: and others");
    }
    Ok(())
}
