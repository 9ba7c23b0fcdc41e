//! The shared-memory transport: the session's segments are mapped, and an access is a copy.
//!
//! The server's CPU has no part in an access, so the server cannot say no either: what keeps a
//! client from using memory that it has lost is the lease. An access is good if the lease was still
//! running when it ended; the clock is asked after each. Copies and atomic operations survive that
//! the server takes the memory back in the middle of one (`guarded_copy`), and report it.

use crate::error::NetError;
use crate::lane::{Done, Lane, Op, checked_total};
use crate::session::{DATA_WINDOW, Session, SessionCore, SessionOptions};
use crate::transport::{Beat, Kind, Mapped, Transport};
use muninn_proto::client::{Answer, Completion, Control, OpError, Verb};
use muninn_sys::clock;
use muninn_sys::memory::{
    Access, BusFault, Mapping, guarded_compare_swap, guarded_copy, guarded_fetch_add,
};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, GrantId, LaneKind, SessionId};
use muninn_wire::{ErrorCode, GrantInfo, Refusal, Seg, Transport as Wire};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Number and incarnation of a segment.
type SegmentKey = (u32, u32);

/// Segments, and grants in them.
///
/// The server sends a segment's file with the first grant in it and counts on the client to keep it
/// until the last one is released. So segments come and go in the order of the server's answers,
/// and a grant that is being released still counts.
#[derive(Debug, Default)]
struct Maps {
    segments: HashMap<SegmentKey, (Arc<Mapping>, u32)>,
    grants: HashMap<GrantId, (Mapped, SegmentKey)>,
    /// Asked to be released, and not answered yet: no longer to be found.
    leaving: HashMap<GrantId, (Mapped, SegmentKey)>,
}

#[derive(Debug, Default)]
struct Table {
    maps: RwLock<Maps>,
    /// Changes when a grant goes, so that lanes drop what they remember.
    changes: AtomicU64,
}

impl Table {
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a grant, mapping its segment if this is the first of it.
    fn add(
        &self,
        info: &GrantInfo,
        writable: bool,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> Result<(), String> {
        let key = (info.segment.0, info.incarnation);
        let mut maps = self.write();
        if info.descriptor {
            let fd = fds.next().ok_or("the server sent no descriptor")?;
            let access = if writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            };
            let options = Mapping::options().shared().no_reserve().ours();
            let options = options.access(access);
            let map = options
                .file(&fd, 0, Bytes(info.segment_bytes))
                .map_err(|e| e.to_string())?;
            maps.segments.insert(key, (Arc::new(map), 0));
        }
        if maps.grants.contains_key(&info.grant) {
            // Its own, adopted: the server does not count it twice either.
            return Ok(());
        }
        let (map, users) = maps
            .segments
            .get_mut(&key)
            .ok_or("the segment was never mapped")?;
        let end = info.segment_offset.checked_add(info.bytes);
        if end.is_none_or(|end| end > map.len() as u64) {
            return Err("the grant lies outside of its segment".to_string());
        }
        *users += 1;
        let bytes = Bytes(info.bytes);
        let mapped = Mapped {
            map: Arc::clone(map),
            offset: info.segment_offset,
            bytes,
            writable,
        };
        maps.grants.insert(info.grant, (mapped, key));
        Ok(())
    }

