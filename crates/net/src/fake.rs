//! A transport without a server: memory of this process, for tests of what stands on transports.
//!
//! Behaves as a server does where a client can tell: fresh grants read as zeros, ids are not used
//! twice, bounds are checked, shared grants are immutable, what is refused is not done in part.
//! Known limit: a ticket is good only while its grants are held, as there is only one session.

use crate::error::NetError;
use crate::lane::{Done, Lane, Op, check_grants, checked_total};
use crate::session::DATA_WINDOW;
use crate::transport::{Kind, Transport};
use muninn_proto::client::{Answer, Completion, Control, OpError, Verb};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, GrantId, LaneKind, SegmentId};
use muninn_wire::{DrainReport, ErrorCode, GrantInfo, Refusal, Seg, TICKET_LEN};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
struct FakeGrant {
    bytes: Vec<u8>,
    frozen: bool,
}

#[derive(Debug, Default)]
struct State {
    grants: HashMap<GrantId, FakeGrant>,
    next: u64,
    capacity: u64,
    tickets: HashMap<[u8; TICKET_LEN], Vec<GrantId>>,
    lost: Option<String>,
}

/// The largest grant, whatever the capacity.
const GRANT_MAX: Bytes = Bytes::mib(64);

/// A session with memory of its own. Clones share it.
#[derive(Clone, Debug)]
pub struct FakeTransport {
    address: Address,
    state: Arc<Mutex<State>>,
}

fn refused(code: ErrorCode, a: u64, b: u64) -> OpError {
    OpError::Refused(Refusal::with(code, a, b))
}

impl State {
    fn range(&mut self, seg: &Seg, writing: bool) -> Result<&mut [u8], OpError> {
        let missing = refused(ErrorCode::NoGrant, seg.grant.0, 0);
        let grant = self.grants.get_mut(&seg.grant).ok_or(missing)?;
        if writing && grant.frozen {
            return Err(refused(ErrorCode::Frozen, seg.grant.0, 0));
        }
        let size = grant.bytes.len() as u64;
        let (start, len) = (seg.offset as usize, seg.len as usize);
        grant
            .bytes
            .get_mut(start..start + len)
            .ok_or_else(|| refused(ErrorCode::OutOfBounds, seg.grant.0, size))
    }

