//! Runs a client's calls: here, with many accesses in flight, or there, with many calls in flight.
//!
//! One thread owns an engine and turns it. A turn begins calls in the order in which they came,
//! resumes those whose accesses were answered, posts what they asked for, takes answers, and runs those
//! that have the memory mapped as a server would; nothing in it waits. What ended in it is handed out
//! after it, and so that is when it ended. A call moves between places only before it begins or, if it
//! may be done twice or surely did not run, after it failed.
//!
//! Accesses and calls have queues of their own. A queue takes a bounded number of requests that must not
//! be done twice; calls that wait at the server for a lock would otherwise fill it, and the call here
//! that holds the lock could not give it back.

use super::lanes::Lanes;
use super::near::Near;
use super::port::{FarMemory, Port};
use super::service::{Place, Tuning};
use super::task::{Finished, Progress, Task, side_of};
use crate::error::{CallError, Ran, Side, WicError};
use crate::local::{Chunks, Limits, Outcome, Why, why};
use crate::registry::{Ended, Function, Reply};
use muninn_net::{
    Answer, Buffer, Control, Done, NetError, Op, OpError, SessionOptions, Transport, Verb, connect,
};
use muninn_policy::wic_place::{Chooser, Config, Place as Where};
use muninn_proto::server::{LOCK_ORPHANED, holder_of};
use muninn_sys::clock;
use muninn_sys::socket::Address;
use muninn_types::{Class, Nanos};
use muninn_wire::{ErrorCode, MAX_ARGS, Refusal, ServiceInfo, ShortText};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tokens of operations: accesses have their slot, calls this bit, their task and its number.
const CALL_BIT: u64 = 1 << 62;
const TASK_BITS: u32 = 20;
/// Nobody waits for it.
const IGNORED: u64 = 1 << 61;
/// A call is tried at most so often.
const TRIES_MAX: u32 = 3;
/// How long a side gets, beyond a call's deadline, to say itself that it was late.
const GRACE: Nanos = Nanos::millis(20);
/// How often deadlines are looked at, a lost nic is looked for, and `status` is told.
const LOOK: Nanos = Nanos::millis(1);
const NIC_RETRY: Nanos = Nanos::secs(1);
const NOTE_EVERY: Nanos = Nanos::secs(1);
/// Queues to a server, those for accesses and those for calls together: a session has no more.
const QUEUES_MAX: usize = 14;
/// The longest wait for one kind of answer while another may come.
const WAIT_EACH: Duration = Duration::from_micros(50);

/// A function that was called.
struct Known {
    function: Function,
    /// Its number at the server and at the nic, once asked for.
    numbers: [Option<u32>; 2],
    /// Which of the choosers has its place.
    chooser: Option<usize>,
}

/// The way to a nic.
struct Nic {
    address: Address,
    options: SessionOptions,
    link: Option<(Arc<dyn Transport>, Lanes)>,
    retry_at: Nanos,
}

/// A call that ended in this turn.
struct Ending {
    finished: Finished,
    /// The function, and when it was sent, if whoever chose its place is still to be told.
    untold: Option<(usize, Nanos)>,
}

pub struct Engine {
    transport: Arc<dyn Transport>,
    info: ServiceInfo,
    tuning: Tuning,
    place: Place,
    /// Calls to the server, and accesses of calls that run here.
    server: Lanes,
    access: Lanes,
    nic: Option<Nic>,
    /// The memory, where this process has it mapped, and the calls that run on it.
    near: Option<Near>,
    port: Rc<Port>,
    known: Vec<Known>,
    /// One for each function, and one for all that take locks: who waits for a lock waits for whoever
    /// holds it, wherever that is, so they have one place.
    choosers: Vec<Chooser>,
    of_locks: Option<usize>,
    /// The shortest time that an access of a call here has taken over the network.
    round_trip: Option<Nanos>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    /// Not begun, by place.
    waiting: [VecDeque<usize>; 3],
    ready: VecDeque<usize>,
    paused: VecDeque<usize>,
    /// Calls that run at this client on memory of another process.
    here: usize,
    ending: Vec<Ending>,
    pub finished: VecDeque<Finished>,
    /// Kept between two turns for its room.
    done: Vec<Done>,
    ended_near: Vec<(usize, Outcome)>,
    calls: u64,
    /// When this turn began.
    now: Nanos,
    next_look: Nanos,
    next_note: Nanos,
    noted: String,
}

