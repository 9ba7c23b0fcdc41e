//! The pool below the engine, for real: sessions at memory servers.
//!
//! Through shared memory a transfer is a copy: the grant is mapped here, and no lane, no lock and no
//! other thread has a part in it. (That a server took the memory back shows as SIGBUS, which ends
//! the process, or in the hash of what is read.) Over a wire, pages of one batch travel together:
//! neighbouring slots in one segment, reads on the critical lane, writes on the bulk lane.
//!
//! Grants are asked for ahead of need by the [clerk](crate::clerk), which may wait for a server while
//! faults are served.

use crate::below::{Far, FarError, Transfer};
use crate::chunk::Page;
use crate::clerk::Clerk;
use crate::slots::GRANT_SLOTS;
use muninn_net::{Answer, Control, Grant, Kind, Lane, Mapped, NetError, Pool, Transport};
use muninn_policy::placement::Placement;
use muninn_policy::replenish::{Bounds, Replenish};
use muninn_sys::clock;
use muninn_types::{Bytes, Class, LaneKind, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take to give memory while the program waits.
const GRANT_DEADLINE: Duration = Duration::from_secs(10);
/// Mapped grants that are remembered: a power of two.
const KNOWN: usize = 256;
/// Pages of one operation on a wire.
const WIRE_PAGES: usize = 64;

struct Member {
    transport: Arc<dyn Transport>,
    critical: Box<dyn Lane>,
    bulk: Box<dyn Lane>,
}

pub struct Servers {
    members: Vec<Member>,
    known: Vec<Option<(Grant, Mapped)>>,
    replenish: Replenish,
    clerk: Arc<Clerk>,
    /// Pages of a batch, one after the other, as a wire wants them.
    bounce: Box<[Page]>,
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.members.iter().map(|member| &member.transport))
            .finish()
    }
}

/// What is asked for once a process forks: whatever is written after a fork goes to new grants, and
/// those from before are given back only when nothing is left in them.
const SMALL_GRANT: Bytes = Bytes::mib(2);
/// Grants that fill a server's largest, at most: they are shared with one request.
const SMALL_PARTS: u64 = 32;

/// Asks the servers for memory, in a process's own order, until one has some.
pub fn ask_for_grant(
    transports: &[Arc<dyn Transport>],
    placement: &mut Placement,
    small: bool,
) -> Result<Grant, FarError> {
    let mut refusals = String::new();
    let order: Vec<ServerId> = placement.sequence().collect();
    for server in order {
        let transport = &transports[server.0 as usize];
        let wanted = match small {
            true => SMALL_GRANT.max(Bytes(transport.max_grant().0 / SMALL_PARTS)),
            false => Bytes::pages(u64::from(GRANT_SLOTS)),
        };
        // A server with little left may still have a smaller piece.
        let mut bytes = wanted.min(transport.max_grant());
        while bytes >= Bytes::pages(16) {
            match transport.call(Control::Grant { bytes: bytes.0 }, GRANT_DEADLINE) {
                Ok(Answer::Granted(info)) => {
                    placement.handle_room(server);
                    return Ok(Grant {
                        server,
                        id: info.grant,
                        bytes: Bytes(info.bytes),
                    });
                }
                Ok(_) => unreachable!("a request for a grant is answered with one"),
                Err(error) if Pool::is_full(&error) => {
                    bytes = Bytes(bytes.0 / 4);
                    if bytes < Bytes::pages(16) {
                        placement.handle_refusal(server);
                        refusals = format!("{refusals}{error}; ");
                    }
                }
                Err(error) => return Err(FarError::Lost(error.to_string())),
            }
        }
    }
    Err(FarError::Full(format!(
        "{refusals}give the pool more memory (muninn serve), or the program more local memory"
    )))
}

impl Servers {
    pub fn new(clerk: Arc<Clerk>) -> Servers {
        Servers {
            members: Vec::new(),
            known: (0..KNOWN).map(|_| None).collect(),
            replenish: Replenish::new(Bounds::default()),
            clerk,
            bounce: vec![[0; PAGE_SIZE]; WIRE_PAGES].into_boxed_slice(),
        }
    }

    /// Makes sure that there is a lane to each server: before the first grant of each is used.
    pub fn connect(&mut self) -> Result<(), FarError> {
        if !self.members.is_empty() {
            return Ok(());
        }
        let lost = |error: NetError| FarError::Lost(error.to_string());
        let mut members = Vec::new();
        for transport in self.clerk.transports()? {
            members.push(Member {
                critical: transport.lane(LaneKind::Critical).map_err(lost)?,
                bulk: transport.lane(LaneKind::Bulk).map_err(lost)?,
                transport,
            });
        }
        self.members = members;
        Ok(())
    }

    fn is_mapped(&self, grant: &Grant) -> bool {
        self.members[grant.server.0 as usize].transport.kind() == Kind::Shm
    }

