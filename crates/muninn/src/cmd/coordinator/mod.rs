//! `muninn coordinator`: one for each rack, beside its scheduler.

use crate::failure::{Exit, Failure, Outcome};
use crate::key_file;
use crate::ui;
use muninn_cluster::coordinator::{Coordinator, CoordinatorError, Scheduler, Settings};
use muninn_cluster::slurm::{Options, Slurm};
use muninn_policy::admission::Admission;
use muninn_sys::proc;
use muninn_sys::signal::Termination;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, parse_duration};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Where it listens when nothing else is said.
pub const SOCKET: &str = "/run/muninn/coordinator.sock";
const STATE: &str = "/var/lib/muninn/coordinator.state";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn coordinator --slurm --listen 10.0.0.1:7100 --key-file /etc/muninn/key
  muninn coordinator                       (agents of this machine, no scheduler)
  muninn cluster                           (what it knows)

Agents report to it, and get the list of the pool. With --slurm, jobs of 'sbatch --far-memory' start
when it has room for them, near and far. While it is away nothing that runs is harmed, and jobs that
wait are started by Slurm alone, as ever.")]
pub struct Args {
    /// Listen for tcp here, such as 10.0.0.1:7100; may be given several times
    #[arg(long, env = "MUNINN_COORDINATOR_LISTEN", value_name = "ADDR")]
    pub listen: Vec<Address>,

    /// Listen at this Unix socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,

    /// File for what was promised
    #[arg(long, value_name = "PATH", default_value = STATE)]
    pub state: PathBuf,

    /// File with the key of the pool, or this machine's identity as a server
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// Which waiting job comes first: head-start, eager
    #[arg(long, value_name = "NAME", default_value = "head-start")]
    pub admission: Admission,

    /// Servers of the pool that have no agent, separated by commas
    #[arg(long, value_name = "URL,…", value_delimiter = ',', requires = "far")]
    pub server: Vec<Address>,

    /// What these servers have, together
    #[arg(long, value_name = "SIZE", requires = "server")]
    pub far: Option<Bytes>,

    /// Profiles of jobs by name, as 'muninn profile' writes them: they go before what agents have learned
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,

    /// Let Slurm's jobs start when there is room, near and far
    #[arg(long)]
    pub slurm: bool,

    /// Jobs that wait start without us when we have not been heard of for so long
    #[arg(long, value_name = "DURATION", default_value = "5min", value_parser = parse_duration, requires = "slurm")]
    pub dead_man: Duration,

    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event {
    Listening { pid: u32, listen: Vec<String> },
    Stopped {},
}

pub fn run(args: &Args) -> Outcome {
    let termination = Termination::watch().map_err(Failure::failed)?;
    let key = key_file::load(args.key_file.as_deref())?;
    let far = |address: &&Address| matches!(address, Address::Tcp(tcp) if !tcp.ip().is_loopback());
    if let Some(address) = args.listen.iter().find(far)
        && key.is_none()
    {
        return Err(Failure::usage(format!(
            "refusing to listen at {address} without a key, as anybody could speak for a node: name the \
             pool's with --key-file"
        )));
    }
    for path in [&args.socket, &args.state] {
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            std::fs::create_dir_all(parent)?;
        }
    }
    let mut listen = vec![Address::unix(&args.socket).map_err(Failure::usage)?];
    listen.extend(args.listen.iter().cloned());
    let settings = Settings {
        listen,
        key,
        admission: args.admission,
        state: args.state.clone(),
        servers: args.server.iter().map(ToString::to_string).collect(),
        far: args.far.unwrap_or(Bytes::ZERO),
        measured: super::agent::measured(args.profiles.as_deref())?,
    };
    let scheduler = args.slurm.then(|| {
        let options = Options {
            dead_man: args.dead_man,
        };
        Box::new(Slurm::new(options)) as Box<dyn Scheduler>
    });
    let mut coordinator = Coordinator::start(settings, scheduler).map_err(refused)?;
    let addresses = coordinator.addresses().into_iter().map(|at| at.to_string());
    let listening = Event::Listening {
        pid: proc::own_pid(),
        listen: addresses.collect(),
    };
    say(args.json, &listening, |event| match event {
        Event::Listening { listen, .. } => {
            format!("listening at {}\nstop with ctrl-c", listen.join(", "))
        }
        Event::Stopped {} => String::new(),
    });
    coordinator.run(&termination).map_err(refused)?;
    say(args.json, &Event::Stopped {}, |_| {
        "stopped; what was promised is kept".to_string()
    });
    Ok(())
}

fn say(json: bool, event: &Event, human: impl FnOnce(&Event) -> String) {
    let text = match json {
        true => serde_json::to_string(event).expect("plain data serialises"),
        false => human(event),
    };
    ui::print_out(&text);
}

fn refused(error: CoordinatorError) -> Failure {
    Failure::new(Exit::Failed, error)
}
