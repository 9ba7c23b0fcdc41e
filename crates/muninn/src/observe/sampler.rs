//! Pictures, again and again, without holding up who looks at them.
//!
//! A thread looks at the jobs of this machine and at what was heard of servers, and leaves the newest picture where
//! it is found. Looking takes no more than a hundredth of a CPU: with very many jobs pictures come less often.

use super::jobs;
use super::picture::{JobNow, Picture};
use super::servers::Watch;
use crate::client::Client;
use muninn_sys::clock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first picture waits so long for servers, so that none is called silent that was not asked yet.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Between two looks there is so many times what a look takes.
const REST: u32 = 99;

#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Rung when a picture is wanted at once, when there is one, and at the end.
    changed: Condvar,
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
    pub fn start(client: Option<&Client>, every: Duration) -> Sampler {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let watches: Vec<Watch> = client.map_or_else(Vec::new, |client| {
            let options = client.options();
            let servers = client.pool.iter();
            servers
                .map(|address| Watch::start(address, &options, every))
                .collect()
        });
        std::thread::spawn(move || sample(&own, &watches, every));
        Sampler { shared }
    }

    /// The newest picture, if there is one that was not taken yet.
    pub fn take(&self) -> Option<Picture> {
        self.shared.lock().newest.take()
    }

    /// The next picture, if one comes within this time.
    pub fn wait(&self, within: Duration) -> Option<Picture> {
        let none = |state: &mut State| state.newest.is_none();
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, within, none);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.newest.take()
    }

    /// Somebody changed something and wants to see it.
    pub fn hurry(&self) {
        self.shared.lock().now = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

fn sample(shared: &Shared, watches: &[Watch], every: Duration) {
    let began = Instant::now();
    loop {
        let settled = || watches.iter().all(Watch::has_spoken);
        if began.elapsed() < FIRST_WAIT && !settled() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let before = clock::thread_cpu();
        let picture = Picture {
            taken: Instant::now(),
            servers: watches.iter().map(Watch::newest).collect(),
            jobs: jobs::look().into_iter().map(JobNow::from).collect(),
        };
        let mut state = shared.lock();
        state.newest = Some(picture);
        shared.changed.notify_all();
        let took = Duration::from(clock::thread_cpu().saturating_sub(before));
        let idle = |state: &mut State| !state.now && !state.over;
        let pause = every.max(took * REST);
        let waited = shared.changed.wait_timeout_while(state, pause, idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        if std::mem::take(&mut state.now) {
            drop(state);
            watches.iter().for_each(Watch::hurry);
        }
    }
}
