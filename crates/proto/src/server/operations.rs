//! What a session can do with its grants: data operations are resolved to spans of the pool, and
//! grants are made, released, shared and adopted.

use super::ledger;
use super::memory::Backing;
use super::pool::{Extent, Ticket};
use super::registry::lock;
use super::session::Session;
use super::shard::{Out, Shared, Span, Step};
use muninn_types::{GrantId, ServiceId};
use muninn_wire::{
    ErrorCode, GrantInfo, GrantList, Header, Opening, Refusal, Segs, TICKET_LEN, Transport,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The most grants of one session, and open share tickets.
const MAX_SESSION_GRANTS: usize = 1 << 16;
const MAX_SESSION_TICKETS: usize = 64;

fn find<B: Backing>(session: &Session<B>, grant: GrantId) -> Result<&Arc<Extent<B>>, Refusal> {
    session
        .grants
        .get(&grant)
        .ok_or_else(|| Refusal::with(ErrorCode::NoGrant, grant.0, 0))
}

fn check_range<B: Backing>(
    extent: &Extent<B>,
    grant: GrantId,
    offset: u32,
    len: u32,
) -> Result<u64, Refusal> {
    if u64::from(offset) + u64::from(len) > extent.bytes() {
        return Err(Refusal::with(
            ErrorCode::OutOfBounds,
            grant.0,
            extent.bytes(),
        ));
    }
    Ok(extent.start() + u64::from(offset))
}

/// All segments of a request, checked, into `out.spans`; neighbours in the pool become one span.
pub(super) fn spans_of<B: Backing>(
    session: &Session<B>,
    segs: Segs<'_>,
    writing: bool,
    out: &mut Out<B>,
) -> Result<(), Refusal> {
    let mut last: Option<(GrantId, u64)> = None;
    for seg in segs.iter() {
        let extent = find(session, seg.grant)?;
        if writing && extent.is_frozen() {
            return Err(Refusal::with(ErrorCode::Frozen, seg.grant.0, 0));
        }
        let at = check_range(extent, seg.grant, seg.offset, seg.len)?;
        match out.spans.last_mut() {
            Some(span) if last == Some((seg.grant, at)) => span.len += seg.len,
            _ => out.spans.push(Span {
                extent: Arc::clone(extent),
                at,
                len: seg.len,
            }),
        }
        last = Some((seg.grant, at + u64::from(seg.len)));
    }
    Ok(())
}

pub(super) fn word_of<B: Backing>(
    session: &Session<B>,
    grant: GrantId,
    offset: u32,
) -> Result<(&Arc<Extent<B>>, u64), Refusal> {
    let extent = find(session, grant)?;
    if !offset.is_multiple_of(8) {
        return Err(Refusal::new(ErrorCode::Misaligned));
    }
    let at = check_range(extent, grant, offset, 8)?;
    if extent.is_frozen() {
        return Err(Refusal::with(ErrorCode::Frozen, grant.0, 0));
    }
    Ok((extent, at))
}

/// Gives a grant to a session and describes it; one that maps memory gets the file with the first
/// grant of a segment.
fn hand_over<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    grant: GrantId,
    extent: &Arc<Extent<B>>,
    out: &mut Out<B>,
) -> GrantInfo {
    let descriptor = session.insert(grant, Arc::clone(extent));
    if descriptor {
        out.descriptors.push(Arc::clone(extent.mem()));
    }
    GrantInfo {
        grant,
        bytes: extent.bytes(),
        segment: extent.segment(),
        incarnation: extent.incarnation(),
        segment_bytes: shared.pool.segment_bytes(extent.segment()).0,
        segment_offset: extent.start(),
        descriptor,
    }
}

pub(super) fn grant<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    bytes: u64,
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    if session.grants.len() >= MAX_SESSION_GRANTS {
        return Err(Refusal::with(
            ErrorCode::TooManyGrants,
            MAX_SESSION_GRANTS as u64,
            0,
        ));
    }
    let info = &session.info;
    let extent = shared
        .pool
        .alloc(info.id, &info.account, info.transport, bytes)?;
    let id = GrantId(shared.next_grant.fetch_add(1, Relaxed));
    let described = hand_over(session, shared, id, &extent, out);
    out.reply(header, |b| described.encode(b));
    Ok(Step::Reply)
}

/// All of them or, if one is not the session's, none.
pub(super) fn release<B: Backing>(
    session: &mut Session<B>,
    grants: GrantList<'_>,
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    for grant in grants.iter() {
        not_common(find(session, grant)?)?;
    }
    for grant in grants.iter() {
        session.remove(grant);
    }
    out.reply(header, |_| {});
    Ok(Step::Reply)
}