    /// Lets no lane find these any more.
    fn leave(&self, grants: &[GrantId]) {
        let mut maps = self.write();
        for grant in grants {
            if let Some(entry) = maps.grants.remove(grant) {
                maps.leaving.insert(*grant, entry);
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The server has them back: drops the mappings of segments that have none left.
    fn gone(&self, grants: &[GrantId]) {
        let mut maps = self.write();
        for grant in grants {
            let Some((_, key)) = maps.leaving.remove(grant) else {
                continue;
            };
            if let Some((_, users)) = maps.segments.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    maps.segments.remove(&key);
                }
            }
        }
    }

    /// The server refused to take them: they are still ours.
    fn stay(&self, grants: &[GrantId]) {
        let mut maps = self.write();
        for grant in grants {
            if let Some(entry) = maps.leaving.remove(grant) {
                maps.grants.insert(*grant, entry);
            }
        }
    }

    /// Shared grants are immutable from then on. Gives back those that were not before.
    fn freeze(&self, grants: &[GrantId]) -> Vec<GrantId> {
        let mut frozen = Vec::with_capacity(grants.len());
        let mut maps = self.write();
        for grant in grants {
            if let Some((mapped, _)) = maps.grants.get_mut(grant)
                && std::mem::replace(&mut mapped.writable, false)
            {
                frozen.push(*grant);
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
        frozen
    }

    /// The server refused to share them.
    fn thaw(&self, grants: &[GrantId]) {
        let mut maps = self.write();
        for grant in grants {
            if let Some((mapped, _)) = maps.grants.get_mut(grant) {
                mapped.writable = true;
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
    }
}

#[derive(Debug)]
pub struct ShmSession {
    session: Session,
    table: Arc<Table>,
}

impl ShmSession {
    pub fn open(address: &Address, options: &SessionOptions) -> Result<ShmSession, NetError> {
        let session = Session::open(address, Wire::Shm, options, None)?;
        Ok(ShmSession {
            session,
            table: Arc::default(),
        })
    }

    /// Breaks the control connection, as a fault would.
    pub fn cut(&self) {
        self.session.cut();
    }
}

impl Transport for ShmSession {
    fn kind(&self) -> Kind {
        Kind::Shm
    }
    fn address(&self) -> &Address {
        &self.session.core.address
    }
    fn server_name(&self) -> &str {
        self.session.core.server.as_str()
    }
    fn max_grant(&self) -> Bytes {
        self.session.core.max_grant
    }
    fn lease(&self) -> Duration {
        self.session.core.lease
    }
    fn lane(&self, _kind: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        Ok(Box::new(ShmLane {
            core: Arc::clone(&self.session.core),
            table: Arc::clone(&self.table),
            done: VecDeque::with_capacity(DATA_WINDOW),
            known: [const { None }; KNOWN],
            changes: 0,
        }))
    }

    fn call_lane(&self) -> Result<Box<dyn Lane>, NetError> {
        Ok(Box::new(self.session.lane(LaneKind::Critical)?))
    }
    fn session(&self) -> SessionId {
        self.session.core.id
    }
    fn is_leased(&self) -> bool {
        self.lost().is_none() && clock::now() < self.session.core.sure_until()
    }

    fn call(&self, control: Control, deadline: Duration) -> Result<Answer, NetError> {
        // Once the server has them back, nothing here may point at them; so they go first.
        let (mut leaving, mut frozen) = (Vec::new(), Vec::new());
        match &control {
            Control::Release(grants) => {
                self.table.leave(grants);
                leaving.clone_from(grants);
            }
            Control::Share(grants) => frozen = self.table.freeze(grants),
            _ => {}
        }
        let mut on_answer = |asked: &Control, answer: &Answer, fds: &mut dyn Iterator<Item = _>| {
            match (asked, answer) {
                (_, Answer::Granted(info)) => self.table.add(info, true, fds)?,
                (_, Answer::Adopted(infos)) => {
                    for info in infos {
                        self.table.add(info, false, fds)?;
                    }
                }
                (_, Answer::Opened(_, infos)) => {
                    for info in infos {
                        self.table.add(info, true, fds)?;
                    }
                }
                (Control::Release(grants), _) => self.table.gone(grants),
                _ => {}
            }
            Ok(())
        };
        let answered = self.session.call_with(control, deadline, &mut on_answer);
        // Refused is surely not done. After anything else the server may have done it.
        if let Err(NetError::Refused(..) | NetError::Operation(_)) = &answered {
            self.table.stay(&leaving);
            self.table.thaw(&frozen);
        }
        self.session
            .release_strays(|strays| self.call(Control::Release(strays), deadline));
        answered
    }

    fn mapped(&self, grant: GrantId) -> Option<Mapped> {
        self.table
            .read()
            .grants
            .get(&grant)
            .map(|(mapped, _)| mapped.clone())
    }
    fn heartbeat(&self) -> bool {
        self.session.heartbeat()
    }
    fn beat(&self, patience: Duration) -> Beat {
        self.session.beat(patience)
    }
    fn lost(&self) -> Option<String> {
        self.session.core.lost()
    }
    fn asked_back(&self) -> Bytes {
        self.session.core.asked_back()
    }
    fn drain_left(&self) -> Option<Duration> {
        self.session.core.drain_left()
    }
    fn resumes(&self) -> u64 {
        self.session.core.resumes()
    }
}

/// Does every operation at once.
struct ShmLane {
    core: Arc<SessionCore>,
    table: Arc<Table>,
    done: VecDeque<Done>,
    /// Grants used lately, each at the place its id gives it, so that most are found without the
    /// table's lock.
    known: [Option<(GrantId, Mapped)>; KNOWN],
    changes: u64,
}

/// A power of two.
const KNOWN: usize = 64;

impl ShmLane {
    fn find(&mut self, grant: GrantId) -> Result<&Mapped, OpError> {
        let changes = self.table.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.changes = changes;
            self.known.fill(None);
        }
        let place = &mut self.known[grant.0 as usize % KNOWN];
        if place.as_ref().is_none_or(|(id, _)| *id != grant) {
            let maps = self.table.read();
            let (mapped, _) = maps
                .grants
                .get(&grant)
                .ok_or_else(|| refused(ErrorCode::NoGrant, grant.0, 0))?;
            *place = Some((grant, mapped.clone()));
        }
        Ok(&place.as_ref().expect("it was just found").1)
    }

    /// Address of a segment, checked against its grant.
    fn place(&mut self, seg: &Seg, writing: bool) -> Result<*mut u8, OpError> {
        let mapped = self.find(seg.grant)?;
        if writing && !mapped.writable {
            return Err(refused(ErrorCode::Frozen, seg.grant.0, 0));
        }
        if u64::from(seg.offset) + u64::from(seg.len) > mapped.bytes.0 {
            return Err(refused(ErrorCode::OutOfBounds, seg.grant.0, mapped.bytes.0));
        }
        let at = mapped.offset + u64::from(seg.offset);
        // SAFETY: the grant lies inside of the mapping (checked when it was added) and the segment
        // inside of the grant.
        Ok(unsafe { mapped.map.as_ptr().add(at as usize) })
    }

    fn copy(&mut self, segs: &[Seg], direction: Direction<'_>) -> Result<Answer, OpError> {
        let (near, len, writing) = match direction {
            Direction::Read(into) => (into.as_mut_ptr(), into.len(), false),
            Direction::Write(from) => (from.as_ptr().cast_mut(), from.len(), true),
        };
        checked_total(segs, len)?;
        if segs.len() > 1 {
            // All or nothing, as a server has it: a list with a bad segment is not done in part.
            for seg in segs {
                self.place(seg, writing)?;
            }
        }
        let mut at = 0;
        for seg in segs {
            let far = self.place(seg, writing)?;
            let near = near.wrapping_add(at);
            let (to, from) = if writing { (far, near) } else { (near, far) };
            // SAFETY: `near` lies in the slice, as all segments together are no longer than it;
            // `far` in a mapping that `self.known` keeps mapped with the access needed, and no
            // reference into it exists. Other clients cannot have it mapped unless this one shared
            // it.
            unsafe { guarded_copy(to, from, seg.len as usize) }.map_err(taken_back)?;
            at += seg.len as usize;
        }
        self.still_leased(Answer::Done)
    }

    fn plain_copy(&mut self, segs: &[Seg], direction: Direction<'_>) -> Result<(), NetError> {
        let done = match self.core.lost() {
            Some(why) => Err(OpError::SessionLost(why)),
            None => self.copy(segs, direction),
        };
        done.map(|_| ())
            .map_err(|error| NetError::from_op(&self.core.address, error))
    }

    /// Address of a word, checked against its grant in the order in which a server checks.
    fn word(&mut self, grant: GrantId, offset: u32) -> Result<*mut u64, OpError> {
        let size = self.find(grant)?.bytes.0;
        if !offset.is_multiple_of(8) {
            return Err(refused(ErrorCode::Misaligned, 0, 0));
        }
        if u64::from(offset) + 8 > size {
            return Err(refused(ErrorCode::OutOfBounds, grant.0, size));
        }
        // Aligned: the offset is a multiple of 8 and grants start at pages.
        Ok(self.place(&Seg::new(grant, offset, 8), true)?.cast())
    }

    /// The answer, if the memory was surely still ours when it was touched.
    fn still_leased(&self, answer: Answer) -> Result<Answer, OpError> {
        if clock::now() < self.core.sure_until() {
            return Ok(answer);
        }
        let why = self.core.lost().unwrap_or_else(|| {
            format!("the lease of {:?} ran out without contact", self.core.lease)
        });
        Err(OpError::SessionLost(why))
    }

    fn run(&mut self, op: &mut Op) -> Result<Answer, OpError> {
        if let Some(why) = self.core.lost() {
            return Err(OpError::SessionLost(why));
        }
        match &op.verb {
            Verb::Read(segs) => self.copy(segs, Direction::Read(op.data.as_mut())),
            Verb::Write(segs) => self.copy(segs, Direction::Write(op.data.as_ref())),
            Verb::CompareSwap {
                grant,
                offset,
                expect,
                new,
            } => {
                let word = self.word(*grant, *offset)?;
                // SAFETY: inside of a writable mapping that `self.known` keeps, and aligned; others
                // access it by atomic operations or copies that race as the protocol allows.
                let old = unsafe { guarded_compare_swap(word, *expect, *new) };
                self.still_leased(Answer::Old(old.map_err(taken_back)?))
            }
            Verb::FetchAdd { grant, offset, add } => {
                let word = self.word(*grant, *offset)?;
                // SAFETY: as above.
                let old = unsafe { guarded_fetch_add(word, *add) };
                self.still_leased(Answer::Old(old.map_err(taken_back)?))
            }
            Verb::Call { .. } | Verb::Control(_) => Err(refused(ErrorCode::Malformed, 0, 0)),
        }
    }
}

/// Which way a copy goes, and what is near.
enum Direction<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

fn taken_back(_: BusFault) -> OpError {
    OpError::SessionLost("the server took the memory back".to_string())
}

fn refused(code: ErrorCode, a: u64, b: u64) -> OpError {
    OpError::Refused(Refusal::with(code, a, b))
}

impl Lane for ShmLane {
    fn address(&self) -> &Address {
        &self.core.address
    }
    fn post(&mut self, mut op: Op) -> Result<(), Op> {
        if self.done.len() >= DATA_WINDOW {
            return Err(op);
        }
        let result = self.run(&mut op);
        self.done.push_back(Completion {
            operation: op,
            result,
        });
        Ok(())
    }
    /// Without the way through post and poll: half of the time would go into that.
    fn read_v(&mut self, _class: Class, segs: &[Seg], into: &mut [u8]) -> Result<(), NetError> {
        self.plain_copy(segs, Direction::Read(into))
    }
    fn write_v(&mut self, _class: Class, segs: &[Seg], from: &[u8]) -> Result<(), NetError> {
        self.plain_copy(segs, Direction::Write(from))
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
        self.core.deadline
    }
}
