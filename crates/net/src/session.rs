//! A session at one server: opened once, kept alive by a thread of its own, lost at most once.

use crate::buffer::Buffer;
use crate::error::NetError;
use crate::lane::Lane;
use crate::link::Link;
use crate::transport::Beat;
use crate::wire_lane::WireLane;
use muninn_proto::auth::{Key, SessionSecret};
use muninn_proto::client::{
    Answer, Control, Handshake, HandshakeError, Lane as LaneMachine, Next, Opened, Operation,
    Purpose, Verb,
};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::secure::{Records, UnixTime};
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{Address, ByteStream, Stream, Transfer};
use muninn_sys::{clock, proc, rand};
use muninn_types::{Bytes, Class, GrantId, LaneId, LaneKind, Nanos, SessionId};
use muninn_wire::{
    DrainReport, ErrorCode, GrantInfo, MAX_GRANTS, Notice, Refusal, ShortText, StatusPage,
    Transport as Wire, VERSION, WicsReply, WicsRequest,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How to open a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    pub name: String,
    pub key: Key,
    /// How long a server may take to answer before a call fails.
    pub deadline: Duration,
    /// How long to spin for an answer before sleeping.
    pub spin: Duration,
    pub connect_timeout: Duration,
    /// Mark no packets with their class: switches then treat all alike (Glitter's safeguard; the
    /// server has its own switch).
    pub equal_classes: bool,
    /// Who renews the lease.
    pub keeper: Keeping,
    /// Whose server it may be, where that can be known.
    pub server: ServerUser,
}

/// Whose server is believed at a Unix socket: the kernel says who listens there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerUser {
    /// The socket was named by somebody who knows.
    #[default]
    Any,
    /// It was found where others could have put theirs.
    OwnOrRoot,
}

impl ServerUser {
    fn check(self, address: &Address, stream: &Stream) -> Result<(), NetError> {
        if self == ServerUser::Any || !stream.is_unix() {
            return Ok(());
        }
        let user = stream.peer_credentials().map(|peer| peer.uid);
        match user {
            Ok(uid) if uid == 0 || uid == proc::own_uid() => Ok(()),
            Ok(uid) => Err(NetError::ServerUser(address.clone(), uid)),
            Err(_) => Err(NetError::HandshakeClosed(address.clone())),
        }
    }
}

/// Who renews a session's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeping {
    /// A thread of the session.
    #[default]
    Thread,
    /// Whoever opened it, by calling [`heartbeat`](crate::Transport::heartbeat) four times as often
    /// as the lease runs out. For those who may not start threads as they like.
    Caller,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            name: default_name(),
            key: Key::none(),
            deadline: Duration::from_secs(30),
            spin: Duration::from_micros(50),
            connect_timeout: Duration::from_secs(3),
            equal_classes: false,
            keeper: Keeping::default(),
            server: ServerUser::default(),
        }
    }
}

/// The name of this program: quotas and `status` go by it.
fn default_name() -> String {
    let path = std::env::current_exe().ok();
    let name = path
        .as_ref()
        .and_then(|p| p.file_name())
        .map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "client".to_string())
}

/// Sessions of one server that are asked about.
const SESSIONS_SHOWN: usize = 1 << 16;
/// Between two attempts of a handshake that was cut short: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// Attempts at most: whoever closes every one of them is no server.
const ATTEMPTS: u32 = 12;

