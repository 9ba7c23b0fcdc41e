//! `muninn cluster`: nodes and jobs of a rack, local and far, who waits and why.

mod setup;

use super::coordinator::SOCKET;
use crate::failure::{Exit, Failure, Outcome};
use crate::key_file;
use crate::ui::{self, Table};
use muninn_cluster::channel::Channel;
use muninn_cluster::message::{ClusterState, FromCoordinator, ToCoordinator};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, parse_duration};
use std::path::PathBuf;
use std::time::Duration;

/// A coordinator gets this long to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn cluster
  muninn cluster --watch
  muninn cluster --coordinator 10.0.0.1:7100 --key-file /etc/muninn/key --json
  muninn cluster explain 4711
  muninn cluster setup --largest 180GiB ./for-slurm")]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The coordinator: HOST:PORT or unix:PATH [default: the socket where it listens on this machine]
    #[arg(long, env = "MUNINN_COORDINATOR", value_name = "ADDR", global = true)]
    pub coordinator: Option<Address>,

    /// File with the key of the pool
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH", global = true)]
    pub key_file: Option<PathBuf>,

    /// Show it again and again, until ctrl-c
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = parse_duration)]
    pub watch: Option<Duration>,

    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write what Slurm needs to know of Muninn into a folder, and say where each piece belongs
    Setup(setup::Args),
    /// Say why a job waits, or runs where it does, with which share, and what that costs it
    #[command(after_help = "Example:\n  muninn cluster explain 4711
  muninn cluster setup --largest 180GiB ./for-slurm")]
    Explain {
        /// Number of the job, as its scheduler gave it
        #[arg(value_name = "JOB")]
        job: u64,
    },
}

pub fn run(args: &Args) -> Outcome {
    if let Some(Command::Setup(setup)) = &args.command {
        return setup::run(setup);
    }
    let address = match &args.coordinator {
        Some(address) => address.clone(),
        None => Address::unix(SOCKET).map_err(Failure::usage)?,
    };
    let key = key_file::load(args.key_file.as_deref())?;
    let unreachable = |error: &dyn std::fmt::Display| {
        let text = format!(
            "the coordinator at {address} cannot be asked: {error}; is 'muninn coordinator' running? \
             (--coordinator names another)"
        );
        Failure::new(Exit::Unreachable, text)
    };
    let ask = |question: &ToCoordinator| {
        let _waiting = ui::waiting(format!("an answer of the coordinator at {address}"));
        let answer = Channel::connect(&address, &key, PATIENCE).and_then(|mut channel| {
            channel.send(question, PATIENCE)?;
            channel.receive::<FromCoordinator>(PATIENCE)
        });
        answer.map_err(|error| unreachable(&error))
    };
    if let Some(Command::Explain { job }) = &args.command {
        let FromCoordinator::Explained { text } = ask(&ToCoordinator::Explain { job: *job })?
        else {
            return Err(unreachable(&"it said something else"));
        };
        match args.json {
            true => ui::print_json(&serde_json::json!({ "job": job, "text": text })),
            false => ui::print_out(&text),
        }
        return Ok(());
    }
    loop {
        let FromCoordinator::Cluster(state) = ask(&ToCoordinator::Cluster)? else {
            return Err(unreachable(&"it said something else"));
        };
        match args.json {
            true => ui::print_json(&state),
            false => ui::print_out(&describe(&state)),
        }
        let Some(pause) = args.watch else {
            return Ok(());
        };
        std::thread::sleep(pause.max(Duration::from_millis(100)));
        if !args.json {
            ui::print_out("");
        }
    }
}

fn describe(state: &ClusterState) -> String {
    let size = |bytes: Bytes| match bytes {
        Bytes::ZERO => "-".to_string(),
        bytes => bytes.rounded(),
    };
    let mut nodes = Table::new([
        "node", "state", "cores", "memory", "wanted", "near", "far", "gives", "lent", "jobs",
    ]);
    for node in &state.nodes {
        nodes.row([
            node.name.clone(),
            if node.alive { "up" } else { "away" }.to_string(),
            match node.cores {
                0 => "-".to_string(),
                cores => format!("{}/{cores}", node.cores_used),
            },
            size(node.memory),
            size(node.wanted),
            size(node.local),
            size(node.far),
            size(node.donated),
            size(node.granted),
            node.jobs.to_string(),
        ]);
    }
    let mut jobs = Table::new([
        "job", "name", "user", "state", "node", "wants", "near", "far", "why",
    ]);
    for job in &state.jobs {
        jobs.row([
            match job.job {
                0 => "-".to_string(),
                number => number.to_string(),
            },
            job.name.clone(),
            job.user.clone(),
            job.state.clone(),
            job.node.clone().unwrap_or_else(|| "-".to_string()),
            size(job.memory),
            size(job.local),
            size(job.far),
            job.why.clone(),
        ]);
    }
    let mut text = format!(
        "far memory: {} given, {} promised, {} in use; admission {}\n",
        state.far_total.rounded(),
        state.far_promised.rounded(),
        state.far_used.rounded(),
        state.admission
    );
    if let Some(why) = &state.safe_mode {
        text += &format!("safe mode, nothing is started: {why}\n");
    }
    text += &format!("\n{nodes}\n");
    match jobs.is_empty() {
        true => text += "\nno jobs",
        false => text += &format!("\n{jobs}"),
    }
    text
}
