//! `muninn agent`: one for each node. Starts the node's memory server and divides the node's memory.

mod server;

use crate::failure::{Exit, Failure, Outcome};
use crate::key_file;
use crate::metrics::{self, MetricsArgs};
use crate::pool_list::AGENT_SOCKET;
use crate::ui::{self, Table};
use muninn_cluster::agent::{Agent, AgentError, MemoryServer, Settings};
use muninn_cluster::channel::Channel;
use muninn_cluster::message::{FromAgent, NodeState, ToAgent};
use muninn_cluster::profiles::Measured;
use muninn_net::Key;
use muninn_policy::rebalance::Policy;
use muninn_sys::proc::{self, RealProc, read_text};
use muninn_sys::signal::Termination;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, parse_duration};
use serde::Serialize;
use server::NodeServer;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of the machine's memory, so much is for jobs when nobody says: 7/8.
const SHARE_OF_TOTAL: (u64, u64) = (7, 8);
/// Whoever asks waits so long.
const PATIENCE: Duration = Duration::from_secs(5);
const FOLDER: &str = "/var/lib/muninn/agent";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn agent --memory 180GiB --donate 8GiB --listen 10.0.0.5:7000 --coordinator 10.0.0.1:7100 \\
      --key-file /etc/muninn/key
  muninn run --pool agent -- ./program        (on the same node)
  muninn agent --show

Jobs of 'muninn run --pool agent' get shares of --memory, which change while they run. What they leave
free the node's memory server lends to other nodes, and takes back when jobs need it; --donate is lent
whatever happens, and is all that a coordinator promises. An agent that ends takes its server along,
with --keep-server it does not; one that is killed leaves server and jobs running for the next.")]
pub struct Args {
    /// Memory of this node that is for jobs [default: 7/8 of the machine's, less --donate]
    #[arg(long, env = "MUNINN_AGENT_MEMORY", value_name = "SIZE")]
    pub memory: Option<Bytes>,

    /// Memory that is given to the pool whatever happens, beside --memory
    #[arg(
        long,
        env = "MUNINN_AGENT_DONATE",
        value_name = "SIZE",
        default_value = "0"
    )]
    pub donate: Bytes,

    /// Give no more than --donate, however much is free
    #[arg(long)]
    pub no_lend: bool,

    /// Start no memory server: this node only takes
    #[arg(long, conflicts_with_all = ["listen", "keep_server"])]
    pub no_server: bool,

    /// Where the node's memory server listens for tcp, so that other nodes reach it, such as 10.0.0.5:7000
    #[arg(long, env = "MUNINN_AGENT_LISTEN", value_name = "ADDR")]
    pub listen: Option<Address>,

    /// The coordinator of the rack: HOST:PORT or unix:PATH [default: none]
    #[arg(long, env = "MUNINN_COORDINATOR", value_name = "ADDR")]
    pub coordinator: Option<Address>,

    /// Servers of the pool besides those that a coordinator knows
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub server: Vec<Address>,

    /// File with the key of the pool: one that is shared, or this node's identity as a server
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// File with the key that jobs of this node use, whose users can read it [default: that of --key-file]
    #[arg(long, value_name = "PATH")]
    pub job_key_file: Option<PathBuf>,

    /// Profiles of jobs by name, as 'muninn profile' writes them: they go before what was learned
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,

    /// How memory is divided: memory-time, variable, uniform
    #[arg(long, value_name = "NAME", default_value = "memory-time")]
    pub policy: Policy,

    /// Memory is divided anew this often, besides when jobs come and go
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub interval: Duration,

    /// Socket for jobs and people
    #[arg(long, value_name = "PATH", default_value = AGENT_SOCKET)]
    pub socket: PathBuf,

    /// Folder for what it keeps
    #[arg(long, value_name = "PATH", default_value = FOLDER)]
    pub folder: PathBuf,

    /// Name of the node, as the scheduler calls it [default: the name of the host]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// When told to stop, leave the memory server running for the next agent
    #[arg(long)]
    pub keep_server: bool,

    #[command(flatten)]
    pub metrics: MetricsArgs,

    /// Show the state of the agent that runs, and start none
    #[arg(long)]
    pub show: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What scripts wait for.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    Listening {
        pid: u32,
        name: &'a str,
        socket: String,
        memory_bytes: u64,
        donate_bytes: u64,
        server_pid: Option<u32>,
        servers: &'a [String],
        metrics: Option<String>,
    },
    Stopped {},
}

