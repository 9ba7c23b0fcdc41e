//! `--pool agent`: the node's agent says where pages go and how much may stay local.
//!
//! The launcher is connected to the agent for as long as its job runs; that connection is the job, as far
//! as the agent is concerned. It tells how the job does, and is told the limit. When the agent goes, the
//! job goes on with what it has, and the launcher looks for the next agent until there is one.
//!
//! Whose agent it is, the kernel says: root's or this user's own. What it names is read with this user's
//! own rights, the key file as well, so an agent gives nobody what he could not have.

use super::{Args, limit};
use crate::failure::{Exit, Failure};
use crate::pool_list::Entry;
use muninn_cluster::line::{Lines, encode};
use muninn_cluster::message::{Arrival, Doing, FromAgent, ToAgent};
use muninn_job::Job;
use muninn_sys::epoll::Interest;
use muninn_sys::proc;
use muninn_sys::socket::{Address, ByteStream, Stream, Transfer};
use muninn_types::{Bytes, Nanos};
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An agent gets this long to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is told how the job does.
const REPORT: Duration = Duration::from_secs(1);
/// Between two attempts to find the next agent.
const RETRY: Duration = Duration::from_millis(500);
/// The variable in which Slurm names a job.
const SLURM_JOB: &str = "SLURM_JOB_ID";

/// What an agent said first.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) pool: [Entry; 1],
    pub(super) key_file: Option<PathBuf>,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    arrival: Arrival,
    stream: Stream,
    lines: Lines,
    limit: Bytes,
    started: Instant,
}

/// Asks the agent, if the pool is what an agent says.
pub(super) fn asked(
    named: &[Entry],
    args: &Args,
    program: &Path,
    peak: impl FnOnce() -> Option<Bytes>,
) -> Result<Option<(Link, Told)>, Failure> {
    let [Entry::Agent(socket)] = named else {
        return Ok(None);
    };
    if args.local.is_some() {
        return Err(Failure::usage(
            "--local and --pool agent exclude each other: the agent says how much may stay local",
        ));
    }
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let arrival = Arrival {
        name: args.profile.clone().unwrap_or_else(|| name.into_owned()),
        memory: peak().unwrap_or(Bytes::ZERO),
        limit: Bytes::ZERO,
        job: std::env::var(SLURM_JOB)
            .ok()
            .and_then(|text| text.parse().ok()),
    };
    let address = Address::unix(socket).map_err(Failure::usage)?;
    let failed = |why: String| {
        Failure::new(
            Exit::Unreachable,
            format!("the program was not started: {why}; is 'muninn agent' running on this node?"),
        )
    };
    let ends = Instant::now() + PATIENCE;
    let (stream, lines, welcome) = loop {
        match arrive(&address, &arrival) {
            Ok(arrived) => break arrived,
            Err(Trouble::Refused(why)) => {
                let text = format!("the program was not started: the agent refused it: {why}");
                return Err(Failure::new(Exit::Unreachable, text));
            }
            // It may be on its way up, or too many have come at once.
            Err(Trouble::Away(why)) if Instant::now() >= ends => return Err(failed(why)),
            Err(Trouble::Away(_)) => std::thread::sleep(RETRY),
        }
    };
    let told = Told {
        pool: [Entry::File(welcome.pool.into())],
        key_file: welcome.key_file.map(PathBuf::from),
    };
    let link = Link {
        address,
        arrival,
        stream,
        lines,
        limit: welcome.limit.max(limit::FLOOR),
        started: Instant::now(),
    };
    Ok(Some((link, told)))
}

enum Trouble {
    Away(String),
    Refused(String),
}

struct Welcome {
    limit: Bytes,
    pool: String,
    key_file: Option<String>,
}

