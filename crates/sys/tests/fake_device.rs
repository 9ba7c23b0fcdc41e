//! The fake userfaultfd follows the rules that `kernel_facts.rs` shows of the real one, and plays
//! the races it is told to.

use muninn_sys::pagemap::{Categories, PageScan, Query, Region};
use muninn_sys::uffd::fake::{Call, FakeFaultDevice, FakeSpace, Script, Touch};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, FaultKind, Features, MoveMode, PageRange,
    Partial, RegisterMode, Wake,
};
use muninn_types::{PAGE_SIZE, PageNo};

const HOLES: MoveMode = MoveMode {
    wake: Wake::Now,
    allow_holes: true,
};

fn space(pages: u64, features: Features) -> (FakeSpace, FakeFaultDevice) {
    let space = FakeSpace::new(pages).unwrap();
    let device = space.open(features);
    (space, device)
}

fn register(device: &FakeFaultDevice, range: PageRange, mode: RegisterMode) {
    // SAFETY: the memory of the fake belongs to the test.
    unsafe { device.register(range, mode) }.unwrap();
}

fn copy(device: &FakeFaultDevice, to: PageRange, fill: u8) -> Result<(), Partial> {
    let source = vec![fill; to.len_bytes() as usize];
    // SAFETY: the source is as long as the range.
    unsafe { device.copy(to, source.as_ptr(), CopyMode::default()) }
}

fn events(device: &FakeFaultDevice) -> Vec<Event<FakeFaultDevice>> {
    let mut buffer = EventBuffer::new();
    device.read_events(&mut buffer).unwrap();
    std::iter::from_fn(|| buffer.pop()).collect()
}

#[test]
fn a_fault_waits_until_the_page_is_copied() {
    let (space, device) = space(8, Features::THREAD_ID);
    register(&device, space.range(), RegisterMode::MISSING);
    let page = space.page(3);
    assert_eq!(space.touch(7, page, true), Touch::Waits);
    let seen = events(&device);
    assert!(matches!(
        &seen[..],
        [Event::Fault(fault)] if fault.page() == page && fault.thread == 7 && fault.write
            && fault.kind == FaultKind::Missing
    ));
    copy(&device, PageRange::one(page), 9).unwrap();
    assert!(space.waiting().is_empty());
    assert_eq!(space.load(page), [9; PAGE_SIZE]);
    assert_eq!(space.touch(7, page, false), Touch::Done);
}

#[test]
fn a_page_that_exists_wakes_nobody() {
    let (space, device) = space(4, Features::NONE);
    register(&device, space.range(), RegisterMode::MISSING);
    let page = space.page(1);
    assert_eq!(space.touch(1, page, false), Touch::Waits);
    let later = CopyMode {
        wake: Wake::Later,
        ..CopyMode::default()
    };
    // SAFETY: the source is a page long.
    unsafe { device.copy(PageRange::one(page), [1u8; PAGE_SIZE].as_ptr(), later) }.unwrap();
    assert_eq!(
        copy(&device, PageRange::one(page), 2),
        Err(Partial::new(0, Cause::Exists))
    );
    assert_eq!(space.waiting(), [(1, page)]);
    device.wake(PageRange::one(page)).unwrap();
    assert!(space.waiting().is_empty());
    let whole = PageRange::new(space.page(0), 3);
    assert_eq!(
        copy(&device, whole, 3),
        Err(Partial::new(1, Cause::Again)),
        "with pages done the reason is hidden"
    );
}

#[test]
fn unread_events_hold_up_copies_and_removed_pages_go_when_told() {
    let (space, device) = space(4, Features::EVENT_REMOVE);
    register(&device, space.range(), RegisterMode::MISSING);
    copy(&device, space.range(), 5).unwrap();
    let gone = PageRange::one(space.page(2));
    space.remove(gone);
    assert!(space.is_present(space.page(2)));
    assert_eq!(
        device.zero(gone, Wake::Now),
        Err(Partial::new(0, Cause::Again))
    );
    assert!(matches!(&events(&device)[..], [Event::Remove(range)] if *range == gone));
    assert_eq!(space.load(space.page(2)), [0; PAGE_SIZE]);
    device.zero(gone, Wake::Now).unwrap();
}