/// Connects and shakes hands within `patience`.
pub(crate) fn open_stream(
    address: &Address,
    (key, user): (&Key, ServerUser),
    purpose: Purpose,
    patience: Duration,
    mut connected: Option<Stream>,
) -> Result<(Link, Opened), NetError> {
    let ends = clock::now() + Nanos::from(patience);
    let mut version = VERSION;
    let mut pause = FIRST_PAUSE;
    for _ in 1..ATTEMPTS {
        let left = ends.saturating_sub(clock::now()).into();
        match try_open(
            address,
            (key, user),
            (purpose.clone(), &mut version),
            left,
            connected.take(),
        ) {
            // The server is of an older release.
            Err(NetError::Handshake(_, HandshakeError::Refused(refusal)))
                if refusal.code == ErrorCode::WrongVersion && u64::from(version) == refusal.a => {}
            // Closed without a word, or with one: too many came at once. To ask again is all that is to
            // be done.
            Err(error) if is_crowded(&error) && clock::now() + Nanos::from(pause) < ends => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
            // However many attempts it was, it is the whole time that was not enough.
            Err(NetError::HandshakeTimeout(address, _)) => {
                return Err(NetError::HandshakeTimeout(address, patience));
            }
            done => return done,
        }
    }
    let left = ends.saturating_sub(clock::now()).into();
    try_open(address, (key, user), (purpose, &mut version), left, None)
}

fn is_crowded(error: &NetError) -> bool {
    matches!(error, NetError::HandshakeClosed(_)) || error.is_refusal(ErrorCode::TooManyHandshakes)
}

/// One attempt. Of a server that speaks an older version it finds out which.
fn try_open(
    address: &Address,
    (key, user): (&Key, ServerUser),
    (purpose, version): (Purpose, &mut u8),
    patience: Duration,
    connected: Option<Stream>,
) -> Result<(Link, Opened), NetError> {
    let ends = clock::now() + Nanos::from(patience);
    let stream = match connected {
        Some(stream) => stream,
        None => Stream::connect(address, patience)?,
    };
    user.check(address, &stream)?;
    let refused = |error| NetError::from_handshake(address, error);
    let (entropy, pid) = (rand::bytes(), proc::own_pid());
    let now = UnixTime(clock::unix());
    let (mut handshake, first) =
        Handshake::start_at(*version, now, key.clone(), purpose, entropy, pid).map_err(refused)?;
    let wait = |interest| {
        let left = ends.saturating_sub(clock::now());
        match stream.wait(interest, Some(left.into())) {
            Ok(true) => Ok(()),
            _ => Err(NetError::HandshakeTimeout(address.clone(), patience)),
        }
    };
    let closed = || NetError::HandshakeClosed(address.clone());
    let mut to_send = first;
    let mut frame = FrameBuffer::default();
    // What follows the proof is in records, unless it stays on this machine.
    let mut records: Option<Records> = None;
    loop {
        let mut rest = &to_send[..];
        while !rest.is_empty() {
            match stream.write(&[IoSlice::new(rest)]).map_err(|_| closed())? {
                Transfer::Bytes(n) => rest = &rest[n..],
                Transfer::WouldBlock => wait(Interest::WRITE)?,
                Transfer::Closed => return Err(closed()),
            }
        }
        if !stream.is_unix() && records.is_none() {
            records = handshake.channel();
        }
        // The server speaks only when asked, so one frame at a time is all there can be.
        let header = loop {
            let mut bytes = [0; 512];
            match stream
                .read(&mut [IoSliceMut::new(&mut bytes)])
                .map_err(|_| closed())?
            {
                Transfer::Bytes(n) => {
                    let mut plain = Vec::new();
                    let mut input = &bytes[..n];
                    if let Some(records) = &mut records {
                        // In the open after the proof it is a refusal, or somebody in between.
                        let opened = records.open(input, &mut plain);
                        opened.map_err(|_| refused(HandshakeError::OutOfTurn))?;
                        input = &plain;
                    }
                    if let Some(header) =
                        frame.advance(&mut input).map_err(|e| refused(e.into()))?
                    {
                        break header;
                    }
                }
                Transfer::WouldBlock => wait(Interest::READ)?,
                Transfer::Closed => return Err(closed()),
            }
        };
        let handled = handshake.handle(&header, frame.body());
        if let Err(error) = &handled
            && let Some(older) = handshake.version_instead(error)
        {
            *version = older;
        }
        match handled.map_err(refused)? {
            Next::Send(next) => to_send = next,
            Next::Done(opened) => return Ok((Link::new(stream, records), opened)),
        }
        frame.clear();
    }
}

