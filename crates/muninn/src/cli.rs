//! The definitions that parsing, help, completions and the man page are all made from.

use crate::failure::Failure;
use crate::{cmd, config};
use clap::{CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Far memory for ordinary Linux machines.
#[derive(Debug, Parser)]
#[command(
    name = "muninn",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "\
Examples:
  muninn demo                      see it work
  muninn run --local 1GiB -- CMD   run a program with the rest of its memory far away
  muninn serve --memory 4GiB       give memory to the pool, on this machine
  muninn status                    who uses it; 'muninn top' shows it live
  muninn doctor                    what this machine can do

Options are also read from MUNINN_* variables, and below them from muninn.toml.
Exit codes: 0 success, 1 failed, 2 a wrong value, 3 a server was not reached or refused,
4 something is lacking here, 5 a check did not hold."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Configuration file [default: ./muninn.toml, else muninn/muninn.toml in $XDG_CONFIG_HOME,
    /// else /etc/muninn.toml]
    #[arg(
        long,
        global = true,
        env = "MUNINN_CONFIG",
        value_name = "PATH",
        display_order = 900
    )]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an unmodified program with part of its memory far away
    Run(Box<cmd::run::Args>),
    /// Measure how long a program runs with less and less local memory
    Profile(Box<cmd::profile::Args>),
    /// Record which pages a program touches, for 'muninn sim evict --trace'
    Trace(cmd::trace::Args),
    /// Give memory of this machine to the pool
    Serve(Box<cmd::serve::Args>),
    /// Run functions beside a memory server, on its memory
    Nic(cmd::nic::Args),
    /// Functions that are given to a running server: push, list, remove, call
    #[command(
        subcommand,
        after_help = "Example:\n  muninn wics push list.wasm --pool unix:/run/muninn.sock"
    )]
    Wics(cmd::wics::Wics),
    /// Change a job that 'muninn run' started, while it runs
    #[command(subcommand, after_help = "Example:\n  muninn ctl limit 4711 512MiB")]
    Ctl(cmd::ctl::Ctl),
    /// Show servers, sessions, grants, traffic, and jobs on this machine
    Status(cmd::status::Args),
    /// Watch servers and jobs, live, and change limits
    Top(cmd::top::Args),
    /// Watch servers and jobs, live, in a browser
    Dashboard(Box<cmd::dashboard::Args>),
    /// Divide this node's memory among its jobs, and lend what they leave free
    Agent(Box<cmd::agent::Args>),
    /// Keep the list of a rack's pool, and say which job may start where
    Coordinator(Box<cmd::coordinator::Args>),
    /// Show a rack's nodes and jobs, who waits and why
    Cluster(cmd::cluster::Args),
    /// Ask a server's clients to give its memory back
    Drain(cmd::drain::Args),
    /// Show what this machine can do, what is missing, and how to get it
    Doctor(cmd::doctor::Args),
    /// Let ordinary users have far memory, or say what is missing for it
    Setup(cmd::setup::Args),
    /// Write a fresh key for servers and their clients
    Keygen(cmd::keygen::Args),
    /// Show everything working, on servers of its own
    Demo(cmd::demo::Args),
    /// Measure, side by side with the alternatives
    #[command(subcommand)]
    Bench(cmd::bench::Bench),
    /// Programs that the benches run
    #[command(subcommand, hide = true)]
    Workload(cmd::workload::Workload),
    /// Simulate a rack, a network, or a page cache
    #[command(subcommand)]
    Sim(Box<cmd::sim::Sim>),
    /// Print a script with which a shell completes commands
    Completions(cmd::completions::Args),
    /// Print the manual page, or write all of them
    Man(cmd::man::Args),
}

pub fn command() -> clap::Command {
    Cli::command()
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let config = || config::load(cli.config.as_deref());
    if let Command::Run(args) = &cli.command {
        // The program's own code, when it ran.
        return config()
            .and_then(|config| cmd::run::run(args, &config))
            .unwrap_or_else(report);
    }
    let outcome = match &cli.command {
        Command::Run(_) => unreachable!("see above"),
        Command::Serve(args) => config().and_then(|config| cmd::serve::run(args, &config)),
        Command::Nic(args) => config().and_then(|config| cmd::nic::run(args, &config)),
        Command::Wics(wics) => config().and_then(|config| cmd::wics::run(wics, &config)),
        Command::Status(args) => config().and_then(|config| cmd::status::run(args, &config)),
        Command::Top(args) => config().and_then(|config| cmd::top::run(args, &config)),
        Command::Dashboard(args) => config().and_then(|config| cmd::dashboard::run(args, &config)),
        Command::Profile(args) => cmd::profile::run(args),
        Command::Trace(args) => cmd::trace::run(args),
        Command::Ctl(ctl) => cmd::ctl::run(ctl),
        Command::Agent(args) => cmd::agent::run(args),
        Command::Coordinator(args) => cmd::coordinator::run(args),
        Command::Cluster(args) => cmd::cluster::run(args),
        Command::Drain(args) => config().and_then(|config| cmd::drain::run(args, &config)),
        Command::Doctor(args) => cmd::doctor::run(args),
        Command::Setup(args) => cmd::setup::run(args),
        Command::Keygen(args) => cmd::keygen::run(args),
        Command::Demo(args) => cmd::demo::run(args),
        Command::Bench(bench) => cmd::bench::run(bench),
        Command::Workload(workload) => cmd::workload::run(workload),
        Command::Sim(sim) => cmd::sim::run(sim),
        Command::Completions(args) => cmd::completions::run(args),
        Command::Man(args) => cmd::man::run(args),
    };
    finish(outcome)
}

/// The exit code of a command, and what it has to say.
pub(crate) fn finish(outcome: crate::failure::Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(failure),
    }
}

fn report(failure: Failure) -> ExitCode {
    eprintln!("muninn: {failure}");
    ExitCode::from(failure.exit as u8)
}
