//! What a measurement runs on: a server on one CPU, a nic as a process of its own beside it, and a
//! client on the other.

use super::super::bare;
use crate::embedded::{EmbeddedServer, Scratch};
use crate::failure::Failure;
use muninn_net::{Observer, SessionOptions};
use muninn_server::{CallFactory, Server, ServerConfig};
use muninn_types::Bytes;
use muninn_wic::local::LocalHosts;
use muninn_wic::{Place, Service, ServiceOptions, Tuning};
use std::sync::Arc;
use std::time::Duration;

/// CPUs of the client, and of the server and the nic.
const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;
/// Nobody sleeps while something is measured.
const SPIN: Duration = Duration::from_millis(1);
/// A process that is stopped for a while finds its session again.
const LEASE: Duration = Duration::from_secs(60);

pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the bench cannot go on: {error}"))
}

/// How the client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    Tcp,
    Shm,
}

/// Where functions run, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spot {
    Client,
    ServerSync,
    ServerAsync,
    Nic,
    Auto,
}

impl Spot {
    pub const ALL: [Spot; 5] = [
        Spot::Client,
        Spot::ServerSync,
        Spot::ServerAsync,
        Spot::Nic,
        Spot::Auto,
    ];
    pub const fn place(self) -> Place {
        match self {
            Spot::Client => Place::Client,
            Spot::ServerSync | Spot::ServerAsync => Place::Server,
            Spot::Nic => Place::Nic,
            Spot::Auto => Place::Auto,
        }
    }
    pub const fn name(self) -> &'static str {
        match self {
            Spot::Client => "client",
            Spot::ServerSync => "server-sync",
            Spot::ServerAsync => "server-async",
            Spot::Nic => "nic",
            Spot::Auto => "auto",
        }
    }
}

/// A server, and a nic if one is needed.
#[derive(Debug)]
pub struct Stage {
    // Ended in this order: the nic first, as it would complain about a lost server.
    nic: Option<EmbeddedServer>,
    _server: Server,
    unix: String,
    tcp: String,
    _dir: Scratch,
}

impl Stage {
    pub fn new(memory: Bytes, calls: Arc<dyn CallFactory>, nic: bool) -> Result<Stage, Failure> {
        let dir = Scratch::new()?;
        let socket = dir.path().join("server.sock");
        let unix = format!("unix:{}", socket.display());
        let segment = Bytes::mib(64).min(Bytes(memory.0.next_power_of_two()));
        let server = Server::start(ServerConfig {
            name: "bench".to_string(),
            // The lock table comes before the memory, so there is one segment more; and one for luck.
            memory: Bytes(memory.0.next_multiple_of(segment.0) + 2 * segment.0),
            segment: Some(segment),
            listen: vec![
                unix.parse().map_err(failed)?,
                std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            ],
            spin: SPIN,
            cpu: Some(SERVER_CPU),
            lease: LEASE,
            calls: Some(calls),
            ..ServerConfig::default()
        })
        .map_err(failed)?;
        let tcp = server.addresses()[1].to_string();
        let nic = match nic {
            true => Some(EmbeddedServer::start_nic([
                "--server",
                &unix,
                "--listen",
                "127.0.0.1:0",
                "--cpu",
                &SERVER_CPU.to_string(),
                "--spin",
                "1ms",
                "--lease",
                "60s",
            ])?),
            false => None,
        };
        // After the nic was started, which would inherit it.
        bare::pin(CLIENT_CPU);
        Ok(Stage {
            nic,
            _server: server,
            unix,
            tcp,
            _dir: dir,
        })
    }

    /// The usual one: functions run as the spot has it, or as turns out faster.
    pub fn usual(memory: Bytes, spot: Spot, window: usize) -> Result<Stage, Failure> {
        let hosts = match spot {
            Spot::ServerSync => LocalHosts::sync(),
            Spot::ServerAsync => LocalHosts::prefetching(window),
            _ => LocalHosts::adaptive(window),
        };
        let nic = matches!(spot, Spot::Nic | Spot::Auto);
        Stage::new(memory, Arc::new(hosts), nic)
    }

    /// Somebody at the server's socket, who may push.
    pub fn observer(&self) -> Result<Observer, Failure> {
        let address = self.unix.parse().map_err(failed)?;
        Observer::connect(&address, &SessionOptions::default()).map_err(failed)
    }

    pub fn open(
        &self,
        over: Over,
        place: Place,
        (bytes, locks): (Bytes, u32),
        tuning: Tuning,
    ) -> Result<Service, Failure> {
        let server = match over {
            Over::Tcp => &self.tcp,
            Over::Shm => &self.unix,
        };
        let mut options = ServiceOptions::new(server, "bench", bytes)
            .place(place)
            .locks(locks)
            .tuning(tuning);
        options.nic = self.nic.as_ref().map(|nic| nic.addresses()[0].clone());
        options.session = SessionOptions {
            name: "bench".to_string(),
            spin: Duration::from_millis(10),
            // A machine that is busy with something else is no reason to give up.
            deadline: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
            ..SessionOptions::default()
        };
        Service::open(options).map_err(failed)
    }
}