fn open_nic(
    address: &Address,
    options: &SessionOptions,
    tuning: &Tuning,
) -> Result<(Arc<dyn Transport>, Lanes), NetError> {
    let transport = connect(address, options)?;
    let lanes = Lanes::open(tuning.queues, tuning.depth, tuning.batch, || {
        transport.call_lane()
    })?;
    Ok((transport, lanes))
}

impl Engine {
    pub fn new(
        transport: Arc<dyn Transport>,
        info: ServiceInfo,
        port: Rc<Port>,
        near: Option<Rc<Chunks>>,
        nic: Option<(Address, SessionOptions)>,
        (place, tuning): (Place, Tuning),
    ) -> Result<Engine, NetError> {
        let open =
            |queues| Lanes::open(queues, tuning.depth, tuning.batch, || transport.call_lane());
        let queues = tuning.queues.clamp(1, QUEUES_MAX - 1);
        let access = open(queues)?;
        let server = open(queues.min(QUEUES_MAX - queues))?;
        let nic = match nic {
            Some((address, options)) => Some(Nic {
                link: Some(open_nic(&address, &options, &tuning)?),
                address,
                options,
                retry_at: Nanos::ZERO,
            }),
            None => None,
        };
        let near = near.map(|chunks| Near::new(chunks, tuning.multiplex));
        Ok(Engine {
            transport,
            info,
            tuning,
            place,
            server,
            access,
            nic,
            near,
            port,
            known: Vec::new(),
            choosers: Vec::new(),
            of_locks: None,
            round_trip: None,
            tasks: Vec::new(),
            free: Vec::new(),
            waiting: Default::default(),
            ready: VecDeque::new(),
            paused: VecDeque::new(),
            here: 0,
            ending: Vec::new(),
            finished: VecDeque::new(),
            done: Vec::new(),
            ended_near: Vec::new(),
            calls: 0,
            now: Nanos::ZERO,
            next_look: Nanos::ZERO,
            next_note: Nanos::ZERO,
            noted: String::new(),
        })
    }

