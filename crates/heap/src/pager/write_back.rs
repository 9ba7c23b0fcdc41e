//! Pages go: for want of room, because an agent is to read them, or because their region is free.

use super::*;
use muninn_policy::evict::Arrival;
use muninn_types::Class;
use muninn_wire::{MAX_SEGS, Seg};

/// Bytes at the start of a tagged region that are the server's.
const HEAD: u32 = muninn_heap_agent::layout::REGION_HEAD as u32;
const TAG_LEN: u32 = 8;

impl Pager {
    /// Makes room for pages that are about to be mapped, and for the next few: pages that leave
    /// together share one system call and one flush of the processors' page tables.
    pub(super) fn make_room(&self, pages: u64) {
        let spare = u64::from(BATCH / 2).min(self.limit_pages() / 32);
        // Each thread may overshoot by what it has in hand; 64 tries that freed nothing mean that
        // all that could go is being changed by others.
        for _ in 0..64 {
            let cached = self.cached_pages.load(Relaxed);
            let over = (cached + pages).saturating_sub(self.limit_pages());
            // In a lost heap nothing can go; whoever wants room is about to find that out.
            if over == 0 || self.is_lost() {
                return;
            }
            if !self.evict_some((over + spare).min(u64::from(BATCH)) as u32) {
                return;
            }
        }
    }

    /// Evicts as many pages as are wanted, or fewer; false if the policy has none.
    fn evict_some(&self, wanted: u32) -> bool {
        let mut taken = [(0u32, false); BATCH as usize];
        let mut count = 0;
        let mut looks = 0;
        let mut policies = self.lock_policies();
        while count < wanted {
            let Some(run) = policies.evict.next_run(wanted - count) else {
                break;
            };
            for page in run.iter() {
                looks += 1;
                // Of pages that are all in use, some have to go all the same.
                if looks < LOOKS_MAX && self.take_worth(page.0) {
                    policies.evict.handle_staged_hit(page);
                    continue;
                }
                match self.try_take(page.0, |state| matches!(state, CLEAN | DIRTY)) {
                    Some(state) => {
                        taken[count as usize] = (page.0, state == DIRTY);
                        count += 1;
                    }
                    // Gone, or being changed by somebody: then it is resident and stays so.
                    None if matches!(self.look(page.0), INIT | EVICTED) => {
                        policies.evict.handle_removed(page);
                    }
                    None => policies.evict.handle_resident(page, Arrival::Kept),
                }
            }
            if looks >= 2 * LOOKS_MAX {
                break;
            }
        }
        drop(policies);
        let taken = &mut taken[..count as usize];
        // Neighbours next to each other.
        taken.sort_unstable();
        self.put_out(taken);
        looks > 0
    }

    /// Writes back what is dirty of taken pages and unmaps them all.
    fn put_out(&self, taken: &[(u32, bool)]) {
        let mut dirty = [0u32; BATCH as usize];
        let mut count = 0;
        for (page, _) in taken.iter().filter(|(_, is_dirty)| *is_dirty) {
            dirty[count] = *page;
            count += 1;
        }
        let written = self.send_home(&dirty[..count]);
        let clean = taken.len() - count;
        self.counters
            .dropped_clean_pages
            .fetch_add(clean as u64, Relaxed);
        if written {
            let mut ranges = [(0, Bytes::ZERO); BATCH as usize];
            let mut runs = 0;
            for run in taken.chunk_by(|a, b| a.0 + 1 == b.0) {
                ranges[runs] = (
                    u64::from(run[0].0) << PAGE_SHIFT,
                    Bytes::pages(run.len() as u64),
                );
                runs += 1;
            }
            if let Err(error) = self.map.discard_ranges(&ranges[..runs]) {
                self.lose(taken[0].0, &error);
            }
        }
        let mut policies = self.lock_policies();
        for (page, is_dirty) in taken {
            if written {
                policies.evict.handle_evicted(index(*page));
                self.cached_pages.fetch_sub(1, Relaxed);
                self.state(*page).store(EVICTED, Release);
            } else {
                // The alarm is raised; the bytes stay, so that nothing wrong can be read.
                let state = if *is_dirty { DIRTY } else { CLEAN };
                self.state(*page).store(state, Release);
            }
        }
    }

