//! `muninn setup`: what ordinary users need so that their programs can have far memory, done once by root;
//! and `--check`: what of it is missing, for this user.
//!
//! The way in is a group: its members may open `/dev/userfaultfd`, and nothing else is given to them. Known
//! limit: the group's file is read as it is, so a group that only a directory server knows is not seen.

mod apply;
mod look;

use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use serde::Serialize;

/// Its members may use far memory.
pub(super) const GROUP: &str = "muninn";
/// What makes a device of the group's when it appears.
pub(super) const RULES: &str = include_str!("../../../../../packaging/udev/60-muninn.rules");
/// Where rules may lie: the first is where this command writes them, the others are a package's.
pub(super) const RULES_PLACES: [&str; 3] = [
    "/etc/udev/rules.d/60-muninn.rules",
    "/usr/lib/udev/rules.d/60-muninn.rules",
    "/lib/udev/rules.d/60-muninn.rules",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn setup --check
  sudo muninn setup --user alice
  sudo muninn setup --remove

Without --check it is for root: it makes the group 'muninn', lets its members open /dev/userfaultfd and
/dev/cpu_dma_latency, now and after each start of the machine, and adds the users that are named.
Exit code 5 if --check finds that something is missing without which no program can be run.")]
pub struct Args {
    /// Change nothing: say what is missing for this user, and how to get it
    #[arg(long, conflicts_with_all = ["user", "remove"])]
    pub check: bool,

    /// Let this user's programs have far memory; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "remove")]
    pub user: Vec<String>,

    /// Take back what this command has done
    #[arg(long)]
    pub remove: bool,

    /// With --remove: leave the group, which may still have members
    #[arg(long, requires = "remove")]
    pub keep_group: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// What is done on this machine, one line each.
#[derive(Debug, Default, Serialize)]
struct Done {
    done: Vec<String>,
    /// What was not done, and why; the rest was.
    left: Vec<String>,
}

pub fn run(args: &Args) -> Outcome {
    if args.check {
        return look::check(args.json);
    }
    if muninn_sys::proc::own_uid() != 0 {
        return Err(Failure::new(
            Exit::Unsupported,
            "only root may change what users may do: 'sudo muninn setup --user NAME' lets NAME use far memory; \
             'muninn setup --check' says what is missing for you",
        ));
    }
    let done = match args.remove {
        true => apply::remove(args.keep_group)?,
        false => apply::install(&args.user)?,
    };
    if args.json {
        ui::print_json(&done);
    } else {
        let mut lines = done.done.clone();
        lines.extend(done.left.iter().map(|line| format!("not done: {line}")));
        if lines.is_empty() {
            lines.push("nothing was to be done".to_string());
        }
        ui::print_out(&lines.join("\n"));
    }
    Ok(())
}
