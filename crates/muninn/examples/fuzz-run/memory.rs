//! Memory calls: each changes the mapping and its shadow alike.

use crate::actor::Actor;
use crate::calls::{self, PRIVATE, RW};
use crate::model::{Area, Content, Guard, Kind, PAGE, Page};
use crate::step::{Advice, Mapping, Part, Pick};
use std::io::Error;

/// Locked memory is scarce.
const LOCKED_MAX: usize = 64;

impl Actor {
    pub fn map(&mut self, pick: Pick, pages: usize, how: Mapping, salt: u64) -> Result<(), String> {
        let Some(slot) = self.empty_slot(pick) else {
            return Ok(());
        };
        let pages = pages.min(self.room());
        if pages == 0 {
            return Ok(());
        }
        let len = pages * PAGE;
        let at = match how {
            Mapping::Plain => calls::map(len)?,
            Mapping::Hint => {
                let hint = (1 << 40) + (salt as usize % (1 << 28)) * PAGE;
                calls::map_at(hint, len, RW, PRIVATE, -1)?
            }
            Mapping::Populate => calls::map_at(0, len, RW, PRIVATE | libc::MAP_POPULATE, -1)?,
            Mapping::NoReserve => calls::map_at(0, len, RW, PRIVATE | libc::MAP_NORESERVE, -1)?,
            Mapping::Reserved => {
                let at = calls::map_at(0, len, libc::PROT_NONE, PRIVATE, -1)?;
                calls::protect(at, len, RW)?;
                at
            }
        };
        self.areas[slot] = Some(Area::new(at, Kind::Mapped, pages));
        Ok(())
    }

