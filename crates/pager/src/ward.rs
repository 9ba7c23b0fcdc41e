//! Wards: children that the pager answers for until they have a companion of their own.
//!
//! The kernel tells of a fork with a device for the child's memory, and lets the fork go on when that
//! was read. From that moment on the child is our ward: its faults are answered from a [`Snapshot`] of
//! what was far, and what it does to its address space is followed there. Most wards end or execute
//! another program soon, and need nothing else. One that goes on has a companion by then:
//!
//! 1. The child reads its mailbox ([`fork`](crate::fork)) and is answered with its name at our door.
//! 2. Its companion knocks there with that name. It is sent the device, the snapshot, and tickets by
//!    which servers let it read what is far.
//! 3. It says `DONE` when it answers for the child itself. Should it end before that, the child is
//!    still our ward.
//!
//! A child that was made by a system call of its own, or that cannot have a companion (it may not start
//! one, or cannot reach the pool), stays a ward for its life: its pages come near when it touches them,
//! and stay. We stay for our wards, too, when the program itself has ended.
//!
//! Invariant: while there are wards, no far copy from before is written to or given back.

use crate::actor::Actor;
use crate::fork::{Letter, NAME_LEN};
use crate::seal::wipe;
use crate::snapshot::Snapshot;
use crate::vault::Page;
use muninn_pager_core::{Far, FarPlace, Fatal, Incoming};
use muninn_sys::clock;
use muninn_sys::epoll::wait_any;
use muninn_sys::memory::Memfd;
use muninn_sys::proc;
use muninn_sys::rand;
use muninn_sys::socket::{Door, Link};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, FaultKind, PageRange, Userfaultfd, Wake,
};
use muninn_types::{Bytes, Class, Nanos, PAGE_SIZE, PageNo};
use muninn_volume::Ticket;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What is sent with the device and the snapshot.
pub const HERITAGE: &[u8] = b"heritage";
/// The child's companion answers for it from now on.
pub const DONE: &[u8] = b"done";
/// How long a ward's change may keep its pages from being poisoned.
const POISON_PATIENCE: Nanos = Nanos::millis(1000);
/// Between two looks at everything while there are wards.
const WAIT: Duration = Duration::from_millis(1);
/// How long to wait before looking again whether a ward has ended: first, and at most.
const PROBE_FIRST: Nanos = Nanos::millis(1);
const PROBE_MAX: Nanos = Nanos::millis(100);
/// Visitors at the door who have not said who they are.
const VISITORS_MAX: usize = 64;

#[derive(Debug)]
struct Ward {
    device: Userfaultfd,
    snapshot: Snapshot,
    token: u64,
    /// A thread of it, once one was heard of.
    thread: Option<u32>,
    /// To its companion, who has what it needs and has not begun.
    link: Option<Link>,
    /// By which it may read its memory; used when it has begun.
    tickets: Vec<Ticket>,
    probe_at: Nanos,
    probe_pause: Nanos,
}

#[derive(Debug, Default)]
pub struct Wards {
    door: Option<Door>,
    name: [u8; NAME_LEN],
    visitors: Vec<Link>,
    wards: Vec<Ward>,
    /// Grants are shared with somebody's companion, and are not to come or go.
    handing_over: bool,
}

impl Wards {
    /// Opens the door at which companions of children knock.
    pub fn new() -> Wards {
        let mut name = [b'-'; NAME_LEN];
        name[..14].copy_from_slice(b"muninn-wards--");
        // Nobody else has it; the kernel shows it to all.
        name[14..30].copy_from_slice(&rand::bytes::<16>());
        Wards {
            door: Door::open(&name).ok(),
            name,
            ..Wards::default()
        }
    }

    pub fn len(&self) -> usize {
        self.wards.len()
    }
    pub fn is_empty(&self) -> bool {
        self.wards.is_empty()
    }

    /// Sleeps until something happens to the program or to a ward.
    pub fn wait(&self, program: &Userfaultfd) {
        let mut fds = vec![program.as_fd()];
        fds.extend(self.door.as_ref().map(Door::as_fd));
        fds.extend(self.visitors.iter().map(Link::as_fd));
        for ward in &self.wards {
            match &ward.link {
                Some(link) => fds.push(link.as_fd()),
                None => fds.push(ward.device.as_fd()),
            }
        }
        wait_any(&fds, WAIT);
    }
}

impl Ward {
    /// Whoever touches these pages from now on is ended, unless they are there.
    fn poison(&self, range: PageRange) {
        let mut events = EventBuffer::new();
        let until = clock::now() + POISON_PATIENCE;
        while let Err(partial) = self.device.poison(range, Wake::Now) {
            if partial.cause != Cause::Again || clock::now() > until {
                return;
            }
            // It changes its address space, and waits for somebody to hear of that.
            let _ = self.device.read_events(&mut events);
            while events.pop().is_some() {}
        }
    }
}