#[test]
fn what_is_copied_between_the_event_and_the_removal_is_lost() {
    let (space, device) = space(4, Features::EVENT_REMOVE);
    register(&device, space.range(), RegisterMode::MISSING);
    space.hold_removals();
    let page = PageRange::one(space.page(1));
    space.remove(page);
    events(&device);
    copy(&device, page, 8).unwrap();
    assert_eq!(space.touch(1, space.page(1), false), Touch::Done);
    space.finish_removals();
    assert_eq!(space.touch(1, space.page(1), false), Touch::Waits);
}

#[test]
fn faults_overtake_events() {
    let (space, device) = space(4, Features::EVENT_REMOVE);
    register(&device, space.range(), RegisterMode::MISSING);
    space.remove(PageRange::one(space.page(0)));
    space.touch(1, space.page(2), false);
    space.touch(2, space.page(3), false);
    let seen = events(&device);
    assert!(matches!(
        &seen[..],
        [Event::Fault(a), Event::Fault(b), Event::Remove(_)]
            if a.page() == space.page(2) && b.page() == space.page(3)
    ));
}

#[test]
fn moves_follow_the_rules() {
    let (space, device) = space(16, Features::NONE);
    let staging = space.open(Features::NONE);
    let program = PageRange::new(space.page(0), 8);
    let stage = PageRange::new(space.page(8), 8);
    register(&device, program, RegisterMode::MISSING);
    register(&staging, stage, RegisterMode::MISSING);
    copy(&device, PageRange::new(space.page(0), 2), 1).unwrap();
    copy(&device, PageRange::one(space.page(4)), 2).unwrap();
    // SAFETY: the memory of the fake belongs to the test.
    let try_move = |device: &FakeFaultDevice, skip, mode| unsafe {
        device.move_pages(stage.skip(skip).first(), program.skip(skip), mode)
    };
    assert_eq!(
        try_move(&device, 0, HOLES),
        Err(Partial::new(0, Cause::Invalid)),
        "the destination belongs to the other device"
    );
    assert_eq!(
        try_move(&staging, 0, MoveMode::default()),
        Err(Partial::new(2, Cause::Again)),
        "a hole ends the move"
    );
    space.set_busy(PageRange::one(space.page(4)), true);
    assert_eq!(
        try_move(&staging, 2, HOLES),
        Err(Partial::new(2, Cause::Again))
    );
    space.set_busy(program, false);
    assert_eq!(
        try_move(&staging, 0, HOLES),
        Err(Partial::new(0, Cause::Exists)),
        "a destination that exists counts before a hole"
    );
    try_move(&staging, 4, HOLES).unwrap();
    assert_eq!(space.load(space.page(8)), [1; PAGE_SIZE]);
    assert_eq!(space.load(space.page(12)), [2; PAGE_SIZE]);
    assert!(program.iter().all(|page| !space.is_present(page)));
    assert_eq!(space.load(space.page(4)), [0; PAGE_SIZE]);
    // Back to where a thread waits for it.
    assert_eq!(space.touch(3, space.page(4), false), Touch::Waits);
    // SAFETY: as above.
    unsafe { device.move_pages(space.page(4), PageRange::one(space.page(12)), HOLES) }.unwrap();
    assert!(space.waiting().is_empty());
}

#[test]
fn the_script_goes_before_the_rules() {
    let (space, device) = space(8, Features::NONE);
    register(&device, space.range(), RegisterMode::MISSING);
    device.script(Call::Copy, Script::StopAfter(3));
    device.script(Call::Copy, Script::Fail(Cause::NoMemory));
    device.script(Call::Zero, Script::Fail(Cause::ProcessGone));
    assert_eq!(
        copy(&device, space.range(), 1),
        Err(Partial::new(3, Cause::Again))
    );
    let rest = space.range().skip(3);
    assert_eq!(
        copy(&device, rest, 1),
        Err(Partial::new(0, Cause::NoMemory))
    );
    copy(&device, rest, 1).unwrap();
    assert_eq!(
        device.zero(rest, Wake::Now),
        Err(Partial::new(0, Cause::ProcessGone))
    );
}