    pub fn port(&self) -> &Rc<Port> {
        &self.port
    }
    pub fn near(&self) -> Option<&Rc<Chunks>> {
        self.near.as_ref().map(|near| &near.chunks)
    }
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }
    /// How long anything may take.
    pub fn deadline(&self) -> Duration {
        self.tuning.deadline
    }
    pub fn set_place(&mut self, place: Place) {
        self.place = place;
    }
    /// Calls started and not finished.
    pub fn under_way(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// Where each function runs that Muninn places, and why.
    pub fn explain(&self) -> Vec<String> {
        let now = clock::now();
        let placed = self.choosers.iter().enumerate().map(|(at, chooser)| {
            let mut names = Vec::new();
            for known in self.known.iter().filter(|known| known.chooser == Some(at)) {
                names.push(format!(
                    "{}@{}",
                    known.function.name(),
                    known.function.version()
                ));
            }
            format!("{}: {}", names.join(", "), chooser.explain(now))
        });
        placed.collect()
    }
    /// How often functions were moved by Muninn.
    pub fn moves(&self) -> u64 {
        self.choosers.iter().map(Chooser::moves).sum()
    }

    fn wic(&mut self, function: &Function) -> usize {
        let same = |k: &Known| k.function.is(function);
        if let Some(at) = self.known.iter().position(same) {
            return at;
        }
        self.known.push(Known {
            function: function.clone(),
            numbers: [None, None],
            chooser: None,
        });
        self.known.len() - 1
    }

    /// The number of a function at a side, asked for once. Says so if the two sides disagree.
    pub fn resolve(&mut self, function: &Function, side: Side) -> Result<u32, CallError> {
        let at = self.wic(function);
        let place = usize::from(side == Side::Nic);
        if let Some(number) = self.known[at].numbers[place] {
            return Ok(number);
        }
        let transport = match side {
            Side::Nic => {
                let link = self.nic.as_ref().and_then(|nic| nic.link.as_ref());
                &link.ok_or(CallError::NoNic)?.0
            }
            _ => &self.transport,
        };
        let control = Control::Resolve {
            name: ShortText::lossy(function.name(), muninn_wire::MAX_WIC_NAME),
            version: function.version(),
        };
        match transport.call(control, self.tuning.deadline) {
            Ok(Answer::Resolved(number)) => {
                self.known[at].numbers[place] = Some(number);
                Ok(number)
            }
            Ok(_) => Err(CallError::BadReply),
            Err(NetError::Refused(_, refusal)) => Err(CallError::Refused { side, refusal }),
            Err(NetError::Lost(_, why)) => Err(CallError::Lost {
                side,
                ran: Ran::No,
                why,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts a call. It ends in `finished`.
    pub fn start(&mut self, function: &Function, args: Vec<u8>, token: u64, started: Nanos) {
        let wic = self.wic(function);
        let now = clock::now();
        let place = match self.place {
            Place::Client => Where::Client,
            Place::Server => Where::Server,
            Place::Nic => Where::Nic,
            Place::Auto => self.choose(wic, now),
        };
        let task = Task {
            token,
            wic,
            args,
            place,
            automatic: self.place == Place::Auto,
            started,
            begun: now,
            deadline: now + Nanos::from(self.tuning.deadline),
            progress: Progress::Waits,
            changed: false,
            tries: 0,
        };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.tasks.push(None);
                self.tasks.len() - 1
            }
        };
        let too_long = task.args.len() > MAX_ARGS;
        self.tasks[at] = Some(task);
        if too_long || at >= 1 << TASK_BITS {
            self.finish(at, Err(CallError::Failed(WicError::Args)), 0);
            return;
        }
        self.waiting[place as usize].push_back(at);
    }

    fn choose(&mut self, wic: usize, now: Nanos) -> Where {
        let own = match self.known[wic].chooser {
            Some(own) => own,
            None => self.chooser_for(wic, now),
        };
        // Two trials at once would measure each other.
        let mut all = self.choosers.iter().enumerate();
        let may_try = !all.any(|(at, other)| at != own && other.is_trying());
        let chooser = &mut self.choosers[own];
        if let Some(round_trip) = self.round_trip {
            let least = chooser.accesses() * round_trip.0 as f64;
            chooser.expect(Where::Client, Nanos(least as u64));
        }
        chooser.choose_if(may_try)
    }

    /// Who chooses the place of a function: its own chooser, or that of all that take locks.
    fn chooser_for(&mut self, wic: usize, now: Nanos) -> usize {
        let locks = self.known[wic].function.locks();
        let own = match self.of_locks {
            Some(shared) if locks => shared,
            _ => {
                let mut places = vec![Where::Server, Where::Client];
                if self.nic.as_ref().is_some_and(|nic| nic.link.is_some()) {
                    places.push(Where::Nic);
                }
                let chooser = Chooser::new(&places, Config::default(), now);
                self.choosers.push(chooser);
                self.choosers.len() - 1
            }
        };
        if locks {
            self.of_locks = Some(own);
        }
        self.known[wic].chooser = Some(own);
        own
    }

    fn chooser_of(&mut self, wic: usize) -> Option<&mut Chooser> {
        let own = self.known[wic].chooser?;
        self.choosers.get_mut(own)
    }

    /// Does what can be done without waiting; whether that was anything.
    pub fn turn(&mut self) -> bool {
        self.now = clock::now();
        while let Some(at) = self.paused.pop_front() {
            self.ready.push_back(at);
        }
        let mut busy = self.resume_ready();
        for place in Where::ALL {
            busy |= self.begin_waiting(place);
        }
        busy |= self.resume_ready();
        self.post_asked();
        busy |= self.take_answers();
        busy |= self.run_near();
        let now = clock::now();
        self.hand_out(now);
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.look(now);
        }
        if self.port.has_loose_ends() {
            self.tie_loose_ends();
        }
        busy || !self.finished.is_empty() || !self.ending.is_empty()
    }

    /// Waits a little for an answer, when a turn did nothing.
    pub fn wait(&mut self, at_most: Duration) {
        let mut done = std::mem::take(&mut self.done);
        let mut side = Side::Server;
        if self.access.under_way() > 0 {
            let at_most = match self.server.under_way() {
                0 => at_most,
                _ => at_most.min(WAIT_EACH),
            };
            self.access.wait(at_most, |d| done.push(d));
        } else if self.server.under_way() > 0 {
            self.server.wait(at_most, |d| done.push(d));
        } else if let Some(nic) = &mut self.nic
            && let Some((_, lanes)) = &mut nic.link
            && lanes.under_way() > 0
        {
            lanes.wait(at_most, |d| done.push(d));
            side = Side::Nic;
        } else {
            std::thread::sleep(at_most.min(Duration::from_micros(50)));
        }
        for done in done.drain(..) {
            self.handle(done, side);
        }
        self.done = done;
        self.hand_out(clock::now());
    }

    /// What has ended can be had from now on.
    fn hand_out(&mut self, now: Nanos) {
        for Ending {
            mut finished,
            untold,
        } in self.ending.drain(..)
        {
            finished.ended = now;
            if let Some((wic, begun)) = untold
                && let Some(own) = self.known[wic].chooser
            {
                let took = now.saturating_sub(begun);
                let accesses = finished.accesses;
                self.choosers[own].ended(finished.place, took, accesses, now);
                if finished.place == Where::Client && self.near.is_none() && accesses > 0 {
                    let each = Nanos(took.0 / u64::from(accesses));
                    self.round_trip = Some(self.round_trip.map_or(each, |least| least.min(each)));
                }
            }
            self.finished.push_back(finished);
        }
    }
}

// --- beginning and resuming

impl Engine {
    fn begin_waiting(&mut self, place: Where) -> bool {
        let mut begun = false;
        while let Some(at) = self.waiting[place as usize].front().copied() {
            match self.begin(at) {
                Ok(true) => {
                    self.waiting[place as usize].pop_front();
                    begun = true;
                }
                Ok(false) => break,
                Err(error) => {
                    self.waiting[place as usize].pop_front();
                    self.finish(at, Err(error), 0);
                    begun = true;
                }
            }
        }
        begun
    }

    /// False: there is no room yet.
    fn begin(&mut self, at: usize) -> Result<bool, CallError> {
        let Some(task) = &self.tasks[at] else {
            return Ok(true);
        };
        let (wic, place) = (task.wic, task.place);
        match place {
            Where::Client => self.begin_here(at, wic),
            Where::Server => self.begin_there(at, wic, Side::Server),
            Where::Nic => self.begin_there(at, wic, Side::Nic),
        }
    }

    fn begin_here(&mut self, at: usize, wic: usize) -> Result<bool, CallError> {
        let here = match &self.near {
            Some(near) => near.under_way(),
            None => self.here,
        };
        if here >= self.tuning.multiplex {
            return Ok(false);
        }
        let Some(task) = &mut self.tasks[at] else {
            return Ok(true);
        };
        self.calls += 1;
        let holder = holder_of(self.transport.session().0, self.calls);
        let function = &self.known[wic].function;
        if let Some(near) = &mut self.near {
            near.begin(function, &task.args, holder, (at, task.deadline))
                .map_err(CallError::Failed)?;
            task.progress = Progress::Near;
            return Ok(true);
        }
        let memory = FarMemory::new(Rc::clone(&self.port), holder, Limits::default());
        let running = function.start_far(memory, &task.args);
        task.progress = Progress::Here(running.map_err(CallError::Failed)?);
        self.here += 1;
        self.ready.push_back(at);
        Ok(true)
    }

    fn begin_there(&mut self, at: usize, wic: usize, side: Side) -> Result<bool, CallError> {
        let place = usize::from(side == Side::Nic);
        let number = match self.known[wic].numbers[place] {
            Some(number) => number,
            None => {
                let function = self.known[wic].function.clone();
                self.resolve(&function, side)?
            }
        };
        let idempotent = self.known[wic].function.idempotent();
        let Some(task) = &mut self.tasks[at] else {
            return Ok(true);
        };
        let lanes = match (side, &mut self.nic) {
            (Side::Nic, Some(nic)) => &mut nic.link.as_mut().ok_or(CallError::NoNic)?.1,
            (Side::Nic, None) => return Err(CallError::NoNic),
            _ => &mut self.server,
        };
        let mut data = self.port.buffer(MAX_ARGS);
        data.as_mut()[..task.args.len()].copy_from_slice(&task.args);
        let left_us = task.deadline.saturating_sub(self.now).0 / 1000;
        let op = Op {
            verb: Verb::Call {
                service: self.info.service,
                wic: number,
                deadline_us: u32::try_from(left_us).unwrap_or(u32::MAX).max(1),
                idempotent,
                args_len: task.args.len() as u32,
            },
            class: Class::Demand,
            data,
            token: CALL_BIT | at as u64 | (task.token & 0xffff_ffff) << TASK_BITS,
        };
        match lanes.post(op) {
            Ok(lane) => {
                task.progress = Progress::There(lane);
                Ok(true)
            }
            Err(op) => {
                self.port.give_back(op.data);
                Ok(false)
            }
        }
    }

    fn resume_ready(&mut self) -> bool {
        // Bounded: what becomes ready meanwhile is for the next turn.
        let count = self.ready.len();
        for _ in 0..count {
            let Some(at) = self.ready.pop_front() else {
                break;
            };
            self.resume(at);
        }
        count > 0
    }

    fn resume(&mut self, at: usize) {
        let Some(task) = self.tasks[at].as_mut() else {
            return;
        };
        let Progress::Here(running) = &mut task.progress else {
            return;
        };
        self.port.current.set(at);
        self.port.changed.set(task.changed);
        let mut context = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut context)));
        task.changed = self.port.changed.get();
        match polled {
            Ok(Poll::Pending) => match why() {
                Why::Memory => {}
                Why::Slice | Why::Reply => self.ready.push_back(at),
                Why::Pause => self.paused.push_back(at),
            },
            Ok(Poll::Ready(ended)) => self.ended_here(at, ended),
            Err(_) => self.finish(at, Err(CallError::Failed(WicError::Panicked)), 0),
        }
    }

    /// Runs calls on memory that is mapped for a bounded time; false if all wait for somebody else.
    fn run_near(&mut self) -> bool {
        let Some(near) = &mut self.near else {
            return false;
        };
        let mut ended = std::mem::take(&mut self.ended_near);
        let went_on = near.run(&mut ended);
        for (at, outcome) in ended.drain(..) {
            match outcome {
                Outcome::Ended(ended) => self.ended_here(at, ended),
                Outcome::Late(begun) => {
                    let late = CallError::Deadline {
                        side: Side::Client,
                        ran: if begun { Ran::Maybe } else { Ran::No },
                        after: self.tuning.deadline,
                    };
                    self.finish(at, Err(late), 0);
                }
                Outcome::Panicked => {
                    self.finish(at, Err(CallError::Failed(WicError::Panicked)), 0);
                }
            }
        }
        self.ended_near = ended;
        went_on
    }

    fn ended_here(&mut self, at: usize, ended: Ended) {
        let changed = self.tasks[at].as_ref().is_some_and(|task| task.changed);
        let far = self.near.is_none();
        let lost = match (&ended.result, far) {
            (Err(WicError::Access(_)), true) => self.transport.lost(),
            // What it loaded and stored was the server's only while the lease ran.
            (_, false) if !self.transport.is_leased() => {
                Some(self.transport.lost().unwrap_or_else(|| {
                    format!("the lease of {:?} ran out", self.transport.lease())
                }))
            }
            _ => None,
        };
        let result = match (lost, ended.result) {
            (Some(why), _) => Err(CallError::Lost {
                side: Side::Server,
                ran: if far && !changed { Ran::No } else { Ran::Maybe },
                why,
            }),
            (None, Ok(reply)) => Ok(reply),
            (None, Err(error)) => Err(CallError::Failed(error)),
        };
        self.finish(at, result, ended.accesses);
    }

    fn post_asked(&mut self) {
        while let Some((slot, verb, data)) = self.port.next_asked() {
            let op = Op {
                verb,
                class: Class::Demand,
                data,
                token: slot as u64,
            };
            match self.access.post(op) {
                Ok(lane) => self.port.posted(slot, lane),
                Err(op) => {
                    self.port.ask_again(slot, op.verb, op.data);
                    break;
                }
            }
        }
    }
}

