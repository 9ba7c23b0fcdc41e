//! Faults on purpose: a transport whose operations go wrong by a script, and a network link that
//! can be cut or stopped while a real client and a real server talk through it.

use crate::error::NetError;
use crate::lane::{Done, Lane, Op};
use crate::transport::{Kind, Mapped, Transport};
use muninn_proto::client::{Answer, Control, OpError, Verb};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, GrantId, LaneKind};
use muninn_wire::Refusal;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What happens to one operation.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Not done; answered with this refusal.
    Refuse(Refusal),
    /// Done, but its answer comes only after this many looks.
    Delay(u32),
    /// A read brings one wrong bit.
    Corrupt,
    /// Not done, and the session is lost.
    Lose,
}

/// A transport whose data operations meet the faults of a script, one after the other; after its
/// end all is well.
#[derive(Clone, Debug)]
pub struct FaultyTransport {
    inner: Arc<dyn Transport>,
    script: Arc<Mutex<VecDeque<Fault>>>,
    lost: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FaultyTransport {
    pub fn new(inner: Arc<dyn Transport>) -> FaultyTransport {
        FaultyTransport {
            inner,
            script: Arc::default(),
            lost: Arc::default(),
        }
    }
    pub fn push(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.script).extend(faults);
    }
}

impl Transport for FaultyTransport {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }
    fn address(&self) -> &Address {
        self.inner.address()
    }
    fn server_name(&self) -> &str {
        self.inner.server_name()
    }
    fn max_grant(&self) -> Bytes {
        self.inner.max_grant()
    }
    fn lease(&self) -> Duration {
        self.inner.lease()
    }
    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        let inner = self.inner.lane(kind)?;
        Ok(Box::new(FaultyLane {
            inner,
            faults: self.clone(),
            late: VecDeque::new(),
        }))
    }
    fn call(&self, control: Control, deadline: Duration) -> Result<Answer, NetError> {
        match self.lost() {
            Some(why) => Err(NetError::Lost(self.address().clone(), why)),
            None => self.inner.call(control, deadline),
        }
    }
    /// Never: an access through a mapping could meet no fault.
    fn mapped(&self, _grant: GrantId) -> Option<Mapped> {
        None
    }
    fn lost(&self) -> Option<String> {
        let scripted = self
            .lost
            .load(Relaxed)
            .then(|| "a scripted fault".to_string());
        scripted.or_else(|| self.inner.lost())
    }
    fn asked_back(&self) -> Bytes {
        self.inner.asked_back()
    }
    fn drain_left(&self) -> Option<Duration> {
        self.inner.drain_left()
    }
    fn resumes(&self) -> u64 {
        self.inner.resumes()
    }
}

struct FaultyLane {
    inner: Box<dyn Lane>,
    faults: FaultyTransport,
    /// Completions that wait for a number of looks.
    late: VecDeque<(u32, Done)>,
}

impl FaultyLane {
    /// Waits for all that is under way; false if that does not come to an end.
    fn settle(&mut self) -> bool {
        while self.inner.under_way() > 0 {
            match self.inner.poll(self.inner.deadline()) {
                Some(done) => self.late.push_back((0, done)),
                None => return false,
            }
        }
        true
    }

    fn finish_now(&mut self, operation: Op, result: Result<Answer, OpError>) {
        self.late.push_back((0, Done { operation, result }));
    }
}

impl Lane for FaultyLane {
    fn address(&self) -> &Address {
        self.inner.address()
    }

