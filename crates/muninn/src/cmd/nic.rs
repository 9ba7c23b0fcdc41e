//! `muninn nic`: a processor beside a memory server, as a process of its own.
//!
//! It has the server's services mapped and runs functions on them for clients. A function that runs
//! away is ended with the whole process: a thread watches for one that does not come back, and a limit
//! on the address space for one that takes memory without end. Nobody else is hurt: the server frees
//! the locks of a process that is gone, and clients turn to the server.

use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use crate::hosting::HostArgs;
use crate::{key_file, ui};
use muninn_net::SessionOptions;
use muninn_server::{Server, ServerConfig};
use muninn_sys::limits;
use muninn_sys::signal::Termination;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, parse_duration};
use muninn_wic::Upstream;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn nic --server unix:/run/muninn.sock --listen 10.0.0.5:7001 --key-file /etc/muninn.key
  muninn nic --server unix:./m.sock --listen 127.0.0.1:0 --json

Exit code 3 if the server is not reached, or is lost later; 1 if a function did not come back.")]
pub struct Args {
    /// The server whose memory to run functions on: a Unix socket of it
    #[arg(long, env = "MUNINN_SERVER", value_name = "unix:PATH")]
    pub server: Address,

    /// Listen for calls here, such as 10.0.0.5:7001 (port 0: any)
    #[arg(
        long,
        env = "MUNINN_NIC_LISTEN",
        value_name = "ADDR",
        value_delimiter = ','
    )]
    pub listen: Vec<Address>,

    /// File with the key of the server, which clients must have too
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// Listen beyond this machine without a key
    #[arg(long)]
    pub insecure: bool,

    #[command(flatten)]
    pub host: HostArgs,

    /// How long a silent client keeps its session
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Duration,

    /// Threads that run functions
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub threads: usize,

    /// Bind the threads to this CPU and those after it
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,

    /// How long an idle thread spins before it sleeps
    #[arg(long, default_value = "50us", value_name = "DURATION", value_parser = parse_duration)]
    pub spin: Duration,

    /// End the process if a function does not come back for this long
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = parse_duration)]
    pub stuck: Duration,

    /// Memory of its own that the process may take, beyond what it maps of the server's
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub memory_max: Bytes,

    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// What scripts wait for.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event {
    Listening {
        pid: u32,
        server: String,
        listen: Vec<String>,
        functions: usize,
    },
    Stopped,
}

/// How often the server is looked at, and services that it has ended are let go.
const LOOK: Duration = Duration::from_millis(100);
const TIDY: Duration = Duration::from_secs(1);

pub fn run(args: &Args, config: &Config) -> Outcome {
    if !args.server.is_unix() {
        return Err(Failure::usage(format!(
            "{} is no Unix socket: a nic maps the server's memory, so it must run on its machine; \
             give --server unix:PATH",
            args.server
        )));
    }
    if args.listen.is_empty() {
        return Err(Failure::usage(
            "where do clients reach this nic? Say --listen ADDR, such as 127.0.0.1:7001",
        ));
    }
    let termination = Termination::watch().map_err(Failure::failed)?;
    let key = key_file::load(args.key_file.as_deref())?;
    let options = SessionOptions {
        name: "nic".to_string(),
        key: key.clone(),
        ..SessionOptions::default()
    };
    let unreached = |error: muninn_net::NetError| Failure::new(Exit::Unreachable, error);
    let upstream = Arc::new(Upstream::connect(&args.server, &options).map_err(unreached)?);
    let watch = Arc::new(AtomicU64::new(0));
    let hosts = args
        .host
        .resolve(&config.serve.wic_table(), Some(Arc::clone(&upstream)))?;
    let mut hosts = hosts.ok_or_else(|| {
        Failure::usage("a nic without functions is of no use: leave --wic off out")
    })?;
    hosts.watch = Some(Arc::clone(&watch));
    let functions = hosts.registry.entries().len();
    let shelf = Arc::clone(&hosts.shelf);
    let server = Server::start(ServerConfig {
        name: format!("nic of {}", upstream.server_name()),
        memory: Bytes::PAGE,
        listen: args.listen.clone(),
        key,
        insecure: args.insecure,
        lease: args.lease,
        threads: args.threads,
        cpu: args.cpu,
        spin: args.spin,
        calls: Some(Arc::new(hosts)),
        ..ServerConfig::default()
    })
    .map_err(|error| Failure::new(Exit::Usage, error))?;
    limits::limit_own_memory(args.memory_max).map_err(Failure::failed)?;
    let listen: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    say(
        args.json,
        &Event::Listening {
            pid: muninn_sys::proc::own_pid(),
            server: args.server.to_string(),
            listen: listen.clone(),
            functions,
        },
        || {
            format!(
                "running {functions} functions beside '{}', listening at {}\nstop with ctrl-c",
                upstream.server_name(),
                listen.join(", ")
            )
        },
    );
    let mut tidied = Instant::now();
    while termination
        .wait(Some(LOOK))
        .map_err(Failure::failed)?
        .is_none()
    {
        check(args, &upstream, &watch)?;
        if !server.is_healthy() {
            return Err(Failure::failed("a thread of the nic has died; it ends"));
        }
        if tidied.elapsed() >= TIDY {
            upstream.tidy();
            upstream.tidy_functions(&shelf);
            tidied = Instant::now();
        }
    }
    server.stop();
    say(args.json, &Event::Stopped, || "stopped".to_string());
    Ok(())
}

fn check(args: &Args, upstream: &Upstream, watch: &AtomicU64) -> Outcome {
    if let Some(why) = upstream.lost() {
        return Err(Failure::new(
            Exit::Unreachable,
            format!("the server at {} is lost: {why}; the nic ends", args.server),
        ));
    }
    let since = watch.load(Relaxed);
    let now = muninn_sys::clock::now();
    if since != 0 && now.0.saturating_sub(since) > args.stuck.as_nanos() as u64 {
        // Its thread cannot be stopped, so the process is; no destructor may wait for it.
        eprintln!(
            "muninn: a function has not come back for {:?}; the nic ends, and the server frees its \
             locks",
            args.stuck
        );
        std::process::exit(Exit::Failed as i32);
    }
    Ok(())
}

fn say(json: bool, event: &Event, human: impl FnOnce() -> String) {
    let text = match json {
        true => serde_json::to_string(event).expect("plain data serialises"),
        false => human(),
    };
    ui::print_out(&text);
}
