//! A server that does what a test tells it: it stops, goes on, dies, comes back empty, is slow, lies, or
//! wants its memory back.

use crate::stage::Stage;
use muninn_net::fake::FakeTransport;
use muninn_net::{Answer, Beat, Control, Done, Kind, Lane, NetError, Op, Transport, Verb};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, LaneKind, Nanos, PAGE_SIZE};
use muninn_wire::{ErrorCode, GrantInfo, Refusal};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// What an operation takes at least, in a simulation.
const TRIP: Duration = Duration::from_micros(40);

#[derive(Debug)]
struct State {
    memory: Option<FakeTransport>,
    stopped: bool,
    goes_on_at: Option<Nanos>,
    draining: bool,
    slow: Duration,
    lying: bool,
    /// It answers what it is asked, and does nothing with data.
    deaf: bool,
    /// It gives no more grants than these, and so much where more is asked for.
    grants_max: usize,
    crumbs: Option<Bytes>,
    /// When somebody renewed the lease last, and the longest time between two of these.
    beaten: Option<Nanos>,
    longest: Nanos,
    /// More grants than these are asked back.
    keeps: Option<usize>,
    /// Somebody has connected, and since it was started last.
    known: bool,
    met: bool,
    last: Weak<Session>,
}

#[derive(Clone, Debug)]
pub struct Puppet {
    stage: Stage,
    address: Address,
    state: Arc<Mutex<State>>,
}

/// Of a grant at most, which all of an extent's members are.
const GRANT: Bytes = Bytes::kib(256);
const ROOM: Bytes = Bytes::mib(8);

impl Puppet {
    pub fn new(at: usize, stage: &Stage) -> Puppet {
        let state = State {
            memory: Some(FakeTransport::new(ROOM)),
            stopped: false,
            goes_on_at: None,
            draining: false,
            slow: Duration::ZERO,
            lying: false,
            deaf: false,
            grants_max: usize::MAX,
            crumbs: None,
            beaten: None,
            longest: Nanos::ZERO,
            keeps: None,
            known: false,
            met: true,
            last: Weak::new(),
        };
        Puppet {
            stage: stage.clone(),
            address: Address::Unix(format!("puppet{at}").into()),
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let now = self.stage.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.goes_on_at.is_some_and(|at| at <= now) {
            (state.stopped, state.goes_on_at) = (false, None);
        }
        state
    }

    pub fn address(&self) -> Address {
        self.address.clone()
    }
    pub fn stop(&self) {
        self.lock().stopped = true;
    }
    pub fn go_on(&self) {
        self.lock().stopped = false;
    }
    pub fn go_on_in(&self, by: Duration) {
        let at = self.stage.now() + by.into();
        self.lock().goes_on_at = Some(at);
    }
    pub fn kill(&self) {
        if let Some(memory) = self.lock().memory.take() {
            memory.lose("it was killed");
        }
    }
    pub fn start_again(&self) {
        let mut state = self.lock();
        state.stopped = false;
        state.draining = false;
        state.memory = Some(FakeTransport::new(ROOM));
        state.met = !state.known;
    }
    pub fn be_slow(&self, by: Duration) {
        self.lock().slow = by;
    }
    pub fn lie(&self, lying: bool) {
        self.lock().lying = lying;
    }
    /// It answers heartbeats, gives grants and takes them back, and leaves data alone.
    pub fn be_deaf(&self, deaf: bool) {
        self.lock().deaf = deaf;
    }
    pub fn limit(&self, grants: usize) {
        self.lock().grants_max = grants;
    }
    /// Says of each grant that it is so large.
    pub fn give_crumbs(&self, bytes: Bytes) {
        self.lock().crumbs = Some(bytes);
    }
    /// The longest that a lease was not renewed.
    pub fn longest_unbeaten(&self) -> Nanos {
        let state = self.lock();
        let since = state.beaten.map(|at| self.stage.now().saturating_sub(at));
        state.longest.max(since.unwrap_or_default())
    }
    pub fn drain(&self, draining: bool) {
        self.lock().draining = draining;
    }
    /// Asks for what is more than so many grants.
    pub fn keep(&self, grants: Option<usize>) {
        self.lock().keeps = grants;
    }
    /// Whether those who had a session with it have one again.
    pub fn is_met(&self) -> bool {
        self.lock().met
    }
    /// Sessions that somebody has with it.
    pub fn sessions(&self) -> usize {
        self.lock().last.strong_count()
    }
    pub fn grants(&self) -> usize {
        self.lock().memory.as_ref().map_or(0, |m| m.grants())
    }

    /// A session with it.
    pub fn connect(&self) -> Result<Arc<dyn Transport>, String> {
        let mut state = self.lock();
        let memory = state.memory.clone().filter(|_| !state.stopped);
        let memory = memory.ok_or("nobody listens there")?;
        (state.known, state.met) = (true, true);
        let session = Arc::new(Session {
            puppet: self.clone(),
            memory,
        });
        state.last = Arc::downgrade(&session);
        Ok(session)
    }
}

#[derive(Clone, Debug)]
struct Session {
    puppet: Puppet,
    memory: FakeTransport,
}

impl Transport for Session {
    fn kind(&self) -> Kind {
        Kind::Fake
    }
    fn address(&self) -> &Address {
        &self.puppet.address
    }
    fn server_name(&self) -> &str {
        "puppet"
    }
    fn max_grant(&self) -> Bytes {
        GRANT
    }
    fn lease(&self) -> Duration {
        Duration::from_millis(200)
    }
    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        Ok(Box::new(Strings {
            session: self.clone(),
            inner: self.memory.lane(kind)?,
            waiting: VecDeque::new(),
        }))
    }
    fn call(&self, control: Control, deadline: Duration) -> Result<Answer, NetError> {
        let (stopped, draining, full, crumbs) = {
            let state = self.puppet.lock();
            let grants = state.memory.as_ref().map_or(0, |memory| memory.grants());
            let draining = state.draining || state.keeps.is_some();
            let full = grants >= state.grants_max;
            (state.stopped, draining, full, state.crumbs)
        };
        if stopped && self.memory.lost().is_none() {
            let stage = &self.puppet.stage;
            stage.sleep(deadline);
            return Err(NetError::Timeout(self.puppet.address.clone(), deadline));
        }
        if draining && matches!(control, Control::Grant { .. }) {
            let refusal = Refusal::with(ErrorCode::Draining, 0, 0);
            return Err(NetError::Refused(self.puppet.address.clone(), refusal));
        }
        if full && matches!(control, Control::Grant { .. }) {
            let refusal = Refusal::with(ErrorCode::PoolFull, 0, 0);
            return Err(NetError::Refused(self.puppet.address.clone(), refusal));
        }
        let answer = self.memory.call(control, deadline)?;
        Ok(match (answer, crumbs) {
            (Answer::Granted(info), Some(Bytes(bytes))) => {
                Answer::Granted(GrantInfo { bytes, ..info })
            }
            (answer, _) => answer,
        })
    }
    fn beat(&self, patience: Duration) -> Beat {
        if self.lost().is_some() {
            return Beat::Lost;
        }
        if self.puppet.lock().stopped {
            self.puppet.stage.sleep(patience);
            return Beat::Silent;
        }
        let now = self.puppet.stage.now();
        let mut state = self.puppet.lock();
        let before = state.beaten.replace(now).unwrap_or(now);
        state.longest = state.longest.max(now.saturating_sub(before));
        Beat::Answered
    }
    fn lost(&self) -> Option<String> {
        self.memory.lost()
    }
    fn drain_left(&self) -> Option<Duration> {
        let draining = self.puppet.lock().draining;
        draining.then_some(Duration::from_secs(10))
    }
    fn asked_back(&self) -> Bytes {
        let state = self.puppet.lock();
        let grants = state.memory.as_ref().map_or(0, |memory| memory.grants());
        let more = state.keeps.map_or(0, |keeps| grants.saturating_sub(keeps));
        Bytes(more as u64 * GRANT.0)
    }
    fn resumes(&self) -> u64 {
        0
    }
}