pub(super) fn share<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    list: GrantList<'_>,
    key: [u8; TICKET_LEN],
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    let id = session.info.id;
    if session.writes_under_way > 0 {
        // What is shared must not change any more; a client waits for its writes first.
        return Err(Refusal::new(ErrorCode::TryAgain).remark("a write is still arriving"));
    }
    if shared.pool.tickets_of(id) >= MAX_SESSION_TICKETS {
        return Err(Refusal::with(
            ErrorCode::TooManyTickets,
            MAX_SESSION_TICKETS as u64,
            0,
        ));
    }
    let mut grants = Vec::with_capacity(list.iter().len());
    for grant in list.iter() {
        let extent = find(session, grant)?;
        not_common(extent)?;
        grants.push((grant, Arc::clone(extent)));
    }
    if session.transport() == Transport::Shm {
        // Whoever maps a segment sees all of it, so nothing that is not shared may lie in it.
        let shares = |e: &Extent<B>| grants.iter().any(|(_, g)| g.segment() == e.segment());
        let listed = |id: &GrantId| grants.iter().any(|(grant, _)| grant == id);
        let left_out = session
            .grants
            .iter()
            .find(|(grant, extent)| shares(extent) && !listed(grant));
        if let Some((grant, _)) = left_out {
            return Err(Refusal::with(ErrorCode::ShareWhole, grant.0, 0));
        }
        // What was released here but lives on with a session it was shared with before is no
        // secret to whoever maps the segment now: it was this session's, and it cannot change. What
        // is being wiped is neither.
        let wiping = |extent: &Extent<B>| shared.pool.in_segment(extent.segment()).1 > 0;
        if grants.iter().any(|(_, extent)| wiping(extent)) {
            return Err(Refusal::new(ErrorCode::TryAgain));
        }
    }
    for (_, extent) in &grants {
        shared.pool.freeze(extent);
    }
    let mut entry = shared.ledger.open(session.info.source);
    let _ = entry.set(ledger::TICKET_BYTES + grants.capacity() as u64 * 16);
    let ticket = Ticket {
        entry,
        owner: id,
        whose: session.info.owner.clone(),
        transport: session.transport(),
        grants,
        ends: None,
    };
    shared.pool.put_ticket(key, ticket);
    out.reply(header, |b| b.extend_from_slice(&key));
    Ok(Step::Reply)
}

pub(super) fn adopt<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    key: &[u8; TICKET_LEN],
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    let ticket = shared
        .pool
        .take_ticket(key, &session.info.owner, session.transport())
        .ok_or_else(|| Refusal::new(ErrorCode::NoTicket))?;
    let mut infos = Vec::new();
    for (grant, extent) in ticket.grants {
        hand_over(session, shared, grant, &extent, out).encode(&mut infos);
    }
    out.payload = infos;
    out.reply(header, |_| {});
    Ok(Step::Reply)
}

/// What belongs to a service is not a session's to give away.
fn not_common<B: Backing>(extent: &Extent<B>) -> Result<(), Refusal> {
    if extent.is_common() {
        let refusal = Refusal::new(ErrorCode::NotPermitted);
        return Err(refusal.remark("it belongs to a service: close that"));
    }
    Ok(())
}

/// Ties a session to a service and gives it the service's grants.
pub(super) fn open<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    opening: &Opening,
    fresh: ServiceId,
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    if session.transport() == Transport::Shm {
        shared.services.may_tie(session.process)?;
    }
    let (service, keeps) = match opening {
        Opening::Named { name, bytes, locks } => {
            let wanted = (name, *bytes, *locks);
            let (services, by) = (&shared.services, &session.info);
            let service = services.open(&shared.pool, &shared.next_grant, fresh, by, wanted)?;
            (service, true)
        }
        Opening::Guest(id) => {
            let service = shared.services.find(*id)?;
            // Of somebody else's there is none; a nic works on those of all.
            if service.whose != session.info.owner && !session.info.is_server {
                return Err(Refusal::with(ErrorCode::NoService, id.0, 0));
            }
            (service, false)
        }
    };
    let id = service.info.service;
    match session
        .services
        .iter_mut()
        .find(|(s, _)| s.info.service == id)
    {
        Some((_, kept)) if keeps && !*kept => {
            shared.services.tie(&service, true);
            shared.services.untie(&service, false);
            *kept = true;
        }
        Some(_) => {}
        None => {
            shared.services.tie(&service, keeps);
            session.services.push((Arc::clone(&service), keeps));
        }
    }
    let mut infos = Vec::new();
    for (grant, extent) in &service.chunks {
        hand_over(session, shared, *grant, extent, out).encode(&mut infos);
    }
    out.payload = infos;
    out.reply(header, |b| service.info.encode(b));
    Ok(Step::Reply)
}

/// Unties a session from a service: locks it still holds there are freed.
pub(super) fn close<B: Backing>(
    session: &mut Session<B>,
    shared: &Shared<B>,
    id: ServiceId,
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    let tied = session
        .services
        .iter()
        .position(|(service, _)| service.info.service == id);
    let at = tied.ok_or(Refusal::with(ErrorCode::NoService, id.0, 0))?;
    let (service, keeps) = session.services.swap_remove(at);
    for (grant, _) in &service.chunks {
        session.remove(*grant);
    }
    service.free_locks_of(session.info.id.0);
    shared.services.untie(&service, keeps);
    out.reply(header, |_| {});
    Ok(Step::Reply)
}

pub(super) fn note<B: Backing>(
    session: &Session<B>,
    text: muninn_wire::ShortText,
    header: &Header,
    out: &mut Out<B>,
) -> Result<Step, Refusal> {
    *lock(&session.info.note) = text;
    out.reply(header, |_| {});
    Ok(Step::Reply)
}