    /// Where a page of a mapped grant is.
    fn place(&mut self, grant: &Grant, place: u32) -> Result<*mut Page, FarError> {
        let entry = &mut self.known[grant.id.0 as usize % KNOWN];
        if entry.as_ref().is_none_or(|(known, _)| known != grant) {
            let transport = &self.members[grant.server.0 as usize].transport;
            let mapped = transport.mapped(grant.id).ok_or_else(|| {
                FarError::Lost(format!(
                    "{} of server '{}' is no longer mapped",
                    grant.id,
                    transport.server_name()
                ))
            })?;
            *entry = Some((*grant, mapped));
        }
        let (_, mapped) = entry.as_ref().expect("it was just put there");
        let offset = mapped.offset as usize + place as usize * PAGE_SIZE;
        assert!((place as usize + 1) * PAGE_SIZE <= mapped.bytes.0 as usize);
        // SAFETY: inside of the grant, which lies inside of the mapping.
        Ok(unsafe { mapped.map.as_ptr().add(offset).cast() })
    }

    /// Does a batch over a wire, in operations of at most 64 pages at one server.
    fn over_wire(
        &mut self,
        transfers: &[Transfer],
        class: Class,
        writing: bool,
    ) -> Result<(), FarError> {
        for batch in transfers.chunks(WIRE_PAGES) {
            let mut rest = batch;
            while let Some(first) = rest.first() {
                let server = first.grant.server;
                let len = rest.iter().take_while(|t| t.grant.server == server).count();
                let (now, later) = rest.split_at(len);
                rest = later;
                self.at_server(now, class, writing)?;
            }
        }
        Ok(())
    }

    fn at_server(
        &mut self,
        batch: &[Transfer],
        class: Class,
        writing: bool,
    ) -> Result<(), FarError> {
        let mut segs: Vec<Seg> = Vec::with_capacity(batch.len());
        for transfer in batch {
            let offset = transfer.place * PAGE_SIZE as u32;
            match segs.last_mut() {
                Some(last)
                    if last.grant == transfer.grant.id && last.offset + last.len == offset =>
                {
                    last.len += PAGE_SIZE as u32;
                }
                _ => segs.push(Seg::new(transfer.grant.id, offset, PAGE_SIZE as u32)),
            }
        }
        let member = &mut self.members[batch[0].grant.server.0 as usize];
        let lane = match class.lane() {
            LaneKind::Bulk => &mut member.bulk,
            _ => &mut member.critical,
        };
        if writing {
            for (to, transfer) in self.bounce.iter_mut().zip(batch) {
                // SAFETY: readable, as the caller of `write` says.
                *to = unsafe { *transfer.near };
            }
        }
        let bytes = self.bounce[..batch.len()].as_flattened_mut();
        let done = match writing {
            true => lane.write_v(class, &segs, bytes),
            false => lane.read_v(class, &segs, bytes),
        };
        done.map_err(|error| FarError::Lost(error.to_string()))?;
        if !writing {
            for (from, transfer) in self.bounce.iter().zip(batch) {
                // SAFETY: writable and ours, as the caller of `read` says.
                unsafe { *transfer.near = *from };
            }
        }
        Ok(())
    }
}

impl Far for Servers {
    unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError> {
        if transfers
            .iter()
            .all(|transfer| self.is_mapped(&transfer.grant))
        {
            for transfer in transfers {
                let far = self.place(&transfer.grant, transfer.place)?;
                // SAFETY: `far` lies in a mapping that is kept; `near` is the caller's promise.
                unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
            }
            return Ok(());
        }
        self.over_wire(transfers, class, false)
    }

    unsafe fn write(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError> {
        if transfers
            .iter()
            .all(|transfer| self.is_mapped(&transfer.grant))
        {
            for transfer in transfers {
                let far = self.place(&transfer.grant, transfer.place)?;
                // SAFETY: as in `read`, the other way.
                unsafe { far.copy_from_nonoverlapping(transfer.near, 1) };
            }
            return Ok(());
        }
        self.over_wire(transfers, class, true)
    }

    fn grant(&mut self) -> Result<Grant, FarError> {
        self.connect()?;
        self.clerk.grant_now()
    }

    fn granted(&mut self) -> Option<Grant> {
        let grant = self.clerk.take_granted()?;
        self.replenish.handle_answer(clock::now());
        Some(grant)
    }

    fn replenish(&mut self, free: u64, evicted: u64) {
        let now = clock::now();
        self.replenish.handle_evicted(evicted, now);
        if self.replenish.poll_request(free, now).is_some() {
            self.clerk.want_grant();
        }
    }

    fn release(&mut self, grant: Grant) {
        self.known[grant.id.0 as usize % KNOWN] = None;
        self.clerk.release(grant);
    }
}
