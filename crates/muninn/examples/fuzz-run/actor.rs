//! Whoever takes steps: the main thread, another thread, or a child.
//!
//! An actor owns its areas and knows what they hold; nobody else touches them. What it read makes
//! its digest. Addresses, numbers of processes and time never go in: two runs of one list have one
//! digest, whatever happens beside them.

use crate::byref::Transfer;
use crate::calls;
use crate::dice::{Digest, nth};
use crate::forks::Child;
use crate::model::{Area, Content, Kind, Layer, PAGE, Page};
use crate::step::{Act, Filling, Part, Pick, Step};
use crate::threads::Worker;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

const AREAS_MAX: usize = 16;

/// What all actors of a run go by.
#[derive(Debug, Default)]
pub struct Rules {
    /// Steps that are left out.
    pub skipped: HashSet<String>,
    /// Kinds of steps that are left out, by their words.
    pub without: Vec<String>,
    /// Every step is told on stderr as it is taken.
    pub trace: bool,
}

impl Rules {
    pub fn skip(&self, step: &Step) -> bool {
        let kind = step.act.kind();
        self.skipped.contains(&step.id) || self.without.iter().any(|word| word == kind)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The thread that a process began with, or a child that libc made.
    Process,
    Thread,
    /// A child that libc does not know of: no threads there.
    RawChild,
}

pub struct Actor {
    pub areas: Vec<Option<Area>>,
    pub pages_max: usize,
    pub digest: Digest,
    pub role: Role,
    pub is_child: bool,
    pub transfers: VecDeque<Transfer>,
    pub children: VecDeque<Child>,
    pub workers: VecDeque<Worker>,
    pub rules: Arc<Rules>,
    pub transfers_made: u32,
    pub breaks: usize,
}

impl Actor {
    pub fn new(role: Role, pages_max: usize, rules: Arc<Rules>) -> Actor {
        Actor {
            areas: (0..AREAS_MAX).map(|_| None).collect(),
            pages_max,
            digest: Digest(0),
            role,
            is_child: false,
            transfers: VecDeque::new(),
            children: VecDeque::new(),
            workers: VecDeque::new(),
            rules,
            transfers_made: 0,
            breaks: 0,
        }
    }

    /// Takes the steps, then waits for everybody and looks at everything.
    pub fn play(&mut self, steps: &[Step]) -> Result<Digest, String> {
        for step in steps {
            if self.rules.skip(step) {
                continue;
            }
            if self.rules.trace {
                calls::say(2, &format!("step {}: {}\n", step.id, step.act));
            }
            self.take(step)
                .map_err(|wrong| format!("step {} ({}): {wrong}", step.id, step.act))?;
        }
        self.finish()
            .map_err(|wrong| format!("at the end: {wrong}"))?;
        Ok(self.digest)
    }

    fn finish(&mut self) -> Result<(), String> {
        while !self.transfers.is_empty() {
            self.receive(Pick(0), Part { at: 0, pages: 0 })?;
        }
        while !self.workers.is_empty() {
            self.join()?;
        }
        while !self.children.is_empty() {
            self.collect()?;
        }
        self.read_all()
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        let salt = step.salt;
        match &step.act {
            Act::Map(pick, pages, how) => self.map(*pick, (*pages).into(), *how, salt),
            Act::Replace(pick, part) => self.replace(*pick, *part),
            Act::Unmap(pick, part) => self.unmap(*pick, *part),
            Act::Grow(pick, pages) => self.grow(*pick, (*pages).into()),
            Act::Shrink(pick, pages) => self.shrink(*pick, (*pages).into()),
            Act::MoveTo(pick) => self.move_to(*pick),
            Act::MoveOut(pick) => self.move_out(*pick),
            Act::ReadOnly(pick, part) => self.protect(*pick, *part, crate::model::Guard::ReadOnly),
            Act::Close(pick, part) => self.protect(*pick, *part, crate::model::Guard::Closed),
            Act::Open(pick) => {
                let whole = Part {
                    at: 0,
                    pages: u16::MAX,
                };
                self.protect(*pick, whole, crate::model::Guard::Open)
            }
            Act::Advise(pick, part, advice) => self.advise(*pick, *part, *advice),
            Act::Lock(pick, part) => self.lock(*pick, *part),
            Act::Unlock(pick) => self.unlock(*pick),
            Act::Break(pages) => self.grow_break((*pages).into()),
            Act::Malloc(pick, pages) => self.malloc(*pick, (*pages).into(), salt),
            Act::Calloc(pick, pages) => self.calloc(*pick, (*pages).into()),
            Act::Realloc(pick, pages) => self.realloc(*pick, (*pages).into(), salt),
            Act::Free(pick) => self.free(*pick),
            Act::Fill(pick, part, how) => self.fill(*pick, *part, *how, salt),
            Act::Poke(pick, part, len) => self.poke(*pick, *part, *len, salt),
            Act::Read(pick, part) => self.read(*pick, *part),
            Act::ReadAll => self.read_all(),
            Act::Copy(from, part, to, at, way) => self.copy(*from, *part, *to, *at, *way, salt),
            Act::Forbidden(pick) => self.forbidden(*pick),
            Act::Random(pick, part) => self.random(*pick, *part, salt),
            Act::Futex(pick, part) => self.futex(*pick, *part, salt),
            Act::VmSplice(pick, part) => self.vmsplice(*pick, *part),
            Act::ZeroCopy(pick, part) => self.zero_copy(*pick, *part),
            Act::Receive(pick, part) => self.receive(*pick, *part),
            Act::Stack(pages) => crate::heap::recurse((*pages).into(), salt, &mut self.digest),
            Act::Fork(how, later, steps) => self.fork(*how, *later, steps, &step.id),
            Act::Burst(count) => self.burst(*count),
            Act::Exec => self.exec(),
            Act::Spawn => self.spawn(),
            Act::VFork(pick, part) => self.vfork(*pick, *part, salt),
            Act::Collect => self.collect(),
            Act::Thread(steps) => self.thread(steps),
            Act::Join => self.join(),
            Act::Raise(count) => crate::signals::raise(*count),
            Act::Timer(on) => self.timer(*on),
            Act::CloseInput => {
                if self.has_no_descriptor() {
                    calls::close(0);
                }
                Ok(())
            }
            Act::CloseAll => {
                if self.has_no_descriptor() {
                    // SAFETY: no descriptor of this program is open but the first three.
                    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
                }
                Ok(())
            }
        }
    }

