//! The steward: watches how much memory the program has, and decides when to take some over.
//!
//! A fresh program is left alone. Every millisecond its resident memory is looked at (one system
//! call); when it comes near the limit a pager is started, and from then on all of the program's
//! private memory is offered to it, new mappings included. What the program may hold follows from
//! the job's limit, what the other processes of the job hold, and what cannot be managed (code,
//! stacks, the runtime itself).

use crate::candidates::Candidates;
use crate::fork;
use crate::shared::{OFFERS_MAX, Shared};
use muninn_job::{Place, Tally};
use muninn_policy::seat::{Look, Seat, Seating};
use muninn_policy::take_over;
use muninn_policy::threshold::{Threshold, ThresholdPolicy};
use muninn_sys::affinity::{self, Thread};
use muninn_sys::clock;
use muninn_sys::own::{self, Fate, Priority, Program};
use muninn_sys::proc::{self, RealProc, StatmReader, for_each_map};
use muninn_sys::uffd::PageRange;
use muninn_types::{Bytes, Nanos, PAGE_SIZE};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Between two looks at resident memory.
const TICK: Duration = Duration::from_millis(1);
/// Looks without a reason to look for new memory before it is done anyway.
const LOOK_TICKS: u32 = 64;
/// Looks at a program that did nothing before it is left to itself until it stirs, or for so long:
/// others may want the memory of one that was taken over.
const STILL_LOOKS: u32 = 4;
const NAP: Duration = Duration::from_millis(50);
const LONG_NAP: Duration = Duration::from_secs(30);
/// Nobody wants the memory of a program this small.
const SMALL: Bytes = Bytes::mib(4);
const REST: Duration = Duration::from_secs(60);
/// What a process may hold at least, or it could not go on at all.
const PAGES_MIN: u64 = 512;
/// Memory kept free for what grows between two looks: T_upper is this much below the limit.
const HEADROOM: Bytes = Bytes::mib(8);
/// Growth between two looks that is no growth.
const CALM_PAGES: u64 = 16;
/// After so many looks without growth the reserve is used.
const CALM_TICKS: u32 = 64;
/// How much of the fastest growth is remembered from look to look.
const BURST_DECAY: f64 = 0.95;
/// The part of its share that a process may keep locked.
const LOCKED_PART: u64 = 4;
/// The buffer that maps are read through.
const MAPS_BUFFER: usize = 64 << 10;

#[derive(Debug)]
pub struct Steward {
    watched: Program,
    place: Place,
    tally: Tally,
    statm: StatmReader,
    maps: Vec<u8>,
    program: Vec<u8>,
    policy: ThresholdPolicy,
    threshold: Option<(Bytes, Threshold)>,
    found: Vec<PageRange>,
    ticks: u32,
    last_look: u32,
    size_pages: u64,
    unmanaged: u64,
    resident: u64,
    /// What this process may hold.
    share: u64,
    /// How long the program had run, and looks since it last did.
    ran: Option<Duration>,
    still: u32,
    sampled_at: Nanos,
    growth_rate: f64,
    /// The fastest growth seen lately.
    burst_rate: f64,
    /// Memory is being taken over.
    adopts: bool,
    /// Looks since memory grew that is not managed.
    calm: u32,
    seating: Seating,
    /// Counters at the last look.
    looked: Look,
    /// The processors this process was given.
    cpus: Vec<usize>,
    /// Where the pager sits, while it sits beside the program.
    cpu: Option<usize>,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Memory is plentiful.
    Fine,
    /// The program nears its limit.
    Near,
}

impl Steward {
    pub fn new(
        place: Place,
        watched: Program,
        statm: StatmReader,
        program: Vec<u8>,
        policy: ThresholdPolicy,
    ) -> Steward {
        Steward {
            watched,
            tally: Tally::new(&place),
            place,
            statm,
            maps: vec![0; MAPS_BUFFER],
            program,
            policy,
            threshold: None,
            found: Vec::with_capacity(OFFERS_MAX),
            ticks: 0,
            last_look: 0,
            size_pages: 0,
            unmanaged: 0,
            resident: 0,
            share: 0,
            ran: None,
            still: 0,
            sampled_at: clock::now(),
            growth_rate: 0.0,
            burst_rate: 0.0,
            adopts: false,
            calm: 0,
            seating: Seating::default(),
            looked: Look::default(),
            cpus: affinity::allowed().unwrap_or_default(),
            cpu: None,
        }
    }

