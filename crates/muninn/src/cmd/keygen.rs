//! `muninn keygen`: a fresh key for servers and their clients.

use crate::failure::Outcome;
use crate::{key_file, ui};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  muninn keygen /etc/muninn.key
  muninn serve --memory 64GiB --listen 10.0.0.5:7000 --key-file /etc/muninn.key")]
pub struct Args {
    /// File to write; must not exist yet
    pub path: PathBuf,

    /// Print one JSON object instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Report {
    path: String,
    bits: usize,
}

pub fn run(args: &Args) -> Outcome {
    key_file::create(&args.path)?;
    let path = args.path.display().to_string();
    if args.json {
        let bits = key_file::FRESH_LEN * 8;
        ui::print_json(&Report { path, bits });
    } else {
        ui::print_out(&format!(
            "wrote a fresh key to {path}; give servers and their clients the same file \
             (--key-file {path})"
        ));
    }
    Ok(())
}