pub fn run(args: &Args) -> Outcome {
    if args.show {
        return show(args);
    }
    let termination = Termination::watch().map_err(Failure::failed)?;
    let total = proc::meminfo(&RealProc).map_err(Failure::failed)?.total;
    let usual = || {
        let (part, whole) = SHARE_OF_TOTAL;
        Bytes(total.0 / whole * part).saturating_sub(args.donate)
    };
    let memory = args.memory.unwrap_or_else(usual);
    if memory.0.saturating_add(args.donate.0) > total.0 {
        return Err(Failure::usage(format!(
            "--memory {memory} and --donate {} are more than this machine has ({}): give less",
            args.donate,
            total.rounded()
        )));
    }
    if args.interval < Duration::from_millis(100) {
        return Err(Failure::usage("--interval is too short: use 100ms or more"));
    }
    let metrics = args.metrics.listen()?;
    private_folder(&args.folder)?;
    let key = key_file::load(args.key_file.as_deref())?;
    check_reach(args, &key)?;
    let name = args.name.clone().unwrap_or_else(host_name);
    let mut server = match args.no_server {
        true => None,
        false => Some(NodeServer::start(args, &name, memory, &key)?),
    };
    let own_servers = server.as_ref().map(NodeServer::reached_at);
    let own_servers = own_servers.unwrap_or_default();
    if let Some(parent) = args.socket.parent().filter(|parent| !parent.exists()) {
        std::fs::create_dir_all(parent)?;
    }
    let job_key = args.job_key_file.as_ref().or(args.key_file.as_ref());
    let settings = Settings {
        name: name.clone(),
        memory,
        donate: args.donate,
        lend: !args.no_lend && !args.no_server,
        policy: args.policy,
        interval: args.interval,
        folder: args.folder.clone(),
        key_file: job_key.map(std::path::absolute).transpose()?,
        key,
        coordinator: args.coordinator.clone(),
        measured: measured(args.profiles.as_deref())?,
        servers: args.server.iter().map(ToString::to_string).collect(),
        own_servers: own_servers.clone(),
    };
    let socket = Address::unix(&args.socket).map_err(Failure::usage)?;
    let watched = server.as_ref().map(NodeServer::watch);
    let watched = watched.map(|watch| Box::new(watch) as Box<dyn MemoryServer>);
    let mut agent = Agent::start(settings, &socket, watched).map_err(refused)?;
    let event = Event::Listening {
        pid: proc::own_pid(),
        name: &name,
        socket: agent.address().to_string(),
        memory_bytes: memory.0,
        donate_bytes: args.donate.0,
        server_pid: server.as_ref().map(NodeServer::pid),
        servers: &own_servers,
        metrics: metrics.as_ref().map(|metrics| metrics.url()),
    };
    if let Some(metrics) = metrics {
        let socket = args.socket.clone();
        metrics.serve(move || metrics::of_node(ask(&socket).ok().as_ref()));
    }
    say(args.json, &event, || {
        format!(
            "agent of node '{name}': {} for jobs, {} for the pool whatever happens\nlistening at {}; \
             'muninn run --pool agent' finds it there\nstop with ctrl-c",
            memory.rounded(),
            args.donate.rounded(),
            agent.address()
        )
    });
    let ended = agent.run(&termination).map_err(Failure::failed);
    drop(agent);
    if let Some(server) = &mut server
        && !args.keep_server
    {
        server.stop();
    }
    ended?;
    say(args.json, &Event::Stopped {}, || "stopped".to_string());
    Ok(())
}

fn say(json: bool, event: &Event<'_>, human: impl FnOnce() -> String) {
    let text = match json {
        true => serde_json::to_string(event).expect("plain data serialises"),
        false => human(),
    };
    ui::print_out(&text);
}

fn refused(error: AgentError) -> Failure {
    Failure::new(Exit::Failed, error)
}