    /// Memory of this process was taken over by its parent.
    pub fn inherit(&mut self) {
        self.adopts = true;
    }

    /// Waits for the next look, or for the program's end; what became of it.
    pub fn sleep(&mut self, active: bool) -> Fate {
        let ran = self.watched.elapsed();
        let stirred = ran.is_none() || ran != self.ran;
        self.ran = ran;
        self.still = if stirred { 0 } else { self.still + 1 };
        if self.still >= STILL_LOOKS {
            let small = Bytes::pages(self.resident) < SMALL;
            let patience = match active {
                true => NAP,
                false if small => REST,
                false => LONG_NAP,
            };
            let owes = self.tally.owes_in(clock::now());
            let patience = owes.map_or(patience, |owes| patience.min(owes.into()));
            return self.watched.wait_until_it_stirs(patience);
        }
        let left = self.share.saturating_sub(Bytes::pages(self.resident).0);
        let tick = take_over::look_after(Bytes(left));
        self.watched
            .wait(if active { tick.min(TICK) } else { tick })
    }

    /// What this process may hold of the job's limit.
    fn share(&self) -> Bytes {
        let (own, shared) = (self.place.share(), self.tally.shared());
        if shared == Bytes::ZERO {
            return own;
        }
        // Pages that others count may stay beside what is ours. What is kept free is a part of our own
        // share, but will be taken off the whole: so it is put on top.
        let usable = own.0 - HEADROOM.0.min(own.0 / 8) + shared.0;
        Bytes(usable + HEADROOM.0.min(usable / 7))
    }

    /// Looks at memory before there is a pager.
    pub fn look(&mut self, runtime_bytes: u64) -> Verdict {
        self.ticks = self.ticks.wrapping_add(1);
        self.sample(runtime_bytes);
        let share = self.share();
        self.share = share.0;
        self.place
            .counters()
            .limit_share_bytes
            .store(share.0, Relaxed);
        match Bytes::pages(self.resident) > take_over::ready_at(share) {
            true => Verdict::Near,
            false => Verdict::Fine,
        }
    }

    /// Whether memory is to be taken over, from now on or already.
    fn adopts(&mut self, share: Bytes, runtime_bytes: u64) -> bool {
        let program = Bytes::pages(self.resident).0.saturating_sub(runtime_bytes);
        let at = take_over::adopt_at(share, self.burst_rate);
        if !self.adopts && Bytes(program) > at {
            self.adopts = true;
            // Huge pages would only fill what was not found yet faster than it can be found.
            own::set_huge_pages(false);
        }
        self.adopts
    }

    fn sample(&mut self, runtime_bytes: u64) {
        let Ok(statm) = self.statm.read() else { return };
        let now = clock::now();
        let resident = statm.private_resident().0 / PAGE_SIZE as u64;
        let elapsed = now.saturating_sub(self.sampled_at).as_secs_f64();
        if elapsed > 0.0 {
            let grown = resident.saturating_sub(self.resident) * PAGE_SIZE as u64;
            let rate = grown as f64 / elapsed;
            self.growth_rate += (rate - self.growth_rate) / 8.0;
            self.burst_rate = rate.max(self.burst_rate * BURST_DECAY);
        }
        self.sampled_at = now;
        self.resident = resident;
        let counters = self.place.counters();
        counters.runtime_bytes.store(runtime_bytes, Relaxed);
        self.tally.note(&statm, now);
        if statm.size_pages != self.size_pages {
            self.size_pages = statm.size_pages;
            self.last_look = self.ticks.wrapping_sub(LOOK_TICKS);
        }
    }

