//! Children: the pager answers for them until they have one of their own.
//!
//! The kernel tells of a fork with a device for the child's memory, and lets the fork go on when that
//! was read. The thread that forks has knocked at our [`Door`] before; its end of the link stays
//! open in the child, so that we hear when the child is ready to take its memory over, or is gone.
//! The fork returns in the parent only then. Were the device the parent's alone, a parent that is
//! killed would take it along, and absent pages of the child would read as zeros; so the child's end
//! of the link is sent the device at once, and a message that is under way keeps it open. Pages that
//! nobody answers for any more would be waited for without end, though; so such a child ends with its
//! parent.
//!
//! 1. `Fork` is read: the child is sent its device, the grants are frozen, a [`Snapshot`] is made.
//! 2. The child's faults are answered from the snapshot.
//! 3. The child sends `READY`; nothing of its device is read here any more. It is sent the snapshot,
//!    with tickets for the grants.
//! 4. The child sends `DONE` when it has redeemed the tickets: the parent may release grants again.
//!
//! A child that did not come through the C library's `fork` has no link. It keeps what it has; if it
//! touches a far page it is ended, with a message, rather than be given zeros. Known limit: it must
//! not outlive its parent, whose end would close its device.

use crate::actor::Actor;
use crate::below::{Far, FarError, Kernel, Transfer};
use crate::chunk::{Hash, Page};
use crate::engine::Fatal;
use crate::fork;
use crate::snapshot::Snapshot;
use muninn_net::{Answer, Control, Grant, Transport};
use muninn_sys::epoll::wait_any;
use muninn_sys::memory::Memfd;
use muninn_sys::socket::{Door, Link};
use muninn_sys::uffd::{CopyMode, Event, EventBuffer, FaultDevice, PageRange, Userfaultfd};
use muninn_types::{Bytes, Class, GrantId, PAGE_SIZE, PageNo, ServerId};
use muninn_wire::MAX_GRANTS;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The child's device.
pub const DEVICE: &[u8] = b"device";
/// The child is ready to take its memory over.
pub const READY: &[u8] = b"ready";
/// The child has what it needs.
pub const DONE: &[u8] = b"done";
/// How long a server may take to issue a ticket.
const SHARE_DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks at everything while there are children to look after.
const WAIT: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Birth {
    device: Userfaultfd,
    link: Option<Link>,
    snapshot: Snapshot,
    /// The child's memory is its own.
    handed_over: bool,
}

#[derive(Debug, Default)]
pub struct Births {
    door: Option<Door>,
    births: Vec<Birth>,
}

impl Births {
    pub fn new(door: Option<Door>) -> Births {
        Births {
            door,
            births: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.births.is_empty()
    }

    /// Sleeps until something happens to the program or to a child.
    pub fn wait(&self, program: &Userfaultfd) {
        let mut fds = vec![program.as_fd()];
        for birth in &self.births {
            if !birth.handed_over {
                fds.push(birth.device.as_fd());
            }
            fds.extend(birth.link.as_ref().map(Link::as_fd));
        }
        wait_any(&fds, WAIT);
    }
}

impl Actor {
    /// The program forked.
    pub(crate) fn handle_fork(&mut self, device: Userfaultfd) -> Result<(), Fatal> {
        self.engine.kernel.counters().forks.fetch_add(1, Relaxed);
        let _ = device.set_blocking(false);
        // The last one who knocked: one before that has given up.
        let door = self.births.door.as_ref();
        let link = std::iter::from_fn(|| door.and_then(Door::accept))
            .last()
            .filter(|link| link.send(DEVICE, &[device.as_fd()]).is_ok());
        self.engine.quiesce();
        let snapshot = Snapshot::of(&self.engine.table, &self.engine.slots, &self.areas);
        fork::count_fork();
        self.shared.hold_grants(true);
        self.births.births.push(Birth {
            device,
            link,
            snapshot,
            handed_over: false,
        });
        Ok(())
    }

    /// Looks after children.
    pub(crate) fn attend_births(&mut self) -> Result<(), Fatal> {
        if self.births.is_empty() {
            return Ok(());
        }
        let mut births = std::mem::take(&mut self.births.births);
        births.retain_mut(|birth| self.attend(birth));
        let linked = births.iter().any(|birth| birth.link.is_some());
        self.births.births.append(&mut births);
        if !linked {
            self.shared.hold_grants(false);
            while let Some(grant) = self.engine.slots.take_empty() {
                self.engine.far.release(grant);
            }
        }
        Ok(())
    }

    /// Whether the child still needs us.
    fn attend(&mut self, birth: &mut Birth) -> bool {
        if !birth.handed_over {
            self.answer_for(birth);
        }
        let Some(link) = &birth.link else {
            return true;
        };
        let mut message = [0; 64];
        match link.receive(&mut message, Duration::ZERO) {
            Ok(None) => true,
            Ok(Some((len, _))) if &message[..len] == READY => {
                if let Err(why) = self.hand_over(birth) {
                    // The child will end itself.
                    let _ = birth
                        .link
                        .as_ref()
                        .map(|link| link.send(why.as_bytes(), &[]));
                }
                birth.handed_over = true;
                true
            }
            Ok(Some((len, _))) if &message[..len] == DONE => {
                fork::count_birth();
                false
            }
            // Gone.
            _ => {
                fork::count_birth();
                false
            }
        }
    }

