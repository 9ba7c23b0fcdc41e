//! A server of one's own: the same as `muninn serve` and `muninn nic`, with one's own functions in it.
//!
//! A crate that has functions marked `#[wic]` builds such a server with three lines:
//!
//! ```no_run
//! use my_functions as _; // the crate whose functions are to be there
//! # mod my_functions {}
//!
//! fn main() -> std::process::ExitCode {
//!     muninn::server::main()
//! }
//! ```

use crate::cmd::{nic, serve, status};
use crate::{cli, config};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// A memory server with functions of its own.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Configuration file, as for muninn
    #[arg(long, global = true, env = "MUNINN_CONFIG", value_name = "PATH")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Give memory of this machine to the pool, and run functions on it
    Serve(Box<serve::Args>),
    /// Run functions beside a server, on its memory
    Nic(nic::Args),
    /// Show servers, services and sessions
    Status(status::Args),
    /// List the functions that are built in
    Wics,
}

/// Runs the program's command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let config = || config::load(cli.config.as_deref());
    cli::finish(match &cli.command {
        Command::Serve(args) => config().and_then(|config| serve::run(args, &config)),
        Command::Nic(args) => config().and_then(|config| nic::run(args, &config)),
        Command::Status(args) => config().and_then(|config| status::run(args, &config)),
        Command::Wics => {
            for entry in muninn_wic::Registry::collect().entries() {
                crate::ui::print_out(&format!("{} version {}", entry.name, entry.version));
            }
            Ok(())
        }
    })
}
