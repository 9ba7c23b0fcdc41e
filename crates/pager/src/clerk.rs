//! The clerk: everything that is asked of servers while faults are served.
//!
//! A thread of its own asks for grants ahead of need, gives back those no longer needed and renews
//! the leases, so that the pager never waits for a server that is slow to answer. The pager and the
//! clerk talk through a small locked list. The clerk opens the sessions, too, while the pager already
//! holds the program's growth back.

use crate::below::FarError;
use crate::servers::ask_for_grant;
use crate::snapshot::Ticket;
use muninn_net::{Control, Grant, Transport};
use muninn_policy::placement::Placement;
use muninn_types::ServerId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Desk {
    wanted: bool,
    granted: Vec<Grant>,
    to_release: Vec<Grant>,
    to_revoke: Vec<Ticket>,
}

/// Sessions at the pool's servers.
#[derive(Debug)]
struct Pool {
    transports: Vec<Arc<dyn Transport>>,
    placement: Mutex<Placement>,
}

/// Opens the sessions.
type Connect = Box<dyn FnOnce() -> Result<Vec<Arc<dyn Transport>>, String> + Send>;

pub struct Clerk {
    connect: Mutex<Option<Connect>>,
    pool: Mutex<Option<Result<Arc<Pool>, String>>>,
    connected: Condvar,
    node: u64,
    process: u64,
    desk: Mutex<Desk>,
    bell: Condvar,
    /// Nothing is asked for or given back: a child is about to be given what there is.
    hold_still: AtomicBool,
    /// Small grants are wanted.
    small: AtomicBool,
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clerk").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clerk {
    /// `node` and `process` give the order in which servers are asked.
    pub fn new(connect: Connect, node: u64, process: u64) -> Clerk {
        Clerk {
            connect: Mutex::new(Some(connect)),
            pool: Mutex::default(),
            connected: Condvar::new(),
            node,
            process,
            desk: Mutex::default(),
            bell: Condvar::new(),
            hold_still: AtomicBool::new(false),
            small: AtomicBool::new(false),
        }
    }

    /// The pool, once the clerk has connected to it. The program's growth is held back meanwhile;
    /// how long connecting may take is the transports' to say.
    fn pool(&self) -> Result<Arc<Pool>, FarError> {
        let mut pool = lock(&self.pool);
        loop {
            match &*pool {
                Some(Ok(pool)) => return Ok(Arc::clone(pool)),
                Some(Err(why)) => return Err(FarError::Lost(why.clone())),
                None => {
                    let waited = self.connected.wait(pool);
                    pool = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    pub fn transports(&self) -> Result<Vec<Arc<dyn Transport>>, FarError> {
        Ok(self.pool()?.transports.clone())
    }

    pub fn grant_now(&self) -> Result<Grant, FarError> {
        let small = self.small.load(Ordering::Relaxed);
        let pool = self.pool()?;
        ask_for_grant(&pool.transports, &mut lock(&pool.placement), small)
    }

    fn connect(&self) -> Result<Arc<Pool>, String> {
        let connect = lock(&self.connect).take().ok_or("connected already")?;
        let transports = connect()?;
        let servers: Vec<ServerId> = (0..transports.len() as u32).map(ServerId).collect();
        let placement = Placement::new(self.node, self.process, &servers);
        Ok(Arc::new(Pool {
            transports,
            placement: Mutex::new(placement),
        }))
    }

    /// While there are wards, what is written cannot be written over: small pieces waste less.
    pub fn want_small(&self, small: bool) {
        self.small.store(small, Ordering::Relaxed);
    }

    pub fn want_grant(&self) {
        lock(&self.desk).wanted = true;
        self.bell.notify_one();
    }

    pub fn take_granted(&self) -> Option<Grant> {
        lock(&self.desk).granted.pop()
    }

    pub fn release(&self, grant: Grant) {
        lock(&self.desk).to_release.push(grant);
        self.bell.notify_one();
    }

    /// Nobody will use these any more.
    pub fn revoke(&self, tickets: impl Iterator<Item = Ticket>) {
        lock(&self.desk).to_revoke.extend(tickets);
        self.bell.notify_one();
    }
    /// While set, nothing is asked for ahead of need and nothing is given back. What the desk holds
    /// is told: grants not handed out yet, and those to be given back.
    pub fn hold_still(&self, hold: bool) -> Vec<Grant> {
        let desk = lock(&self.desk);
        self.hold_still.store(hold, Ordering::Relaxed);
        if !hold {
            self.bell.notify_one();
        }
        let both = desk.granted.iter().chain(&desk.to_release);
        both.copied().collect()
    }

    /// Does one thing that is to be done, or waits for one. A grant stays on the desk until the
    /// server has it back, and is put there under the same lock under which it was asked for, so
    /// that the desk always tells the truth.
    fn work(&self, pool: &Pool, wait: Duration) {
        let mut desk = lock(&self.desk);
        if let Some((server, ticket)) = desk.to_revoke.pop() {
            // Nothing changes that the desk tells of.
            drop(desk);
            let transport = &pool.transports[server.0 as usize];
            let _ = transport.call(Control::Revoke { ticket }, RELEASE_DEADLINE);
            return;
        }
        let held = self.hold_still.load(Ordering::Relaxed);
        let releasing = !desk.to_release.is_empty();
        if held || !(desk.wanted || releasing) {
            drop(
                self.bell
                    .wait_timeout(desk, wait.min(Duration::from_millis(100))),
            );
            return;
        }
        if std::mem::take(&mut desk.wanted) {
            // A refusal is met again, and reported, when the slots are really needed.
            if let Ok(grant) = self.grant_now() {
                desk.granted.push(grant);
            }
        } else if let Some(grant) = desk.to_release.pop() {
            let transport = &pool.transports[grant.server.0 as usize];
            let _ = transport.call(Control::Release(vec![grant.id]), RELEASE_DEADLINE);
        }
    }

    /// The clerk's thread. Returns the reason when a session is lost.
    pub fn run(&self) -> String {
        let pool = self.connect();
        *lock(&self.pool) = Some(pool.clone());
        self.connected.notify_all();
        let pool = match pool {
            Ok(pool) => pool,
            Err(why) => return why,
        };
        let shortest = pool.transports.iter().map(|t| t.lease()).min();
        let pause = shortest.unwrap_or(Duration::from_secs(10)) / 4;
        let mut next_beat = Instant::now() + pause;
        loop {
            let wait = next_beat.saturating_duration_since(Instant::now());
            self.work(&pool, wait.max(Duration::from_millis(1)));
            if Instant::now() >= next_beat {
                next_beat = Instant::now() + pause;
                for transport in &pool.transports {
                    if !transport.heartbeat() {
                        let why = transport.lost().unwrap_or_default();
                        let name = transport.server_name();
                        return format!("server '{name}' at {}: {why}", transport.address());
                    }
                }
            }
        }
    }
}
