//! One run of one workload in one configuration: discrete events, integer time.
//!
//! All jobs arrive within a short window. A job is placed on the first machine that has it all
//! local, else on the first where it fits with far memory; a job that fits nowhere waits, and jobs of
//! other kinds behind it may go ahead. When a job ends, the waiting ones are tried again, in the order
//! that the admission policy gives. A machine's memory is divided anew when a job starts or ends on it, and the remaining
//! run time of its jobs follows from their new ratios (§4.4.2, §4.5.1).
//!
//! Invariants, asserted: cores, local memory and far memory are never promised twice; every job ends.
//!
//! Two equivalences make it fast. Jobs of one kind are alike, so one look at the head of each kind's
//! queue is a look at the whole queue. And the first machine that fits, in a random order, is a random
//! one of those that fit.

use super::RackError;
use super::spec::{Order, Shape};
use super::workload::Workload;
use muninn_policy::admission::{Admission, Backlog};
use muninn_policy::fit::{Need, Node};
use muninn_policy::profile::catalogue::JobKind;
use muninn_policy::rebalance::{Effort, Guess, Job, Policy, Rebalancer};
use muninn_types::{Bytes, Nanos, SplitMix64};

/// All jobs arrive within this time, as in the published simulator.
pub const ARRIVAL_WINDOW: Nanos = Nanos::secs(10);

/// How decisions are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub policy: Policy,
    pub admission: Admission,
    pub effort: Effort,
    pub order: Order,
    /// Minimum ratio of all jobs under the uniform policy.
    pub alpha: f64,
    /// Whether the reclaim cores are kept free also on machines that use no far memory.
    pub reclaim_always: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            policy: Policy::MemoryTime,
            admission: Admission::Eager,
            effort: Effort::QUICK,
            order: Order::Random,
            alpha: 0.75,
            reclaim_always: true,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    pub makespan: Nanos,
    /// When the last job started: from then on machines fall idle.
    pub last_start: Nanos,
    /// Jobs that ever had less than all their memory local.
    pub jobs_far: u32,
    /// Mean far memory in use over the run.
    pub far_mean: Bytes,
    /// Run time of each job ÷ its run time with all memory, in the order of their ends.
    pub slowdowns: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    kind: u16,
    shrunk: bool,
    started: u64,
    /// When `progress` was true.
    since: u64,
    finish: u64,
    progress: f64,
    ratio: f64,
    per_ns: f64,
}

struct Machine {
    node: Node,
    jobs: Vec<Running>,
    guess: Guess,
}

/// The room for runs over one set of kinds: reused, so that a run allocates next to nothing.
pub struct Engine<'a> {
    kinds: &'a [JobKind],
    setup: Setup,
    needs: Vec<Need>,
    full_ns: Vec<f64>,
    machines: Vec<Machine>,
    rebalancer: Rebalancer,
    views: Vec<Job<'a>>,
    next: Vec<u64>,
    far_free: Bytes,
    last_start: u64,
    arrivals: Vec<(u64, u16)>,
    waiting: Vec<Waiting>,
    backlog: Backlog,
    rng: SplitMix64,
    ratios: Vec<f64>,
    fitting: Vec<u32>,
    touched: Vec<u32>,
}

/// The jobs of one kind that have arrived and not started, as numbers of arrival.
#[derive(Clone, Debug, Default)]
struct Waiting {
    arrived: Vec<u32>,
    head: usize,
}

impl std::fmt::Debug for Engine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}

const NEVER: u64 = u64::MAX;