#[test]
fn written_pages_are_found_once() {
    let (space, device) = space(8, Features::WP_ASYNC.union(Features::WP_UNPOPULATED));
    register(
        &device,
        space.range(),
        RegisterMode::MISSING_AND_WRITE_PROTECT,
    );
    copy(&device, space.range(), 1).unwrap();
    device
        .write_protect(space.range(), true, Wake::Now)
        .unwrap();
    for index in [1, 2, 6] {
        assert_eq!(space.store(1, space.page(index), b"new"), Touch::Done);
    }
    let empty = Region {
        range: PageRange::one(PageNo(0)),
        categories: Categories::NONE,
    };
    let mut found = [empty; 4];
    let scan = |found: &mut [Region]| space.scan(space.range(), &Query::TAKE_WRITTEN, found);
    let scanned = scan(&mut found).unwrap();
    assert_eq!(scanned.regions, 2);
    assert_eq!(found[0].range, PageRange::new(space.page(1), 2));
    assert_eq!(found[1].range, PageRange::one(space.page(6)));
    assert_eq!(scan(&mut found).unwrap().regions, 0);
    let mut room = [empty; 1];
    for index in [0, 4] {
        space.store(1, space.page(index), b"x");
    }
    let first = scan(&mut room).unwrap();
    assert_eq!((first.regions, first.next), (1, space.page(4)));
}

#[test]
fn forks_unmaps_remaps_and_disorder() {
    let (space, device) = space(8, Features::EVENTS);
    register(&device, space.range(), RegisterMode::MISSING);
    copy(&device, PageRange::new(space.page(0), 4), 6).unwrap();
    let child = space.fork().unwrap();
    space.remap(PageRange::new(space.page(0), 2), space.page(4));
    space.unmap(PageRange::one(space.page(3)));
    assert_eq!(space.load(space.page(5)), [6; PAGE_SIZE]);
    assert_eq!(space.touch(1, space.page(3), false), Touch::Sigsegv);
    assert_eq!(device.pending(), 3);
    let orders: std::collections::HashSet<bool> = (0..20)
        .map(|seed| {
            device.shuffle_events(seed);
            let seen = events(&device);
            let fork_first = matches!(seen[0], Event::Fork(_));
            for event in seen {
                if let Event::Fork(of_child) = &event {
                    assert_eq!(of_child.space().range(), child.range());
                }
                device.inject(event);
            }
            fork_first
        })
        .collect();
    assert_eq!(
        orders.len(),
        2,
        "some orders begin with the fork, some do not"
    );
    assert_eq!(child.load(child.page(1)), [6; PAGE_SIZE]);
    assert_eq!(child.touch(2, child.page(7), false), Touch::Waits);
    // SAFETY: the memory of the fake belongs to the test.
    let shared = unsafe { device.move_pages(space.page(7), PageRange::one(space.page(2)), HOLES) };
    assert_eq!(shared, Err(Partial::new(0, Cause::Busy)));
    events(&device);
    space.touch(1, space.page(2), true);
    // SAFETY: as above.
    unsafe { device.move_pages(space.page(7), PageRange::one(space.page(2)), HOLES) }.unwrap();
}

#[test]
fn poison_sigbus_and_what_is_mapped_over() {
    let (space, device) = space(4, Features::NONE);
    register(&device, space.range(), RegisterMode::MISSING);
    device
        .poison(PageRange::one(space.page(0)), Wake::Now)
        .unwrap();
    assert_eq!(space.touch(1, space.page(0), false), Touch::Sigbus);
    assert_eq!(
        device.zero(PageRange::one(space.page(0)), Wake::Now),
        Err(Partial::new(0, Cause::Exists))
    );
    copy(&device, PageRange::one(space.page(0)), 3).unwrap();
    assert_eq!(space.touch(1, space.page(0), false), Touch::Done);
    space.map_over(PageRange::one(space.page(1)));
    assert_eq!(space.touch(1, space.page(1), false), Touch::Done);
    assert_eq!(
        copy(&device, PageRange::one(space.page(1)), 1),
        Err(Partial::new(0, Cause::Absent))
    );
    device.unregister(space.range()).unwrap();
    let quiet = space.open(Features::SIGBUS);
    register(&quiet, PageRange::one(space.page(2)), RegisterMode::MISSING);
    assert_eq!(space.touch(1, space.page(2), false), Touch::Sigbus);
    assert_eq!(quiet.pending(), 0);
}
