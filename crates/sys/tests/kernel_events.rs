//! Facts about the events that tell of changes of the address space, and about SIGBUS mode.

mod common;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Area, Running, copy, eventually, fork, next_event, register, spawn};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, Features, PageRange, Partial, RegisterMode,
    Userfaultfd, Wake,
};
use muninn_types::{Bytes, PAGE_SIZE, PageNo};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

/// Checks that copies say EAGAIN until the event is read, and returns the event.
fn change_holds_up_copies<T>(
    device: &Userfaultfd,
    changing: &Running<T>,
    absent: PageRange,
) -> Event<Userfaultfd> {
    assert!(device.wait(Some(common::DEADLINE)).unwrap());
    let again = Err(Partial::new(0, Cause::Again));
    assert_eq!(copy(device, absent, 1, CopyMode::default()), again);
    assert_eq!(device.zero(absent, Wake::Now), again);
    changing.assert_waits();
    let event = next_event(device);
    // The changing thread lets copies pass when it goes on, a moment after the event was read.
    eventually(|| match copy(device, absent, 1, CopyMode::default()) {
        Ok(()) => Some(()),
        Err(partial) => {
            assert_eq!(partial.cause, Cause::Again);
            None
        }
    });
    event
}

#[test]
fn an_unread_remove_makes_copies_fail_and_the_remover_wait() {
    let _turn = common::turn();
    let area = Area::new(4);
    let device = open_or_skip!(Features::EVENT_REMOVE);
    area.write(0, 1);
    register(&device, area.range(), RegisterMode::MISSING);
    let remover = {
        let area = area.clone();
        spawn(move || area.discard(0, 2))
    };
    let event = change_holds_up_copies(&device, &remover, area.run(3, 1));
    assert!(matches!(event, Event::Remove(range) if range == area.run(0, 2)));
    remover.finish();
}

#[test]
fn an_unread_unmap_does_the_same() {
    let _turn = common::turn();
    let area = Area::new(4);
    let device = open_or_skip!(Features::EVENT_UNMAP);
    area.write(0, 1);
    register(&device, area.range(), RegisterMode::MISSING);
    let unmapper = {
        let area = area.clone();
        // SAFETY: unmaps pages of the area that the test does not touch again. Dropping the area
        // unmaps the hole a second time, which does no harm as nothing is mapped there.
        spawn(move || unsafe { rustix::mm::munmap(area.ptr(0).cast(), PAGE_SIZE) })
    };
    let event = change_holds_up_copies(&device, &unmapper, area.run(3, 1));
    assert!(matches!(event, Event::Unmap(range) if range == area.run(0, 1)));
    unmapper.finish().unwrap();
    // So that nobody maps something into the hole before the area is dropped.
    refill(&area, 0);
}

