//! What the pager's threads tell each other.
//!
//! Numbers are atomics; ranges to be taken over wait in a locked list that the pager looks at only
//! when there is something in it. The *bell* is a page registered with the program's device: giving
//! it back makes the kernel wake the pager, and the ringing thread waits until the pager has heard
//! it.

use crate::fork;
use crate::keeper::Keeper;
use crate::process::Chores;
use muninn_job::Job;
use muninn_sys::memory::{Mapping, MemoryError, program};
use muninn_sys::own;
use muninn_sys::uffd::PageRange;
use muninn_types::{Bytes, Nanos, PAGE_SIZE, PageNo};
use muninn_volume::{Clerk, Ticket};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ranges that wait to be taken over.
pub const OFFERS_MAX: usize = 65_536;

/// Offers that are older are not taken.
const OFFER_AGE_MAX: Nanos = Nanos::millis(2);

#[derive(Debug)]
pub struct Shared {
    /// Pages that the program may hold of what was taken over.
    allowed: AtomicU64,
    /// Pages down to which eviction goes while nobody waits.
    background: AtomicU64,
    /// Pages held, as the pager has it.
    pub held: AtomicU64,
    /// Bytes per second by which the program grows, as bits.
    growth: AtomicU64,
    /// Pages evicted, and the time it took, since the steward last looked.
    evicted: AtomicU64,
    evict_ns: AtomicU64,
    offers: Mutex<Vec<PageRange>>,
    offered: AtomicBool,
    /// When memory was looked for, and whether that was too long ago for the pager.
    offered_at: AtomicU64,
    stale: AtomicBool,
    /// The offers before these were not taken.
    sent_back: AtomicBool,
    /// The pager's thread; 0 before it runs, and where its place is not ours to choose.
    pager: AtomicI32,
    /// The thread whose fault was read last, and faults of another than the one before.
    faulting: AtomicU32,
    thread_changes: AtomicU64,
    /// Nothing may be evicted: everything is wanted near.
    hold_still: AtomicBool,
    bell: PageNo,
    mailbox: PageNo,
    pub chores: Arc<Chores>,
    /// Children that the pager answers for.
    wards: AtomicU32,
    /// It has not begun.
    gave_up: AtomicBool,
    /// To the launcher, who has the program's device as well.
    pub keeper: Arc<Keeper>,
    clerk: Arc<Clerk>,
    job: Arc<Job>,
}

/// A page of address space that stays.
fn page_for_good() -> Result<PageNo, MemoryError> {
    let mapping = Mapping::anonymous(Bytes::pages(1))?;
    let page = PageNo::of_addr(mapping.addr());
    std::mem::forget(mapping);
    Ok(page)
}

impl Shared {
    pub fn new(clerk: Arc<Clerk>, job: Arc<Job>, door: &str) -> Result<Shared, MemoryError> {
        // A child has them where its parent had: whoever answers for its own children, they find the
        // same.
        let (bell, mailbox) = match fork::inherited_pages() {
            Some(pages) => pages,
            None => (page_for_good()?, page_for_good()?),
        };
        for page in [bell, mailbox] {
            own::claim(page.addr(), PAGE_SIZE as u64);
        }
        Ok(Shared {
            allowed: AtomicU64::new(u64::MAX),
            background: AtomicU64::new(u64::MAX),
            held: AtomicU64::new(0),
            growth: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evict_ns: AtomicU64::new(0),
            offers: Mutex::new(Vec::with_capacity(OFFERS_MAX)),
            offered: AtomicBool::new(false),
            offered_at: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            sent_back: AtomicBool::new(false),
            pager: AtomicI32::new(0),
            faulting: AtomicU32::new(0),
            thread_changes: AtomicU64::new(0),
            hold_still: AtomicBool::new(false),
            bell,
            mailbox,
            chores: Arc::default(),
            wards: AtomicU32::new(0),
            gave_up: AtomicBool::new(false),
            keeper: Arc::new(Keeper::behind(door)),
            clerk,
            job,
        })
    }

    /// While set, no grant comes or goes: a child is about to share them. False if that cannot be had.
    pub fn hold_grants(&self, hold: bool) -> bool {
        self.clerk.hold_still(hold)
    }
    /// Nobody will use these any more.
    pub fn revoke(&self, tickets: impl Iterator<Item = Ticket>) {
        self.clerk.revoke(tickets);
    }
    pub fn want_small_grants(&self, small: bool) {
        self.clerk.want_small(small);
    }
    /// Whether something became of servers that the pager should look at, said once.
    pub fn has_far_news(&self) -> bool {
        self.clerk.take_news()
    }
    pub fn job(&self) -> &Job {
        &self.job
    }
    /// A child cannot have a page that it touched: it ends, and why is told.
    pub fn end_child(&self, pid: u32, why: &str) {
        self.job.leave_message(pid, why);
        own::end_other(pid);
    }

