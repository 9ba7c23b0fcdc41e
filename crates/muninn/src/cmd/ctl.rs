//! `muninn ctl`: changes a job while it runs.

use crate::cmd::run::limit;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use muninn_types::Bytes;
use serde::Serialize;

#[derive(Debug, clap::Subcommand)]
pub enum Ctl {
    /// Change how much of a job's memory may stay local
    Limit(LimitArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn ctl limit 4711 512MiB
  muninn ctl limit $(pidof redis-server) 2GiB --json

The job takes note within milliseconds. With less, its pages begin to leave; with more, they come
back as they are used.")]
pub struct LimitArgs {
    /// Any process of the job: one that 'muninn run' started, or 'muninn run' itself
    #[arg(value_name = "PID")]
    pub pid: u32,

    /// The new limit, for all processes of the job together
    #[arg(value_name = "SIZE")]
    pub size: Bytes,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Changed {
    job: String,
    launcher: Option<u32>,
    limit_before_bytes: u64,
    limit_bytes: u64,
}

pub fn run(ctl: &Ctl) -> Outcome {
    let Ctl::Limit(args) = ctl;
    limit::check(args.size, &format!("a limit of {}", args.size))?;
    let job = muninn_job::find_by_pid(args.pid).ok_or_else(|| unknown(args.pid))?;
    let before = job.limit();
    job.set_limit(args.size);
    let name = job.config().map_err(Failure::failed)?.name;
    let changed = Changed {
        job: name,
        launcher: job.launcher().map(|launcher| launcher.pid()),
        limit_before_bytes: before.0,
        limit_bytes: args.size.0,
    };
    if args.json {
        ui::print_json(&changed);
    } else {
        ui::print_out(&format!(
            "{}: the limit is {} now, and was {before}",
            changed.job, args.size
        ));
    }
    Ok(())
}

fn unknown(pid: u32) -> Failure {
    Failure::new(
        Exit::Failed,
        format!(
            "process {pid} belongs to no job of 'muninn run' that this user may change: \
             'muninn status --jobs' lists those there are"
        ),
    )
}