/// Operations wait while the puppet is stopped, and are done in order when it goes on.
struct Strings {
    session: Session,
    inner: Box<dyn Lane>,
    waiting: VecDeque<(Op, Nanos)>,
}

impl Strings {
    /// When the next operation is done, if nothing happens meanwhile.
    fn next_due(&self) -> Option<Nanos> {
        let state = self.session.puppet.lock();
        let (_, posted) = self.waiting.front()?;
        let done = *posted + (state.slow + TRIP).into();
        match state.stopped || state.deaf {
            true => Some(done.max(state.goes_on_at?)),
            false => Some(done),
        }
    }

    fn advance(&mut self) {
        let lost = self.session.lost().is_some();
        let (stopped, slow) = {
            let state = self.session.puppet.lock();
            (state.stopped || state.deaf, state.slow)
        };
        if stopped && !lost {
            return;
        }
        let stage = self.session.puppet.stage.clone();
        let trip = match stage {
            Stage::Real => slow,
            Stage::Simulated(_) => slow + TRIP,
        };
        let trip = Nanos::from(trip);
        loop {
            let due = self.waiting.front().map(|(_, posted)| *posted + trip);
            if due.is_none_or(|due| due > stage.now() && !lost) {
                return;
            }
            if let Some((op, _)) = self.waiting.pop_front() {
                let _ = self.inner.post(op);
            }
        }
    }
}

impl Lane for Strings {
    fn address(&self) -> &Address {
        &self.session.puppet.address
    }
    fn post(&mut self, op: Op) -> Result<(), Op> {
        if self.waiting.len() >= 64 {
            return Err(op);
        }
        self.waiting
            .push_back((op, self.session.puppet.stage.now()));
        Ok(())
    }
    fn poll(&mut self, wait: Duration) -> Option<Done> {
        let stage = self.session.puppet.stage.clone();
        let ends = stage.now() + wait.into();
        loop {
            self.advance();
            if let Some(mut done) = self.inner.poll(Duration::ZERO) {
                let lying = self.session.puppet.lock().lying;
                if lying && matches!(done.operation.verb, Verb::Read(_)) {
                    // A bit in every page.
                    for page in done.operation.data.as_mut().chunks_mut(PAGE_SIZE) {
                        page[done.operation.token as usize % PAGE_SIZE] ^= 4;
                    }
                }
                return Some(done);
            }
            let now = stage.now();
            if now >= ends {
                return None;
            }
            let left = ends.saturating_sub(now);
            let nap = match stage {
                Stage::Real => left.min(Nanos::micros(50)),
                Stage::Simulated(_) => self.next_due().map_or(left, |due| left.min(due - now)),
            };
            stage.sleep(nap.into());
        }
    }
    fn under_way(&self) -> usize {
        self.waiting.len() + self.inner.under_way()
    }
    fn put_back(&mut self, done: Done) {
        self.inner.put_back(done);
    }
    fn abandon(&mut self, token: u64) {
        self.waiting.retain(|(op, _)| op.token != token);
        self.inner.abandon(token);
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(10)
    }
}