    /// It is the only thread of its process.
    pub fn is_alone(&self) -> bool {
        self.role != Role::Thread && self.workers.is_empty()
    }

    /// Nothing but the first three; a child has the pipe for its digest.
    fn has_no_descriptor(&self) -> bool {
        let none = self.children.is_empty() && self.transfers.is_empty();
        none && self.is_alone() && !self.is_child
    }

    /// The next area from there on of which this is true.
    pub fn find(&self, pick: Pick, test: impl Fn(&Area) -> bool) -> Option<usize> {
        let from = usize::from(pick.0);
        let slots = (0..AREAS_MAX).map(|n| (from + n) % AREAS_MAX);
        let mut found = slots.filter(|&slot| self.areas[slot].as_ref().is_some_and(&test));
        found.next()
    }

    pub fn find_mapped(&self, pick: Pick) -> Option<usize> {
        self.find(pick, |area| area.kind == Kind::Mapped)
    }

    pub fn empty_slot(&self, pick: Pick) -> Option<usize> {
        let from = usize::from(pick.0);
        let mut slots = (0..AREAS_MAX).map(|n| (from + n) % AREAS_MAX);
        slots.find(|&slot| self.areas[slot].is_none())
    }

    pub fn area(&self, slot: usize) -> &Area {
        self.areas[slot].as_ref().expect("found a moment ago")
    }

    pub fn area_mut(&mut self, slot: usize) -> &mut Area {
        self.areas[slot].as_mut().expect("found a moment ago")
    }

    /// The first run of pages in a part of which this is true, if there is one.
    pub fn run(
        &self,
        slot: usize,
        part: Part,
        test: impl Fn(&Page) -> bool,
    ) -> Option<(usize, usize)> {
        let pages = &self.area(slot).pages;
        let from = pages.len() * usize::from(part.at) / 65536;
        let skipped = pages[from..].iter().position(&test)?;
        let from = from + skipped;
        let good = pages[from..].iter().take_while(|page| test(page)).count();
        let count = good.min(part.pages.into());
        (count > 0).then_some((from, count))
    }

    /// How many pages more it may have.
    pub fn room(&self) -> usize {
        let held: usize = self
            .areas
            .iter()
            .flatten()
            .map(|area| area.pages.len())
            .sum();
        self.pages_max.saturating_sub(held)
    }

    pub fn fill(&mut self, pick: Pick, part: Part, how: Filling, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, Page::is_writable) else {
            return Ok(());
        };
        self.fill_pages(slot, from, count, how, salt);
        Ok(())
    }

    pub fn fill_pages(&mut self, slot: usize, from: usize, count: usize, how: Filling, salt: u64) {
        let area = self.area_mut(slot);
        for page in from..from + count {
            let base = match how {
                Filling::Own => nth(salt, page as u64) | 1,
                Filling::Equal => salt | 1,
                Filling::Zeros => 0,
            };
            let content = Content::of(base);
            content.write(area.address(page));
            area.pages[page].content = content;
        }
    }

    fn poke(&mut self, pick: Pick, part: Part, len: u16, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, Page::is_writable) else {
            return Ok(());
        };
        let area = self.area_mut(slot);
        for page in from..from + count {
            let id = nth(salt, page as u64) | 1;
            let start = (id >> 20) as u16 % (PAGE as u16 - len);
            let layer = Layer {
                from: start,
                to: start + len,
                id,
            };
            let at = area.address(page);
            area.pages[page].content.poke(at, layer);
        }
        Ok(())
    }

    fn read(&mut self, pick: Pick, part: Part) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, Page::is_readable) else {
            return Ok(());
        };
        self.check(slot, from, count)
    }

    pub fn check(&mut self, slot: usize, from: usize, count: usize) -> Result<(), String> {
        let mut digest = self.digest;
        let area = self.area(slot);
        let all = area.pages.len();
        for page in (from..from + count).filter(|&page| area.pages[page].is_readable()) {
            let content = &area.pages[page].content;
            let checked = content.check(area.address(page), &mut digest);
            checked.map_err(|wrong| format!("area {slot}, page {page} of {all}: {wrong}"))?;
        }
        self.digest = digest;
        Ok(())
    }

    pub fn read_all(&mut self) -> Result<(), String> {
        for slot in 0..AREAS_MAX {
            if let Some(area) = &self.areas[slot] {
                let count = area.pages.len();
                self.check(slot, 0, count)?;
            }
        }
        Ok(())
    }
}

/// Says so and ends the process, with everything that it had in mind.
pub fn wrong(text: &str) -> ! {
    calls::say(1, &format!("WRONG {text}\n"));
    calls::exit_now(1)
}