    fn unmap(&self, first: u32, pages: u32) {
        let offset = u64::from(first) << PAGE_SHIFT;
        if let Err(error) = self.map.discard(offset, Bytes::pages(u64::from(pages))) {
            self.lose(first, &error);
        }
    }

    /// Protects taken pages and writes them to their homes; false if a server did not take them.
    /// Then they are as they were: a page that stayed protected and is said to be dirty would fault
    /// for ever, as nobody has anything to do for it.
    fn send_home(&self, pages: &[u32]) -> bool {
        let protect = |protect: bool| {
            for run in pages.chunk_by(|a, b| a + 1 == *b) {
                self.protect(run[0], run.len() as u32, protect);
            }
        };
        protect(true);
        // One failure is enough to know, and each may take as long as a lease.
        let send = |some: &[u32]| {
            !self.is_lost()
                && self
                    .send_some(some)
                    .map_err(|e| self.lose(some[0], &e))
                    .is_ok()
        };
        let mut homes = pages.chunk_by(|a, b| self.same_home(*a, *b));
        // Room for two tags in a list.
        let all = homes.all(|same| same.chunks(MAX_SEGS - 2).all(send));
        if all {
            let written = &self.counters.written_pages;
            written.fetch_add(pages.len() as u64, Relaxed);
        } else {
            protect(false);
        }
        all
    }

    /// Writes pages of one home: tag ⟨1, v⟩, pages, tag ⟨0, v + 1⟩ (Semeru §4.2).
    fn send_some(&self, pages: &[u32]) -> Result<(), String> {
        let Some(copies) = &self.copies else {
            return self.send_to_home(pages).map_err(|e| e.to_string());
        };
        let near = |page: u32| self.address(u64::from(page) << PAGE_SHIFT);
        // SAFETY: the pages are mapped, protected against writes, and Busy.
        unsafe { copies.write(pages, near, Class::UrgentEviction) }
    }

    fn send_to_home(&self, pages: &[u32]) -> Result<(), muninn_net::NetError> {
        let (grant, _) = self.home(pages[0]);
        let class = Class::UrgentEviction;
        let tagged = self.tagged_region(pages[0]);
        let tag =
            |dirty: u32, version: u32| (u64::from(version) << 32 | u64::from(dirty)).to_le_bytes();
        let piece = |run: &[u32]| {
            let (_, offset) = self.home(run[0]);
            // The head of a tagged region is the server's.
            let skip = if tagged.is_some() && offset == 0 {
                HEAD
            } else {
                0
            };
            let seg = Seg::new(
                grant.id,
                offset + skip,
                ((run.len() as u32) << PAGE_SHIFT) - skip,
            );
            let at = (u64::from(run[0]) << PAGE_SHIFT) + u64::from(skip);
            // SAFETY: the pages are mapped and Busy, so they stay mapped; they are protected, so
            // nobody writes them meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(self.address(at), seg.len as usize) };
            (seg, bytes)
        };
        let mut slot = self.lane(grant.server);
        let LaneSlot { lane, buffer } = &mut *slot;
        let version = tagged.map(|region| self.versions[region as usize].fetch_add(2, Relaxed));
        let tag_seg = Seg::new(grant.id, 0, TAG_LEN);
        if self.mapped[grant.server.0 as usize] {
            if let Some(version) = version {
                lane.write_v(class, &[tag_seg], &tag(1, version + 1))?;
            }
            for run in pages.chunk_by(|a, b| a + 1 == *b) {
                let (seg, bytes) = piece(run);
                lane.write_v(class, &[seg], bytes)?;
            }
            if let Some(version) = version {
                lane.write_v(class, &[tag_seg], &tag(0, version + 2))?;
            }
            return Ok(());
        }
        // One message: a server puts the bytes of a list in place in its order.
        let mut segs = Vec::with_capacity(pages.len() + 2);
        let mut len = 0;
        let mut put = |seg: Seg, bytes: &[u8], segs: &mut Vec<Seg>| {
            buffer[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
            segs.push(seg);
        };
        if let Some(version) = version {
            put(tag_seg, &tag(1, version + 1), &mut segs);
        }
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (seg, bytes) = piece(run);
            put(seg, bytes, &mut segs);
        }
        if let Some(version) = version {
            put(tag_seg, &tag(0, version + 2), &mut segs);
        }
        lane.write_v(class, &segs, &buffer[..len])
    }

