//! Several servers as one pool: ask for memory, read it, write it, share it, give it back.

use crate::error::NetError;
use crate::lane::Lane;
use crate::session::SessionOptions;
use crate::transport::{Transport, connect};
use muninn_policy::placement::Placement;
use muninn_proto::client::{Answer, Control};
use muninn_sys::proc;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, GrantId, LaneKind, ServerId};
use muninn_wire::{ErrorCode, MAX_GRANTS, MAX_PAYLOAD, Seg, TICKET_LEN};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub type PoolOptions = SessionOptions;

/// Memory at a server. Released with [`Pool::release`], or with the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub server: ServerId,
    pub id: GrantId,
    pub bytes: Bytes,
}

/// Grants on their way to another session at the same server; see [`Pool::share`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub server: ServerId,
    pub ticket: [u8; TICKET_LEN],
}

struct Member {
    transport: Arc<dyn Transport>,
    critical: Mutex<Box<dyn Lane>>,
    bulk: Mutex<Box<dyn Lane>>,
}

impl Member {
    fn new(transport: Arc<dyn Transport>) -> Result<Member, NetError> {
        let critical = Mutex::new(transport.lane(LaneKind::Critical)?);
        let bulk = Mutex::new(transport.lane(LaneKind::Bulk)?);
        Ok(Member {
            transport,
            critical,
            bulk,
        })
    }

    fn lane(&self, class: Class) -> MutexGuard<'_, Box<dyn Lane>> {
        let lane = match class.lane() {
            LaneKind::Bulk => &self.bulk,
            _ => &self.critical,
        };
        lane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sessions at all servers of a pool. Threads may share it; one that moves much data should take
/// lanes of its own ([`Pool::transport`]).
pub struct Pool {
    members: Vec<Member>,
    placement: Mutex<Placement>,
    options: PoolOptions,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.members.iter().map(|m| &m.transport))
            .finish()
    }
}

impl Pool {
    /// Connects to every server of a list such as `unix:/run/muninn.sock,10.0.0.5:7000`.
    pub fn connect(servers: &str, options: PoolOptions) -> Result<Pool, NetError> {
        let names = servers
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let addresses = names.map(str::parse).collect::<Result<Vec<Address>, _>>()?;
        let connected: Result<Vec<_>, _> = addresses.iter().map(|a| connect(a, &options)).collect();
        Pool::new(connected?, options)
    }

    /// A pool of sessions that are open already.
    pub fn new(
        transports: Vec<Arc<dyn Transport>>,
        options: PoolOptions,
    ) -> Result<Pool, NetError> {
        if transports.is_empty() {
            return Err(NetError::NoServers);
        }
        let servers: Vec<ServerId> = (0..transports.len() as u32).map(ServerId).collect();
        let placement = Placement::new(0, u64::from(proc::own_pid()), &servers);
        let members: Result<Vec<_>, _> = transports.into_iter().map(Member::new).collect();
        Ok(Pool {
            members: members?,
            placement: Mutex::new(placement),
            options,
        })
    }

