//! What the tests of this folder share: servers in this process or in one of their own, clients
//! that speak frames by hand, and waiting for things with a deadline.
#![allow(dead_code)] // each test file uses a part

use muninn_net::{Key, PoolOptions, SessionOptions};
use muninn_policy::wrr::Weights;
use muninn_proto::auth::SessionSecret;
use muninn_proto::client::{Handshake, Next, Purpose};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::secure::{Operator, Role};
use muninn_server::{Server, ServerConfig};
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{Address, Piece, ReceivedFds, Stream, Transfer};
use muninn_types::{Bytes, Class, GrantId, LaneId, LaneKind, SessionId, SplitMix64, Tag};
use muninn_wire::{
    ErrorCode, GrantInfo, Header, Kind, Refusal, Request, Seg, Segs, ShortText, StatusPage,
    Transport as Wire,
};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Open files of a server that is to run out of them.
pub const FEW_DESCRIPTORS: u64 = 100;
/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that others bring about.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let ends = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < ends, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(seed).fill(&mut bytes);
    bytes
}

pub fn config(memory: Bytes) -> ServerConfig {
    ServerConfig {
        memory,
        lease: Duration::from_secs(2),
        keep_awake: false,
        ..ServerConfig::default()
    }
}

pub fn options() -> SessionOptions {
    PoolOptions {
        deadline: PATIENCE,
        connect_timeout: PATIENCE,
        ..PoolOptions::default()
    }
}

/// A server of this process, on a Unix socket and on tcp.
pub struct Local {
    pub server: Server,
    pub unix: Address,
    pub tcp: Address,
    _dir: TempDir,
}

impl Local {
    pub fn start(mut config: ServerConfig) -> Local {
        let dir = tempfile::tempdir().unwrap();
        let unix = Address::unix(dir.path().join("muninn.sock")).unwrap();
        config.listen = vec![unix.clone(), "127.0.0.1:0".parse().unwrap()];
        let server = Server::start(config).unwrap();
        let tcp = server.addresses()[1].clone();
        Local {
            server,
            unix,
            tcp,
            _dir: dir,
        }
    }

    pub fn both(&self) -> [&Address; 2] {
        [&self.unix, &self.tcp]
    }

    pub fn socket_address(&self) -> std::net::SocketAddr {
        match &self.tcp {
            Address::Tcp(at) => *at,
            Address::Unix(_) => unreachable!("the second address is tcp"),
        }
    }

    pub fn all_free(&self) -> bool {
        let pool = self.server.pool();
        pool.granted == Bytes::ZERO && pool.wiping == Bytes::ZERO
    }

    pub fn refusals(&self) -> u64 {
        let status = self.server.status().server;
        status.refusals.iter().map(|(_, count)| count).sum()
    }
    pub fn refused(&self, reason: &str) -> u64 {
        let status = self.server.status().server;
        let found = status.refusals.iter().find(|(r, _)| r.as_str() == reason);
        found.map_or(0, |(_, count)| *count)
    }
}

// --- frames by hand -----------------------------------------------------------------------------

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn code(&self) -> Option<ErrorCode> {
        self.header.error()
    }
    pub fn refusal(&self) -> Option<Refusal> {
        let code = self.code()?;
        Some(Refusal::decode(code, &self.body).unwrap())
    }
}

/// A connection on which a test says what it likes.
pub struct Raw {
    pub stream: Stream,
    pub session: SessionId,
    pub secret: SessionSecret,
    pub fds: VecDeque<OwnedFd>,
    input: Vec<u8>,
    next_tag: u64,
}

impl Raw {
    /// Connects and says nothing.
    pub fn stranger(address: &Address) -> Raw {
        Raw {
            stream: Stream::connect(address, PATIENCE).unwrap(),
            session: SessionId(0),
            secret: SessionSecret::none(),
            fds: VecDeque::new(),
            input: Vec::new(),
            next_tag: 1,
        }
    }

    pub fn open(address: &Address, transport: Wire) -> Raw {
        let name = ShortText::lossy("raw", 64);
        let mut raw = Raw::stranger(address);
        raw.shake(Purpose::Open { transport, name }).unwrap();
        raw
    }

    pub fn attach(&self, address: &Address, lane: u8, kind: LaneKind) -> Raw {
        self.try_attach(address, lane, kind).expect("a lane")
    }

    /// None if it is refused.
    pub fn try_attach(&self, address: &Address, lane: u8, kind: LaneKind) -> Option<Raw> {
        let mut raw = Raw::stranger(address);
        let purpose = Purpose::Attach {
            session: self.session,
            secret: self.secret.clone(),
            lane: LaneId(lane),
            kind,
        };
        raw.shake(purpose).ok()?;
        raw.session = self.session;
        raw.secret = self.secret.clone();
        Some(raw)
    }