    pub fn replace(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, |_| true) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        calls::map_fixed(area.address(from), count * PAGE, RW)?;
        area.pages[from..from + count].fill(Page::zero());
        Ok(())
    }

    /// The front, the end, or a hole: then the rest is an area of its own.
    pub fn unmap(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, |_| true) else {
            return Ok(());
        };
        let other = self.empty_slot(pick);
        let mut area = self.areas[slot].take().expect("found a moment ago");
        let mut count = count;
        if other.is_none() && from > 0 {
            count = area.pages.len() - from;
        }
        calls::unmap(area.address(from), count * PAGE)?;
        let rest = Area {
            at: area.address(from + count),
            kind: area.kind,
            pages: area.pages.split_off(from + count),
        };
        area.pages.truncate(from);
        match (area.pages.is_empty(), rest.pages.is_empty()) {
            (false, false) => {
                self.areas[slot] = Some(area);
                self.areas[other.expect("else there is no rest")] = Some(rest);
            }
            (false, true) => self.areas[slot] = Some(area),
            (true, false) => self.areas[slot] = Some(rest),
            (true, true) => {}
        }
        Ok(())
    }

    /// An area of which nothing special was said: whatever mappings it is made of, it can move.
    fn find_plain(&self, pick: Pick) -> Option<usize> {
        let plain =
            |area: &Area| area.kind == Kind::Mapped && area.pages.iter().all(Page::is_plain);
        self.find(pick, plain)
    }

    pub fn grow(&mut self, pick: Pick, by: usize) -> Result<(), String> {
        let by = by.min(self.room());
        let Some(slot) = self.find_plain(pick) else {
            return Ok(());
        };
        if by == 0 {
            return Ok(());
        }
        let area = self.area_mut(slot);
        let (old, new) = (area.len(), area.len() + by * PAGE);
        area.at = match remap(area.at, old, new, libc::MREMAP_MAYMOVE, 0)? {
            Some(at) => at,
            None => {
                let to = calls::map(new)?;
                copy_out(area.at, old, to)?;
                to
            }
        };
        area.pages.extend((0..by).map(|_| Page::zero()));
        Ok(())
    }

    pub fn shrink(&mut self, pick: Pick, by: usize) -> Result<(), String> {
        let Some(slot) = self.find_plain(pick) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        let left = area.pages.len().saturating_sub(by).max(1);
        let (old, new) = (area.len(), left * PAGE);
        if remap(area.at, old, new, 0, 0)?.is_none() {
            calls::unmap(area.at + new, old - new)?;
        }
        area.pages.truncate(left);
        Ok(())
    }

    pub fn move_to(&mut self, pick: Pick) -> Result<(), String> {
        let Some(slot) = self.find_plain(pick) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        let len = area.len();
        let place = calls::map_at(0, len, libc::PROT_NONE, PRIVATE, -1)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if remap(area.at, len, len, flags, place)?.is_none() {
            calls::map_fixed(place, len, RW)?;
            copy_out(area.at, len, place)?;
        }
        area.at = place;
        Ok(())
    }

    pub fn move_out(&mut self, pick: Pick) -> Result<(), String> {
        let room = self.room();
        let (Some(slot), Some(other)) = (self.find_plain(pick), self.empty_slot(pick)) else {
            return Ok(());
        };
        let area = self.area(slot);
        let (at, len, count) = (area.at, area.len(), area.pages.len());
        if count > room {
            return Ok(());
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let to = match remap(at, len, len, flags, 0)? {
            Some(to) => to,
            None => {
                let to = calls::map(len)?;
                copy(at, len, to);
                calls::advise(at, len, libc::MADV_DONTNEED)?;
                to
            }
        };
        let mut moved = Area::new(at, Kind::Mapped, count);
        std::mem::swap(&mut moved, self.area_mut(slot));
        moved.at = to;
        self.areas[other] = Some(moved);
        Ok(())
    }

    pub fn protect(&mut self, pick: Pick, part: Part, guard: Guard) -> Result<(), String> {
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, |_| true) else {
            return Ok(());
        };
        let prot = match guard {
            Guard::Closed => libc::PROT_NONE,
            Guard::ReadOnly => libc::PROT_READ,
            Guard::Open => RW,
        };
        let area = self.area_mut(slot);
        calls::protect(area.address(from), count * PAGE, prot)?;
        for page in &mut area.pages[from..from + count] {
            page.guard = guard;
        }
        Ok(())
    }

    pub fn advise(&mut self, pick: Pick, part: Part, advice: Advice) -> Result<(), String> {
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let allowed = |page: &Page| match advice {
            Advice::DontNeed | Advice::Free | Advice::Cold | Advice::PageOut => !page.locked,
            Advice::PopulateRead => page.is_readable(),
            Advice::PopulateWrite => page.guard == Guard::Open,
            _ => true,
        };
        let Some((from, count)) = self.run(slot, part, allowed) else {
            return Ok(());
        };
        let number = match advice {
            Advice::DontNeed => libc::MADV_DONTNEED,
            Advice::Free => libc::MADV_FREE,
            Advice::WipeOnFork => libc::MADV_WIPEONFORK,
            Advice::KeepOnFork => libc::MADV_KEEPONFORK,
            Advice::DontFork => libc::MADV_DONTFORK,
            Advice::DoFork => libc::MADV_DOFORK,
            Advice::HugePage => libc::MADV_HUGEPAGE,
            Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
            Advice::Cold => libc::MADV_COLD,
            Advice::PageOut => libc::MADV_PAGEOUT,
            Advice::PopulateRead => libc::MADV_POPULATE_READ,
            Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
        };
        let area = self.area_mut(slot);
        let mut answer = calls::advise(area.address(from), count * PAGE, number);
        while answer.is_err() && calls::errno() == libc::EINTR {
            answer = calls::advise(area.address(from), count * PAGE, number);
        }
        if !matches!(advice, Advice::HugePage | Advice::NoHugePage) {
            // Kernels without huge pages know no advice about them.
            answer?;
        }
        for page in &mut area.pages[from..from + count] {
            match advice {
                Advice::DontNeed => page.content = Content::default(),
                Advice::Free => page.content.either = page.content != Content::default(),
                Advice::WipeOnFork => page.wiped_on_fork = true,
                Advice::KeepOnFork => page.wiped_on_fork = false,
                Advice::DontFork => page.not_forked = true,
                Advice::DoFork => page.not_forked = false,
                _ => {}
            }
        }
        Ok(())
    }

    pub fn lock(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let locked = self.areas.iter().flatten();
        let locked = locked
            .flat_map(|area| &area.pages)
            .filter(|page| page.locked);
        let room = LOCKED_MAX.saturating_sub(locked.count());
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let part = Part {
            pages: part.pages.min(room as u16),
            ..part
        };
        let Some((from, count)) = self.run(slot, part, Page::is_readable) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        // SAFETY: memory of the actor's own.
        let answer = unsafe { libc::mlock(area.address(from) as *const _, count * PAGE) };
        calls::check("mlock", answer.into())?;
        for page in &mut area.pages[from..from + count] {
            page.locked = true;
        }
        Ok(())
    }

    pub fn unlock(&mut self, pick: Pick) -> Result<(), String> {
        let Some(slot) = self.find_mapped(pick) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        // SAFETY: memory of the actor's own.
        let answer = unsafe { libc::munlock(area.at as *const _, area.len()) };
        calls::check("munlock", answer.into())?;
        for page in &mut area.pages {
            page.locked = false;
        }
        Ok(())
    }
}

/// Where it is now. None: it is made of several mappings, which not every kernel moves at once and
/// of which nobody can say when they become one; then the caller does it by hand.
fn remap(
    at: usize,
    old: usize,
    new: usize,
    flags: i32,
    to: usize,
) -> Result<Option<usize>, String> {
    // SAFETY: memory of the actor's own, to which no reference exists.
    let got = unsafe { libc::mremap(at as *mut _, old, new, flags, to as *mut libc::c_void) };
    if got != libc::MAP_FAILED {
        return Ok(Some(got as usize));
    }
    match Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(None),
        error => Err(format!("mremap of {old} bytes to {new}: {error}")),
    }
}

pub fn copy(at: usize, len: usize, to: usize) {
    // SAFETY: both are mapped for that long, open, the actor's own, and apart.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, len) };
}

fn copy_out(at: usize, len: usize, to: usize) -> Result<(), String> {
    copy(at, len, to);
    calls::unmap(at, len)
}