impl Actor {
    /// The program forked.
    pub(crate) fn handle_fork(&mut self, device: Userfaultfd) -> Result<(), Fatal> {
        self.engine.kernel.counters().forks.fetch_add(1, Relaxed);
        let mut snapshot = Snapshot::of(&self.engine, &self.areas);
        if !snapshot.pages.is_empty() {
            let kept = proc::not_inherited().map_err(|why| {
                Fatal::Lost(format!("cannot look at what a child inherits: {why}"))
            })?;
            snapshot.leave_out(&kept);
        }
        self.take_in(device, snapshot);
        Ok(())
    }

    /// A child with far pages is our ward; to one without we have nothing to say, once it has heard
    /// so: without a device its absent pages are what they would be anyway.
    fn take_in(&mut self, device: Userfaultfd, snapshot: Snapshot) {
        let _ = device.set_blocking(false);
        if snapshot.pages.is_empty() {
            let mailbox = PageRange::one(self.shared.mailbox());
            let page = Letter::new(0, self.wards.name).to_page();
            // SAFETY: a page is readable.
            let answered = unsafe { device.copy(mailbox, page.as_ptr(), CopyMode::default()) };
            if answered.is_ok() {
                self.shared.keeper.take_back_ward(&device);
                return;
            }
        }
        self.engine.pin();
        self.shared.want_small_grants(true);
        self.shared.set_wards(self.wards.len() + 1);
        self.wards.wards.push(Ward {
            device,
            snapshot,
            token: u64::from_le_bytes(rand::bytes()) | 1,
            thread: None,
            link: None,
            tickets: Vec::new(),
            probe_at: clock::now(),
            probe_pause: PROBE_FIRST,
        });
    }

    /// Looks after wards.
    pub(crate) fn attend_wards(&mut self) -> Result<(), Fatal> {
        if self.wards.is_empty() {
            return Ok(());
        }
        let mut wards = std::mem::take(&mut self.wards.wards);
        let before = wards.len();
        self.receive_visitors(&mut wards);
        wards.retain_mut(|ward| {
            let stays = self.attend(ward);
            if !stays {
                self.shared.keeper.take_back_ward(&ward.device);
            }
            stays
        });
        let fewer = wards.len() < before;
        // Children of wards came to the new list.
        wards.append(&mut self.wards.wards);
        let handing_over = wards.iter().any(|ward| ward.link.is_some());
        if self.wards.handing_over && !handing_over {
            self.shared.hold_grants(false);
        }
        self.wards.handing_over = handing_over;
        if fewer {
            let pages = wards.iter().flat_map(|ward| &ward.snapshot.pages);
            self.engine.pin_only(pages.map(|far| far.slot));
            self.scattered = true;
        }
        if wards.is_empty() {
            self.shared.want_small_grants(false);
            self.engine.forget_compaction();
            self.wards.visitors.clear();
        }
        self.wards.wards = wards;
        Ok(())
    }

    /// Nobody will answer for our wards any more. A far page that one of them touches ends it, where
    /// it would read as zeros else. One whose companion has not begun may have lost what we have lost.
    pub(crate) fn abandon_wards(&mut self) {
        for mut ward in std::mem::take(&mut self.wards.wards) {
            if ward.link.is_some() && !self.attend(&mut ward) {
                continue;
            }
            for far in std::mem::take(&mut ward.snapshot.pages) {
                ward.poison(PageRange::one(far.page));
            }
        }
    }

    /// Companions of wards who knock and say who they are.
    fn receive_visitors(&mut self, wards: &mut [Ward]) {
        let door = self.wards.door.as_ref();
        // Anybody on the machine may stand there and say nothing. Companions speak at once.
        if self.wards.visitors.len() >= VISITORS_MAX {
            self.wards.visitors.retain(Link::is_of_own_user);
        }
        let room = VISITORS_MAX.saturating_sub(self.wards.visitors.len());
        let new = std::iter::from_fn(|| door.and_then(Door::accept)).take(room);
        let mut visitors = std::mem::take(&mut self.wards.visitors);
        visitors.extend(new);
        for visitor in visitors {
            let mut token = [0; 8];
            match visitor.receive(&mut token, Duration::ZERO) {
                Ok(None) => self.wards.visitors.push(visitor),
                Ok(Some((8, _))) => {
                    let token = u64::from_le_bytes(token);
                    let named = |ward: &&mut Ward| ward.token == token && ward.link.is_none();
                    if let Some(ward) = wards.iter_mut().find(named) {
                        self.wards.handing_over = true;
                        match self.hand_over(ward, &visitor) {
                            Ok(()) => ward.link = Some(visitor),
                            // It stays our ward; its companion hears why.
                            Err(why) => {
                                self.shared.revoke(ward.tickets.drain(..));
                                let _ = visitor.send(why.as_bytes(), &[]);
                            }
                        }
                    }
                }
                // Gone.
                _ => {}
            }
        }
    }