fn arrive(address: &Address, arrival: &Arrival) -> Result<(Stream, Lines, Welcome), Trouble> {
    let away = |text: &dyn std::fmt::Display| Trouble::Away(text.to_string());
    let _waiting = crate::ui::waiting(format!(
        "the agent at {address}, which says how much may stay here"
    ));
    let stream = Stream::connect(address, PATIENCE).map_err(|error| away(&error))?;
    let peer = stream.peer_credentials().map_err(|error| away(&error))?;
    if peer.uid != 0 && peer.uid != proc::own_uid() {
        let why = format!(
            "{address} belongs to user {}, who is not trusted here",
            peer.uid
        );
        return Err(Trouble::Refused(why));
    }
    send(&stream, &ToAgent::Arrive(arrival.clone())).map_err(|why| away(&why))?;
    let (ends, mut lines, mut newest) = (Instant::now() + PATIENCE, Lines::default(), None);
    loop {
        match hear(&stream, &mut lines, ends).map_err(|why| away(&why))? {
            Some(FromAgent::Welcome {
                limit,
                pool,
                key_file,
            }) => {
                let limit = newest.unwrap_or(limit);
                let welcome = Welcome {
                    limit,
                    pool,
                    key_file,
                };
                return Ok((stream, lines, welcome));
            }
            Some(FromAgent::Limit { limit }) => newest = Some(limit),
            Some(FromAgent::Refused { why }) => return Err(Trouble::Refused(why)),
            Some(FromAgent::State(_)) => {}
            None => return Err(away(&format!("{address} did not answer within 10 s"))),
        }
    }
}

fn send(stream: &Stream, message: &ToAgent) -> Result<(), String> {
    let line = encode(message);
    let mut rest = &line[..];
    while !rest.is_empty() {
        match stream.write(&[IoSlice::new(rest)]) {
            Ok(Transfer::Bytes(n)) => rest = &rest[n..],
            Ok(Transfer::WouldBlock)
                if matches!(stream.wait(Interest::WRITE, Some(PATIENCE)), Ok(true)) => {}
            _ => return Err("the agent does not listen".to_string()),
        }
    }
    Ok(())
}

/// The next message; `None` when the time is over.
fn hear(stream: &Stream, lines: &mut Lines, ends: Instant) -> Result<Option<FromAgent>, String> {
    loop {
        if let Some(message) = lines.take().map_err(|error| error.to_string())? {
            return Ok(Some(message));
        }
        let mut bytes = [0u8; 4096];
        match stream.read(&mut [IoSliceMut::new(&mut bytes)]) {
            Ok(Transfer::Bytes(n)) => lines.push(&bytes[..n]),
            Ok(Transfer::WouldBlock) => {
                let left = ends.saturating_duration_since(Instant::now());
                let ready = stream.wait(Interest::READ, Some(left));
                if left.is_zero() || !ready.map_err(|error| error.to_string())? {
                    return Ok(None);
                }
            }
            Ok(Transfer::Closed) | Err(_) => return Err("the agent has ended".to_string()),
        }
    }
}

impl Link {
    /// What the job may hold at its start.
    pub(super) fn limit(&self) -> Bytes {
        self.limit
    }

    /// Does what the agent says, for as long as this process lives.
    pub(super) fn follow(mut self, job: Job) {
        std::thread::spawn(move || {
            let mut told = false;
            loop {
                let why = match self.stay(&job) {
                    Ok(()) => continue,
                    Err(why) => why,
                };
                if !told {
                    let limit = job.limit().rounded();
                    eprintln!("muninn: {why}; the program goes on with {limit}");
                    told = true;
                }
                std::thread::sleep(RETRY);
                self.arrival.limit = job.limit();
                self.arrival.memory = self.arrival.memory.max(job.peaks().all);
                if let Ok((stream, lines, welcome)) = arrive(&self.address, &self.arrival) {
                    (self.stream, self.lines) = (stream, lines);
                    apply(&job, welcome.limit);
                    eprintln!("muninn: the agent is back");
                    told = false;
                }
            }
        });
    }

    /// One report, and what is heard until the next.
    fn stay(&mut self, job: &Job) -> Result<(), String> {
        let total = job.total();
        let doing = Doing {
            resident: Bytes(total.resident_bytes),
            far: Bytes(total.far_bytes),
            peak: job.peaks().all,
            waited_s: Nanos(total.fault_ns).as_secs_f64(),
            run_s: self.started.elapsed().as_secs_f64(),
        };
        send(&self.stream, &ToAgent::Doing(doing))?;
        let ends = Instant::now() + REPORT;
        while let Some(said) = hear(&self.stream, &mut self.lines, ends)? {
            match said {
                FromAgent::Limit { limit } | FromAgent::Welcome { limit, .. } => apply(job, limit),
                FromAgent::Refused { why } => {
                    return Err(format!("the agent refused the job: {why}"));
                }
                FromAgent::State(_) => {}
            }
        }
        Ok(())
    }
}

fn apply(job: &Job, limit: Bytes) {
    let limit = limit.max(limit::FLOOR);
    if limit != job.limit() {
        job.set_limit(limit);
    }
}
