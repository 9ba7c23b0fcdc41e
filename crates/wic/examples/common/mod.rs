//! A server in this process, and a service at it.

use muninn_server::{Server, ServerConfig};
use muninn_types::Bytes;
use muninn_wic::local::LocalHosts;
use muninn_wic::{Place, Service, ServiceOptions};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

pub fn server() -> Result<Server, Box<dyn Error>> {
    Ok(Server::start(ServerConfig {
        memory: Bytes::mib(64),
        listen: vec!["127.0.0.1:0".parse()?],
        calls: Some(Arc::new(LocalHosts::sync())),
        ..ServerConfig::default()
    })?)
}

pub fn open(server: &Server, place: Place, locks: u32) -> Result<Service, Box<dyn Error>> {
    let address = server.addresses()[0].to_string();
    let options = ServiceOptions::new(&address, "example", Bytes::mib(1));
    Ok(Service::open(options.place(place).locks(locks))?)
}

/// Runs something and says what it gave and how long it took.
pub fn show<T: std::fmt::Debug>(what: &str, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let found = run();
    println!("{what}: {found:?} in {:?}", begin.elapsed());
    found
}