    fn member(&self, server: ServerId) -> Result<&Member, NetError> {
        self.members.get(server.0 as usize).ok_or(NetError::Foreign)
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
    pub fn transport(&self, server: ServerId) -> Result<&Arc<dyn Transport>, NetError> {
        self.member(server).map(|member| &member.transport)
    }

    /// Asks for memory, at the servers in this process's own order until one has it. A grant is a
    /// power of two of pages, so it may be larger than what was asked for.
    pub fn grant(&self, bytes: Bytes) -> Result<Grant, NetError> {
        let order: Vec<ServerId> = self
            .placement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .sequence()
            .collect();
        let mut refusals = Vec::new();
        for server in order {
            match self.grant_at(server, bytes) {
                Ok(grant) => return Ok(grant),
                Err(error) => refusals.push(error),
            }
        }
        match refusals.len() {
            1 => Err(refusals.remove(0)),
            _ => {
                let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                Err(NetError::NoRoom(bytes, all.join("; ")))
            }
        }
    }

    /// Asks one server.
    pub fn grant_at(&self, server: ServerId, bytes: Bytes) -> Result<Grant, NetError> {
        let ask = Control::Grant { bytes: bytes.0 };
        match self
            .member(server)?
            .transport
            .call(ask, self.options.deadline)?
        {
            Answer::Granted(info) => Ok(Grant {
                server,
                id: info.grant,
                bytes: Bytes(info.bytes),
            }),
            _ => unreachable!("a request for a grant is answered with one"),
        }
    }

    pub fn read(&self, grant: &Grant, offset: u64, into: &mut [u8]) -> Result<(), NetError> {
        check(grant, offset, into.len())?;
        let mut lane = self.member(grant.server)?.lane(Class::Demand);
        let mut at = offset;
        for chunk in into.chunks_mut(MAX_PAYLOAD) {
            let seg = Seg::new(grant.id, at as u32, chunk.len() as u32);
            lane.read_v(Class::Demand, &[seg], chunk)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    pub fn write(&self, grant: &Grant, offset: u64, from: &[u8]) -> Result<(), NetError> {
        check(grant, offset, from.len())?;
        let class = Class::Eviction(4);
        let mut lane = self.member(grant.server)?.lane(class);
        let mut at = offset;
        for chunk in from.chunks(MAX_PAYLOAD) {
            let seg = Seg::new(grant.id, at as u32, chunk.len() as u32);
            lane.write_v(class, &[seg], chunk)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Replaces the word at `offset` (a multiple of 8) if it is `expect`; the word found.
    pub fn compare_swap(
        &self,
        grant: &Grant,
        offset: u64,
        expect: u64,
        new: u64,
    ) -> Result<u64, NetError> {
        check(grant, offset, 8)?;
        let mut lane = self.member(grant.server)?.lane(Class::Demand);
        lane.compare_swap(grant.id, offset as u32, expect, new)
    }

    /// Adds to the word at `offset` (a multiple of 8); the word found.
    pub fn fetch_add(&self, grant: &Grant, offset: u64, add: u64) -> Result<u64, NetError> {
        check(grant, offset, 8)?;
        let mut lane = self.member(grant.server)?.lane(Class::Demand);
        lane.fetch_add(grant.id, offset as u32, add)
    }

    /// Makes grants of one server immutable and gives a ticket with which another session there can
    /// read them, under the same ids, once.
    pub fn share(&self, grants: &[Grant]) -> Result<Share, NetError> {
        let server = grants.first().ok_or(NetError::Foreign)?.server;
        if grants.iter().any(|grant| grant.server != server) {
            return Err(NetError::Foreign);
        }
        let ask = Control::Share(grants.iter().map(|grant| grant.id).collect());
        match self
            .member(server)?
            .transport
            .call(ask, self.options.deadline)?
        {
            Answer::Ticket(ticket) => Ok(Share { server, ticket }),
            _ => unreachable!("a request to share is answered with a ticket"),
        }
    }

    /// Takes over what another session shared; the pool must list the same servers in the same
    /// order.
    pub fn adopt(&self, share: &Share) -> Result<Vec<Grant>, NetError> {
        let server = share.server;
        let ask = Control::Adopt {
            ticket: share.ticket,
        };
        match self
            .member(server)?
            .transport
            .call(ask, self.options.deadline)?
        {
            Answer::Adopted(infos) => Ok(infos
                .iter()
                .map(|info| Grant {
                    server,
                    id: info.grant,
                    bytes: Bytes(info.bytes),
                })
                .collect()),
            _ => unreachable!("a request to adopt is answered with grants"),
        }
    }

    /// Gives grants back. Their bytes are wiped before anyone else gets the memory.
    pub fn release(&self, grants: &[Grant]) -> Result<(), NetError> {
        for server in (0..self.members.len() as u32).map(ServerId) {
            let ids: Vec<GrantId> = grants
                .iter()
                .filter(|grant| grant.server == server)
                .map(|grant| grant.id)
                .collect();
            for some in ids.chunks(MAX_GRANTS) {
                let ask = Control::Release(some.to_vec());
                self.member(server)?
                    .transport
                    .call(ask, self.options.deadline)?;
            }
        }
        Ok(())
    }

    /// Whether an error of [`Pool::grant`] only means that there is no room.
    pub fn is_full(error: &NetError) -> bool {
        matches!(error, NetError::NoRoom(..))
            || error.is_refusal(ErrorCode::PoolFull)
            || error.is_refusal(ErrorCode::QuotaExceeded)
            || error.is_refusal(ErrorCode::Draining)
    }
}

fn check(grant: &Grant, offset: u64, len: usize) -> Result<(), NetError> {
    let end = offset.checked_add(len as u64);
    if end.is_none_or(|end| end > grant.bytes.0) {
        return Err(NetError::OutOfBounds(
            offset,
            Bytes(len as u64),
            grant.bytes,
        ));
    }
    Ok(())
}