    /// The handshake; how it was refused otherwise.
    pub fn shake(&mut self, purpose: Purpose) -> Result<(), String> {
        self.shake_with(Key::none(), purpose)
    }

    /// With a key: over a Unix socket, where what follows is not in records.
    pub fn shake_with(&mut self, key: Key, purpose: Purpose) -> Result<(), String> {
        let entropy = muninn_sys::rand::bytes();
        let (mut handshake, first) = Handshake::start(key, purpose, entropy, 7).unwrap();
        self.send(&first);
        loop {
            let reply = self.recv().ok_or("the server closed the connection")?;
            match handshake.handle(&reply.header, &reply.body) {
                Ok(Next::Send(next)) => self.send(&next),
                Ok(Next::Done(opened)) => {
                    self.session = opened.welcome.session;
                    if let Some(secret) = opened.secret {
                        self.secret = secret;
                    }
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Sends all of it, or as much as the server takes before it closes. False: closed.
    pub fn try_send(&self, mut bytes: &[u8]) -> bool {
        let ends = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            match self.send_some(bytes) {
                Transfer::Bytes(n) => bytes = &bytes[n..],
                Transfer::Closed => return false,
                Transfer::WouldBlock => {
                    assert!(Instant::now() < ends, "the server takes nothing");
                    let _ = self.stream.wait(Interest::WRITE, Some(PATIENCE));
                }
            }
        }
        true
    }
    pub fn send(&self, bytes: &[u8]) {
        assert!(self.try_send(bytes), "the server closed the connection");
    }
    /// One attempt, which does not wait.
    pub fn send_some(&self, bytes: &[u8]) -> Transfer {
        let piece = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
        // SAFETY: the piece is a borrowed slice, and the kernel only reads it.
        let sent = unsafe { self.stream.write_pieces(&piece) };
        sent.unwrap_or(Transfer::Closed)
    }

    /// Reads what there is, waiting at most `wait` for something. False: closed.
    fn fill(&mut self, wait: Duration) -> bool {
        let mut bytes = [0; 16 << 10];
        let ends = Instant::now() + wait;
        loop {
            let got = if self.stream.is_unix() {
                let mut fds = ReceivedFds::default();
                let got = self.stream.recv_fds(&mut bytes, &mut fds);
                self.fds.extend(fds.drain());
                got
            } else {
                let piece = [Piece::new(bytes.as_mut_ptr(), bytes.len())];
                // SAFETY: the piece is our own buffer.
                unsafe { self.stream.read_pieces(&piece) }
            };
            match got {
                Ok(Transfer::Bytes(n)) => {
                    self.input.extend_from_slice(&bytes[..n]);
                    return true;
                }
                Ok(Transfer::WouldBlock) => {
                    let left = ends.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return true;
                    }
                    let _ = self.stream.wait(Interest::READ, Some(left));
                }
                Ok(Transfer::Closed) | Err(_) => return false,
            }
        }
    }

    /// A whole frame out of what was read already.
    fn cut_frame(&mut self) -> Option<Reply> {
        let mut rest = &self.input[..];
        let mut frame = FrameBuffer::default();
        let header = frame.advance(&mut rest).expect("a server sends frames")?;
        let (payload, rest) = rest.split_at_checked(header.payload_len as usize)?;
        let reply = Reply {
            header,
            body: frame.body().to_vec(),
            payload: payload.to_vec(),
        };
        self.input = rest.to_vec();
        Some(reply)
    }

    /// The next frame; None when the server has closed the connection.
    pub fn recv(&mut self) -> Option<Reply> {
        let ends = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = self.cut_frame() {
                return Some(reply);
            }
            assert!(Instant::now() < ends, "no answer within {PATIENCE:?}");
            if !self.fill(PATIENCE) {
                return None;
            }
        }
    }
    /// The next frame if it is there.
    pub fn recv_now(&mut self) -> Option<Reply> {
        self.fill(Duration::ZERO);
        self.cut_frame()
    }
    /// Whether the server has closed the connection by now. Drops what it said.
    pub fn is_closed(&mut self) -> bool {
        let open = self.fill(Duration::ZERO);
        self.input.clear();
        !open
    }

    /// Drops all that comes until the server closes the connection.
    pub fn drain(&mut self) {
        let ends = Instant::now() + PATIENCE;
        while self.fill(PATIENCE) {
            self.input.clear();
            assert!(Instant::now() < ends, "the server does not close");
        }
    }

    pub fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    /// Asks and waits; notices in between are dropped.
    pub fn ask(&mut self, request: &Request<'_>, payload: &[u8]) -> Reply {
        let tag = self.tag();
        let mut frame = Vec::new();
        request.encode(Class::Demand, tag, &mut frame);
        frame.extend_from_slice(payload);
        self.send(&frame);
        loop {
            let reply = self.recv().expect("the server closed the connection");
            if reply.header.kind != Kind::Notice {
                assert_eq!(reply.header.tag, tag, "the answer to something else");
                return reply;
            }
        }
    }

    pub fn grant(&mut self, bytes: u64) -> GrantInfo {
        let ends = Instant::now() + PATIENCE;
        loop {
            let reply = self.ask(&Request::Grant { bytes }, &[]);
            match reply.code() {
                None => return GrantInfo::decode(&reply.body).unwrap(),
                Some(ErrorCode::TryAgain) if Instant::now() < ends => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some(code) => panic!("no grant of {bytes}: {code:?}"),
            }
        }
    }

    pub fn read(&mut self, segs: &[Seg]) -> Reply {
        let body = seg_bytes(segs);
        match Segs::decode(&body) {
            Ok(segs) => self.ask(&Request::Read(segs), &[]),
            Err(error) => panic!("not sent: {error}"),
        }
    }
    pub fn write(&mut self, segs: &[Seg], payload: &[u8]) -> Reply {
        let body = seg_bytes(segs);
        self.ask(&Request::Write(Segs::decode(&body).unwrap()), payload)
    }
}

pub fn seg_bytes(segs: &[Seg]) -> Vec<u8> {
    let mut body = Vec::new();
    Seg::encode_list(segs, &mut body);
    body
}

/// A frame of any kind with any body, sealed so that its check holds.
pub fn sealed(kind: Kind, class: Class, tag: Tag, body: &[u8], payload_len: u32) -> Vec<u8> {
    let mut frame = vec![0; muninn_wire::HEADER_LEN];
    frame.extend_from_slice(body);
    muninn_wire::seal_frame(&mut frame, Header::new(kind, class, tag), payload_len);
    frame
}

pub fn list(ids: &[GrantId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0.to_le_bytes()).collect()
}

// --- processes ----------------------------------------------------------------------------------

/// What a child of a test is to be; see [`Process::start`].
const ROLE: &str = "MUNINN_TEST_ROLE";
/// Marks the lines that a child says to its parent, among those of the test harness.
const MARK: &str = "@@ ";

/// In a child: its role and its arguments. The function of the name given to [`Process::start`]
/// must be a `#[test]` that does nothing without.
pub fn role() -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    Some(role.split('\n').map(str::to_string).collect())
}

