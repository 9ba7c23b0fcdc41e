//! The fake descriptor: requests by the rules of the kernel, and misfortunes by script.
//!
//! Invariant: a request does its pages in order and stops at the first it cannot do; with pages
//! done it answers EAGAIN, without it answers the reason, as the kernel does.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muninn_types::{PAGE_SIZE, PageNo, SplitMix64};
use rustix::io::Errno;

use super::space::FakeSpace;
use super::state::{Page, State};
use crate::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, Features, MoveMode, Operations, PageRange,
    Partial, RegisterMode, RequestError, Wake,
};

/// The kinds of requests that can be scripted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Register,
    Copy,
    Zero,
    Move,
    WriteProtect,
    Poison,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// As the rules say.
    Pass,
    /// Nothing is done, for this reason.
    Fail(Cause),
    /// At most this many pages are done; then "go on with the rest".
    StopAfter(u64),
    /// At most this many pages are done, and nobody is told: the next time the kernel looks they are
    /// there already. So does Linux 6.18 when it has to try a move twice.
    StopUntold(u64),
}

/// A descriptor of a [`FakeSpace`].
#[derive(Debug)]
pub struct FakeFaultDevice {
    space: FakeSpace,
    port: usize,
    script: Mutex<VecDeque<(Call, Script)>>,
}

impl FakeFaultDevice {
    pub(super) fn new(space: FakeSpace, port: usize) -> FakeFaultDevice {
        FakeFaultDevice {
            space,
            port,
            script: Mutex::default(),
        }
    }

    pub(super) fn port(&self) -> usize {
        self.port
    }

    pub fn space(&self) -> &FakeSpace {
        &self.space
    }

    /// Decides about the next request of this kind that has no decision yet.
    pub fn script(&self, call: Call, script: Script) {
        self.plan().push_back((call, script));
    }

    /// Puts an event into the queue, whatever the space says.
    pub fn inject(&self, event: Event<FakeFaultDevice>) {
        self.space.lock().ports[self.port].events.push_back(event);
    }

    /// Brings the waiting events into another order, the same for the same seed.
    pub fn shuffle_events(&self, seed: u64) {
        let mut state = self.space.lock();
        let events = state.ports[self.port].events.make_contiguous();
        SplitMix64::new(seed).shuffle(events);
    }

    /// Events that wait to be read.
    pub fn pending(&self) -> usize {
        self.space.lock().ports[self.port].events.len()
    }

    fn plan(&self) -> MutexGuard<'_, VecDeque<(Call, Script)>> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scripted(&self, call: Call) -> Script {
        let mut script = self.plan();
        let position = script.iter().position(|(kind, _)| *kind == call);
        position
            .and_then(|at| script.remove(at))
            .map_or(Script::Pass, |(_, script)| script)
    }

    /// Does `one` for each page of the range, by script and by the rules.
    fn each(
        &self,
        call: Call,
        range: PageRange,
        wake: Option<Wake>,
        mut one: impl FnMut(&mut State, PageNo) -> Result<(), Cause>,
    ) -> Result<(), Partial> {
        let script = self.scripted(call);
        let limit = match script {
            Script::Fail(cause) => return Err(Partial::new(0, cause)),
            Script::StopAfter(pages) if pages < range.pages() => pages,
            Script::StopUntold(pages) => pages,
            _ => u64::MAX,
        };
        let mut state = self.space.lock();
        if state.ports[self.port].changes > 0 {
            return Err(Partial::new(0, Cause::Again));
        }
        let mut outcome = Ok(());
        for (done, page) in (0..).zip(range.iter()) {
            let result = if done < limit {
                one(&mut state, page)
            } else {
                Err(Cause::Again)
            };
            if let Err(cause) = result {
                let told = if done > 0 { Cause::Again } else { cause };
                outcome = Err(Partial::new(done, told));
                break;
            }
        }
        let done = match outcome {
            Ok(()) => range.pages(),
            Err(partial) => partial.done_pages,
        };
        if matches!(script, Script::StopUntold(_)) && done > 0 {
            return Err(Partial::new(0, Cause::Exists));
        }
        if wake == Some(Wake::Now) && done > 0 {
            state.wake(PageRange::new(range.first(), done));
        }
        outcome
    }

    fn owned<'a>(&self, state: &'a mut State, page: PageNo) -> Result<&'a mut Page, Cause> {
        let port = self.port;
        state
            .pages
            .get_mut(&page)
            .filter(|entry| entry.owner.is_some_and(|(owner, _)| owner == port))
            .ok_or(Cause::Absent)
    }

    /// A page of ours that is absent and bears no mark.
    fn vacant<'a>(&self, state: &'a mut State, page: PageNo) -> Result<&'a mut Page, Cause> {
        match self.owned(state, page)? {
            entry if entry.present || entry.has_mark() => Err(Cause::Exists),
            entry => Ok(entry),
        }
    }
}

impl FaultDevice for FakeFaultDevice {
    unsafe fn register(
        &self,
        range: PageRange,
        mode: RegisterMode,
    ) -> Result<Operations, RequestError> {
        let refused = |cause| RequestError {
            action: "register",
            range,
            cause,
        };
        if let Script::Fail(cause) = self.scripted(Call::Register) {
            return Err(refused(cause));
        }
        let mut state = self.space.lock();
        for page in range.iter() {
            let entry = state.pages.get(&page).filter(|entry| !entry.unmapped);
            match entry.ok_or_else(|| refused(Cause::Absent))?.owner {
                Some((owner, _)) if owner != self.port => return Err(refused(Cause::Busy)),
                _ => {}
            }
        }
        state.each(range, |page| page.owner = Some((self.port, mode)));
        Ok(Operations(0x1ff))
    }

