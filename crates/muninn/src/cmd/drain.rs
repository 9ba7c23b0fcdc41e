//! `muninn drain`: asks a server to get its memory back from its clients.

use crate::client::ClientArgs;
use crate::cmd::status::{Session, session_table};
use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use muninn_net::{NetError, Observer};
use muninn_types::{Bytes, format_duration, parse_duration};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often the server is asked how far it is.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn drain --pool unix:/run/muninn.sock --within 2m
  muninn drain --pool 10.0.0.5:7000 --key-file /etc/muninn.key --wait
  muninn drain --pool unix:/run/muninn.sock --cancel

The server tells its clients to move their pages elsewhere and grants nothing new, until it is
stopped or the drain is cancelled; ending this command does not end the drain. Exit code 5 if
clients still hold memory when the time is over: they are then listed.")]
pub struct Args {
    #[command(flatten)]
    pub client: ClientArgs,

    /// Time in which clients are to give the memory back
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub within: Duration,

    /// Let the server grant memory again
    #[arg(long, conflicts_with_all = ["within", "wait", "no_wait"])]
    pub cancel: bool,

    /// When the time is over, go on waiting until all memory is back
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,

    /// Ask, and do not wait at all
    #[arg(long)]
    pub no_wait: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    address: String,
    draining: bool,
    /// The server has all of its memory.
    drained: bool,
    held_bytes: u64,
    within_ms: u64,
    waited_ms: u64,
    holders: Vec<Session>,
}

pub fn run(args: &Args, config: &Config) -> Outcome {
    let client = args.client.resolve(&config.client)?;
    let [address] = &client.pool[..] else {
        return Err(Failure::usage(format!(
            "a drain is for one server, and the pool has {}: name the one with --pool",
            client.pool.len()
        )));
    };
    let shown = address.to_string();
    let waiting = ui::waiting(format!("an answer of {shown}"));
    let mut server = Observer::connect(address, &client.options()).map_err(unreachable)?;
    drop(waiting);
    if args.cancel {
        server.drain(None).map_err(unreachable)?;
        let report = look(&mut server, &shown, Duration::ZERO, Instant::now());
        let report = report.map_err(unreachable)?;
        if args.json {
            ui::print_json(&report);
        } else {
            ui::print_out(&format!("{shown} grants memory again"));
        }
        return Ok(());
    }
    if args.within < Duration::from_millis(1) {
        return Err(Failure::usage(
            "--within 0 leaves clients no time: give them some, or end the drain with --cancel",
        ));
    }
    let started = Instant::now();
    let first = server.drain(Some(args.within)).map_err(unreachable)?;
    let bar = ui::progress(first.held_bytes >> 20, "MiB given back");
    // A bar is for those who see one.
    let waiting = (!args.no_wait && bar.is_hidden()).then(|| {
        ui::waiting(format!(
            "{} that clients hold at {shown}",
            Bytes(first.held_bytes).rounded()
        ))
    });
    let report = loop {
        let report = look(&mut server, &shown, args.within, started).map_err(unreachable)?;
        bar.set_position(first.held_bytes.saturating_sub(report.held_bytes) >> 20);
        let over = started.elapsed() >= args.within && !args.wait;
        if report.drained || args.no_wait || over {
            break report;
        }
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    drop(waiting);
    report.print(args)
}

fn unreachable(error: NetError) -> Failure {
    Failure::new(Exit::Unreachable, error)
}

fn look(
    server: &mut Observer,
    address: &str,
    within: Duration,
    started: Instant,
) -> Result<Report, NetError> {
    let status = server.status()?;
    let held = status.server.granted_bytes;
    let mut holders: Vec<Session> = status.sessions.iter().map(Session::from).collect();
    holders.retain(|session| session.granted_bytes > 0);
    Ok(Report {
        address: address.to_string(),
        draining: status.server.drain_left_ms > 0,
        drained: held == 0,
        held_bytes: held,
        within_ms: within.as_millis() as u64,
        waited_ms: started.elapsed().as_millis() as u64,
        holders,
    })
}

impl Report {
    fn print(&self, args: &Args) -> Outcome {
        if args.json {
            ui::print_json(self);
        } else if self.drained {
            ui::print_out(&format!(
                "{} has all of its memory back; it grants nothing until 'muninn drain --cancel'",
                self.address
            ));
        } else if args.no_wait {
            ui::print_out(&format!(
                "{} asked its clients for {} within {}",
                self.address,
                Bytes(self.held_bytes).rounded(),
                format_duration(args.within)
            ));
        } else if !self.holders.is_empty() {
            ui::print_out(&session_table(&self.holders).to_string());
        }
        if self.drained || args.no_wait {
            return Ok(());
        }
        Err(Failure::new(Exit::CheckFailed, self.complaint()))
    }

    /// What is missing, and by when it can be expected.
    fn complaint(&self) -> String {
        let mut text = format!(
            "after {} {} of {} are still held",
            format_duration(Duration::from_millis(self.waited_ms)),
            Bytes(self.held_bytes).rounded(),
            self.address
        );
        let (there, gone): (Vec<&Session>, Vec<&Session>) =
            self.holders.iter().partition(|session| session.connected);
        if !there.is_empty() {
            let names: Vec<String> = there.iter().map(|session| holder(session)).collect();
            text += &format!(
                "; not to be expected by any time from {}: end the program, or stop the server \
                 and let it lose the pages",
                names.join(", ")
            );
        }
        if let Some(left) = gone.iter().map(|session| session.lease_left_ms).max() {
            let names: Vec<String> = gone.iter().map(|session| holder(session)).collect();
            text += &format!(
                "; within {} from {}, when the lease runs out",
                format_duration(Duration::from_millis(left)),
                names.join(", ")
            );
        }
        text
    }
}

fn holder(session: &Session) -> String {
    let bytes = Bytes(session.granted_bytes).rounded();
    format!("{} (pid {}, {bytes})", session.name, session.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str, connected: bool) -> Session {
        Session {
            id: "s1".to_string(),
            name: name.to_string(),
            transport: "tcp",
            connected,
            pid: 7,
            grants: 1,
            granted_bytes: 1 << 20,
            requests: 0,
            bytes_in: 0,
            bytes_out: 0,
            lease_left_ms: 4000,
            note: String::new(),
        }
    }

    #[test]
    fn what_is_not_back_is_said_by_when_and_from_whom() {
        let report = Report {
            address: "127.0.0.1:7".to_string(),
            draining: true,
            drained: false,
            held_bytes: 2 << 20,
            within_ms: 1000,
            waited_ms: 1000,
            holders: vec![session("stays", true), session("dead", false)],
        };
        assert_eq!(
            report.complaint(),
            "after 1s 2.00MiB of 127.0.0.1:7 are still held; not to be expected by any time from \
             stays (pid 7, 1.00MiB): end the program, or stop the server and let it lose the \
             pages; within 4s from dead (pid 7, 1.00MiB), when the lease runs out"
        );
    }
}
