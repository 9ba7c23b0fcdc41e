//! Servers, nics and services for tests.
#![allow(dead_code)] // each test uses a part of it

use muninn_net::SessionOptions;
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use muninn_wic::local::LocalHosts;
use muninn_wic::{Place, Service, ServiceOptions, Upstream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A server that is reached both ways, and a nic beside it.
pub struct World {
    pub dir: TempDir,
    pub server: Option<Server>,
    pub nic: Option<Server>,
    pub upstream: Option<Arc<Upstream>>,
    pub unix: String,
    pub tcp: String,
    pub nic_at: String,
}

pub fn session() -> SessionOptions {
    SessionOptions {
        name: "test".to_string(),
        deadline: Duration::from_secs(60),
        ..SessionOptions::default()
    }
}

/// Long, because the machine that runs this may be busy with something else.
pub const LEASE: Duration = Duration::from_secs(60);

impl World {
    pub fn new(hosts: LocalHosts) -> World {
        World::with_lease(hosts, LEASE)
    }

    pub fn with_lease(hosts: LocalHosts, lease: Duration) -> World {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("server.sock");
        let unix = format!("unix:{}", socket.display());
        let config = ServerConfig {
            memory: Bytes::mib(64),
            listen: vec![unix.parse().unwrap(), "127.0.0.1:0".parse().unwrap()],
            lease,
            keep_awake: false,
            calls: Some(Arc::new(hosts)),
            ..ServerConfig::default()
        };
        let server = Server::start(config).unwrap();
        let tcp = server.addresses()[1].to_string();
        World {
            dir,
            server: Some(server),
            nic: None,
            upstream: None,
            unix,
            tcp,
            nic_at: String::new(),
        }
    }

    /// A nic, in this process but with a session of its own.
    pub fn with_nic(mut self) -> World {
        let address: Address = self.unix.parse().unwrap();
        let upstream = Arc::new(Upstream::connect(&address, &session()).unwrap());
        let hosts = LocalHosts {
            upstream: Some(Arc::clone(&upstream)),
            ..LocalHosts::sync()
        };
        let config = ServerConfig {
            name: "nic".to_string(),
            memory: Bytes::PAGE,
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            keep_awake: false,
            lease: LEASE,
            calls: Some(Arc::new(hosts)),
            ..ServerConfig::default()
        };
        let nic = Server::start(config).unwrap();
        self.nic_at = nic.addresses()[0].to_string();
        self.nic = Some(nic);
        self.upstream = Some(upstream);
        self
    }

    pub fn options(&self, over: Over, name: &str, place: Place) -> ServiceOptions {
        let server = match over {
            Over::Tcp => &self.tcp,
            Over::Shm => &self.unix,
        };
        let mut options = ServiceOptions::new(server, name, Bytes::mib(1)).place(place);
        options.session = session();
        options.tuning.deadline = Duration::from_secs(60);
        if !self.nic_at.is_empty() {
            options.nic = Some(self.nic_at.clone());
        }
        options
    }

    pub fn open(&self, over: Over, name: &str, place: Place) -> Service {
        Service::open(self.options(over, name, place)).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Tcp,
    Shm,
}

/// Every place, over every transport.
pub const EVERYWHERE: [(Over, Place); 8] = [
    (Over::Tcp, Place::Client),
    (Over::Tcp, Place::Server),
    (Over::Tcp, Place::Nic),
    (Over::Tcp, Place::Auto),
    (Over::Shm, Place::Client),
    (Over::Shm, Place::Server),
    (Over::Shm, Place::Nic),
    (Over::Shm, Place::Auto),
];