    fn unregister(&self, range: PageRange) -> Result<(), RequestError> {
        let mut state = self.space.lock();
        state.each(range, |page| {
            page.owner = page.owner.filter(|(owner, _)| *owner != self.port);
            page.write_protected = false;
        });
        state.wake(range);
        Ok(())
    }

    unsafe fn copy(&self, to: PageRange, from: *const u8, mode: CopyMode) -> Result<(), Partial> {
        self.each(Call::Copy, to, Some(mode.wake), |state, page| {
            let entry = self.owned(state, page)?;
            if entry.present {
                return Err(Cause::Exists);
            }
            // Marks are replaced by a copy, and only by a copy.
            entry.present = true;
            entry.poisoned = false;
            entry.write_protected = mode.write_protected;
            let offset = ((page.0 - to.first().0) as usize) * PAGE_SIZE;
            let mut bytes = [0; PAGE_SIZE];
            // SAFETY: the caller vouches that `from` is readable for all pages of the range.
            unsafe { from.add(offset).copy_to(bytes.as_mut_ptr(), PAGE_SIZE) };
            state.write(page, &bytes);
            Ok(())
        })
    }

    fn zero(&self, range: PageRange, wake: Wake) -> Result<(), Partial> {
        self.each(Call::Zero, range, Some(wake), |state, page| {
            self.vacant(state, page)?.present = true;
            Ok(())
        })
    }

    unsafe fn move_pages(
        &self,
        to: PageNo,
        from: PageRange,
        mode: MoveMode,
    ) -> Result<(), Partial> {
        let result = self.each(Call::Move, from, None, |state, source| {
            let target = PageNo(to.0 + (source.0 - from.first().0));
            let page = state.pages.get(&source).copied().unwrap_or_default();
            if page.unmapped {
                return Err(Cause::Absent);
            }
            self.owned(state, target).map_err(|_| Cause::Invalid)?;
            // The kernel looks at the destination first, also for a hole.
            self.vacant(state, target)?;
            if page.has_mark() {
                return Err(Cause::BadSource);
            }
            if !page.present {
                return if mode.allow_holes {
                    Ok(())
                } else {
                    Err(Cause::Absent)
                };
            }
            if page.busy || page.shared {
                return Err(Cause::Busy);
            }
            self.vacant(state, target)?.present = true;
            let bytes = state.bytes(source);
            state.write(target, &bytes);
            state.clear(PageRange::one(source));
            Ok(())
        });
        let done = result.err().map_or(from.pages(), |p| p.done_pages);
        if mode.wake == Wake::Now && done > 0 {
            self.space.lock().wake(PageRange::new(to, done));
        }
        result
    }

    fn wake(&self, range: PageRange) -> Result<(), RequestError> {
        self.space.lock().wake(range);
        Ok(())
    }

    fn write_protect(
        &self,
        range: PageRange,
        protect: bool,
        wake: Wake,
    ) -> Result<(), RequestError> {
        let wake = Some(wake).filter(|_| !protect);
        self.each(Call::WriteProtect, range, wake, |state, page| {
            let port = self.port;
            let unpopulated = state.ports[port]
                .features
                .contains(Features::WP_UNPOPULATED);
            let entry = self.owned(state, page)?;
            if entry.present || (unpopulated && !entry.poisoned) {
                entry.write_protected = protect;
            }
            Ok(())
        })
        .map_err(|partial| RequestError {
            action: "change the write protection of",
            range,
            cause: partial.cause,
        })
    }

    fn resume(&self, _: PageRange, _: CopyMode) -> Result<(), Partial> {
        // Private memory has no minor faults.
        Err(Partial::new(0, Cause::Invalid))
    }

    fn poison(&self, range: PageRange, wake: Wake) -> Result<(), Partial> {
        self.each(Call::Poison, range, Some(wake), |state, page| {
            self.vacant(state, page)?.poisoned = true;
            Ok(())
        })
    }

    fn is_changing(&self) -> bool {
        self.space.lock().ports[self.port].changes > 0
    }

    fn read_events(&self, into: &mut EventBuffer<FakeFaultDevice>) -> Result<usize, Errno> {
        let mut count = 0;
        while into.room() > 0 {
            let mut state = self.space.lock();
            let Some(event) = state.ports[self.port].events.pop_front() else {
                break;
            };
            if !matches!(event, Event::Fault(_)) {
                let port = &mut state.ports[self.port];
                port.changes = port.changes.saturating_sub(1);
            }
            if let Event::Remove(range) = event {
                let port = self.port;
                if let Some(at) = state.removals.iter().position(|r| *r == (port, range)) {
                    state.removals.remove(at);
                    match &mut state.held {
                        Some(held) => held.push(range),
                        None => state.clear(range),
                    }
                }
            }
            drop(state);
            // There is room: that was asked above.
            let _ = into.push(event);
            count += 1;
        }
        Ok(count)
    }

    fn wait(&self, _: Option<Duration>) -> Result<bool, Errno> {
        Ok(self.pending() > 0)
    }
}