    /// Whether the child still needs us.
    fn attend(&mut self, ward: &mut Ward) -> bool {
        let Some(link) = &ward.link else {
            self.answer_for(ward);
            return Actor::is_alive(ward);
        };
        let mut message = [0; 64];
        match link.receive(&mut message, Duration::ZERO) {
            Ok(None) => true,
            Ok(Some((len, _))) if &message[..len] == DONE => false,
            // Its companion is gone and had not begun.
            _ => {
                ward.link = None;
                self.shared.revoke(ward.tickets.drain(..));
                true
            }
        }
    }

    /// Asks now and then whether there still is a child.
    fn is_alive(ward: &mut Ward) -> bool {
        let now = clock::now();
        if now < ward.probe_at {
            return true;
        }
        ward.probe_pause = Nanos((ward.probe_pause.0 * 2).min(PROBE_MAX.0));
        ward.probe_at = now + ward.probe_pause;
        ward.device.has_process()
    }

    /// Answers the child's faults and follows its events.
    fn answer_for(&mut self, ward: &mut Ward) {
        let mut events = EventBuffer::new();
        let mut faults = Vec::new();
        loop {
            let _ = ward.device.read_events(&mut events);
            let mut read = 0;
            while let Some(event) = events.pop() {
                read += 1;
                match event {
                    Event::Fault(fault) => faults.push(fault),
                    Event::Remove(range) => ward.snapshot.handle_remove(range),
                    Event::Unmap(range) => ward.snapshot.handle_unmap(range),
                    Event::Remap { from, to } => ward.snapshot.handle_remap(from, to),
                    Event::Fork(device) => self.take_in_child_of(ward, device),
                }
            }
            if read == 0 {
                break;
            }
        }
        for fault in faults {
            ward.thread = Some(fault.thread);
            if fault.kind == FaultKind::WriteProtected {
                // It was about to leave its parent when that forked (without moves).
                let range = PageRange::one(fault.page());
                let _ = ward.device.write_protect(range, false, Wake::Now);
                let _ = ward.device.wake(range);
                continue;
            }
            if let Err(why) = self.fill_for(ward, fault.page()) {
                self.shared.end_child(fault.thread, &why);
            }
        }
    }

    /// A ward forked.
    fn take_in_child_of(&mut self, ward: &Ward, device: Userfaultfd) {
        self.shared.keeper.leave_ward(&device);
        let mut snapshot = ward.snapshot.clone();
        // One of which nothing was heard has not had the time to ask for anything.
        if let Some(kept) = ward.thread.and_then(proc::not_inherited_of) {
            snapshot.leave_out(&kept);
        }
        self.take_in(device, snapshot);
    }

    fn fill_for(&mut self, ward: &Ward, page: PageNo) -> Result<(), String> {
        let to = PageRange::one(page);
        let mut near: Box<Page> = Box::new([0; PAGE_SIZE]);
        if page == self.shared.mailbox() {
            *near = Letter::new(ward.token, self.wards.name).to_page();
        } else if let Some(far) = ward.snapshot.find(page) {
            let extent = ward.snapshot.extent_of(far.slot);
            let from = FarPlace {
                extent: extent.ok_or("its extent is gone")?,
                place: far.slot.place(),
            };
            let print = ward.snapshot.print(&far);
            let near = std::slice::from_mut(&mut *near);
            let one = Incoming { page, from, print };
            let read = self.engine.far.read(&[one], near, Class::Demand);
            read.map_err(|fatal| fatal.to_string())?;
        }
        // While the child changes its address space nothing can be filled; it will touch the page
        // again when woken.
        // SAFETY: the page is ours to read.
        let _ = unsafe { ward.device.copy(to, near.as_ptr(), CopyMode::default()) };
        let _ = ward.device.wake(to);
        Ok(())
    }

    /// Sends the child's companion what it must know.
    fn hand_over(&mut self, ward: &mut Ward, link: &Link) -> Result<(), String> {
        // What it did last must be in the snapshot.
        self.answer_for(ward);
        // All that we have is shared, and none of it is written to from now on.
        if !self.shared.hold_grants(true) {
            return Err("the clerk is busy with a server that does not answer".to_string());
        }
        // Also when what follows fails: then nobody is, and it goes on.
        self.wards.handing_over = true;
        self.engine.freeze();
        let mut snapshot = ward.snapshot.clone();
        snapshot.heritage = self.engine.far.store.share().map_err(|e| e.to_string())?;
        ward.tickets.clone_from(&snapshot.heritage.tickets);
        if let Some(sealer) = self.engine.far.sealer() {
            snapshot.keys = sealer.secrets(snapshot.keys_needed());
        }
        let mut bytes = snapshot.to_bytes();
        let file = Memfd::create("muninn-snapshot", Bytes(bytes.len() as u64))
            .and_then(|file| file.write_all(&bytes).map(|()| file))
            .map_err(|e| e.to_string());
        wipe(&mut bytes);
        let file = file?.into_fd();
        link.send(HERITAGE, &[ward.device.as_fd(), file.as_fd()])
            .map_err(|e| e.to_string())
    }
}