/// Which lanes a session may still have. A lane that was given back is used again together with
/// its machine: the server remembers the tags of a lane, so they must go on counting.
#[derive(Debug)]
struct LaneIds {
    next: u8,
    idle: Vec<(LaneId, LaneMachine<Buffer>)>,
}

impl Default for LaneIds {
    fn default() -> LaneIds {
        // 0 carries control.
        LaneIds {
            next: 1,
            idle: Vec::new(),
        }
    }
}

/// What all lanes of a session know.
#[derive(Debug)]
pub(crate) struct SessionCore {
    pub address: Address,
    pub key: Key,
    pub server_user: ServerUser,
    pub id: SessionId,
    pub secret: SessionSecret,
    pub lease: Duration,
    pub deadline: Duration,
    pub spin: Duration,
    pub equal_classes: bool,
    pub server: ShortText,
    pub max_grant: Bytes,
    /// When the server was last heard of.
    last_heard: AtomicU64,
    /// When a request was sent that the server answered: its lease runs from then or later.
    last_sure: AtomicU64,
    lost: OnceLock<String>,
    lanes: Mutex<LaneIds>,
    resumes: AtomicU64,
    drain_left_ms: AtomicU64,
    asked_bytes: AtomicU64,
    next_call: AtomicU64,
}

impl SessionCore {
    /// Marks a lane's packets with its class.
    pub(crate) fn mark(&self, stream: &Stream, kind: LaneKind) {
        if !self.equal_classes {
            stream.set_class(kind.mark());
        }
    }
    /// Something of the server arrived.
    pub(crate) fn heard(&self, when: Nanos) {
        self.last_heard.store(when.0, Relaxed);
    }
    /// The server answered a control request that was sent at this time.
    fn answered(&self, asked: Nanos) {
        self.last_sure.fetch_max(asked.0, Relaxed);
        self.heard(clock::now());
    }
    /// Until then it makes sense to try to reach the server again.
    pub(crate) fn worth_trying_until(&self) -> Nanos {
        Nanos(self.last_heard.load(Relaxed)).saturating_add(self.lease.into())
    }
    /// Until then the server surely keeps what this session owns.
    pub(crate) fn sure_until(&self) -> Nanos {
        Nanos(self.last_sure.load(Relaxed)).saturating_add(self.lease.into())
    }
    pub(crate) fn lose(&self, why: &str) {
        let _ = self.lost.set(why.to_string());
    }
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }
    pub(crate) fn count_resume(&self) {
        self.resumes.fetch_add(1, Relaxed);
    }
    /// How often a lane was attached again after a cut.
    pub(crate) fn resumes(&self) -> u64 {
        self.resumes.load(Relaxed)
    }
    fn lane_ids(&self) -> MutexGuard<'_, LaneIds> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// An unused lane, if the session may have one more.
    fn take_lane(&self) -> Option<(LaneId, LaneMachine<Buffer>)> {
        let mut lanes = self.lane_ids();
        if let Some(idle) = lanes.idle.pop() {
            return Some(idle);
        }
        let id = LaneId(lanes.next);
        (id.0 < LANES_MAX).then(|| {
            lanes.next += 1;
            (id, LaneMachine::new(DATA_WINDOW))
        })
    }
    pub(crate) fn give_back_lane(&self, id: LaneId, machine: LaneMachine<Buffer>) {
        if id != LaneId(0) {
            self.lane_ids().idle.push((id, machine));
        }
    }
    /// The server asks for its memory back within this time.
    pub(crate) fn drain_left(&self) -> Option<Duration> {
        match self.drain_left_ms.load(Relaxed) {
            0 => None,
            left => Some(Duration::from_millis(left - 1)),
        }
    }
    fn note(&self, notice: Notice) {
        match notice {
            Notice::Drain { left_ms } => self.drain_left_ms.store(left_ms + 1, Relaxed),
            Notice::DrainCancelled => self.drain_left_ms.store(0, Relaxed),
            Notice::Stopping => self.lose("the server was stopped"),
        }
    }
    fn note_report(&self, report: &DrainReport) {
        let left = if report.draining {
            report.left_ms + 1
        } else {
            0
        };
        self.drain_left_ms.store(left, Relaxed);
        self.asked_bytes.store(report.asked_bytes, Relaxed);
    }
    /// The server asks for so much of its memory back.
    pub(crate) fn asked_back(&self) -> Bytes {
        Bytes(self.asked_bytes.load(Relaxed))
    }
}

