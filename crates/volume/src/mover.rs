//! The mover: gives a copy of an extent, or a piece of its rows, to a server that has none of it yet, or
//! that missed some.
//!
//! One piece of code for all reasons to move: a copy was lost or fell behind, a server is to be emptied. It runs in the
//! clerk's thread, over lanes of its own in the lowest class, a run of at most 64 pages at a time. The
//! writer goes on meanwhile: it writes to the members there are, and marks what is to be copied again
//! ([`Fill`]). When little is left to copy, the writer copies that itself and counts the new member in.
//!
//! Invariant: every wait is bounded, since leases are renewed by the same thread; between runs `pulse` is
//! called, which does that, and says when to stop.

use crate::code::{Recipe, Vector};
use crate::extent::{Fill, Holding};
use crate::roster::Roster;
use crate::sums::Sums;
use crate::volume::Page;
use crate::wire::OPERATION_PAGES;
use muninn_net::{Buffer, Kind, Lane, Mapped, Operation, Verb};
use muninn_policy::stripe::{Pieces, Stripes};
use muninn_types::{Class, LaneKind, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;
use std::time::Duration;

/// How long one run may take at a server.
const PATIENCE: Duration = Duration::from_millis(500);
/// What may be left for the writer to copy, and how often all that was written meanwhile is copied
/// again before the writer is asked to do the rest.
const REST_PAGES: u32 = 64;
const PASSES_MAX: u32 = 8;

/// What is to be copied.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Of the member that is filled.
    pub pages: u32,
    /// Which piece it holds.
    pub piece: u8,
    /// Whom to copy from.
    pub members: Vec<(u8, Holding)>,
    /// A member that fell behind, if it is not for a new one.
    pub target: Option<Holding>,
    /// Servers that have a member.
    pub taken: Vec<ServerId>,
    /// The only one that is to have it, if it is not all the same.
    pub to: Option<ServerId>,
    /// There are fewer members than there should be.
    pub degraded: bool,
    pub fill: Arc<Fill>,
    /// With parity.
    pub stripes: Option<Stripes>,
    /// What is copied is compared with these, where there are several copies or parity.
    pub sums: Option<Arc<Sums>>,
}

impl Order {
    fn is_right(&self, row: u32, piece: usize, page: &Page) -> bool {
        let sums = self.sums.as_ref();
        sums.is_none_or(|sums| sums.is_right(row, piece, page))
    }
}

/// The mover's lanes.
pub(crate) struct Courier {
    roster: Arc<Roster>,
    lanes: Vec<Option<(u32, Box<dyn Lane>)>>,
    buffers: Vec<Buffer>,
    token: u64,
}

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// `pulse` said so.
    Asked,
    Failed(String),
}

impl Courier {
    pub(crate) fn new(roster: Arc<Roster>) -> Courier {
        Courier {
            roster,
            lanes: Vec::new(),
            buffers: Vec::new(),
            token: 0,
        }
    }

    /// Copies all that lacks to `target`, but for a rest.
    pub(crate) fn copy(
        &mut self,
        order: &Order,
        target: Holding,
        pulse: &mut dyn FnMut() -> bool,
    ) -> Result<(), Stopped> {
        for _ in 0..PASSES_MAX {
            let mut from = 0;
            while let Some((first, len)) = order.fill.take_run(from) {
                from = first + len;
                let copied = match order.stripes {
                    Some(stripes) => self.make_run(order, stripes, target, first, len),
                    None => self.copy_run(order, target, first, len),
                };
                if copied.is_err() {
                    order.fill.put_back(first, len);
                }
                copied.map_err(Stopped::Failed)?;
                if !pulse() {
                    return Err(Stopped::Asked);
                }
                if from >= order.pages {
                    break;
                }
            }
            if order.fill.count() <= REST_PAGES {
                break;
            }
        }
        Ok(())
    }