    /// Answers the child's faults and follows its events.
    fn answer_for(&mut self, birth: &mut Birth) {
        let mut events = EventBuffer::new();
        let mut faults = Vec::new();
        let _ = birth.device.read_events(&mut events);
        while let Some(event) = events.pop() {
            match event {
                Event::Fault(fault) => faults.push(fault),
                Event::Remove(range) => birth.snapshot.handle_remove(range),
                Event::Unmap(range) => birth.snapshot.handle_unmap(range),
                Event::Remap { from, to } => birth.snapshot.handle_remap(from, to),
                // A child of the child, by other ways than the C library's fork.
                Event::Fork(device) => std::mem::forget(device),
            }
        }
        for fault in faults {
            if birth.link.is_none() {
                let why = "a process made by a system call of its own, not by fork(), touched memory \
                           of its parent that is far";
                self.shared.end_child(fault.thread, why);
                continue;
            }
            if let Err(why) = self.fill_for(birth, fault.page()) {
                self.shared.end_child(fault.thread, &why);
            }
        }
    }

    fn fill_for(&mut self, birth: &Birth, page: PageNo) -> Result<(), String> {
        let to = PageRange::one(page);
        let mut near: Box<Page> = Box::new([0; PAGE_SIZE]);
        if let Some(far) = birth.snapshot.find(page) {
            let grant = birth
                .snapshot
                .grant_of(far.slot)
                .ok_or("its grant is gone")?;
            let transfer = Transfer {
                grant,
                place: far.slot.place(),
                near: &raw mut *near,
            };
            // SAFETY: the page was just made.
            let read = unsafe { self.engine.far.read(&[transfer], Class::Demand) };
            read.map_err(|e: FarError| e.to_string())?;
            if Hash::of(&near) != far.hash {
                return Err(Fatal::Changed(page.addr(), "its parent's grant".into()).to_string());
            }
        }
        // While the child changes its address space nothing can be filled; it will touch the page
        // again when woken.
        // SAFETY: the page is ours to read.
        let _ = unsafe { birth.device.copy(to, near.as_ptr(), CopyMode::default()) };
        let _ = birth.device.wake(to);
        Ok(())
    }

    /// Sends the child what it must know.
    fn hand_over(&mut self, birth: &mut Birth) -> Result<(), String> {
        // What it did last must be in the snapshot.
        self.answer_for(birth);
        // A server shares what it has mapped together only together: all that we have of it. None
        // of that is written to from now on.
        let mut all = self.shared.hold_grants(true);
        while let Some(grant) = self.engine.far.granted() {
            self.engine.slots.add(grant);
        }
        self.engine.slots.freeze();
        all.extend(self.engine.slots.grants());
        all.extend(birth.snapshot.grants.iter().map(|(_, grant)| *grant));
        all.sort_unstable_by_key(|grant| (grant.server, grant.id));
        all.dedup();
        birth.snapshot.include(&all);
        for (at, transport) in self.shared.transports().iter().enumerate() {
            let server = ServerId(at as u32);
            let of_server = all.iter().filter(|grant| grant.server == server);
            for some in together(&**transport, of_server) {
                match transport.call(Control::Share(some), SHARE_DEADLINE) {
                    Ok(Answer::Ticket(ticket)) => birth.snapshot.tickets.push((server, ticket)),
                    Ok(_) => unreachable!("a request to share is answered with a ticket"),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        let bytes = birth.snapshot.to_bytes();
        let file = Memfd::create("muninn-snapshot", Bytes(bytes.len() as u64))
            .and_then(|file| file.write_all(&bytes).map(|()| file))
            .map_err(|e| e.to_string())?
            .into_fd();
        let link = birth
            .link
            .as_ref()
            .expect("only linked children are handed over");
        link.send(READY, &[file.as_fd()]).map_err(|e| e.to_string())
    }
}

/// Lists of grants for requests of their own, with those in one that are mapped together.
fn together<'a>(
    transport: &dyn Transport,
    grants: impl Iterator<Item = &'a Grant>,
) -> Vec<Vec<GrantId>> {
    let place = |id: GrantId| match transport.mapped(id) {
        Some(mapped) => (mapped.map.addr(), 0),
        None => (0, id.0),
    };
    let mut placed: Vec<((u64, u64), GrantId)> =
        grants.map(|grant| (place(grant.id), grant.id)).collect();
    placed.sort_unstable();
    let mut lists: Vec<Vec<GrantId>> = Vec::new();
    for group in placed.chunk_by(|a, b| a.0 == b.0) {
        let ids = group.iter().map(|(_, id)| *id);
        match lists.last_mut() {
            Some(last) if last.len() + group.len() <= MAX_GRANTS => last.extend(ids),
            _ => lists.push(ids.collect()),
        }
    }
    lists
}