/// The control lane, and answers to calls that were no longer waited for.
#[derive(Debug)]
struct ControlLane {
    lane: WireLane,
    /// What was asked, what was answered too late, and the descriptors that came with it. Bounded
    /// by the lane's window.
    late: Vec<(Control, Answer, Vec<OwnedFd>)>,
}

/// Shown every answer in the order of the server, whoever waited for it.
pub(crate) type OnAnswer<'a> =
    dyn FnMut(&Control, &Answer, &mut dyn Iterator<Item = OwnedFd>) -> Result<(), String> + 'a;

impl ControlLane {
    fn new(core: &Arc<SessionCore>, stream: Link, version: u8) -> ControlLane {
        let mut machine = LaneMachine::new(CONTROL_WINDOW);
        machine.speak(version);
        let core = Arc::clone(core);
        ControlLane {
            lane: WireLane::new(core, LaneId(0), LaneKind::Control, Some(stream), machine),
            late: Vec::new(),
        }
    }

    fn came_late(&mut self, asked: Verb, answer: Answer) {
        let infos = grants_of(&answer);
        let with_it = infos.iter().filter(|info| info.descriptor).count();
        let fds = (0..with_it).filter_map(|_| self.lane.take_descriptor());
        let fds = fds.collect();
        if let Verb::Control(asked) = asked
            && (!infos.is_empty() || matches!(asked, Control::Release(_)))
        {
            self.late.push((asked, answer, fds));
        }
    }
}

fn grants_of(answer: &Answer) -> &[GrantInfo] {
    match answer {
        Answer::Granted(info) => std::slice::from_ref(info),
        Answer::Adopted(infos) | Answer::Opened(_, infos) => infos,
        _ => &[],
    }
}

/// The control lane and the thread that keeps the lease.
#[derive(Debug)]
pub(crate) struct Session {
    pub core: Arc<SessionCore>,
    control: Arc<Mutex<ControlLane>>,
    keeper: Option<Keeper>,
    /// Grants to be given back: they came too late.
    strays: Mutex<Vec<GrantId>>,
}

#[derive(Debug)]
struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

/// The most requests under way on a control lane, and on a data lane.
const CONTROL_WINDOW: usize = 8;
pub(crate) const DATA_WINDOW: usize = 64;
/// The most lanes of a session, as the server has it; one of them carries control.
const LANES_MAX: u8 = 16;