    /// Writes back the dirty pages of a range; they stay cached. How many there were.
    pub fn write_back(&self, pages: Range<u32>) -> u64 {
        let mut total = 0;
        let mut batch = [0u32; BATCH as usize];
        let mut count = 0;
        for page in pages {
            // A page that is being changed may be on its way to dirty: wait for it.
            if self.take(page, |state| state == DIRTY).is_some() {
                batch[count] = page;
                count += 1;
                if count == batch.len() {
                    total += self.clean(&batch);
                    count = 0;
                }
            }
        }
        total + self.clean(&batch[..count])
    }

    fn clean(&self, taken: &[u32]) -> u64 {
        let state = if self.send_home(taken) { CLEAN } else { DIRTY };
        for page in taken {
            self.state(*page).store(state, Release);
        }
        taken.len() as u64
    }

    pub fn all_pages(&self) -> Range<u32> {
        0..self.states.len() as u32
    }

    /// Writes back and unmaps a range, so that an agent may change it.
    pub fn evict(&self, places: Range<u64>) {
        let mut batch = [(0u32, false); BATCH as usize];
        let mut count = 0;
        for page in self.pages_of(places) {
            if let Some(state) = self.take(page, |state| matches!(state, CLEAN | DIRTY)) {
                batch[count] = (page, state == DIRTY);
                count += 1;
                if count == batch.len() {
                    self.put_out_removed(&batch);
                    count = 0;
                }
            }
        }
        self.put_out_removed(&batch[..count]);
    }

    /// Evicts a range and keeps everybody from bringing any of it back, prefetching included, until
    /// it is [let go](Pager::let_go): an agent changes it.
    pub fn seize(&self, places: Range<u64>) {
        self.evict(places.clone());
        for page in self.pages_of(places) {
            // Busy from here on. What a prefetch brought since goes out again.
            while let Some(state @ (CLEAN | DIRTY)) = self.take(page, |state| state != INIT) {
                self.put_out_removed(&[(page, state == DIRTY)]);
                if self.is_lost() {
                    return;
                }
            }
        }
    }

    /// The agent is done with a range that was seized.
    pub fn let_go(&self, places: Range<u64>) {
        for page in self.pages_of(places) {
            let state = self.state(page);
            let _ = state.compare_exchange(BUSY, EVICTED, AcqRel, Acquire);
        }
    }

    fn put_out_removed(&self, taken: &[(u32, bool)]) {
        {
            let mut policies = self.lock_policies();
            for (page, _) in taken {
                policies.evict.handle_removed(index(*page));
            }
        }
        self.put_out(taken);
    }

    /// Unmaps a range whose contents nobody needs any more; it reads as zeros when next touched.
    pub fn forget(&self, places: Range<u64>) {
        let pages = self.pages_of(places);
        let mut run = pages.start..pages.start;
        let drop_run = |run: Range<u32>| {
            if !run.is_empty() {
                self.unmap(run.start, run.len() as u32);
                for page in run {
                    self.state(page).store(INIT, Release);
                }
            }
        };
        for page in pages {
            let Some(state) = self.take(page, |state| state != INIT && state != LOST) else {
                continue;
            };
            if state == EVICTED {
                self.state(page).store(INIT, Release);
                continue;
            }
            self.lock_policies().evict.handle_removed(index(page));
            self.cached_pages.fetch_sub(1, Relaxed);
            if run.end != page {
                drop_run(run);
                run = page..page;
            }
            run.end = page + 1;
        }
        drop_run(run);
    }
}