// --- answers and ends

impl Engine {
    fn take_answers(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.server.poll(|d| done.push(d));
        self.access.poll(|d| done.push(d));
        let mut busy = !done.is_empty();
        for done in done.drain(..) {
            self.handle(done, Side::Server);
        }
        if let Some(nic) = &mut self.nic
            && let Some((_, lanes)) = &mut nic.link
        {
            lanes.poll(|d| done.push(d));
            busy |= !done.is_empty();
            for done in done.drain(..) {
                self.handle(done, Side::Nic);
            }
        }
        self.done = done;
        busy
    }

    fn handle(&mut self, done: Done, side: Side) {
        let Done { operation, result } = done;
        let token = operation.token;
        if token & IGNORED != 0 {
            return;
        }
        if token & CALL_BIT == 0 {
            if let Some(at) = self.port.answered(token as usize, result, operation.data) {
                self.ready.push_back(at);
            }
            return;
        }
        let at = (token & ((1 << TASK_BITS) - 1)) as usize;
        let number = (token & !CALL_BIT) >> TASK_BITS;
        let waits = |task: &Task| {
            task.token & 0xffff_ffff == number && matches!(task.progress, Progress::There(_))
        };
        if !self.tasks[at].as_ref().is_some_and(waits) {
            return;
        }
        let after = self.tuning.deadline;
        let (result, accesses) = match result {
            Ok(Answer::Called {
                reply_len,
                accesses,
                ..
            }) => {
                let reply = Reply::from_bytes(&operation.data.as_ref()[..reply_len as usize]);
                (Ok(reply), accesses)
            }
            Ok(_) => (Err(CallError::BadReply), 0),
            Err(OpError::Refused(refusal)) => {
                (Err(CallError::from_refusal(side, refusal, after)), 0)
            }
            Err(OpError::SessionLost(why)) => {
                let ran = Ran::Maybe;
                (Err(CallError::Lost { side, ran, why }), 0)
            }
            Err(error) => {
                let refusal = Refusal::new(ErrorCode::Internal).remark(&error.to_string());
                (Err(CallError::Refused { side, refusal }), 0)
            }
        };
        self.port.give_back(operation.data);
        self.finish(at, result, accesses);
    }