/// Maps a fresh page into an area.
fn refill(area: &Area, index: u64) {
    // SAFETY: the page belongs to the area and nobody uses it.
    unsafe {
        rustix::mm::mmap_anonymous(
            area.ptr(index).cast(),
            PAGE_SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    }
    .unwrap();
}

#[test]
fn an_unread_remap_does_the_same_and_takes_the_registration_along() {
    let _turn = common::turn();
    let (area, target) = (Area::new(4), Area::new(2));
    let device = open_or_skip!(Features::EVENT_REMAP);
    area.fill(40);
    area.discard(3, 1);
    register(&device, area.range(), RegisterMode::MISSING);
    let (from, to) = (area.ptr(0).addr(), target.ptr(0).addr());
    let remapper = spawn(move || {
        // SAFETY: moves two pages of one area of the test over the two of another.
        unsafe {
            rustix::mm::mremap_fixed(
                std::ptr::with_exposed_provenance_mut(from),
                2 * PAGE_SIZE,
                2 * PAGE_SIZE,
                MremapFlags::MAYMOVE,
                std::ptr::with_exposed_provenance_mut(to),
            )
        }
        .is_ok()
    });
    let event = change_holds_up_copies(&device, &remapper, area.run(3, 1));
    assert!(matches!(
        event,
        Event::Remap { from, to } if from == area.run(0, 2) && to == target.page(0)
    ));
    assert!(remapper.finish());
    assert_eq!((target.read(0), target.read(1)), (40, 41));
    target.discard(0, 1);
    copy(&device, target.run(0, 1), 7, CopyMode::default()).unwrap();
    assert_eq!(target.read(0), 7);
    refill(&area, 0);
    refill(&area, 1);
}

#[test]
fn faults_overtake_events_that_came_before_them() {
    let _turn = common::turn();
    let area = Area::new(4);
    let device = open_or_skip!(Features::EVENT_REMOVE);
    area.write(0, 1);
    register(&device, area.range(), RegisterMode::MISSING);
    let remover = {
        let area = area.clone();
        spawn(move || area.discard(0, 1))
    };
    assert!(device.wait(Some(common::DEADLINE)).unwrap());
    let reader = {
        let area = area.clone();
        spawn(move || area.read(3))
    };
    reader.until_faulted();
    let mut buffer = EventBuffer::new();
    eventually(|| {
        device.read_events(&mut buffer).unwrap();
        (buffer.len() >= 2).then_some(())
    });
    let first = buffer.pop().unwrap();
    assert!(
        matches!(&first, Event::Fault(fault) if fault.page() == area.page(3)),
        "the fault came last and is read first"
    );
    assert!(matches!(buffer.pop(), Some(Event::Remove(_))));
    remover.finish();
    device.zero(area.run(3, 1), Wake::Now).unwrap();
    assert_eq!(reader.finish(), 0);
}

#[test]
fn mapping_over_a_range_takes_it_away() {
    let _turn = common::turn();
    let area = Area::new(2);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    refill(&area, 0);
    assert_eq!(area.read(0), 0, "no fault is raised any more");
    assert_eq!(
        copy(&device, area.run(0, 1), 1, CopyMode::default()),
        Err(Partial::new(0, Cause::Absent))
    );
    assert!(!device.wait(Some(std::time::Duration::ZERO)).unwrap());
    copy(&device, area.run(1, 1), 1, CopyMode::default()).unwrap();
}

#[test]
fn mapping_over_a_range_with_unmap_events_is_told_as_an_unmap() {
    let _turn = common::turn();
    let area = Area::new(2);
    let device = open_or_skip!(Features::EVENT_UNMAP);
    register(&device, area.range(), RegisterMode::MISSING);
    let mapper = {
        let area = area.clone();
        spawn(move || refill(&area, 0))
    };
    assert!(matches!(next_event(&device), Event::Unmap(range) if range == area.run(0, 1)));
    mapper.finish();
    assert_eq!(area.read(0), 0);
}

#[test]
fn a_fork_brings_a_descriptor_for_the_child() {
    let _turn = common::turn();
    let area = Area::new(2);
    let device = open_or_skip!(Features::EVENT_FORK);
    area.write(0, 21);
    register(&device, area.range(), RegisterMode::MISSING);
    let forker = {
        let area = area.clone();
        spawn(move || fork(|| i32::from(area.read(0)) + i32::from(area.read(1))))
    };
    let Event::Fork(of_child) = next_event(&device) else {
        panic!("not a fork")
    };
    let child = forker.finish();
    let Event::Fault(fault) = next_event(&of_child) else {
        panic!("not a fault")
    };
    assert_eq!(fault.page(), area.page(1));
    copy(&of_child, area.run(1, 1), 100, CopyMode::default()).unwrap();
    assert_eq!(child.exit_code(), Some(121));
    // The process is gone, and so is what could be filled.
    assert_eq!(
        copy(&of_child, area.run(1, 1), 1, CopyMode::default()),
        Err(Partial::new(0, Cause::ProcessGone))
    );
    // The parent's page was never filled: the two are apart.
    copy(&device, area.run(1, 1), 5, CopyMode::default()).unwrap();
    assert_eq!(area.read(1), 5);
}

#[test]
fn without_fork_events_the_child_sees_zeros() {
    let _turn = common::turn();
    let area = Area::new(1);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    let child = fork(|| i32::from(area.read(0)) + 50);
    assert_eq!(child.exit_code(), Some(50), "not a fault, but silent zeros");
}

static QUIET: OnceLock<Userfaultfd> = OnceLock::new();
static QUIET_FIRST: AtomicU64 = AtomicU64::new(0);
static RESOLVED: AtomicU64 = AtomicU64::new(0);

/// Fills the page of the touching thread, inside of its signal handler.
fn resolve(addr: usize) -> bool {
    static CONTENTS: [u8; PAGE_SIZE] = [66; PAGE_SIZE];
    let page = PageNo::of_addr(addr as u64);
    let first = QUIET_FIRST.load(Ordering::SeqCst);
    let (Some(device), true) = (QUIET.get(), (first..first + 2).contains(&page.0)) else {
        return false;
    };
    RESOLVED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the source is a static of one page.
    unsafe { device.copy(PageRange::one(page), CONTENTS.as_ptr(), CopyMode::default()) }.is_ok()
}

#[test]
fn sigbus_mode_lets_the_thread_help_itself_but_fails_system_calls() {
    let _turn = common::turn();
    let area = Area::new(2);
    let device = open_or_skip!(Features::SIGBUS);
    register(&device, area.range(), RegisterMode::MISSING);
    QUIET_FIRST.store(area.page(0).0, Ordering::SeqCst);
    assert!(QUIET.set(device).is_ok());
    muninn_sys::sigbus::set_resolver(resolve).unwrap();
    assert_eq!(area.read(0), 66);
    assert_eq!(RESOLVED.load(Ordering::SeqCst), 1);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"x").unwrap();
    // SAFETY: a byte of the area nobody else uses.
    let byte = unsafe { std::slice::from_raw_parts_mut(area.ptr(1), 1) };
    assert_eq!(rustix::io::read(&reader, &mut *byte), Err(Errno::FAULT));
    assert_eq!(
        RESOLVED.load(Ordering::SeqCst),
        1,
        "the resolver is not asked"
    );
    area.write(1, 1);
    assert_eq!(rustix::io::read(&reader, &mut *byte), Ok(1));
    assert_eq!((area.read(1), Bytes::PAGE.0), (b'x', 4096));
}