impl<'a> Engine<'a> {
    pub fn new(kinds: &'a [JobKind], setup: Setup) -> Engine<'a> {
        let floor = |kind: &JobKind| {
            let share = min_ratio(&setup, kind);
            Bytes((kind.memory.0 as f64 * share).ceil() as u64)
        };
        let need = |kind: &JobKind| Need {
            cores: kind.cores,
            memory: kind.memory,
            floor: floor(kind),
        };
        Engine {
            kinds,
            setup,
            needs: kinds.iter().map(need).collect(),
            full_ns: kinds.iter().map(|k| k.profile.full_s() * 1e9).collect(),
            machines: Vec::new(),
            rebalancer: Rebalancer::with_effort(setup.policy, setup.effort),
            views: Vec::new(),
            next: Vec::new(),
            far_free: Bytes::ZERO,
            last_start: 0,
            arrivals: Vec::new(),
            waiting: Vec::new(),
            backlog: Backlog::default(),
            rng: SplitMix64::new(0),
            ratios: Vec::new(),
            fitting: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Fails when a job of the workload could never run in this shape.
    pub fn check(&self, workload: &Workload, shape: &Shape, config: &str) -> Result<(), RackError> {
        let present = workload.counts.iter().zip(self.kinds).zip(&self.needs);
        for ((_, kind), need) in present.filter(|((count, _), _)| **count > 0) {
            let empty = self.empty(shape);
            if kind.cores > shape.cores {
                return Err(RackError::TooManyCores {
                    job: kind.name.clone(),
                    cores: kind.cores,
                    has: shape.cores,
                    config: config.to_string(),
                });
            }
            if !empty.fits_local(need) && !empty.fits_far(need, shape.far) {
                return Err(RackError::TooMuchMemory {
                    job: kind.name.clone(),
                    memory: kind.memory.rounded(),
                    config: config.to_string(),
                });
            }
        }
        Ok(())
    }

    fn empty(&self, shape: &Shape) -> Node {
        Node {
            reclaim_always: self.setup.reclaim_always,
            ..Node::new(shape.cores, shape.reclaim_cores, shape.memory)
        }
    }

    /// Runs a workload that [`Engine::check`] accepts.
    pub fn run(&mut self, workload: &Workload, shape: &Shape, seed: u64) -> Run {
        self.reset(workload, shape, seed);
        let mut run = Run {
            slowdowns: Vec::with_capacity(workload.jobs() as usize),
            ..Run::default()
        };
        let mut far_ns: u128 = 0;
        let mut now = 0;
        let mut arrived = 0;
        loop {
            let (machine, end) = earliest(&self.next);
            let arrival = self.arrivals.get(arrived).map_or(NEVER, |a| a.0);
            let then = end.min(arrival);
            if then == NEVER {
                break;
            }
            far_ns += u128::from((shape.far - self.far_free).0) * u128::from(then - now);
            now = then;
            if arrival <= end {
                self.arrive(arrived, now);
                arrived += 1;
            } else {
                self.end(machine, now, &mut run);
            }
        }
        let waiting = |w: &Waiting| w.arrived.len() - w.head;
        assert_eq!(
            self.waiting.iter().map(waiting).sum::<usize>(),
            0,
            "a job never ran"
        );
        assert_eq!(self.far_free, shape.far, "far memory was not given back");
        run.makespan = Nanos(now);
        run.last_start = Nanos(self.last_start);
        run.far_mean = Bytes((far_ns / u128::from(now.max(1))) as u64);
        run
    }

    fn reset(&mut self, workload: &Workload, shape: &Shape, seed: u64) {
        // Arrivals and placements draw from generators of their own, so that all configurations of a
        // trial see the same arrivals.
        let mut rng = SplitMix64::new(seed);
        workload.arrivals(ARRIVAL_WINDOW.0, &mut rng.fork(), &mut self.arrivals);
        self.rng = rng;
        self.far_free = shape.far;
        self.last_start = 0;
        let node = self.empty(shape);
        self.machines.truncate(shape.machines as usize);
        for machine in &mut self.machines {
            machine.node = node;
            machine.jobs.clear();
            machine.guess = Guess::default();
        }
        while self.machines.len() < shape.machines as usize {
            self.machines.push(Machine {
                node,
                jobs: Vec::new(),
                guess: Guess::default(),
            });
        }
        self.next.clear();
        self.next.resize(shape.machines as usize, NEVER);
        self.waiting.resize_with(self.kinds.len(), Waiting::default);
        for waiting in &mut self.waiting {
            waiting.arrived.clear();
            waiting.head = 0;
        }
        let job_cores = (shape.cores - shape.reclaim_cores) * shape.machines;
        let near = Bytes(shape.memory.0 * u64::from(shape.machines));
        self.backlog = Backlog::new(job_cores, near + shape.far);
    }

    fn arrive(&mut self, number: usize, now: u64) {
        let kind = usize::from(self.arrivals[number].1);
        self.backlog.arrived(&self.kinds[kind]);
        let waiting = &mut self.waiting[kind];
        waiting.arrived.push(number as u32);
        // While others of its kind wait, this one cannot fit either.
        if waiting.arrived.len() - waiting.head == 1 {
            self.touched.clear();
            self.place(kind, None, true, now);
            self.rebalance_touched(now);
        }
    }

    fn end(&mut self, index: usize, now: u64, run: &mut Run) {
        let machine = &mut self.machines[index];
        let job = machine.jobs.iter().position(|job| job.finish == now);
        let job = machine
            .jobs
            .swap_remove(job.expect("the machine has a job that ends now"));
        let kind = usize::from(job.kind);
        let far_before = machine.node.far();
        machine.node.remove(&self.needs[kind]);
        let far_after = machine.node.far();
        self.far_free += far_before - far_after;
        self.backlog.ended(&self.kinds[kind]);
        run.jobs_far += u32::from(job.shrunk);
        run.slowdowns
            .push(((now - job.started) as f64 / self.full_ns[kind]) as f32);
        self.touched.clear();
        self.touched.push(index as u32);
        self.start_waiting(index, far_after < far_before, now);
        self.rebalance_touched(now);
    }

    /// Starts what fits now that a job of this machine has ended. Before that nothing did fit, so a
    /// job fits locally on this machine or nowhere, and elsewhere only when far memory came free.
    fn start_waiting(&mut self, index: usize, far_came_free: bool, now: u64) {
        let mut failed: u64 = 0;
        let mut waiting = 0;
        let mut first = u32::MAX;
        for queue in &self.waiting {
            waiting += (queue.arrived.len() - queue.head) as u32;
            first = first.min(queue.arrived.get(queue.head).copied().unwrap_or(u32::MAX));
        }
        let drain_s = self.backlog.drain_s();
        loop {
            let mut turn = (f64::INFINITY, usize::MAX);
            for (kind, queue) in self.waiting.iter().enumerate() {
                if failed & (1 << kind) == 0
                    && let Some(&number) = queue.arrived.get(queue.head)
                {
                    let run_s = self.full_ns[kind] / 1e9;
                    let admission = self.setup.admission;
                    let turn_s = admission.turn_s(number - first, waiting, drain_s, run_s);
                    if turn_s < turn.0 {
                        turn = (turn_s, kind);
                    }
                }
            }
            if turn.1 == usize::MAX {
                return;
            }
            if !self.place(turn.1, Some(index), far_came_free, now) {
                failed |= 1 << turn.1;
            }
        }
    }

    /// Starts the oldest waiting job of a kind where it fits: locally on `freed` (or anywhere), else
    /// with far memory.
    fn place(&mut self, kind: usize, freed: Option<usize>, anywhere: bool, now: u64) -> bool {
        let need = self.needs[kind];
        let all = 0..self.machines.len();
        self.fitting.clear();
        let machines = &self.machines;
        match freed {
            Some(index) if machines[index].node.fits_local(&need) => {
                self.fitting.push(index as u32)
            }
            Some(_) => {}
            None => {
                let fits = |&i: &usize| machines[i].node.fits_local(&need);
                self.fitting
                    .extend(all.clone().filter(fits).map(|i| i as u32));
            }
        }
        if self.fitting.is_empty() && self.far_free > Bytes::ZERO {
            let far_free = self.far_free;
            let fits = |&i: &usize| machines[i].node.fits_far(&need, far_free);
            let range = match freed {
                Some(index) if !anywhere => index..index + 1,
                _ => all,
            };
            self.fitting.extend(range.filter(fits).map(|i| i as u32));
        }
        let chosen = match (self.fitting.len(), self.setup.order) {
            (0, _) => return false,
            (1, _) | (_, Order::Index) => 0,
            (count, Order::Random) => self.rng.below(count as u64) as usize,
        };
        self.start(self.fitting[chosen], kind, now);
        true
    }

    fn start(&mut self, index: u32, kind: usize, now: u64) {
        let waiting = &mut self.waiting[kind];
        waiting.head += 1;
        let machine = &mut self.machines[index as usize];
        let far_before = machine.node.far();
        machine.node.add(&self.needs[kind]);
        let more = machine.node.far() - far_before;
        self.far_free -= more;
        let per_ns = 1.0 / self.full_ns[kind];
        self.last_start = now;
        machine.jobs.push(Running {
            kind: kind as u16,
            shrunk: false,
            started: now,
            since: now,
            finish: now + (self.full_ns[kind].ceil() as u64).max(1),
            progress: 0.0,
            ratio: 1.0,
            per_ns,
        });
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    fn rebalance_touched(&mut self, now: u64) {
        for i in 0..self.touched.len() {
            let index = self.touched[i] as usize;
            self.rebalance(index, now);
            let finishes = self.machines[index].jobs.iter().map(|job| job.finish);
            self.next[index] = finishes.min().unwrap_or(NEVER);
        }
    }

    fn rebalance(&mut self, index: usize, now: u64) {
        let machine = &mut self.machines[index];
        let far = machine.node.far() > Bytes::ZERO;
        if !far && machine.jobs.iter().all(|job| job.ratio == 1.0) {
            return;
        }
        self.views.clear();
        for job in &mut machine.jobs {
            job.progress = (job.progress + (now - job.since) as f64 * job.per_ns).min(1.0);
            job.since = now;
            let kind = &self.kinds[usize::from(job.kind)];
            self.views.push(Job {
                profile: &kind.profile,
                memory: kind.memory,
                min_ratio: min_ratio(&self.setup, kind),
                progress: job.progress,
            });
        }
        let (memory, guess) = (machine.node.memory, &mut machine.guess);
        let divided = self
            .rebalancer
            .divide(&self.views, memory, guess, &mut self.ratios);
        divided.expect("admission keeps the floors within the node's memory");
        for (job, &ratio) in machine.jobs.iter_mut().zip(&self.ratios) {
            if ratio == job.ratio {
                continue;
            }
            let seconds = self.kinds[usize::from(job.kind)].profile.seconds(ratio);
            job.ratio = ratio;
            job.shrunk |= ratio < 1.0;
            job.per_ns = 1.0 / (seconds * 1e9);
            let left_ns = (1.0 - job.progress) * seconds * 1e9;
            job.finish = now + (left_ns.ceil() as u64).max(1);
        }
    }
}

/// The ratio that admission plans with: of the job's kind, or the same for all under uniform.
fn min_ratio(setup: &Setup, kind: &JobKind) -> f64 {
    match setup.policy {
        Policy::Uniform => setup.alpha.max(kind.profile.lowest()),
        _ => kind.min_ratio,
    }
}

/// The machine whose next job ends first, the lowest of several.
#[inline]
fn earliest(next: &[u64]) -> (usize, u64) {
    let mut best = (0, NEVER);
    for (i, &at) in next.iter().enumerate() {
        if at < best.1 {
            best = (i, at);
        }
    }
    best
}