    fn word(
        &mut self,
        grant: GrantId,
        offset: u32,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<Answer, OpError> {
        let seg = Seg::new(grant, offset, 8);
        let held = self.grants.get(&grant);
        held.ok_or_else(|| refused(ErrorCode::NoGrant, grant.0, 0))?;
        if !offset.is_multiple_of(8) {
            return Err(refused(ErrorCode::Misaligned, 0, 0));
        }
        self.range(&seg, false)?;
        let bytes = self.range(&seg, true)?;
        let old = u64::from_le_bytes((&*bytes).try_into().unwrap_or_default());
        bytes.copy_from_slice(&change(old).to_le_bytes());
        Ok(Answer::Old(old))
    }

    fn run(&mut self, op: &mut Op) -> Result<Answer, OpError> {
        if let Some(why) = &self.lost {
            return Err(OpError::SessionLost(why.clone()));
        }
        match &op.verb {
            Verb::Read(segs) | Verb::Write(segs) => {
                let writing = matches!(op.verb, Verb::Write(_));
                checked_total(segs, op.data.len())?;
                for seg in segs {
                    self.range(seg, writing)?;
                }
                let mut at = 0;
                for seg in segs {
                    let here = at..at + seg.len as usize;
                    let range = self.range(seg, writing)?;
                    match writing {
                        true => range.copy_from_slice(&op.data.as_ref()[here]),
                        false => op.data.as_mut()[here].copy_from_slice(range),
                    }
                    at += seg.len as usize;
                }
                Ok(Answer::Done)
            }
            Verb::CompareSwap {
                grant,
                offset,
                expect,
                new,
            } => self.word(
                *grant,
                *offset,
                |old| if old == *expect { *new } else { old },
            ),
            Verb::FetchAdd { grant, offset, add } => {
                self.word(*grant, *offset, |old| old.wrapping_add(*add))
            }
            Verb::Call { .. } | Verb::Control(_) => Err(refused(ErrorCode::Malformed, 0, 0)),
        }
    }

    fn max_grant(&self) -> u64 {
        let largest = self.capacity.clamp(1, GRANT_MAX.0);
        1 << largest.ilog2()
    }

    fn check_held(&self, ids: &[GrantId]) -> Result<(), OpError> {
        check_grants(ids)?;
        match ids.iter().find(|id| !self.grants.contains_key(id)) {
            Some(id) => Err(refused(ErrorCode::NoGrant, id.0, 0)),
            None => Ok(()),
        }
    }

    fn control(&mut self, control: Control) -> Result<Answer, OpError> {
        if let Some(why) = &self.lost {
            return Err(OpError::SessionLost(why.clone()));
        }
        match control {
            Control::Grant { bytes } => {
                let max = self.max_grant();
                if bytes == 0 || bytes > max {
                    return Err(refused(ErrorCode::BadSize, bytes, max));
                }
                let bytes = Bytes::pages(Bytes(bytes).pages_up().next_power_of_two()).0;
                let used: u64 = self.grants.values().map(|g| g.bytes.len() as u64).sum();
                if used + bytes > self.capacity {
                    return Err(refused(ErrorCode::PoolFull, bytes, self.capacity - used));
                }
                self.next += 1;
                let grant = GrantId(self.next);
                let memory = FakeGrant {
                    bytes: vec![0; bytes as usize],
                    frozen: false,
                };
                self.grants.insert(grant, memory);
                Ok(Answer::Granted(describe(grant, bytes)))
            }
            Control::Release(ids) => {
                self.check_held(&ids)?;
                self.grants.retain(|id, _| !ids.contains(id));
                Ok(Answer::Done)
            }
            Control::Share(ids) => {
                self.check_held(&ids)?;
                for id in &ids {
                    if let Some(grant) = self.grants.get_mut(id) {
                        grant.frozen = true;
                    }
                }
                self.next += 1;
                let ticket = u128::from(self.next).to_le_bytes();
                self.tickets.insert(ticket, ids);
                Ok(Answer::Ticket(ticket))
            }
            Control::Adopt { ticket } => {
                let ids = self.tickets.remove(&ticket).unwrap_or_default();
                let held = ids.iter().filter_map(|id| Some((id, self.grants.get(id)?)));
                let infos: Vec<_> = held
                    .map(|(id, grant)| describe(*id, grant.bytes.len() as u64))
                    .collect();
                if infos.is_empty() {
                    return Err(refused(ErrorCode::NoTicket, 0, 0));
                }
                Ok(Answer::Adopted(infos))
            }
            Control::Revoke { ticket } => {
                self.tickets.remove(&ticket);
                Ok(Answer::Done)
            }
            Control::Heartbeat | Control::Drain { .. } => Ok(Answer::Report(DrainReport {
                asked_bytes: 0,
                draining: false,
                left_ms: 0,
                held_bytes: 0,
                holders: 0,
            })),
            Control::Goodbye | Control::Note { .. } | Control::Close { .. } => Ok(Answer::Done),
            Control::TakeOver => Err(refused(ErrorCode::NotPermitted, 0, 0)),
            Control::Open(_) => Err(refused(ErrorCode::NoService, 0, 0)),
            Control::Resolve { .. } => Err(refused(ErrorCode::NoWic, 0, 0)),
            Control::Wics(_) => Err(refused(ErrorCode::NoWic, 0, 0)),
            Control::Agent(_) => Err(refused(ErrorCode::NoAgent, 0, 0)),
            Control::Status { .. } => Ok(Answer::Status(Box::default())),
        }
    }
}

fn describe(grant: GrantId, bytes: u64) -> GrantInfo {
    GrantInfo {
        grant,
        bytes,
        segment: SegmentId(0),
        incarnation: 0,
        segment_bytes: bytes,
        segment_offset: 0,
        descriptor: false,
    }
}

impl FakeTransport {
    pub fn new(capacity: Bytes) -> FakeTransport {
        let state = State {
            capacity: capacity.0,
            ..State::default()
        };
        let address = Address::Unix("fake".into());
        FakeTransport {
            address,
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on everything fails, as after a server's death.
    pub fn lose(&self, why: &str) {
        self.lock().lost = Some(why.to_string());
    }
    /// Changes stored bytes behind the client's back, as a faulty server would.
    pub fn corrupt(&self, grant: GrantId, offset: usize) {
        if let Some(grant) = self.lock().grants.get_mut(&grant) {
            grant.bytes[offset] ^= 0x40;
        }
    }
    pub fn grants(&self) -> usize {
        self.lock().grants.len()
    }
}

impl Transport for FakeTransport {
    fn kind(&self) -> Kind {
        Kind::Fake
    }
    fn address(&self) -> &Address {
        &self.address
    }
    fn server_name(&self) -> &str {
        "fake"
    }
    fn max_grant(&self) -> Bytes {
        Bytes(self.lock().max_grant())
    }
    fn lease(&self) -> Duration {
        Duration::from_secs(10)
    }
    fn lane(&self, _kind: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        Ok(Box::new(FakeLane {
            transport: self.clone(),
            done: VecDeque::new(),
        }))
    }
    fn call(&self, control: Control, _deadline: Duration) -> Result<Answer, NetError> {
        self.lock()
            .control(control)
            .map_err(|error| NetError::from_op(&self.address, error))
    }
    fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }
    fn drain_left(&self) -> Option<Duration> {
        None
    }
    fn resumes(&self) -> u64 {
        0
    }
}

struct FakeLane {
    transport: FakeTransport,
    done: VecDeque<Done>,
}

impl Lane for FakeLane {
    fn address(&self) -> &Address {
        &self.transport.address
    }
    fn post(&mut self, mut op: Op) -> Result<(), Op> {
        if self.done.len() >= DATA_WINDOW {
            return Err(op);
        }
        let result = self.transport.lock().run(&mut op);
        self.done.push_back(Completion {
            operation: op,
            result,
        });
        Ok(())
    }
    fn poll(&mut self, _wait: Duration) -> Option<Done> {
        self.done.pop_front()
    }
    fn under_way(&self) -> usize {
        self.done.len()
    }
    fn put_back(&mut self, done: Done) {
        self.done.push_back(done);
    }
    fn abandon(&mut self, token: u64) {
        self.done.retain(|done| done.operation.token != token);
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }
}