    pub fn bell(&self) -> PageRange {
        PageRange::one(self.bell)
    }
    /// The page that a child looks into; see [`fork`].
    pub fn mailbox(&self) -> PageNo {
        self.mailbox
    }
    /// The pager has not begun: the parent's companion still answers for this process.
    pub fn give_up(&self) {
        self.gave_up.store(true, Release);
    }
    pub fn has_given_up(&self) -> bool {
        self.gave_up.load(Acquire)
    }
    pub fn wards(&self) -> u32 {
        self.wards.load(Acquire)
    }
    pub fn set_wards(&self, wards: usize) {
        self.wards.store(wards as u32, Release);
    }
    pub fn is_bell(&self, range: PageRange) -> bool {
        range == self.bell()
    }
    /// Wakes the pager and waits until it has heard.
    pub fn ring(&self) {
        // SAFETY: nothing is ever kept in the bell.
        let _ = unsafe { program::discard_own(self.bell()) };
    }

    pub fn allowed_pages(&self) -> u64 {
        self.allowed.load(Relaxed)
    }
    pub fn background_pages(&self) -> u64 {
        self.background.load(Relaxed)
    }
    pub fn set_allowed(&self, allowed: u64, background: u64) {
        self.allowed.store(allowed, Relaxed);
        self.background.store(background, Relaxed);
    }
    pub fn growth_rate(&self) -> f64 {
        f64::from_bits(self.growth.load(Relaxed))
    }
    pub fn set_growth_rate(&self, bytes_per_s: f64) {
        self.growth.store(bytes_per_s.to_bits(), Relaxed);
    }

    pub fn may_evict(&self) -> bool {
        !self.hold_still.load(Relaxed)
    }
    pub fn hold_still(&self, hold: bool) {
        self.hold_still.store(hold, Relaxed);
    }

    pub fn note_evicted(&self, pages: u64, took: Nanos) {
        self.evicted.fetch_add(pages, Relaxed);
        self.evict_ns.fetch_add(took.0, Relaxed);
    }
    /// Pages evicted since the last call, and the time it took.
    pub fn take_evicted(&self) -> (u64, Nanos) {
        let pages = self.evicted.swap(0, Relaxed);
        (pages, Nanos(self.evict_ns.swap(0, Relaxed)))
    }

    /// The pager's thread, once it may be placed.
    pub fn pager(&self) -> Option<i32> {
        Some(self.pager.load(Relaxed)).filter(|&thread| thread != 0)
    }
    pub fn set_pager(&self, thread: i32) {
        self.pager.store(thread, Relaxed);
    }
    /// Notes whose fault was read.
    pub fn note_fault_of(&self, thread: u32) {
        // Only the pager writes here.
        if self.faulting.load(Relaxed) != thread {
            self.faulting.store(thread, Relaxed);
            let changes = self.thread_changes.load(Relaxed);
            self.thread_changes.store(changes + 1, Relaxed);
        }
    }
    /// The thread whose fault was read last.
    pub fn faulting(&self) -> u32 {
        self.faulting.load(Relaxed)
    }
    pub fn thread_changes(&self) -> u64 {
        self.thread_changes.load(Relaxed)
    }

    fn offers(&self) -> MutexGuard<'_, Vec<PageRange>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Replaces what is offered to the pager for taking over, as it was found at a time.
    pub fn offer(&self, ranges: &[PageRange], at: Nanos) {
        self.offered_at.store(at.0, Relaxed);
        let mut offers = self.offers();
        offers.clear();
        offers.extend(ranges.iter().take(OFFERS_MAX));
        self.offered.store(!offers.is_empty(), Relaxed);
    }
    pub fn has_offers(&self) -> bool {
        self.offered.load(Relaxed)
    }
    /// The offers; the list is to be given back, so that it is not allocated again.
    pub fn take_offers(&self) -> Vec<PageRange> {
        self.offered.store(false, Relaxed);
        std::mem::take(&mut *self.offers())
    }
    /// Whether offers are of now. What was mapped a while ago may be a part of something else by now,
    /// and a mapping that is taken over in part is two: the program could not move it as a whole.
    pub fn are_offers_fresh(&self, now: Nanos) -> bool {
        let age = now.0.saturating_sub(self.offered_at.load(Relaxed));
        // On a busy processor nothing comes at once: the second time they are taken as they are.
        let again = self.sent_back.load(Relaxed);
        let fresh = age < OFFER_AGE_MAX.0 || again;
        self.sent_back.store(!fresh, Relaxed);
        self.stale.fetch_or(!fresh, Relaxed);
        fresh
    }
    /// Whether the pager wants newer offers.
    pub fn wants_offers(&self) -> bool {
        self.stale.swap(false, Relaxed)
    }
    pub fn give_back_offers(&self, list: Vec<PageRange>) {
        let mut offers = self.offers();
        if offers.capacity() == 0 {
            *offers = list;
        }
    }
}