impl Session {
    pub(crate) fn open(
        address: &Address,
        transport: Wire,
        options: &SessionOptions,
        connected: Option<Stream>,
    ) -> Result<Session, NetError> {
        let name = ShortText::lossy(&options.name, muninn_wire::MAX_NAME);
        let purpose = Purpose::Open { transport, name };
        let started = clock::now();
        let (stream, opened) = open_stream(
            address,
            (&options.key, options.server),
            purpose,
            options.connect_timeout,
            connected,
        )?;
        let Opened {
            version,
            welcome,
            secret,
        } = opened;
        let secret = secret.expect("a session that was opened has a secret");
        let core = Arc::new(SessionCore {
            address: address.clone(),
            key: options.key.clone(),
            server_user: options.server,
            id: welcome.session,
            secret,
            lease: Duration::from_millis(u64::from(welcome.lease_ms)),
            deadline: options.deadline,
            spin: options.spin,
            equal_classes: options.equal_classes,
            server: welcome.server,
            max_grant: Bytes(welcome.max_grant_bytes),
            last_heard: AtomicU64::new(clock::now().0),
            last_sure: AtomicU64::new(started.0),
            lost: OnceLock::new(),
            lanes: Mutex::default(),
            resumes: AtomicU64::new(0),
            drain_left_ms: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            next_call: AtomicU64::new(0),
        });
        let control = Arc::new(Mutex::new(ControlLane::new(&core, stream, version)));
        let keeper = match options.keeper {
            Keeping::Thread => Some(keep(Arc::clone(&core), Arc::clone(&control))),
            Keeping::Caller => None,
        };
        Ok(Session {
            core,
            control,
            keeper,
            strays: Mutex::default(),
        })
    }

    pub(crate) fn lane(&self, kind: LaneKind) -> Result<WireLane, NetError> {
        let Some((id, machine)) = self.core.take_lane() else {
            let refusal = Refusal::with(ErrorCode::TooManyLanes, u64::from(LANES_MAX), 0);
            return Err(NetError::Refused(self.core.address.clone(), refusal));
        };
        let core = Arc::clone(&self.core);
        Ok(WireLane::new(core, id, kind, None, machine))
    }

