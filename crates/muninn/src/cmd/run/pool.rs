//! The memory servers of a job: those that were named, or one of its own.
//!
//! Servers that were named are greeted before the program starts, so that a wrong key or a server
//! that is away is an error of the launcher and not the program's end. Where none is named, a server
//! for this job alone is started on this machine, at a socket in the user's private folder.

use crate::embedded::EmbeddedServer;
use crate::failure::{Exit, Failure};
use crate::key_file;
use crate::ui;
use muninn_net::{Key, NetError, Observer, SessionOptions};
use muninn_policy::layout::Layout;
use muninn_sys::proc::{self, RealProc};
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A server gets this long to answer a person who waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// And this long if others do.
const ENOUGH: Duration = Duration::from_millis(700);
/// Of the memory that is available, this much is for far pages: 7/8.
const SHARE_OF_AVAILABLE: (u64, u64) = (7, 8);
/// A server of less than this is of no use, and memory comes in pieces of this.
const EMBEDDED_STEP: Bytes = Bytes::mib(64);
/// A program that is stopped with ctrl-z must find its pages when it goes on, even the next day.
/// Nobody else waits for this memory: the server ends with the job.
const EMBEDDED_LEASE: &str = "24h";

/// Where pages go.
#[derive(Debug)]
pub struct Servers {
    pub addresses: Vec<Address>,
    embedded: Option<(EmbeddedServer, PathBuf)>,
    /// Of the embedded server, which then lets in whoever has it.
    key: Option<Key>,
}

impl Servers {
    /// Connects to each server once and shakes hands, with all at the same time. A server that is away
    /// is told of; only when fewer are left than the layout needs the program is not started. One that
    /// refuses is an error: then it is not the server that is wrong.
    pub fn named(
        addresses: Vec<Address>,
        key: &Key,
        layout: Option<Layout>,
    ) -> Result<Servers, Failure> {
        let needed = layout.unwrap_or_default().members();
        if addresses.len() < needed {
            return Err(Failure::usage(format!(
                "--layout {} needs {needed} servers, and the pool has {}",
                layout.unwrap_or_default(),
                addresses.len()
            )));
        }
        let options = SessionOptions {
            key: key.clone(),
            deadline: PATIENCE,
            ..SessionOptions::default()
        };
        let not_started = |error: &NetError| {
            let text = format!("the program was not started: {error}");
            Failure::new(Exit::Unreachable, text)
        };
        let waiting = ui::waiting(match &addresses[..] {
            [one] => format!("the server at {one}"),
            all => format!("{} servers to answer", all.len()),
        });
        let away = greet(&addresses, needed, &options);
        drop(waiting);
        let refused = |error: &&NetError| matches!(error, NetError::Handshake(..));
        if let Some(error) = away.iter().find(refused) {
            return Err(not_started(error));
        }
        if let Some(error) = away.first()
            && addresses.len() - away.len() < needed
        {
            return Err(not_started(error));
        }
        for error in &away {
            eprintln!("muninn: going on without a server: {error}");
        }
        Ok(Servers {
            addresses,
            embedded: None,
            key: None,
        })
    }

    /// Starts a server of our own.
    pub fn embedded(max_far: Option<Bytes>) -> Result<Servers, Failure> {
        let available = proc::meminfo(&RealProc).map_err(Failure::failed)?.available;
        let memory = embedded_size(available, max_far)?;
        let name = format!(
            "{}{}-{:016x}.sock",
            muninn_job::PREFIX,
            std::process::id(),
            muninn_sys::rand::u64()
        );
        let directory = muninn_job::own_directory().map_err(Failure::failed)?;
        let path = directory.join(&name);
        // Names of sockets are short; /tmp always is.
        let path = match Address::unix(&path) {
            Ok(_) => path,
            Err(_) => std::env::temp_dir().join(name),
        };
        let memory = memory.to_string();
        let socket = path.to_string_lossy().into_owned();
        let key_path = path.with_extension("key");
        let key_name = key_path.to_string_lossy().into_owned();
        let mut arguments = vec![
            "--memory",
            &memory,
            "--socket",
            &socket,
            "--lease",
            EMBEDDED_LEASE,
            "--name",
            "embedded",
            // Its clients map its memory: there is next to nothing for it to do.
            "--threads",
            "1",
            // All of them are one user's.
            "--max-sessions-per-client",
            "4096",
        ];
        // Root's programs may become other users: what lets them in is a key then, not who they are.
        let shared = proc::own_uid() == 0;
        if shared {
            key_file::create(&key_path)?;
            arguments.extend(["--key-file", &key_name]);
        }
        let started = EmbeddedServer::start(arguments);
        let key = match shared {
            true => Some(key_file::load(Some(&key_path))?),
            false => None,
        };
        if shared {
            std::fs::remove_file(&key_path)?;
        }
        let server = started?;
        if shared {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
            if let Some(folder) = path.parent().filter(|folder| *folder == directory) {
                std::fs::set_permissions(folder, PermissionsExt::from_mode(0o711))?;
            }
        }
        let listening: Result<Vec<Address>, _> =
            server.addresses().iter().map(|text| text.parse()).collect();
        Ok(Servers {
            addresses: listening.map_err(Failure::failed)?,
            embedded: Some((server, path)),
            key,
        })
    }

