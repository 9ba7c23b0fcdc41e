//! Memory that libc gives: malloc and its kin, the break, static memory, and the stack.

use crate::actor::Actor;
use crate::calls;
use crate::dice::{Digest, nth};
use crate::model::{Area, Content, Kind, PAGE, Page, WORDS};
use crate::step::{Filling, Pick};
use std::cell::UnsafeCell;

/// How often the break is raised; it never comes down, because malloc uses it too.
const BREAKS_MAX: usize = 6;

pub const STATIC_PAGES: usize = 512;

#[repr(align(4096))]
struct Static(UnsafeCell<[u8; STATIC_PAGES * PAGE]>);

// SAFETY: only the main thread uses it, by its address.
unsafe impl Sync for Static {}

static STATIC: Static = Static(UnsafeCell::new([0; STATIC_PAGES * PAGE]));

/// Zeros of the program file, as an area.
pub fn static_area() -> Area {
    Area::new(STATIC.0.get() as usize, Kind::Fixed, STATIC_PAGES)
}

impl Actor {
    pub fn grow_break(&mut self, pages: usize) -> Result<(), String> {
        let pages = pages.min(self.room());
        // Two threads at the break are one too many.
        if !self.is_alone() || self.breaks == BREAKS_MAX || pages == 0 {
            return Ok(());
        }
        let Some(slot) = self.empty_slot(Pick(0)) else {
            return Ok(());
        };
        // SAFETY: this is the only thread; malloc copes with a break that others raise.
        let at = unsafe {
            let now = libc::sbrk(0) as usize;
            let gap = now.next_multiple_of(PAGE) - now;
            calls::check("sbrk", libc::sbrk((gap + pages * PAGE) as isize) as i64)?;
            now + gap
        };
        self.breaks += 1;
        self.areas[slot] = Some(Area::new(at, Kind::Fixed, pages));
        Ok(())
    }

    pub fn malloc(&mut self, pick: Pick, pages: usize, salt: u64) -> Result<(), String> {
        let pages = pages.min(self.room());
        let Some(slot) = self.empty_slot(pick).filter(|_| pages > 0) else {
            return Ok(());
        };
        // SAFETY: a plain call.
        let at = unsafe { libc::malloc(pages * PAGE) } as usize;
        self.areas[slot] = Some(Area::new(got("malloc", at)?, Kind::Heap, pages));
        self.fill_pages(slot, 0, pages, Filling::Own, salt);
        Ok(())
    }

    pub fn calloc(&mut self, pick: Pick, pages: usize) -> Result<(), String> {
        let pages = pages.min(self.room());
        let Some(slot) = self.empty_slot(pick).filter(|_| pages > 0) else {
            return Ok(());
        };
        // SAFETY: a plain call.
        let at = unsafe { libc::calloc(pages, PAGE) } as usize;
        self.areas[slot] = Some(Area::new(got("calloc", at)?, Kind::Heap, pages));
        self.check(slot, 0, pages)
    }

    pub fn realloc(&mut self, pick: Pick, pages: usize, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |area| area.kind == Kind::Heap) else {
            return Ok(());
        };
        let room = self.room();
        let area = self.area_mut(slot);
        let old = area.pages.len();
        let new = pages.min(old + room).max(1);
        // SAFETY: it came from malloc, and nobody else knows of it.
        let at = unsafe { libc::realloc(area.at as *mut _, new * PAGE) } as usize;
        area.at = got("realloc", at)?;
        area.pages.resize(new, Page::zero());
        self.fill_pages(
            slot,
            old.min(new),
            new.saturating_sub(old),
            Filling::Own,
            salt,
        );
        Ok(())
    }

    pub fn free(&mut self, pick: Pick) -> Result<(), String> {
        let Some(slot) = self.find(pick, |area| area.kind == Kind::Heap) else {
            return Ok(());
        };
        if let Some(area) = self.areas[slot].take() {
            // SAFETY: it came from malloc, and nobody else knows of it.
            unsafe { libc::free(area.at as *mut _) };
        }
        Ok(())
    }

    /// Gives back what a thread had.
    pub fn give_back(&mut self) -> Result<(), String> {
        for area in self.areas.iter_mut().filter_map(Option::take) {
            match area.kind {
                Kind::Mapped => calls::unmap(area.at, area.len())?,
                // SAFETY: it came from malloc, and nobody else knows of it.
                Kind::Heap => unsafe { libc::free(area.at as *mut _) },
                Kind::Fixed => {}
            }
        }
        Ok(())
    }
}

fn got(what: &str, at: usize) -> Result<usize, String> {
    match at {
        0 => Err(format!("{what}: there is no memory")),
        at => Ok(at),
    }
}

/// A page in every frame, written on the way down and looked at on the way up.
#[inline(never)]
pub fn recurse(depth: usize, salt: u64, digest: &mut Digest) -> Result<(), String> {
    let mut page = [0u64; WORDS];
    let at = (&raw mut page) as usize;
    let content = Content::of(nth(salt, depth as u64) | 1);
    content.write(at);
    if depth > 1 {
        recurse(depth - 1, salt, digest)?;
    }
    let checked = content.check(at, digest);
    checked.map_err(|wrong| format!("the stack, frame {depth}: {wrong}"))
}