    fn copy_run(
        &mut self,
        order: &Order,
        target: Holding,
        first: u32,
        len: u32,
    ) -> Result<(), String> {
        let mut why = "no copy is left".to_string();
        // Pages that are right so far, of whatever copy. What is wrong in all of them is being written, or
        // everybody lies: it is left to the writer, who can tell.
        let mut right: Option<Buffer> = None;
        let mut wrong: Vec<u32> = (0..len).collect();
        for (_, source) in self.sources(order) {
            let buffer = self.buffer();
            let read = match self.transfer(source, first, len, buffer, false) {
                Ok(read) => read,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            let (pages, _) = read.as_ref().as_chunks::<PAGE_SIZE>();
            let mut taken = wrong.clone();
            wrong.retain(|at| !order.is_right(first + at, 0, &pages[*at as usize]));
            taken.retain(|at| !wrong.contains(at));
            match &mut right {
                None => right = Some(read),
                Some(right) => {
                    let (room, _) = right.as_mut().as_chunks_mut::<PAGE_SIZE>();
                    for at in taken {
                        room[at as usize] = pages[at as usize];
                    }
                    self.buffers.push(read);
                }
            }
            if wrong.is_empty() {
                break;
            }
        }
        let right = right.ok_or(why)?;
        let written = self.transfer(target, first, len, right, true)?;
        self.buffers.push(written);
        for at in wrong {
            order.fill.note_written(first + at);
        }
        Ok(())
    }

    fn buffer(&mut self) -> Buffer {
        let kept = self.buffers.pop();
        kept.unwrap_or_else(|| Buffer::new(OPERATION_PAGES * PAGE_SIZE))
    }

    /// Members to read from: those that answer before those that do not.
    fn sources(&self, order: &Order) -> Vec<(u8, Holding)> {
        let mut sources = order.members.clone();
        sources
            .retain(|(_, source)| self.roster.counts(source) && !order.fill.is_gone(source.server));
        sources.sort_by_key(|(_, source)| self.roster.is_suspected(source.server));
        sources
    }

    /// Makes a piece of some rows. A row that does not fit its sums is being written, or somebody lies:
    /// it is left to the writer, who can tell.
    fn make_run(
        &mut self,
        order: &Order,
        stripes: Stripes,
        target: Holding,
        first: u32,
        len: u32,
    ) -> Result<(), String> {
        let piece = usize::from(order.piece);
        let mut sources = self.sources(order);
        // Who has the piece gives it himself.
        sources.sort_by_key(|(held, source)| {
            (
                self.roster.is_suspected(source.server),
                usize::from(*held) != piece,
            )
        });
        let mut read: Vec<(usize, Buffer)> = Vec::new();
        let mut why = "others are gone".to_string();
        let mut got = Pieces::NONE;
        for (held, source) in sources {
            let buffer = self.buffer();
            match self.transfer(source, first, len, buffer, false) {
                Ok(buffer) => {
                    got |= Pieces::one(usize::from(held));
                    read.push((usize::from(held), buffer));
                }
                Err(error) => why = error,
            }
            if got.has(piece) || stripes.suffice(got) {
                break;
            }
        }
        if !got.has(piece) && !stripes.suffice(got) {
            return Err(format!("too few pieces can be read: {why}"));
        }
        let mut out = self.buffer();
        let recipe = Recipe::new(stripes, got, piece);
        let source = |held: usize| {
            let found = read.iter().find(|(known, _)| *known == held);
            &found.expect("it was got").1.as_ref()[..len as usize * PAGE_SIZE]
        };
        let made = &mut out.as_mut()[..len as usize * PAGE_SIZE];
        recipe.make(Vector::detect(), made, source);
        let mut wrong = Vec::new();
        for at in 0..len {
            let right = |piece: usize, pages: &[u8]| {
                let page = &pages.as_chunks::<PAGE_SIZE>().0[at as usize];
                order.is_right(first + at, piece, page)
            };
            if !got.iter().all(|held| right(held, source(held))) || !right(piece, made) {
                wrong.push(first + at);
            }
        }
        let written = self.transfer(target, first, len, out, true)?;
        self.buffers.push(written);
        self.buffers
            .extend(read.into_iter().map(|(_, buffer)| buffer));
        for row in wrong {
            order.fill.note_written(row);
        }
        Ok(())
    }

    fn transfer(
        &mut self,
        at: Holding,
        first: u32,
        len: u32,
        mut buffer: Buffer,
        writing: bool,
    ) -> Result<Buffer, String> {
        let (offset, bytes) = (first as usize * PAGE_SIZE, len as usize * PAGE_SIZE);
        if let Some(mapped) = self.mapped(at)? {
            assert!(offset + bytes <= mapped.bytes.0 as usize);
            let near = &mut buffer.as_mut()[..bytes];
            // SAFETY: inside of the grant, which lies inside of a mapping that `mapped` keeps; `near` is
            // a slice of ours. Others who write to the far side meanwhile mark it, and it is copied again.
            unsafe {
                let far = mapped.map.as_ptr().add(mapped.offset as usize + offset);
                match writing {
                    true => far.copy_from_nonoverlapping(near.as_ptr(), bytes),
                    false => far.copy_to_nonoverlapping(near.as_mut_ptr(), bytes),
                }
            }
            return Ok(buffer);
        }
        let seg = Seg::new(at.grant, offset as u32, bytes as u32);
        let verb = match writing {
            true => Verb::Write(vec![seg]),
            false => Verb::Read(vec![seg]),
        };
        self.token += 1;
        let token = self.token;
        let address = self.roster.address(at.server).clone();
        let lane = self.lane(at)?;
        let operation = Operation {
            verb,
            class: Class::Prefetch,
            data: buffer,
            token,
        };
        if lane.post(operation).is_err() {
            return Err(format!("too many operations under way at {address}"));
        }
        match lane.poll(PATIENCE) {
            Some(done) => match done.result {
                Ok(_) => Ok(done.operation.data),
                Err(error) => Err(format!("the server at {address}: {error}")),
            },
            None => {
                lane.abandon(token);
                self.lanes[at.server.0 as usize] = None;
                self.roster.suspect(at.server);
                // Its next heartbeat may be answered, and nothing else: others are to be asked first.
                self.roster.distrust(at.server);
                Err(format!("the server at {address} does not answer"))
            }
        }
    }

    /// The memory of a grant, where the transport maps it. Its lanes are not used then: they would catch
    /// SIGBUS with a handler, and handlers are the program's own.
    fn mapped(&self, at: Holding) -> Result<Option<Mapped>, String> {
        let session = self.roster.session(at.server);
        let session = session.filter(|(_, generation)| *generation == at.generation);
        let (transport, _) = session.ok_or_else(|| self.roster.why(at.server))?;
        if transport.kind() != Kind::Shm {
            return Ok(None);
        }
        let gone = || format!("{} is no longer mapped", at.grant);
        transport.mapped(at.grant).ok_or_else(gone).map(Some)
    }

    fn lane(&mut self, at: Holding) -> Result<&mut Box<dyn Lane>, String> {
        let number = at.server.0 as usize;
        if number >= self.lanes.len() {
            self.lanes.resize_with(number + 1, || None);
        }
        let entry = &mut self.lanes[number];
        if entry
            .as_ref()
            .is_none_or(|(known, _)| *known != at.generation)
        {
            let session = self.roster.session(at.server);
            let (transport, _) = session
                .filter(|(_, generation)| *generation == at.generation)
                .ok_or_else(|| self.roster.why(at.server))?;
            let lane = transport.lane(LaneKind::Bulk).map_err(|e| e.to_string())?;
            *entry = Some((at.generation, lane));
        }
        Ok(&mut entry.as_mut().expect("it was just put there").1)
    }
}