    fn lock(&self) -> MutexGuard<'_, ControlLane> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, waits, and shows `with` what was answered and the descriptors that came with it, in the
    /// server's order: this call's answer, and before it those to calls that were given up (see
    /// [`Session::release_strays`]).
    pub(crate) fn call_with(
        &self,
        control: Control,
        deadline: Duration,
        with: &mut OnAnswer<'_>,
    ) -> Result<Answer, NetError> {
        let ends = clock::now() + Nanos::from(deadline);
        loop {
            let mut lane = self.lock();
            let left = ends.saturating_sub(clock::now());
            let answered = call(&self.core, &mut lane, control.clone(), left.into(), true);
            for (asked, late, fds) in std::mem::take(&mut lane.late) {
                let _ = with(&asked, &late, &mut fds.into_iter());
                let ids = grants_of(&late).iter().map(|info| info.grant);
                self.lock_strays().extend(ids);
            }
            match answered {
                Ok(answer) => {
                    let mut fds = std::iter::from_fn(|| lane.lane.take_descriptor());
                    let taken = with(&control, &answer, &mut fds);
                    // None may be taken for the next answer's.
                    fds.for_each(drop);
                    return match taken {
                        Ok(()) => Ok(answer),
                        Err(why) => {
                            let ids = grants_of(&answer).iter().map(|info| info.grant);
                            self.lock_strays().extend(ids);
                            Err(NetError::Map(self.core.address.clone(), why))
                        }
                    };
                }
                // Freed memory is being wiped: it will be there in a moment.
                Err(error) if error.is_refusal(ErrorCode::TryAgain) && clock::now() < ends => {
                    drop(lane);
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(NetError::Timeout(address, _)) => {
                    return Err(NetError::Timeout(address, deadline));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn lock_strays(&self) -> MutexGuard<'_, Vec<GrantId>> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has grants released that nobody waits for any more, a few at a time. Those that could not be are
    /// tried again with the next call; the server has them back in any case when the session ends.
    pub(crate) fn release_strays(
        &self,
        release: impl FnOnce(Vec<GrantId>) -> Result<Answer, NetError>,
    ) {
        let some: Vec<GrantId> = {
            let mut strays = self.lock_strays();
            let some = strays.len().min(MAX_GRANTS);
            strays.drain(..some).collect()
        };
        if !some.is_empty()
            && let Err(NetError::Timeout(..)) = release(some.clone())
        {
            self.lock_strays().extend(some);
        }
    }

    /// Breaks the control connection, as a fault would.
    pub(crate) fn cut(&self) {
        self.lock().lane.cut();
    }

    /// Renews the lease; false when the session is lost.
    pub(crate) fn heartbeat(&self) -> bool {
        beat(&self.core, &self.control, self.core.lease / 4) != Beat::Lost
    }

    /// The same with an answer, waited for no longer than this.
    pub(crate) fn beat(&self, patience: Duration) -> Beat {
        beat(&self.core, &self.control, patience)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            *keeper.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            keeper.stop.1.notify_all();
            let _ = keeper.thread.join();
        }
        if self.core.lost().is_none() {
            // The memory comes back at once instead of after the lease; if the server does not
            // answer, the lease sees to it.
            let short = Duration::from_millis(500);
            let _ = call(&self.core, &mut self.lock(), Control::Goodbye, short, true);
        }
    }
}

/// Asks and waits. What is not answered in time stays under way, and is asked again on the next
/// connection: the server may have done it, and only its answer tells what. With `cut` that connection is
/// made at once.
fn call(
    core: &SessionCore,
    control_lane: &mut ControlLane,
    control: Control,
    deadline: Duration,
    cut: bool,
) -> Result<Answer, NetError> {
    let asked = clock::now();
    let ends = asked + Nanos::from(deadline);
    let token = core.next_call.fetch_add(1, Relaxed);
    let mut waiting = Some(Operation {
        verb: Verb::Control(control),
        class: Class::Control,
        data: Buffer::empty(),
        token,
    });
    loop {
        let lane = &mut control_lane.lane;
        if let Some(op) = waiting.take() {
            waiting = lane.post(op).err();
        }
        let left = ends.saturating_sub(clock::now());
        let done = lane.poll(left.into());
        while let Some(notice) = lane.pop_notice() {
            core.note(notice);
        }
        match done {
            Some(done) if done.operation.token != token => {
                if let Ok(answer) = done.result {
                    control_lane.came_late(done.operation.verb, answer);
                }
            }
            Some(done) => {
                if done.result.is_ok() {
                    core.answered(asked);
                }
                return done.result.map_err(|e| NetError::from_op(&core.address, e));
            }
            None if left == Nanos::ZERO => {
                // Perhaps it is only this connection.
                if cut {
                    lane.cut();
                }
                return Err(NetError::Timeout(core.address.clone(), deadline));
            }
            None => {}
        }
    }
}

/// Renews the lease four times as often as it runs out, and hears the server's notices.
fn keep(core: Arc<SessionCore>, control: Arc<Mutex<ControlLane>>) -> Keeper {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let stopped = Arc::clone(&stop);
    let work = move || {
        let pause = core.lease / 4;
        loop {
            let guard = stopped.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = stopped.1.wait_timeout_while(guard, pause, |stop| !*stop);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 || core.lost().is_some() {
                return;
            }
            if beat(&core, &control, core.lease / 4) == Beat::Lost {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("muninn-keeper".to_string())
        .spawn(work);
    Keeper {
        stop,
        thread: thread.expect("a thread can be started"),
    }
}

/// Renews a lease once and notes what the server says.
fn beat(core: &SessionCore, control: &Mutex<ControlLane>, patience: Duration) -> Beat {
    let mut lane = control.lock().unwrap_or_else(PoisonError::into_inner);
    let before = Nanos(core.last_heard.load(Relaxed));
    // A server that is only slow has its answer on the way: it counts when it comes.
    let silent = clock::now().saturating_sub(before);
    let cut = silent > Nanos::from(core.lease / 4);
    let answered = call(core, &mut lane, Control::Heartbeat, patience, cut);
    let heard = answered.is_ok() || Nanos(core.last_heard.load(Relaxed)) > before;
    match answered {
        Ok(Answer::Report(report)) => core.note_report(&report),
        Ok(_) => {}
        Err(_) if clock::now() > core.worth_trying_until() => {
            core.lose(&format!(
                "the lease of {:?} ran out without contact",
                core.lease
            ));
        }
        Err(_) => {}
    }
    match core.lost() {
        Some(_) => Beat::Lost,
        None if heard => Beat::Answered,
        None => Beat::Silent,
    }
}

/// A connection without a session: for `status` and operator commands.
#[derive(Debug)]
pub struct Observer {
    core: Arc<SessionCore>,
    lane: ControlLane,
}

impl Observer {
    pub fn connect(address: &Address, options: &SessionOptions) -> Result<Observer, NetError> {
        let (stream, opened) = open_stream(
            address,
            (&options.key, options.server),
            Purpose::Observe,
            options.connect_timeout,
            None,
        )?;
        let lease = Duration::from_millis(u64::from(opened.welcome.lease_ms));
        let core = Arc::new(SessionCore {
            address: address.clone(),
            key: options.key.clone(),
            server_user: options.server,
            id: SessionId(0),
            secret: SessionSecret::none(),
            lease,
            deadline: options.deadline,
            spin: Duration::ZERO,
            equal_classes: options.equal_classes,
            server: opened.welcome.server,
            max_grant: Bytes(opened.welcome.max_grant_bytes),
            last_heard: AtomicU64::new(clock::now().0),
            last_sure: AtomicU64::new(0),
            lost: OnceLock::new(),
            lanes: Mutex::default(),
            resumes: AtomicU64::new(0),
            drain_left_ms: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            next_call: AtomicU64::new(0),
        });
        let lane = ControlLane::new(&core, stream, opened.version);
        Ok(Observer { core, lane })
    }

    fn ask(&mut self, control: Control) -> Result<Answer, NetError> {
        let deadline = self.core.deadline;
        call(&self.core, &mut self.lane, control, deadline, true)
    }

    /// All of a server's status, every session included, as far as it has no more of them than any server may:
    /// one that never comes to an end is not listened to for ever.
    pub fn status(&mut self) -> Result<StatusPage, NetError> {
        let mut whole: Option<StatusPage> = None;
        let mut after = SessionId(0);
        loop {
            let Answer::Status(page) = self.ask(Control::Status { after })? else {
                unreachable!("a status request is answered with a status");
            };
            let next = page.next;
            match &mut whole {
                None => whole = Some(*page),
                Some(first) => first.sessions.extend(page.sessions),
            }
            let known = whole.as_ref().map_or(0, |page| page.sessions.len());
            match next {
                Some(id) if id > after && known < SESSIONS_SHOWN => after = id,
                _ => return Ok(whole.unwrap_or_default()),
            }
        }
    }

    /// Starts (or with None cancels) giving the server's memory back; how far it is.
    pub fn drain(&mut self, within: Option<Duration>) -> Result<DrainReport, NetError> {
        let deadline_ms = within.map_or(0, |t| (t.as_millis() as u64).max(1));
        self.report(Control::Drain { deadline_ms })
    }

    /// How far a drain is.
    pub fn progress(&mut self) -> Result<DrainReport, NetError> {
        self.report(Control::Heartbeat)
    }

    /// Asks for all that the server has, to go on in its place: the connection on which that is talked
    /// about. Nothing of it was read beyond the permission.
    pub fn take_over(mut self) -> Result<Stream, NetError> {
        self.ask(Control::TakeOver)?;
        let closed = || NetError::HandshakeClosed(self.core.address.clone());
        self.lane.lane.take_stream().ok_or_else(closed)
    }

    /// About functions that are pushed.
    pub fn wics(&mut self, request: WicsRequest) -> Result<WicsReply, NetError> {
        match self.ask(Control::Wics(request))? {
            Answer::Wics(reply) => Ok(reply),
            _ => unreachable!("what is asked about functions is answered so"),
        }
    }

    fn report(&mut self, control: Control) -> Result<DrainReport, NetError> {
        match self.ask(control)? {
            Answer::Report(report) => Ok(report),
            _ => unreachable!("answered with a report"),
        }
    }
}