/// In a child: says a line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may be gone already.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// In a child: the parent's next line; None when it is gone.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim_end().to_string()),
        _ => None,
    }
}

/// This test program again, as another process. Killed when dropped.
pub struct Process {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
}

impl Process {
    /// Runs the test `entry` of this program in a process of its own, with a role.
    pub fn start(entry: &str, role: &[&str]) -> Process {
        Process::start_under(&[], entry, role)
    }

    /// The same, started by another program that takes it as its arguments, and kills it when it is
    /// killed itself.
    pub fn start_under(under: &[&str], entry: &str, role: &[&str]) -> Process {
        let own = std::env::current_exe().unwrap();
        let mut command = match under.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(own);
                command
            }
            None => Command::new(own),
        };
        let mut child = command
            .args([entry, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (say, from) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(MARK)
                    && say.send(said.to_string()).is_err()
                {
                    return;
                }
            }
        });
        let to = child.stdin.take();
        Process { child, to, from }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line it says.
    pub fn hear(&self) -> String {
        match self.from.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child has ended"),
        }
    }
    pub fn tell(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
    /// SIGSTOP, and waits until every thread stands still.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        until("the child to stop", || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap().flatten();
            tasks.all(|task| {
                let status = std::fs::read_to_string(task.path().join("status"));
                status.is_ok_and(|text| text.contains("State:\tT"))
            })
        });
    }
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }
    /// `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
    /// Waits for its own end: how it ended.
    pub fn end(&mut self) -> std::process::ExitStatus {
        drop(self.to.take());
        let ends = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < ends, "the child does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Memory of a process in KiB, a field of `/proc/PID/status`.
pub fn status_kib(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A server in a process of its own.
pub struct Remote {
    pub process: Process,
    pub unix: Address,
    pub tcp: Address,
    entry: String,
    role: Vec<String>,
    _dir: TempDir,
}

impl Remote {
    /// `entry` is a test that calls [`serve_if_asked`].
    pub fn start(entry: &str, memory: Bytes, lease: Duration, threads: usize) -> Remote {
        Remote::start_as(entry, memory, lease, threads, "")
    }

    /// `ways`: "equal" classes, "few" descriptors, an "identity" by [`test_identity`].
    pub fn start_as(
        entry: &str,
        memory: Bytes,
        lease: Duration,
        threads: usize,
        ways: &str,
    ) -> Remote {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("muninn.sock");
        let role = [
            "server",
            &socket.display().to_string(),
            &memory.0.to_string(),
            &lease.as_millis().to_string(),
            &threads.to_string(),
            ways,
        ];
        let process = Process::start(entry, &role);
        let tcp = process.hear().parse().unwrap();
        Remote {
            process,
            unix: Address::unix(socket).unwrap(),
            tcp,
            entry: entry.to_string(),
            role: role.map(str::to_string).to_vec(),
            _dir: dir,
        }
    }

    /// Kills it and starts another one at the same socket (tcp gets a port of its own).
    pub fn replace(&mut self) {
        self.process.kill();
        let role: Vec<&str> = self.role.iter().map(String::as_str).collect();
        self.process = Process::start(&self.entry, &role);
        self.tcp = self.process.hear().parse().unwrap();
    }

    /// Its status, asked from inside.
    pub fn ask(&mut self, what: &str) -> u64 {
        self.process.tell(what);
        self.process.hear().parse().unwrap()
    }
    /// How often something was refused for this reason.
    pub fn refused(&mut self, reason: &str) -> u64 {
        self.process.tell("table");
        let table = self.process.hear();
        let mut rows = table.split(' ').filter_map(|row| row.split_once('='));
        let found = rows.find(|(name, _)| *name == reason);
        found.map_or(0, |(_, count)| count.parse().unwrap())
    }
    pub fn is_healthy(&mut self) -> bool {
        self.ask("healthy") == 1
    }
    pub fn anonymous_kib(&self) -> u64 {
        status_kib(self.process.pid(), "RssAnon")
    }
}

/// An identity that servers of the "identity" way believe, and whose clients believe them.
pub fn test_identity(role: Role, name: &str) -> Key {
    let operator = Operator::from_seed([7; 32]);
    let own = operator.sign(role, name, None, muninn_sys::rand::bytes());
    Key::identity(own.unwrap())
}

/// In a child with the role of a server: serves and answers questions until the parent is gone.
pub fn serve_if_asked() {
    let Some(role) = role() else { return };
    if role[0] != "server" {
        return;
    }
    let few = role[5].contains("few");
    raise_descriptors(if few { FEW_DESCRIPTORS } else { u64::MAX });
    let number = |i: usize| role[i].parse::<u64>().unwrap();
    let server = Server::start(ServerConfig {
        listen: vec![
            Address::unix(&role[1]).unwrap(),
            "127.0.0.1:0".parse().unwrap(),
        ],
        lease: Duration::from_millis(number(3)),
        threads: number(4) as usize,
        weights: match role[5].contains("equal") {
            true => Weights::equal(),
            false => Weights::default(),
        },
        key: match role[5].contains("identity") {
            true => test_identity(Role::Server, "rack-1"),
            false => Key::none(),
        },
        ..config(Bytes(number(2)))
    })
    .unwrap();
    say(&server.addresses()[1].to_string());
    while let Some(line) = listen() {
        let status = server.status().server;
        say(&match line.as_str() {
            "healthy" => u64::from(server.is_healthy()).to_string(),
            "sessions" => status.sessions.to_string(),
            "grants" => status.grants.to_string(),
            "connections" => status.connections.to_string(),
            "granted" => status.granted_bytes.to_string(),
            "wiping" => status.wiping_bytes.to_string(),
            "refusals" => {
                let sum: u64 = status.refusals.iter().map(|(_, n)| n).sum();
                sum.to_string()
            }
            "table" => {
                let rows: Vec<String> = status
                    .refusals
                    .iter()
                    .map(|(r, n)| format!("{r}={n}"))
                    .collect();
                rows.join(" ")
            }
            other => panic!("the parent asks for {other}"),
        });
    }
}

/// Raises the limit of open files to `wanted` or as far as permitted; what it is now.
pub fn raise_descriptors(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let maximum = now.maximum.unwrap_or(u64::MAX);
    let current = Some(wanted.min(maximum));
    let limit = Rlimit {
        current,
        maximum: now.maximum,
    };
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A server's status as an observer gets it.
pub fn status_of(address: &Address) -> StatusPage {
    let mut observer = muninn_net::Observer::connect(address, &options()).unwrap();
    observer.status().unwrap()
}
