//! What there is at a moment, and how it is asked for without holding up the screen.
//!
//! A thread asks all servers at the same time and looks at the jobs of this machine, then leaves the newest
//! picture where the screen finds it. A server that does not answer makes the next picture late, never the
//! screen; its row says so meanwhile.

use crate::client::Client;
use crate::cmd::status::jobs;
use muninn_job::Snapshot;
use muninn_net::{Observer, SessionOptions};
use muninn_sys::socket::Address;
use muninn_types::Class;
use muninn_wire::StatusPage;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Everything at a moment.
#[derive(Clone, Debug)]
pub struct Picture {
    pub taken: Instant,
    pub servers: Vec<ServerNow>,
    pub jobs: Vec<JobNow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerNow {
    pub address: String,
    /// Why it gave no status; then the rest is empty.
    pub error: Option<String>,
    pub name: String,
    pub pool_bytes: u64,
    pub granted_bytes: u64,
    pub wiping_bytes: u64,
    pub sessions: usize,
    /// Milliseconds that clients still have to move away.
    pub drain_left_ms: Option<u64>,
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes in both directions, by class.
    pub classes: [u64; Class::COUNT],
    /// Who holds what, the most first.
    pub holders: Vec<(String, u64)>,
}

/// What only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub faults: u64,
    pub far: u64,
    pub waited_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobNow {
    pub name: String,
    pub launcher: u32,
    pub launcher_alive: bool,
    pub limit_bytes: u64,
    pub here_bytes: u64,
    pub far_bytes: u64,
    pub totals: Totals,
    pub message: Option<String>,
    pub processes: Vec<ProcessNow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessNow {
    pub pid: u32,
    pub here_bytes: u64,
    pub far_bytes: u64,
    pub totals: Totals,
    /// What it waits for, in words.
    pub waits: Option<String>,
}

impl From<&Snapshot> for Totals {
    fn from(c: &Snapshot) -> Totals {
        Totals {
            faults: c.faults,
            far: c.faults_remote,
            waited_ns: c.fault_ns,
            bytes_in: c.bytes_in,
            bytes_out: c.bytes_out,
        }
    }
}

impl From<jobs::JobShown> for JobNow {
    fn from(job: jobs::JobShown) -> JobNow {
        let processes = job.processes.iter().map(|process| ProcessNow {
            pid: process.pid,
            here_bytes: process.counters.resident_bytes,
            far_bytes: process.counters.far_bytes,
            totals: Totals::from(&process.counters),
            waits: process.waits.clone(),
        });
        JobNow {
            launcher: job.launcher.unwrap_or(0),
            launcher_alive: job.launcher_alive,
            limit_bytes: job.limit_bytes,
            here_bytes: job.total.resident_bytes,
            far_bytes: job.total.far_bytes,
            totals: Totals::from(&job.total),
            processes: processes.collect(),
            message: job.message,
            name: job.name,
        }
    }
}

impl ServerNow {
    fn answered(address: &Address, page: &StatusPage) -> ServerNow {
        let server = &page.server;
        let traffic = &server.traffic;
        let mut holders: Vec<(String, u64)> = page
            .sessions
            .iter()
            .filter(|session| session.granted_bytes > 0)
            .map(|session| {
                let name = format!("{} ({})", session.name, session.pid);
                (name, session.granted_bytes)
            })
            .collect();
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        ServerNow {
            address: address.to_string(),
            error: None,
            name: server.name.to_string(),
            pool_bytes: server.pool_bytes,
            granted_bytes: server.granted_bytes,
            wiping_bytes: server.wiping_bytes,
            sessions: page.sessions.len(),
            drain_left_ms: server.drain_left_ms.checked_sub(1),
            requests: traffic.iter().map(|class| class.requests).sum(),
            bytes_in: traffic.iter().map(|class| class.bytes_in).sum(),
            bytes_out: traffic.iter().map(|class| class.bytes_out).sum(),
            classes: Class::ALL.map(|class| {
                let of_class = &traffic[class.index()];
                of_class.bytes_in + of_class.bytes_out
            }),
            holders,
        }
    }
}

/// Asks, again and again, until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Rung when a picture is wanted at once, and at the end.
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    newest: Option<Picture>,
    now: bool,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    /// With no client there are jobs alone.
    pub fn start(client: Option<Client>, every: Duration) -> Sampler {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        std::thread::spawn(move || sample(&own, client.as_ref(), every));
        Sampler { shared }
    }

    /// The newest picture, if there is one that was not taken yet.
    pub fn take(&self) -> Option<Picture> {
        self.shared.lock().newest.take()
    }

    /// Somebody changed something and wants to see it.
    pub fn hurry(&self) {
        self.shared.lock().now = true;
        self.shared.wanted.notify_all();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.wanted.notify_all();
    }
}

fn sample(shared: &Shared, client: Option<&Client>, every: Duration) {
    let options = client.map(Client::options);
    let addresses = client.map_or(&[][..], |client| &client.pool);
    let mut observers: Vec<Option<Observer>> = addresses.iter().map(|_| None).collect();
    loop {
        let servers = match &options {
            Some(options) => ask_all(addresses, &mut observers, options),
            None => Vec::new(),
        };
        let picture = Picture {
            taken: Instant::now(),
            servers,
            jobs: jobs::look().into_iter().map(JobNow::from).collect(),
        };
        let mut state = shared.lock();
        state.newest = Some(picture);
        let idle = |state: &mut State| !state.now && !state.over;
        let waited = shared.wanted.wait_timeout_while(state, every, idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        state.now = false;
    }
}

/// All at the same time. Connections are kept; one that fails is made anew the next time.
fn ask_all(
    addresses: &[Address],
    observers: &mut [Option<Observer>],
    options: &SessionOptions,
) -> Vec<ServerNow> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = addresses
            .iter()
            .zip(observers)
            .map(|(address, observer)| (address, scope.spawn(|| ask(address, observer, options))))
            .collect();
        let answers = asked.into_iter().map(|(address, answer)| {
            let answer = answer.join().expect("asking does not panic");
            answer.unwrap_or_else(|error| ServerNow {
                address: address.to_string(),
                error: Some(error),
                ..ServerNow::default()
            })
        });
        answers.collect()
    })
}

fn ask(
    address: &Address,
    kept: &mut Option<Observer>,
    options: &SessionOptions,
) -> Result<ServerNow, String> {
    // A server that was started anew has closed the connection: that is no reason to call it silent.
    if let Some(mut observer) = kept.take()
        && let Ok(page) = observer.status()
    {
        *kept = Some(observer);
        return Ok(ServerNow::answered(address, &page));
    }
    let mut observer = Observer::connect(address, options).map_err(|error| error.to_string())?;
    let page = observer.status().map_err(|error| error.to_string())?;
    *kept = Some(observer);
    Ok(ServerNow::answered(address, &page))
}