    /// A call has ended: it is tried again, or handed out.
    fn finish(&mut self, at: usize, result: Result<Reply, CallError>, accesses: u32) {
        let Some(mut task) = self.tasks[at].take() else {
            return;
        };
        if let Progress::Here(running) = std::mem::replace(&mut task.progress, Progress::Waits) {
            self.here -= 1;
            drop(running);
        }
        let mut untold = None;
        match &result {
            _ if !task.automatic => {}
            // How long it took is known once it is handed out.
            Ok(_) | Err(CallError::Failed(_)) => untold = Some((task.wic, task.begun)),
            Err(_) => {
                if let Some(chooser) = self.chooser_of(task.wic) {
                    chooser.failed(task.place, clock::now());
                }
            }
        }
        let nic_lost = matches!(
            result,
            Err(CallError::Lost {
                side: Side::Nic,
                ..
            } | CallError::NoNic)
        );
        if nic_lost {
            self.lose_nic(clock::now());
        }
        if let Err(error) = &result {
            let now = clock::now();
            let harmless = self.known[task.wic].function.idempotent() || error.did_not_run();
            // A refusal by the nic (it was built without the function, or is full) is no reason to
            // fail what the server can do.
            let elsewhere =
                nic_lost || matches!(error, CallError::Refused { .. }) && task.place == Where::Nic;
            if elsewhere && harmless && task.tries < TRIES_MAX && now < task.deadline {
                task.tries += 1;
                task.place = Where::Server;
                task.begun = now;
                if let (true, Some(chooser)) = (task.automatic, self.chooser_of(task.wic)) {
                    chooser.sent_again(Where::Server);
                }
                self.tasks[at] = Some(task);
                self.waiting[Where::Server as usize].push_back(at);
                return;
            }
        }
        self.free.push(at);
        self.ending.push(Ending {
            finished: Finished {
                token: task.token,
                place: task.place,
                accesses,
                started: task.started,
                ended: Nanos::ZERO,
                result,
            },
            untold,
        });
    }

