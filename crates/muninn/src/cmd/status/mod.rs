//! `muninn status`: what servers have, who uses it, what passes between them, and which jobs run on
//! this machine.

mod jobs;

use crate::client::{ClientArgs, default_socket};
use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use crate::observe::jobs::{self as observed, JobShown};
use crate::observe::{check_every, servers};
use crate::ui::{self, Table};
use muninn_types::{Bytes, Class, format_duration, parse_duration};
use muninn_wire::{ServerStatus, ServerTimes, ServiceStatus, SessionStatus, StatusPage, Transport};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn status
  muninn status --pool unix:/run/muninn.sock,10.0.0.5:7000 --key-file /etc/muninn.key
  muninn status --jobs
  muninn status --watch=10s >> status.log
  muninn status --json | jq '.servers[].granted_bytes'

Jobs are those of 'muninn run' on this machine: of this user, and for root of everybody. They are
shown where no pool is named, and alone where no server is at the default place either. Exit code 3 if a server
could not be reached; the others are shown all the same.")]
pub struct Args {
    #[command(flatten)]
    pub client: ClientArgs,

    /// Show the jobs on this machine, and no servers
    #[arg(long, conflicts_with_all = ["pool", "key_file"])]
    pub jobs: bool,

    /// Look again and again, every two seconds or as said, until ended; with --json one object a line
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = parse_duration
    )]
    pub watch: Option<Duration>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Seconds since 1970, where it is looked at again and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_s: Option<u64>,
    servers: Vec<Server>,
    jobs: Vec<JobShown>,
}

#[derive(Debug, Serialize)]
struct Server {
    address: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    found: Option<Found>,
}

/// What a server that answered tells.
#[derive(Debug, Serialize)]
struct Found {
    name: String,
    uptime_ms: u64,
    pool_bytes: u64,
    granted_bytes: u64,
    wiping_bytes: u64,
    largest_free_bytes: u64,
    grants: u32,
    connections: u32,
    lease_ms: u32,
    draining: bool,
    drain_left_ms: Option<u64>,
    traffic: Vec<Traffic>,
    refusals: BTreeMap<String, u64>,
    services: Vec<Service>,
    sessions: Vec<Session>,
}

#[derive(Debug, Serialize)]
struct Service {
    name: String,
    bytes: u64,
    sessions: u32,
    locks: u32,
    locks_held: u32,
    calls: u64,
    failed: u64,
    accesses: u64,
}

impl From<&ServiceStatus> for Service {
    fn from(service: &ServiceStatus) -> Service {
        Service {
            name: service.name.to_string(),
            bytes: service.bytes,
            sessions: service.sessions,
            locks: service.locks,
            locks_held: service.locks_held,
            calls: service.calls,
            failed: service.failed,
            accesses: service.accesses,
        }
    }
}

#[derive(Debug, Serialize)]
struct Traffic {
    class: &'static str,
    requests: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// Half of its requests, and 99 of 100, were answered within less than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    half_below_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_below_us: Option<u64>,
}

fn below_us(times: Option<&ServerTimes>, class: Class, part: f64) -> Option<u64> {
    Some(times?.classes[class.index()].part_below(part)?.0 / 1000)
}

/// A session as it is shown; `drain` shows those that hold on.
#[derive(Debug, Clone, Serialize)]
pub struct Session {
    pub id: String,
    pub name: String,
    pub transport: &'static str,
    pub connected: bool,
    pub pid: u32,
    pub grants: u32,
    pub granted_bytes: u64,
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub lease_left_ms: u64,
    /// What the client says of itself: where its functions run, and why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl From<&SessionStatus> for Session {
    fn from(session: &SessionStatus) -> Session {
        Session {
            id: session.id.to_string(),
            name: session.name.to_string(),
            transport: Transport::from_byte(session.transport).map_or("?", Transport::name),
            connected: session.connected,
            pid: session.pid,
            grants: session.grants,
            granted_bytes: session.granted_bytes,
            requests: session.requests,
            bytes_in: session.bytes_in,
            bytes_out: session.bytes_out,
            lease_left_ms: session.lease_left_ms,
            note: session.note.to_string(),
        }
    }
}