    /// The layout to use: what was asked for, or what fits the servers.
    pub fn layout(&self, wanted: Option<Layout>) -> Layout {
        wanted.unwrap_or_else(|| Layout::default_for(self.elsewhere()))
    }

    /// How many servers are on other machines.
    pub fn elsewhere(&self) -> usize {
        let elsewhere = self.addresses.iter().filter(|address| match address {
            Address::Tcp(at) => !at.ip().is_loopback(),
            Address::Unix(_) => false,
        });
        elsewhere.count()
    }

    /// The key of the embedded server.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    pub fn embedded_pid(&self) -> Option<u32> {
        self.embedded.as_ref().map(|(server, _)| server.pid())
    }

    /// How the embedded server ended, if it has.
    pub fn embedded_ended(&mut self) -> Option<String> {
        let (server, _) = self.embedded.as_mut()?;
        server.ended()
    }
}

impl Servers {
    /// Ends the embedded server, if it has not, and removes its socket.
    pub fn forget_embedded(&mut self) {
        if let Some((mut server, path)) = self.embedded.take() {
            server.kill();
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.forget_embedded();
    }
}

/// Shakes hands with all servers at the same time; why it could not be done with some of them. When
/// `needed` have answered, others are not waited for any longer than [`ENOUGH`].
fn greet(addresses: &[Address], needed: usize, options: &SessionOptions) -> Vec<NetError> {
    let (told, answers) = std::sync::mpsc::channel();
    for address in addresses {
        let (address, options, told) = (address.clone(), options.clone(), told.clone());
        std::thread::spawn(move || {
            let error = Observer::connect(&address, &options).err();
            let _ = told.send((address, error));
        });
    }
    drop(told);
    let start = Instant::now();
    let mut silent = addresses.to_vec();
    let (mut errors, mut answered) = (Vec::new(), 0);
    while !silent.is_empty() {
        let left = ENOUGH.saturating_sub(start.elapsed());
        let next = match answered >= needed {
            true => answers.recv_timeout(left).ok(),
            false => answers.recv().ok(),
        };
        let Some((address, error)) = next else { break };
        silent.retain(|known| *known != address);
        answered += usize::from(error.is_none());
        errors.extend(error);
    }
    let late = silent.into_iter();
    errors.extend(late.map(|address| NetError::HandshakeTimeout(address, ENOUGH)));
    errors
}

fn embedded_size(available: Bytes, max_far: Option<Bytes>) -> Result<Bytes, Failure> {
    let (part, whole) = SHARE_OF_AVAILABLE;
    let most = Bytes(available.0 / whole * part / EMBEDDED_STEP.0 * EMBEDDED_STEP.0);
    if most < EMBEDDED_STEP {
        return Err(Failure::new(
            Exit::Unsupported,
            format!(
                "this machine has {} to spare, too little for a memory server of its own: name the \
                 servers of a pool with --pool",
                available.rounded()
            ),
        ));
    }
    let wanted = max_far.map(|far| Bytes(far.0.max(1).next_multiple_of(EMBEDDED_STEP.0)));
    Ok(wanted.map_or(most, |wanted| wanted.min(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_other_machines_are_told_from_ours() {
        let elsewhere = |list: &[&str]| {
            let addresses = list.iter().map(|text| text.parse().unwrap()).collect();
            let servers = Servers {
                addresses,
                embedded: None,
                key: None,
            };
            servers.elsewhere()
        };
        assert_eq!(elsewhere(&["unix:/run/m.sock"]), 0);
        assert_eq!(elsewhere(&["127.0.0.1:7000", "[::1]:7000"]), 0);
        assert_eq!(elsewhere(&["127.0.0.1:7000", "10.0.0.5:7000"]), 1);
    }

    #[test]
    fn the_embedded_server_leaves_memory_to_the_machine() {
        let size = |available, far: Option<Bytes>| embedded_size(available, far);
        assert_eq!(size(Bytes::gib(16), None).unwrap(), Bytes::gib(14));
        assert_eq!(
            size(Bytes::gib(16), Some(Bytes::mib(100))).unwrap(),
            Bytes::mib(128)
        );
        assert_eq!(
            size(Bytes::gib(1), Some(Bytes::gib(2))).unwrap(),
            Bytes::mib(896)
        );
        assert_eq!(
            size(Bytes::mib(50), None).unwrap_err().message,
            "this machine has 50.0MiB to spare, too little for a memory server of its own: name the \
             servers of a pool with --pool"
        );
    }
}