    fn lose_nic(&mut self, now: Nanos) {
        if let Some(nic) = &mut self.nic
            && nic.link.take().is_some()
        {
            nic.retry_at = now + NIC_RETRY;
        }
        for known in &mut self.known {
            known.numbers[1] = None;
        }
        for chooser in &mut self.choosers {
            chooser.set_available(Where::Nic, false, now);
        }
        // Whatever else was under way there has been answered by its lane already, or is now.
        let there =
            |task: &Task| task.place == Where::Nic && matches!(task.progress, Progress::There(_));
        for at in 0..self.tasks.len() {
            if self.tasks[at].as_ref().is_some_and(there) {
                let lost = CallError::Lost {
                    side: Side::Nic,
                    ran: Ran::Maybe,
                    why: "its session ended".to_string(),
                };
                self.finish(at, Err(lost), 0);
            }
        }
    }

    /// Deadlines, a nic that may be back, and what `status` is told.
    fn look(&mut self, now: Nanos) {
        for at in 0..self.tasks.len() {
            let Some(task) = &self.tasks[at] else {
                continue;
            };
            let grace = match task.progress {
                // A side that lives says itself that it was late, and whether the call had begun.
                Progress::There(_) => GRACE,
                // So does the window.
                Progress::Near => continue,
                _ => Nanos::ZERO,
            };
            if now < task.deadline + grace {
                continue;
            }
            self.give_up(at);
        }
        self.look_for_nic(now);
        if now >= self.next_note && self.place == Place::Auto {
            self.next_note = now + NOTE_EVERY;
            let mut text = self.explain().join("; ");
            if text != self.noted {
                self.noted.clone_from(&text);
                text.truncate(text.floor_char_boundary(ShortText::MAX));
                let text = ShortText::lossy(&text, ShortText::MAX);
                // Not worth a failure.
                let _ = (self.transport).call(Control::Note { text }, Duration::from_millis(100));
            }
        }
    }

