//! A pool in the hands of the next process: what is left of it, and how it is built again.

use super::super::buddy::{Buddy, MAX_ORDER, Order};
use super::super::memory::Backing;
use super::super::registry::lock;
use super::{Extent, Job, Pool, PoolConfig, Segment, State, Ticket, Use, Wipe, order_bytes};
use muninn_types::{Bytes, Nanos, PAGE_SIZE, SegmentId};
use muninn_wire::{Estate, EstateError, LeftExtent, LeftSegment, LeftUse, TICKET_LEN};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

/// A pool, and its extents in the order in which they were left.
type Heritage<B> = (Arc<Pool<B>>, Vec<Arc<Extent<B>>>);

impl<B: Backing> State<B> {
    /// Adds a segment as it was left.
    fn inherit<'a>(
        &mut self,
        mem: Arc<B::Segment>,
        left: &LeftSegment,
        extents: impl Iterator<Item = &'a LeftExtent>,
    ) -> Result<(), EstateError> {
        let wrong = EstateError::Contradiction;
        let index = self.segments.len() as u32;
        let frames = (left.bytes / PAGE_SIZE as u64) as u32;
        let mut taken = vec![false; frames as usize];
        let mut take = |frame: u32, order: Order| {
            let end = frame.checked_add(1u32.checked_shl(order.into())?)?;
            let fits = order <= MAX_ORDER && frame.is_multiple_of(1 << order) && end <= frames;
            let chunk = fits.then(|| &mut taken[frame as usize..end as usize])?;
            let alone = !chunk.contains(&true);
            chunk.fill(true);
            alone.then_some(())
        };
        let mut buddy = Buddy::full(frames);
        for &(frame, order) in &left.free {
            take(frame, order).ok_or(wrong("free memory that cannot be"))?;
            buddy.free(frame, order);
        }
        for extent in extents {
            take(extent.frame, extent.order).ok_or(wrong("an extent that cannot be"))?;
        }
        let empty = buddy.is_empty();
        let used = match left.used {
            LeftUse::Free if !empty => return Err(wrong("a free segment that is in use")),
            LeftUse::Retiring if !empty => return Err(wrong("a segment that went while in use")),
            LeftUse::Free => Use::Free,
            LeftUse::Shared if empty => Use::Free,
            LeftUse::Shared => Use::Shared,
            LeftUse::Owned(_) | LeftUse::Retiring if empty => Use::Retiring,
            LeftUse::Owned(session) => Use::Owned(session),
            LeftUse::Retiring => Use::Retiring,
        };
        // What is neither: in the largest chunks that there can be.
        let mut wiping_frames = 0;
        let mut frame = 0;
        while frame < frames {
            if taken[frame as usize] {
                frame += 1;
                continue;
            }
            let fits = |order: Order| {
                let size = 1u32 << order;
                let end = frame.saturating_add(size);
                let inside = frame.is_multiple_of(size) && end <= frames;
                inside && !taken[frame as usize..end as usize].contains(&true)
            };
            let order = (0..=MAX_ORDER)
                .rev()
                .find(|&order| fits(order))
                .unwrap_or(0);
            self.push_wipe(index, &mem, Job::Chunk { frame, order });
            self.wiping += order_bytes(order);
            wiping_frames += 1 << order;
            frame += 1 << order;
        }
        match used {
            Use::Free => drop(self.free_segments.insert(index)),
            Use::Retiring => {
                self.push_wipe(index, &mem, Job::Retire);
                self.wiping += left.bytes;
            }
            Use::Owned(session) if !left.orphaned => {
                self.owned.entry(session).or_default().push(index);
            }
            Use::Owned(_) | Use::Shared => {}
        }
        if let Some(client) = &left.charged {
            *self.held.entry(client.clone()).or_default() += left.bytes;
        }
        self.segments.push(Segment {
            mem,
            incarnation: left.incarnation,
            bytes: Bytes(left.bytes),
            buddy,
            wiping_frames,
            used,
            closed: left.closed && used != Use::Free,
            orphaned: left.orphaned,
            lasting: left.lasting,
            charged: left.charged.clone(),
        });
        self.refile(index, None);
        Ok(())
    }

    fn push_wipe(&mut self, index: u32, mem: &Arc<B::Segment>, job: Job) {
        self.wipes.push_back(Wipe {
            segment: SegmentId(index),
            mem: Arc::clone(mem),
            job,
        });
    }
}