    /// Looks at memory and tells the pager what it may hold and what it could take over.
    pub fn oversee(&mut self, shared: &Arc<Shared>, runtime_bytes: u64) {
        self.ticks = self.ticks.wrapping_add(1);
        let before = self.resident;
        self.sample(runtime_bytes);
        let held = shared.held.load(Relaxed);
        let unmanaged = self.resident.saturating_sub(held);
        let share = self.share();
        self.share = share.0;
        let threshold = self.follow_threshold(share, before, shared);
        let margin = (share.0 / 64).min(Bytes::mib(2).0);
        let pages = |bytes: u64| (bytes / PAGE_SIZE as u64).saturating_sub(unmanaged);
        // While nothing grows that is not ours, the reserve for it would lie idle.
        self.calm = if unmanaged > self.unmanaged + CALM_PAGES {
            0
        } else {
            self.calm.saturating_add(1)
        };
        let hold = if self.calm > CALM_TICKS {
            share.0 - margin
        } else {
            threshold.0
        };
        let allowed = pages(hold).max(PAGES_MIN);
        let background = pages(threshold.0).clamp(PAGES_MIN, allowed);
        shared.set_allowed(allowed, background);
        shared.set_growth_rate(self.growth_rate);
        let counters = self.place.counters();
        counters.limit_share_bytes.store(share.0, Relaxed);
        counters.threshold_bytes.store(threshold.0, Relaxed);
        let grew = unmanaged > self.unmanaged + 128;
        self.unmanaged = unmanaged;
        let late = self.ticks.wrapping_sub(self.last_look) >= LOOK_TICKS;
        let due = grew || late || shared.wants_offers();
        let look = self.adopts(share, runtime_bytes) && due;
        if look {
            self.last_look = self.ticks;
            let now = clock::now();
            unlock_much(share);
            self.find_memory();
            shared.offer(&self.found, now);
        }
        // A pager that serves faults looks around as it goes. One that sits behind the program
        // might not hear for long.
        let busy = self.take_seat(shared);
        if shared.has_far_news() || !busy && (look || held > background || fork::wants_near()) {
            shared.ring();
        }
        shared.chores.work();
    }

    /// Follows the program's faults with the pager's place; whether faults were served since the
    /// last look.
    fn take_seat(&mut self, shared: &Shared) -> bool {
        let counters = self.place.counters();
        let now = Look {
            faults: counters.faults.load(Relaxed),
            prefetched: counters.prefetched.load(Relaxed),
            changes: shared.thread_changes(),
        };
        let before = std::mem::replace(&mut self.looked, now);
        let look = Look {
            faults: now.faults.saturating_sub(before.faults),
            prefetched: now.prefetched.saturating_sub(before.prefetched),
            changes: now.changes.saturating_sub(before.changes),
        };
        if let Some(pager) = shared.pager().filter(|_| self.cpus.len() > 1) {
            match self.seating.handle_look(look) {
                Seat::Beside => self.seat_beside(Thread::Id(pager), shared.faulting()),
                Seat::Free => self.set_free(Thread::Id(pager)),
            }
        }
        look.faults > 0
    }

    fn seat_beside(&mut self, pager: Thread, program: u32) {
        // Anybody who wakes up may have driven it away.
        let Some(cpu) = affinity::last_cpu(program) else {
            return;
        };
        if self.cpu == Some(cpu) || affinity::pin(pager, cpu).is_err() {
            return;
        }
        if self.cpu.is_none() {
            own::set_priority(pager, Priority::Behind);
        }
        self.cpu = Some(cpu);
    }

    fn set_free(&mut self, pager: Thread) {
        if self.cpu.take().is_some() {
            own::set_priority(pager, Priority::Raised);
            let _ = affinity::allow(pager, &self.cpus);
        }
    }

    /// A-ETAM: the threshold follows growth and eviction.
    fn follow_threshold(&mut self, share: Bytes, before: u64, shared: &Shared) -> Bytes {
        let known = self.threshold.as_ref().map(|(known, _)| known.0);
        if known.is_none_or(|known| known.abs_diff(share.0) > share.0 / 16) {
            let headroom = HEADROOM.min(Bytes(share.0 / 8));
            let params = self.policy.params(share, headroom);
            self.threshold = Some((share, Threshold::new(params)));
        }
        let (_, threshold) = self.threshold.as_mut().expect("made above");
        let (pages, took) = shared.take_evicted();
        threshold.handle_evicted(Bytes::pages(pages), took);
        let grown = self.resident.saturating_sub(before);
        threshold.handle_charge(Bytes::pages(grown), self.sampled_at);
        threshold.get()
    }

    fn find_memory(&mut self) {
        let mut candidates = Candidates::default();
        let (found, program) = (&mut self.found, &self.program);
        found.clear();
        let _ = for_each_map(0, &mut self.maps, |entry| {
            found.extend(
                candidates
                    .pick(entry, program)
                    .take(OFFERS_MAX - found.len()),
            );
            match found.len() < OFFERS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
    }
}

/// Memory that may not leave the machine's stays. But one who locks more than a part of what he may hold
/// would lock all there is, and everything else could only go above the limit.
pub fn unlock_much(share: Bytes) {
    let locked = proc::status(&RealProc, 0).map_or(Bytes::ZERO, |status| status.vm_lck);
    if locked.0 > share.0 / LOCKED_PART {
        own::unlock_all();
    }
}
