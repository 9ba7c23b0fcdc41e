//! The clerk: everything that is asked of servers while faults are served.
//!
//! A thread of its own asks for grants ahead of need, gives back those no longer needed and renews
//! the leases, so that the pager never waits for a server that is slow to answer. The pager and the
//! clerk talk through a small locked list.

use crate::below::FarError;
use crate::servers::ask_for_grant;
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
}

#[derive(Debug)]
pub struct Clerk {
    transports: Vec<Arc<dyn Transport>>,
    placement: Mutex<Placement>,
    desk: Mutex<Desk>,
    bell: Condvar,
    /// Grants are held back while a child may still want to read them.
    hold_releases: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clerk {
    /// `node` and `process` give the order in which servers are asked.
    pub fn new(transports: Vec<Arc<dyn Transport>>, node: u64, process: u64) -> Clerk {
        let servers: Vec<ServerId> = (0..transports.len() as u32).map(ServerId).collect();
        Clerk {
            placement: Mutex::new(Placement::new(node, process, &servers)),
            transports,
            desk: Mutex::default(),
            bell: Condvar::new(),
            hold_releases: AtomicBool::new(false),
        }
    }

    pub fn transports(&self) -> &[Arc<dyn Transport>] {
        &self.transports
    }

    pub fn grant_now(&self) -> Result<Grant, FarError> {
        ask_for_grant(&self.transports, &mut lock(&self.placement))
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

    /// While set, nothing is released.
    pub fn hold_releases(&self, hold: bool) {
        self.hold_releases.store(hold, Ordering::Relaxed);
    }

    /// The clerk's thread. Returns the reason when a session is lost.
    pub fn run(&self) -> String {
        let shortest = self.transports.iter().map(|t| t.lease()).min();
        let pause = shortest.unwrap_or(Duration::from_secs(10)) / 4;
        let mut next_beat = Instant::now() + pause;
        loop {
            let (wanted, release) = {
                let mut desk = lock(&self.desk);
                let held = self.hold_releases.load(Ordering::Relaxed);
                let idle = !desk.wanted && (desk.to_release.is_empty() || held);
                if idle {
                    let wait = next_beat.saturating_duration_since(Instant::now());
                    let waited = self
                        .bell
                        .wait_timeout(desk, wait.max(Duration::from_millis(1)));
                    desk = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                let release = match self.hold_releases.load(Ordering::Relaxed) {
                    true => None,
                    false => desk.to_release.pop(),
                };
                (std::mem::take(&mut desk.wanted), release)
            };
            if wanted && let Ok(grant) = self.grant_now() {
                // A refusal is met again, and reported, when the slots are really needed.
                lock(&self.desk).granted.push(grant);
            }
            if let Some(grant) = release {
                let transport = &self.transports[grant.server.0 as usize];
                let _ = transport.call(Control::Release(vec![grant.id]), RELEASE_DEADLINE);
            }
            if Instant::now() >= next_beat {
                next_beat = Instant::now() + pause;
                for transport in &self.transports {
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
