//! The baseline: stop the world, trace and evacuate at the compute node, through the cache.
//!
//! What a stock collector does when its heap is swapped out: every live object is brought here to
//! be marked, and those of regions with much garbage are copied. Regions without a live object are
//! free at once; others are evacuated if a quarter of them is garbage and there is room. An object
//! for which there is none stays where it is, and its region with it.
//!
//! Invariant: afterwards exactly the marked objects are referred to from anywhere, each at its new
//! place.

use crate::error::HeapError;
use crate::heap::Inner;
use crate::phase::Phase;
use crate::regions::Use;
use crate::stats::Log;
use crate::words::CachedWords;
use crate::world::Stopped;
use muninn_heap_agent::bitmap::Bitmap;
use muninn_heap_agent::evacuate::{EvacuateError, Evacuator, ToSpace};
use muninn_heap_agent::layout::{Geometry, REGION_HEAD};
use muninn_heap_agent::trace::Tracer;
use muninn_heap_agent::words::{Gone, View};
use std::sync::atomic::Ordering::{Acquire, Release};

/// Regions with a larger live share than this are left as they are.
const LIVE_SHARE_MAX: f64 = 0.75;

pub fn collect(inner: &Inner, stopped: &Stopped<'_>) -> Result<(), HeapError> {
    let types = inner.types();
    let words = CachedWords(&inner.pager);
    // To this collector all regions are its own.
    let geometry = Geometry {
        regions_per_server: inner.geometry.regions,
        ..inner.geometry
    };
    let view = View {
        geometry: &geometry,
        types: &types,
        words: &words,
    };
    inner.begin(Phase::Mark);
    let marks = trace(inner, stopped, &view).map_err(|e| lost(inner, &e.into()))?;
    if marks.strange > 0 {
        let what = format!("{} references lead to no object", marks.strange);
        return Err(HeapError::Lost(what));
    }
    let live: Vec<u32> = free_the_dead(inner, &marks);
    let from = choose(inner, &marks, &live);
    if !from.is_empty() {
        inner.begin(Phase::Compact);
        evacuate(inner, stopped, &view, &marks, (&live, &from)).map_err(|e| lost(inner, &e))?;
    }
    let mut regions = inner.regions();
    for region in live {
        regions.get_mut(region).survivals += 1;
    }
    Ok(())
}

pub(super) fn lost(inner: &Inner, error: &EvacuateError) -> HeapError {
    match inner.lost() {
        Err(lost) => lost,
        Ok(()) => HeapError::Lost(error.to_string()),
    }
}

/// All references that mutators and roots hold.
pub(crate) fn root_words(inner: &Inner, stopped: &Stopped<'_>) -> Vec<u64> {
    let mut words: Vec<u64> = inner.roots().words().collect();
    for context in stopped.mutators.iter() {
        // SAFETY: the world is stopped.
        unsafe { context.slots.each(|slot| words.push(slot.word.get())) };
    }
    words
}

/// Gives all references that mutators and roots hold a new word.
pub(crate) fn rewrite_roots(
    inner: &Inner,
    stopped: &Stopped<'_>,
    mut new: impl FnMut(u64) -> Result<u64, EvacuateError>,
) -> Result<(), EvacuateError> {
    for word in inner.roots().words_mut() {
        *word = new(*word)?;
    }
    let mut result = Ok(());
    for context in stopped.mutators.iter() {
        // SAFETY: the world is stopped.
        unsafe {
            context.slots.each(|slot| match new(slot.word.get()) {
                Ok(word) => {
                    slot.word.set(word);
                    slot.address.set(inner.pager.address(word));
                }
                Err(error) => result = Err(error),
            });
        }
    }
    result
}

fn trace(
    inner: &Inner,
    stopped: &Stopped<'_>,
    view: &View<'_, CachedWords<'_>>,
) -> Result<Tracer, Gone> {
    let mut tracer = Tracer::new(view, 0, 1, Vec::new());
    for word in root_words(inner, stopped) {
        tracer.visit(view, word);
    }
    tracer.finish(view)?;
    Ok(tracer)
}

/// Frees regions without a live object; the others.
fn free_the_dead(inner: &Inner, marks: &Tracer) -> Vec<u32> {
    let (mut dead, mut live) = (Vec::new(), Vec::new());
    for (region, info) in inner.regions().iter() {
        match info.use_ {
            Use::Free | Use::Tail => {}
            _ if marks.marks.live_bytes(region) == 0 => dead.push(region),
            _ => live.push(region),
        }
    }
    for region in dead {
        inner.release_region(region);
    }
    live
}

/// Regions worth emptying, those with the least to copy first, as many as there is room for.
fn choose(inner: &Inner, marks: &Tracer, live: &[u32]) -> Vec<u32> {
    let regions = inner.regions();
    let mut worth: Vec<(u64, u32)> = live
        .iter()
        .filter(|region| regions.get(**region).use_ == Use::Used)
        .map(|region| (marks.marks.live_bytes(*region), *region))
        .filter(|(bytes, region)| {
            let used = inner.bumps[*region as usize].load(Acquire);
            (*bytes as f64) < used as f64 * LIVE_SHARE_MAX
        })
        .collect();
    worth.sort_unstable();
    let mut room = u64::from(regions.free_regions()) * inner.geometry.region_bytes();
    let mut chosen = Vec::new();
    for (bytes, region) in worth {
        if bytes + REGION_HEAD > room {
            break;
        }
        room -= bytes;
        chosen.push(region);
    }
    chosen
}

fn evacuate(
    inner: &Inner,
    stopped: &Stopped<'_>,
    view: &View<'_, CachedWords<'_>>,
    marks: &Tracer,
    (live, from): (&[u32], &[u32]),
) -> Result<(), EvacuateError> {
    let to_copy: u64 = from.iter().map(|r| marks.marks.live_bytes(*r)).sum();
    let wanted = (to_copy * 9 / 8).div_ceil(inner.geometry.region_bytes()) + 1;
    let to: Vec<ToSpace> = {
        let mut regions = inner.regions();
        let take = |_| regions.take(None, Use::Used);
        (0..wanted)
            .map_while(take)
            .map(|region| ToSpace {
                region,
                bump: REGION_HEAD,
            })
            .collect()
    };
    // Works in the program's own process: nobody else's memory.
    let mut room = ();
    let mut evacuator = Evacuator::new(&inner.geometry, from, to, inner.config.order, &mut room);
    rewrite_roots(inner, stopped, |word| {
        let new = evacuator.forward(view, word)?;
        evacuator.drain(view)?;
        Ok(new)
    })?;
    for region in live.iter().filter(|region| !from.contains(region)) {
        let start = view.geometry.region_start(*region);
        let marked = marks.marks.map(*region).into_iter().flat_map(Bitmap::iter);
        for granule in marked {
            evacuator.fix(view, start + u64::from(granule) * 16)?;
            evacuator.drain(view)?;
        }
    }
    for to in evacuator.to_spaces() {
        inner.bumps[to.region as usize].store(to.bump, Release);
        if to.bump == REGION_HEAD {
            inner.release_region(to.region);
        }
    }
    evacuator.restore_kept(view)?;
    for region in from.iter().filter(|region| !evacuator.is_kept(**region)) {
        inner.release_region(*region);
    }
    Log::add(&inner.log.moved_bytes, evacuator.copied_bytes);
    Ok(())
}