    fn give_up(&mut self, at: usize) {
        let Some(task) = &self.tasks[at] else {
            return;
        };
        let after = self.tuning.deadline;
        let place = task.place;
        let (side, ran) = match &task.progress {
            Progress::Waits => (side_of(place), Ran::No),
            Progress::Here(_) => {
                let ran = if task.changed { Ran::Maybe } else { Ran::No };
                (Side::Server, ran)
            }
            Progress::Near => return,
            Progress::There(lane) => {
                let token = CALL_BIT | at as u64 | (task.token & 0xffff_ffff) << TASK_BITS;
                let lane = *lane;
                match (place, &mut self.nic) {
                    (Where::Nic, Some(nic)) => {
                        if let Some((_, lanes)) = &mut nic.link {
                            lanes.abandon(lane, token);
                        }
                    }
                    _ => self.server.abandon(lane, token),
                }
                (side_of(place), Ran::Maybe)
            }
        };
        if matches!(task.progress, Progress::Waits) {
            self.waiting[place as usize].retain(|waiting| *waiting != at);
        }
        self.ready.retain(|ready| *ready != at);
        self.paused.retain(|paused| *paused != at);
        self.finish(at, Err(CallError::Deadline { side, ran, after }), 0);
    }

    fn look_for_nic(&mut self, now: Nanos) {
        let Some(nic) = &mut self.nic else {
            return;
        };
        if let Some((transport, _)) = &nic.link {
            if transport.lost().is_some() {
                self.lose_nic(now);
            }
            return;
        }
        if now < nic.retry_at {
            return;
        }
        nic.retry_at = now + NIC_RETRY;
        if let Ok(link) = open_nic(&nic.address, &nic.options, &self.tuning) {
            nic.link = Some(link);
            for chooser in &mut self.choosers {
                chooser.set_available(Where::Nic, true, now);
            }
        }
    }

    /// Accesses of calls that were dropped must not be done later, and their locks are freed after.
    fn tie_loose_ends(&mut self) {
        let mut lane = 0;
        for (slot, on) in self.port.take_given_up() {
            self.access.abandon(on, slot as u64);
            lane = on;
        }
        for (index, holder) in self.port.take_orphans() {
            let Ok(at) = self.info_layout().lock_word(index) else {
                continue;
            };
            let (grant, offset) = self.port.word(at.0);
            let verb = Verb::CompareSwap {
                grant,
                offset,
                expect: holder,
                new: LOCK_ORPHANED,
            };
            let op = Op {
                verb,
                class: Class::Demand,
                data: Buffer::empty(),
                token: IGNORED,
            };
            self.access.post_on(lane, op);
        }
    }

    fn info_layout(&self) -> crate::memory::Layout {
        self.port.layout
    }
}
