//! Starting the program and standing between it and whoever started us.
//!
//! The program stays in our process group, so the terminal treats it as if we were not there: what
//! the terminal sends it gets by itself, what others send to us is passed on, and when it is stopped
//! by the terminal we stop, too, so that the shell notices. All descendants are waited for, also
//! those whose parents have ended; should we be killed, the kernel kills the program.
//!
//! Known limits: a signal sent to our whole process group by somebody else than the terminal reaches
//! the program twice. A descendant of the program is not killed with us; it ends when it needs a page
//! from a server that ended with us.

use super::accounts::Accounts;
use super::pool::Servers;
use crate::failure::Failure;
use muninn_job::Job;
use muninn_policy::kinds::Kinds;
use muninn_sys::epoll::{Events, Interest};
use muninn_sys::limits;
use muninn_sys::reap::{self, Event};
use muninn_sys::relay::{Arrived, Relay, signal_name};
use muninn_sys::{child, signal::PidFd};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// How long nothing is heard before children are looked for all the same.
const LOOK: Duration = Duration::from_secs(1);
/// Our signals, among the processes whose ends are waited for.
const SIGNALS: u64 = 0;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
}

impl End {
    /// As shells count: a signal is 128 and its number.
    pub fn exit_code(self) -> u8 {
        match self {
            End::Exited(code) => code as u8,
            End::Killed(signal) => 128u8.saturating_add(signal as u8),
        }
    }

    pub fn signal_name(self) -> Option<String> {
        match self {
            End::Exited(_) => None,
            End::Killed(signal) => Some(signal_name(signal)),
        }
    }
}

/// The program while it runs.
#[derive(Debug)]
pub struct Supervisor<'a> {
    relay: Relay,
    job: &'a Job,
    servers: &'a mut Servers,
    lost: Option<String>,
    kinds: Kinds,
}

impl<'a> Supervisor<'a> {
    /// From now on signals are ours to pass on. Before other threads start.
    pub fn new(job: &'a Job, servers: &'a mut Servers) -> Result<Supervisor<'a>, Failure> {
        reap::adopt_orphans()?;
        Ok(Supervisor {
            relay: Relay::watch().map_err(Failure::failed)?,
            job,
            servers,
            lost: None,
            kinds: Kinds::default(),
        })
    }

    /// What was lost with the embedded server, if anything was.
    pub fn lost(&mut self) -> Option<String> {
        self.lost.take()
    }

    /// The most that was seen of each kind of memory.
    pub fn kinds(&self) -> Kinds {
        self.kinds
    }

    /// Starts the program and returns when it and all its descendants have ended.
    pub fn run(&mut self, command: &mut Command) -> Result<End, Failure> {
        self.relay.restore_in(command);
        let started = child::die_with_parent(command).spawn();
        let program = started.map_err(|error| {
            let name = command.get_program().display();
            Failure::failed(format!("cannot start {name}: {error}"))
        })?;
        let program = program.id();
        // After the start, so that the program has the limits that we were given: one descriptor is
        // needed for each of its processes. Without, their ends are noticed later.
        let _ = limits::raise_open_files();
        let accounts = Accounts::keep(self.job)?;
        let ends = accounts.ends();
        ends.add(&self.relay, SIGNALS, Interest::READ)
            .map_err(Failure::failed)?;
        let (mut end, mut events) = (None, Events::default());
        loop {
            let heard = ends
                .wait(&mut events, Some(LOOK))
                .map_err(Failure::failed)?;
            for event in events.iter().filter(|event| event.token != SIGNALS) {
                accounts.ended(event.token);
            }
            let mut arrived = heard == 0;
            while let Some(signal) = self.relay.take() {
                arrived = true;
                self.pass_on(signal, program, end.is_some());
            }
            // Whoever is left may stay for long, and looking for them costs something. When the time
            // is over it is done all the same.
            if !arrived {
                continue;
            }
            self.reap(program, &mut end);
            if let Some(end) = end.filter(|_| self.others().is_empty()) {
                self.kinds = accounts.close();
                return Ok(end);
            }
        }
    }

    fn pass_on(&self, arrived: Arrived, program: u32, ended: bool) {
        let signal = match arrived {
            Arrived::Child | Arrived::ByTerminal(_) => return,
            Arrived::Sent(signal) => signal,
        };
        let receivers = if ended { self.others() } else { vec![program] };
        for pid in receivers {
            // One that has ended in the meantime does not need it any more.
            let _ = PidFd::open(pid as i32).and_then(|process| process.send(signal));
        }
    }

    fn reap(&mut self, program: u32, end: &mut Option<End>) {
        while let Some(event) = reap::next_event(self.servers.embedded_pid()) {
            match event {
                Event::Exited { pid, code } if pid == program => *end = Some(End::Exited(code)),
                Event::Killed { pid, signal } if pid == program => *end = Some(End::Killed(signal)),
                Event::Stopped { pid, signal } if pid == program => {
                    // By the terminal, not by somebody who wants to look at it.
                    let job_control = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
                    if job_control.iter().any(|s| s.as_raw() == signal) {
                        reap::stop_self();
                    }
                }
                Event::Excepted => match self.servers.embedded_ended() {
                    Some(how) => self.server_ended(&how),
                    None => break,
                },
                Event::Exited { .. } | Event::Killed { .. } | Event::Stopped { .. } => {}
            }
        }
    }

    /// Without its server a process that has pages there could only wait for them, until the lease
    /// of a day is over.
    fn server_ended(&mut self, how: &str) {
        let mut ended = Vec::new();
        for place in self.job.places() {
            let counters = place.counters().snapshot();
            if counters.managed_bytes == 0 && counters.grants == 0 {
                continue;
            }
            // Alive when it has a handle: so the handle is its own.
            if let Ok(process) = PidFd::open(place.pid() as i32)
                && place.is_alive()
                && process.send(Signal::KILL).is_ok()
            {
                ended.push(place.pid().to_string());
            }
        }
        let lost = match &ended[..] {
            [] => "no process had pages there".to_string(),
            [pid] => format!("process {pid} had pages there and was ended"),
            pids => format!(
                "processes {} had pages there and were ended",
                pids.join(", ")
            ),
        };
        let text = format!("the embedded memory server has ended ({how}); {lost}");
        if ended.is_empty() {
            eprintln!("muninn: {text}");
        } else {
            self.lost = Some(text);
        }
        self.servers.forget_embedded();
    }

    /// Children of ours besides the server.
    fn others(&self) -> Vec<u32> {
        let server = self.servers.embedded_pid();
        let mut children = reap::children();
        children.retain(|pid| Some(*pid) != server);
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_shells() {
        assert_eq!(End::Exited(0).exit_code(), 0);
        assert_eq!(End::Exited(255).exit_code(), 255);
        assert_eq!(End::Killed(9).exit_code(), 137);
        assert_eq!(End::Killed(9).signal_name().as_deref(), Some("SIGKILL"));
    }
}