/// The profiles of a file, for an agent or a coordinator.
pub fn measured(path: Option<&Path>) -> Result<Measured, Failure> {
    let Some(path) = path else {
        return Ok(Measured::default());
    };
    let refused = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("--profiles {}: {error}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refused(&error))?;
    Measured::parse(&text).map_err(|error| refused(&error))
}

/// Without a key nothing leaves this machine: whoever is out there could say anything.
fn check_reach(args: &Args, key: &Key) -> Outcome {
    let far = |address: &Address| match address {
        Address::Tcp(tcp) => !tcp.ip().is_loopback(),
        Address::Unix(_) => false,
    };
    match &args.coordinator {
        Some(address) if far(address) && key.is_none() => Err(Failure::usage(format!(
            "refusing to speak to a coordinator at {address} without a key, as anybody could answer: \
             name the pool's with --key-file"
        ))),
        _ => Ok(()),
    }
}

/// Made if it is not there; one in which others can write is refused. Others may read the list of
/// servers in it, so they may pass.
fn private_folder(path: &Path) -> Outcome {
    let failed = |why: String| {
        let path = path.display();
        Failure::failed(format!(
            "cannot keep anything in {path}: {why}; name another with --folder"
        ))
    };
    let parents = path.parent().map(std::fs::create_dir_all).transpose();
    parents.map_err(|error| failed(error.to_string()))?;
    match std::fs::DirBuilder::new().mode(0o711).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error.to_string())),
    }
    let about = std::fs::symlink_metadata(path)?;
    if !about.is_dir() || about.uid() != proc::own_uid() {
        return Err(failed("it is not a folder of this user's".to_string()));
    }
    if about.permissions().mode() & 0o022 != 0 {
        return Err(failed("others may write there".to_string()));
    }
    Ok(())
}

fn host_name() -> String {
    let name = read_text(&RealProc, "/proc/sys/kernel/hostname").unwrap_or_default();
    let short = name.trim().split('.').next().unwrap_or_default();
    short.to_string()
}

/// What the agent at a socket says.
pub fn ask(socket: &Path) -> Result<NodeState, Failure> {
    let address = Address::unix(socket).map_err(Failure::usage)?;
    let unreachable = |error: &dyn std::fmt::Display| {
        let text = format!("the agent at {address} cannot be asked: {error}");
        Failure::new(Exit::Unreachable, text)
    };
    let _waiting = ui::waiting(format!("an answer of the agent at {address}"));
    let mut channel =
        Channel::connect(&address, &Key::none(), PATIENCE).map_err(|error| unreachable(&error))?;
    let said = channel.send(&ToAgent::State, PATIENCE);
    said.map_err(|error| unreachable(&error))?;
    match channel.receive(PATIENCE) {
        Ok(FromAgent::State(state)) => Ok(*state),
        Ok(_) => Err(unreachable(&"it said something else")),
        Err(error) => Err(unreachable(&error)),
    }
}

fn show(args: &Args) -> Outcome {
    let state = ask(&args.socket)?;
    if args.json {
        ui::print_json(&state);
        return Ok(());
    }
    let mut table = Table::new([
        "job", "pid", "name", "wants", "may hold", "near", "far", "waited",
    ]);
    for job in &state.jobs {
        let waited = match job.run_s > 0.0 {
            true => format!("{:.0}%", 100.0 * job.waited_s / job.run_s),
            false => "-".to_string(),
        };
        table.row([
            job.job.map_or("-".to_string(), |job| job.to_string()),
            job.pid.to_string(),
            match job.away {
                true => "(not back yet)".to_string(),
                false => job.name.clone(),
            },
            job.memory.rounded(),
            job.limit.rounded(),
            job.resident.rounded(),
            job.far.rounded(),
            waited,
        ]);
    }
    ui::print_out(&format!(
        "node {}: {} for jobs, who may hold {}; {} are others'; lends up to {}, of which {} are used\n{table}",
        state.name,
        state.memory.rounded(),
        state.limits.rounded(),
        state.others.rounded(),
        state.ceiling.rounded(),
        state.granted.rounded(),
    ));
    Ok(())
}