    fn post(&mut self, op: Op) -> Result<(), Op> {
        if let Some(why) = self.faults.lost() {
            self.finish_now(op, Err(OpError::SessionLost(why)));
            return Ok(());
        }
        let fault = lock(&self.faults.script).pop_front().unwrap_or(Fault::Pass);
        if matches!(fault, Fault::Delay(_) | Fault::Corrupt) && !self.settle() {
            lock(&self.faults.script).push_front(fault);
            return Err(op);
        }
        let (delay, corrupt) = match fault {
            Fault::Pass => return self.inner.post(op),
            Fault::Refuse(refusal) => {
                self.finish_now(op, Err(OpError::Refused(refusal)));
                return Ok(());
            }
            Fault::Lose => {
                self.faults.lost.store(true, Relaxed);
                self.finish_now(
                    op,
                    Err(OpError::SessionLost("a scripted fault".to_string())),
                );
                return Ok(());
            }
            Fault::Delay(looks) => (looks, false),
            Fault::Corrupt => (0, true),
        };
        self.inner.post(op)?;
        // The script speaks of this operation, so it is waited for here; no other is under way.
        let Some(mut done) = self.inner.poll(self.inner.deadline()) else {
            return Ok(());
        };
        if corrupt
            && matches!(done.operation.verb, Verb::Read(_))
            && let Some(byte) = done.operation.data.as_mut().first_mut()
        {
            *byte ^= 1;
        }
        self.late.push_back((delay, done));
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> Option<Done> {
        if let Some((looks, _)) = self.late.front_mut() {
            if *looks > 0 {
                *looks -= 1;
                return None;
            }
            return self.late.pop_front().map(|(_, done)| done);
        }
        self.inner.poll(wait)
    }

    fn under_way(&self) -> usize {
        self.inner.under_way() + self.late.len()
    }
    fn put_back(&mut self, done: Done) {
        self.late.push_back((0, done));
    }
    fn abandon(&mut self, token: u64) {
        self.late.retain(|(_, done)| done.operation.token != token);
        self.inner.abandon(token);
    }
    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }
}

#[derive(Debug, Default)]
struct LinkState {
    open: Vec<(TcpStream, TcpStream)>,
    /// Nothing passes while it is stopped.
    stopped: bool,
    /// New connections are refused.
    closed: bool,
}

/// A link between a client and a server: connections made to [`Link::address`] go on to the
/// server, until they are cut or the link is stopped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: Arc<(Mutex<LinkState>, Condvar)>,
}

impl Link {
    pub fn to(server: SocketAddr) -> std::io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state: Arc<(Mutex<LinkState>, Condvar)> = Arc::default();
        let shared = Arc::downgrade(&state);
        // Ends with the first connection after the link is dropped.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Some(state) = shared.upgrade() else {
                    return;
                };
                if lock(&state.0).closed {
                    continue;
                }
                let Ok(far) = TcpStream::connect(server) else {
                    continue;
                };
                let _ = (client.set_nodelay(true), far.set_nodelay(true));
                let pair = || Some((client.try_clone().ok()?, far.try_clone().ok()?));
                if let (Some(kept), Some(out), Some(back)) = (pair(), pair(), pair()) {
                    lock(&state.0).open.push(kept);
                    forward(out.0, out.1, Arc::clone(&state));
                    forward(back.1, back.0, Arc::clone(&state));
                }
            }
        });
        Ok(Link { address, state })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks every connection; new ones can be made.
    pub fn cut(&self) {
        for (a, b) in lock(&self.state.0).open.drain(..) {
            let _ = (a.shutdown(Shutdown::Both), b.shutdown(Shutdown::Both));
        }
    }
    /// Holds back everything that is sent, without breaking connections.
    pub fn stop(&self) {
        lock(&self.state.0).stopped = true;
    }
    pub fn go_on(&self) {
        lock(&self.state.0).stopped = false;
        self.state.1.notify_all();
    }
    /// Breaks every connection and lets no new one through.
    pub fn close(&self) {
        lock(&self.state.0).closed = true;
        self.cut();
    }
    pub fn open(&self) {
        lock(&self.state.0).closed = false;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
        self.go_on();
        // Wakes the listener, so that its thread ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: Arc<(Mutex<LinkState>, Condvar)>) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(n) = from.read(&mut bytes) {
            let guard = lock(&state.0);
            drop(state.1.wait_while(guard, |s| s.stopped));
            if n == 0 || to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}
