//! `muninn cluster setup`: the pieces that Slurm and systemd need, written into a folder.
//!
//! Nothing of the system's is changed: an administrator looks at the pieces and puts them where they
//! belong, by hand or with what manages the machines.

use crate::failure::{Failure, Outcome};
use crate::pool_list::AGENT_SOCKET;
use crate::ui;
use muninn_types::{Bytes, parse_duration};
use std::path::{Path, PathBuf};
use std::time::Duration;

const JOB_SUBMIT: &str = include_str!("job_submit.lua");
const PLUG_IN: &str = "libmuninn_spank.so";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  muninn cluster setup --largest 180GiB ./for-slurm

Writes job_submit.lua, plugstack.conf, muninn-agent.service and muninn-coordinator.service. What is there
already is left alone unless --force is given.")]
pub struct Args {
    /// Folder for the pieces
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Memory that Slurm knows of the largest node (RealMemory)
    #[arg(long, value_name = "SIZE")]
    pub largest: Bytes,

    /// Jobs that wait start without us when the coordinator has not been heard of for so long
    #[arg(long, value_name = "DURATION", default_value = "5min", value_parser = parse_duration)]
    pub dead_man: Duration,

    /// Where the plug-in is, or will be, on all nodes [default: beside this program, if it is there, else
    /// /usr/lib/muninn]
    #[arg(long, value_name = "PATH")]
    pub plug_in: Option<PathBuf>,

    /// Socket of the agents; %n is the name of the node
    #[arg(long, value_name = "PATH", default_value = AGENT_SOCKET)]
    pub agent: String,

    /// Replace what is there
    #[arg(long)]
    pub force: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Outcome {
    let largest = args.largest.0 >> 20;
    if largest == 0 {
        return Err(Failure::usage(
            "--largest is less than 1MiB: name the RealMemory of the largest node",
        ));
    }
    if args.dead_man < Duration::from_secs(10) {
        return Err(Failure::usage("--dead-man is too short: use 10s or more"));
    }
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(PLUG_IN);
    let plug_in = args
        .plug_in
        .clone()
        .unwrap_or_else(|| match beside.exists() {
            true => beside,
            false => Path::new("/usr/lib/muninn").join(PLUG_IN),
        });
    let own = own.display();
    let lua = JOB_SUBMIT
        .replace("@DEAD_MAN@", &args.dead_man.as_secs().to_string())
        .replace("@LARGEST@", &largest.to_string());
    let stack = format!(
        "optional {} muninn={own} agent={}\n",
        plug_in.display(),
        args.agent
    );
    let unit = |what: &str, words: &str| {
        format!(
            "[Unit]\nDescription=Muninn {what}\nAfter=network-online.target\n\n[Service]\nExecStart={own} {words}\n\
             # An agent leaves its memory server to the next one.\nKillMode=process\nRestart=always\nRestartSec=1\n\n\
             [Install]\nWantedBy=multi-user.target\n"
        )
    };
    let agent = unit(
        "node agent",
        "agent --keep-server --memory SIZE --donate SIZE --listen ADDR:7000 --coordinator HOST:7100 --key-file \
         /etc/muninn/key",
    );
    let coordinator = unit(
        "coordinator",
        &format!(
            "coordinator --slurm --dead-man {}s --listen ADDR:7100 --key-file /etc/muninn/key",
            args.dead_man.as_secs()
        ),
    );
    let pieces = [
        (
            "job_submit.lua",
            lua,
            "beside slurm.conf, with JobSubmitPlugins=lua in it",
        ),
        (
            "plugstack.conf",
            stack,
            "beside slurm.conf on all nodes, or its line into the one that is there",
        ),
        (
            "muninn-agent.service",
            agent,
            "/etc/systemd/system on each node, SIZE, ADDR and HOST filled in",
        ),
        (
            "muninn-coordinator.service",
            coordinator,
            "/etc/systemd/system where slurmctld runs",
        ),
    ];
    std::fs::create_dir_all(&args.folder)?;
    for (name, _, _) in &pieces {
        let path = args.folder.join(name);
        if path.exists() && !args.force {
            let text = format!(
                "{} is there already and was left alone: --force replaces it",
                path.display()
            );
            return Err(Failure::failed(text));
        }
    }
    let mut said = Vec::new();
    for (name, text, place) in &pieces {
        std::fs::write(args.folder.join(name), text)?;
        said.push(format!("{name}: {place}"));
    }
    if args.json {
        let names: Vec<&str> = pieces.iter().map(|piece| piece.0).collect();
        let there = plug_in.exists();
        ui::print_json(
            &serde_json::json!({ "written": names, "plug_in": plug_in, "plug_in_there": there }),
        );
        return Ok(());
    }
    let plug_in_shown = plug_in.display();
    said.push(match plug_in.exists() {
        true => format!("{PLUG_IN}: is at {plug_in_shown}"),
        false => format!("{PLUG_IN}: not at {plug_in_shown} yet ('cargo build --release -p muninn-spank' makes it)"),
    });
    said.push(
        "then 'scontrol reconfigure', and 'muninn doctor --cluster' on each node".to_string(),
    );
    ui::print_out(&said.join("\n"));
    Ok(())
}