impl From<&StatusPage> for Found {
    fn from(page: &StatusPage) -> Found {
        let ServerStatus {
            name,
            uptime_ms,
            pool_bytes,
            granted_bytes,
            wiping_bytes,
            largest_free_bytes,
            sessions: _,
            grants,
            connections,
            lease_ms,
            drain_left_ms,
            traffic,
            refusals,
            services,
            times,
        } = &page.server;
        let traffic = Class::ALL.map(|class| {
            let of_class = &traffic[class.index()];
            Traffic {
                class: class.name(),
                requests: of_class.requests,
                bytes_in: of_class.bytes_in,
                bytes_out: of_class.bytes_out,
                half_below_us: below_us(times.as_deref(), class, 0.5),
                most_below_us: below_us(times.as_deref(), class, 0.99),
            }
        });
        let refusals = refusals.iter().map(|(why, n)| (why.to_string(), *n));
        Found {
            name: name.to_string(),
            uptime_ms: *uptime_ms,
            pool_bytes: *pool_bytes,
            granted_bytes: *granted_bytes,
            wiping_bytes: *wiping_bytes,
            largest_free_bytes: *largest_free_bytes,
            grants: *grants,
            connections: *connections,
            lease_ms: *lease_ms,
            draining: *drain_left_ms > 0,
            drain_left_ms: drain_left_ms.checked_sub(1),
            traffic: traffic.into(),
            refusals: refusals.collect(),
            services: services.iter().map(Service::from).collect(),
            sessions: page.sessions.iter().map(Session::from).collect(),
        }
    }
}