impl<B: Backing> Pool<B> {
    /// The pool of the process before: its segments, and the extents that were left, in their order.
    /// Whoever takes none of an extent has it wiped by dropping it. What was neither free nor an
    /// extent is wiped first.
    pub(in super::super) fn inherit(
        backing: B,
        mut config: PoolConfig,
        memory: Vec<Arc<B::Segment>>,
        left: &Estate,
    ) -> Result<Heritage<B>, EstateError> {
        config.memory = Bytes::pages(config.memory.whole_pages());
        let sum = left.segments.iter().try_fold(0u64, |sum, segment| {
            let whole = segment.bytes.is_multiple_of(PAGE_SIZE as u64);
            let fits = whole && (1..=config.segment.0).contains(&segment.bytes);
            sum.checked_add(segment.bytes).filter(|_| fits)
        });
        if memory.len() != left.segments.len() || sum != Some(config.memory.0) {
            return Err(EstateError::Contradiction(
                "segments that are not all its memory",
            ));
        }
        let mut state = State::empty();
        for (mem, segment) in memory.into_iter().zip(&left.segments) {
            let index = state.segments.len() as u32;
            let extents = left.extents.iter().filter(|extent| extent.segment == index);
            state.inherit(mem, segment, extents)?;
        }
        if left
            .extents
            .iter()
            .any(|extent| extent.segment as usize >= state.segments.len())
        {
            return Err(EstateError::Contradiction("an extent of no segment"));
        }
        state.certified = left.certified.iter().cloned().collect();
        state.drain = left.drain_ends_ns.map(Nanos);
        state.drain_changes = u64::from(state.drain.is_some());
        let pool = Arc::new(Pool {
            backing,
            config,
            state: Mutex::new(state),
            wipe_waits: Condvar::new(),
        });
        let extents = left
            .extents
            .iter()
            .map(|extent| pool.inherit_extent(extent));
        let extents = extents.collect();
        Ok((pool, extents))
    }

    fn inherit_extent(self: &Arc<Pool<B>>, left: &LeftExtent) -> Arc<Extent<B>> {
        let mut state = lock(&self.state);
        let bytes = order_bytes(left.order);
        state.granted += bytes;
        state.extents += 1;
        if let Some(client) = &left.charged {
            *state.held.entry(client.clone()).or_default() += bytes;
        }
        let segment = &state.segments[left.segment as usize];
        Arc::new(Extent {
            pool: Arc::clone(self),
            mem: Arc::clone(&segment.mem),
            segment: SegmentId(left.segment),
            incarnation: segment.incarnation,
            frame: left.frame,
            order: left.order,
            charged: left.charged.clone(),
            frozen: AtomicBool::new(left.frozen),
            common: false,
        })
    }

    /// What is to be said of an extent.
    pub(in super::super) fn left_extent(extent: &Extent<B>) -> LeftExtent {
        LeftExtent {
            segment: extent.segment.0,
            frame: extent.frame,
            order: extent.order,
            charged: extent.charged.clone(),
            frozen: extent.is_frozen(),
        }
    }

    /// Leaves segments, drain and quotas.
    pub(in super::super) fn bequeath(&self, estate: &mut Estate) {
        let state = lock(&self.state);
        estate.segments = (state.segments.iter())
            .map(|segment| LeftSegment {
                incarnation: segment.incarnation,
                bytes: segment.bytes.0,
                used: match segment.used {
                    Use::Free => LeftUse::Free,
                    Use::Shared => LeftUse::Shared,
                    Use::Owned(session) => LeftUse::Owned(session),
                    Use::Retiring => LeftUse::Retiring,
                },
                closed: segment.closed,
                orphaned: segment.orphaned,
                lasting: segment.lasting,
                charged: segment.charged.clone(),
                free: segment.buddy.free_chunks().collect(),
            })
            .collect();
        estate.certified = (state.certified.iter())
            .map(|(name, quota)| (name.clone(), *quota))
            .collect();
        estate.drain_ends_ns = state.drain.map(|ends| ends.0);
    }

    /// Shows every ticket.
    pub(in super::super) fn each_ticket(
        &self,
        mut show: impl FnMut(&[u8; TICKET_LEN], &Ticket<B>),
    ) {
        for (key, ticket) in &lock(&self.state).tickets {
            show(key, ticket);
        }
    }

    /// The memory of all segments, in their order.
    pub fn memory(&self) -> Vec<Arc<B::Segment>> {
        let state = lock(&self.state);
        let memory = state.segments.iter().map(|segment| &segment.mem);
        memory.cloned().collect()
    }
}