pub fn run(args: &Args, config: &Config) -> Outcome {
    let Some(every) = args.watch else {
        let report = look(args, config)?;
        if args.json {
            ui::print_json(&report);
        } else {
            ui::print_out(&report.describe());
        }
        return report.verdict();
    };
    let every = check_every(every)?;
    loop {
        let began = Instant::now();
        // The first time, what is wrong with the command line ends it; later a pool's file may be written anew.
        let mut report = look(args, config)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        report.time_s = now.ok().map(|since| since.as_secs());
        let text = match args.json {
            true => serde_json::to_string(&report).expect("plain data serialises"),
            false => format!("{}\n{}\n", headline(report.time_s), report.describe()),
        };
        // It ends when its reader does.
        ui::print_out(&text);
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

/// What separates one look from the next: the time, by the clock that logs are in.
fn headline(time_s: Option<u64>) -> String {
    let in_day = time_s.unwrap_or(0) % 86_400;
    let (hours, minutes, seconds) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("── {hours:02}:{minutes:02}:{seconds:02} UTC")
}

fn look(args: &Args, config: &Config) -> Result<Report, Failure> {
    let no_pool = args.client.pool.is_empty() && config.client.pool.0.is_empty();
    // Who asks for certain servers wants to see nothing else.
    let jobs = if args.jobs || no_pool {
        observed::look()
    } else {
        Vec::new()
    };
    // Where no server is at the default place either, jobs are what there is to see.
    let no_server = no_pool && !default_socket().exists();
    if args.jobs || no_server && (!jobs.is_empty() || args.watch.is_some()) {
        return Ok(Report {
            time_s: None,
            servers: Vec::new(),
            jobs,
        });
    }
    let client = args.client.resolve(&config.client)?;
    let waiting = ui::waiting(match &client.pool[..] {
        [one] => format!("an answer of {one}"),
        all => format!("answers of {} servers", all.len()),
    });
    let answers = servers::ask_each(&client.pool, &client.options());
    drop(waiting);
    let servers = client.pool.iter().zip(answers);
    let servers = servers.map(|(address, answer)| Server {
        address: address.to_string(),
        ok: answer.is_ok(),
        error: answer.as_ref().err().map(ToString::to_string),
        found: answer.ok().as_ref().map(Found::from),
    });
    Ok(Report {
        time_s: None,
        servers: servers.collect(),
        jobs,
    })
}

impl Report {
    /// Whether all servers have answered.
    fn verdict(&self) -> Outcome {
        let all = self.servers.len();
        match self.servers.iter().filter(|server| !server.ok).count() {
            0 => Ok(()),
            _ if all == 1 => Err(Failure::new(
                Exit::Unreachable,
                "the server gave no status; why is said above",
            )),
            silent => Err(Failure::new(
                Exit::Unreachable,
                format!("{silent} of {all} servers gave no status; why is said above"),
            )),
        }
    }

    fn describe(&self) -> String {
        let mut parts: Vec<String> = self.servers.iter().map(Server::describe).collect();
        if !self.jobs.is_empty() || parts.is_empty() {
            parts.push(jobs::describe(&self.jobs));
        }
        parts.join("\n\n")
    }
}

impl Server {
    fn describe(&self) -> String {
        let Some(found) = &self.found else {
            let why = self.error.as_deref().unwrap_or_default();
            return format!("{}\n  {why}", self.address);
        };
        let mut text = format!("{}: {}", self.address, found.headline());
        let tables = [
            found.sessions(),
            found.services(),
            found.traffic(),
            found.refusals(),
        ];
        for table in tables {
            if !table.is_empty() {
                text += "\n\n";
                text += &indent(&table.to_string());
            }
        }
        let notes = found.sessions.iter().filter(|s| !s.note.is_empty());
        for (i, session) in notes.enumerate() {
            let gap = if i == 0 { "\n\n" } else { "\n" };
            text += &format!("{gap}  {} says: {}", session.name, session.note);
        }
        text
    }
}

fn indent(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

fn ms(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

impl Found {
    fn headline(&self) -> String {
        let mut text = format!(
            "'{}', up {}, {} of {} granted",
            self.name,
            ms(self.uptime_ms),
            Bytes(self.granted_bytes).rounded(),
            Bytes(self.pool_bytes).rounded(),
        );
        if self.wiping_bytes > 0 {
            text += &format!(" ({} being wiped)", Bytes(self.wiping_bytes).rounded());
        }
        text += &format!(
            "\n  {}, {}, {}; largest grant to be had {}, lease {}",
            count(self.sessions.len() as u64, "session"),
            count(u64::from(self.grants), "grant"),
            count(u64::from(self.connections), "connection"),
            Bytes(self.largest_free_bytes),
            ms(u64::from(self.lease_ms)),
        );
        match self.drain_left_ms {
            None => {}
            Some(0) => text += "\n  draining: its time is over; no new grants",
            Some(left) => text += &format!("\n  draining: {} left; no new grants", ms(left)),
        }
        text
    }

    fn sessions(&self) -> Table {
        session_table(&self.sessions)
    }

    fn services(&self) -> Table {
        let mut table = Table::new([
            "service", "size", "sessions", "locks", "held", "calls", "failed", "accesses",
        ]);
        for service in &self.services {
            table.row([
                service.name.clone(),
                Bytes(service.bytes).rounded(),
                service.sessions.to_string(),
                service.locks.to_string(),
                service.locks_held.to_string(),
                service.calls.to_string(),
                service.failed.to_string(),
                service.accesses.to_string(),
            ]);
        }
        table
    }

    fn traffic(&self) -> Table {
        let mut table = Table::new(["class", "requests", "in", "out"]);
        for class in self.traffic.iter().filter(|class| class.requests > 0) {
            table.row([
                class.class.to_string(),
                class.requests.to_string(),
                Bytes(class.bytes_in).rounded(),
                Bytes(class.bytes_out).rounded(),
            ]);
        }
        table
    }

    fn refusals(&self) -> Table {
        let mut table = Table::new(["refused because", "times"]);
        for (reason, times) in &self.refusals {
            table.row([reason.clone(), times.to_string()]);
        }
        table
    }
}

fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// Sessions, one a row.
pub fn session_table(sessions: &[Session]) -> Table {
    let mut table = Table::new([
        "session",
        "client",
        "pid",
        "by",
        "grants",
        "holds",
        "requests",
        "lease left",
    ]);
    for session in sessions {
        let lease = ms(session.lease_left_ms);
        table.row([
            session.id.clone(),
            session.name.clone(),
            session.pid.to_string(),
            session.transport.to_string(),
            session.grants.to_string(),
            Bytes(session.granted_bytes).rounded(),
            session.requests.to_string(),
            match session.connected {
                true => lease,
                false => format!("{lease}, cut off"),
            },
        ]);
    }
    table
}
