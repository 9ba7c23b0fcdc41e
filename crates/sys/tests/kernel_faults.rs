//! Facts about faults of the real userfaultfd.

mod common;

use std::os::fd::AsFd;

use common::{Area, copy, eventually, next_event, register, spawn};
use muninn_sys::memory::{BusFault, Mapping, Memfd, guarded_copy};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, Fault, FaultDevice, FaultKind, Features, MoveMode, OpenError,
    PageRange, Partial, RegisterMode, Route, Userfaultfd, Wake, supported_features,
};
use muninn_testing::skip;
use muninn_types::{Bytes, PAGE_SIZE};
use rustix::io::Errno;

const LATER: CopyMode = CopyMode {
    wake: Wake::Later,
    write_protected: false,
};

fn next_fault(device: &Userfaultfd) -> Fault {
    match next_event(device) {
        Event::Fault(fault) => fault,
        other => panic!("not a fault: {other:?}"),
    }
}

/// Since which Linux on x86-64 a feature is there, major and minor; those not listed are older than
/// all that Muninn runs on.
const SINCE: [(Features, (u32, u32)); 6] = [
    (Features::EXACT_ADDRESS, (5, 18)),
    (Features::WP_HUGETLBFS_SHMEM, (5, 19)),
    (Features::WP_UNPOPULATED, (6, 4)),
    (Features::POISON, (6, 6)),
    (Features::WP_ASYNC, (6, 7)),
    (Features::MOVE, (6, 8)),
];

/// Major and minor of the kernel that runs.
fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let text = name.release().to_str().unwrap();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse().unwrap();
    (next(), next())
}

/// Why userfaultfd is not to be had here; any other error is a failure.
fn absent(error: OpenError) -> OpenError {
    match error {
        OpenError::NotPermitted { .. } | OpenError::NotHere => error,
        other => panic!("{other}"),
    }
}

#[test]
fn all_seventeen_features_are_here() {
    let features = match supported_features() {
        Ok(features) => features,
        Err(error) => return skip(absent(error)),
    };
    let all = Features(0x1ffff);
    let named = Features::NAMED.iter().fold(0, |sum, (one, _)| sum | one.0);
    assert_eq!(named, all.0, "each of them has a name");
    let kernel = kernel();
    let newer = SINCE.iter().filter(|(_, since)| kernel < *since);
    let expected = newer.fold(all, |all, (feature, _)| all.without(*feature));
    let missing = expected.without(features);
    assert!(
        missing.is_empty(),
        "Linux {kernel:?} has {missing}, but they were not found in {features}"
    );
    if expected != all {
        skip(format!("Linux {kernel:?} has no {}", all.without(expected)));
    }
}

#[test]
fn both_ways_lead_to_a_descriptor() {
    for route in [Route::Syscall, Route::Device, Route::Either] {
        match Userfaultfd::open_by(route, Features::NONE, Features::MOVE) {
            Ok(device) => assert_eq!(device.features().without(Features::MOVE), Features::NONE),
            Err(error @ (OpenError::NotPermitted { .. } | OpenError::NotHere)) => {
                skip(format!("{route:?}: {error}"));
            }
            // There is no device before Linux 6.1, and few containers have one.
            Err(
                error @ OpenError::Open {
                    source: Errno::NOENT | Errno::ACCESS | Errno::PERM,
                    ..
                },
            ) => skip(format!("{route:?}: {error}")),
            Err(error) => panic!("{route:?}: {error}"),
        }
    }
    let unknown = Features(1 << 50);
    match Userfaultfd::open(unknown, Features::NONE) {
        Err(OpenError::Missing { missing }) => assert_eq!(missing, unknown),
        Err(error) => skip(absent(error)),
        Ok(_) => panic!("a feature nobody knows was granted"),
    }
}

#[test]
fn without_permission_the_error_says_so_and_user_mode_still_works() {
    let _turn = common::turn();
    let nobody = 65534;
    let child = common::fork(|| {
        // SAFETY: gives up root in the child only, by system calls; there is nothing to undo.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) } == 0;
        let whole = Userfaultfd::open(Features::NONE, Features::NONE);
        let user_mode = Userfaultfd::open_user_mode_only(Features::NONE, Features::NONE);
        match (dropped, whole, user_mode) {
            (true, Err(OpenError::NotPermitted { .. }), Ok(_)) => 1,
            (true, Ok(_), Ok(_)) => 2,
            _ => 3,
        }
    });
    match child.exit_code() {
        Some(1) => {}
        Some(2) => skip("everybody may use userfaultfd here"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fault_tells_page_thread_and_kind_and_copy_answers_it() {
    let area = Area::new(4);
    let device = open_or_skip!(Features::THREAD_ID.union(Features::EXACT_ADDRESS));
    register(&device, area.range(), RegisterMode::MISSING);
    let reader = {
        let area = area.clone();
        // SAFETY: a byte of mapped memory, read as the program would.
        spawn(move || unsafe { area.ptr(2).add(5).read_volatile() })
    };
    let fault = next_fault(&device);
    assert_eq!(fault.address, area.page(2).addr() + 5);
    assert_eq!(fault.page(), area.page(2));
    assert_eq!(fault.thread, reader.thread as u32);
    assert_eq!((fault.kind, fault.write), (FaultKind::Missing, false));
    copy(&device, area.run(2, 1), 77, CopyMode::default()).unwrap();
    assert_eq!(reader.finish(), 77);
    let writer = {
        let area = area.clone();
        spawn(move || area.write(3, 1))
    };
    assert!(next_fault(&device).write);
    device.zero(area.run(3, 1), Wake::Now).unwrap();
    writer.finish();
    assert_eq!(area.read(3), 1);
}

#[test]
fn a_page_that_exists_wakes_nobody() {
    let area = Area::new(4);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    let reader = {
        let area = area.clone();
        spawn(move || area.read(0))
    };
    next_fault(&device);
    let page = area.run(0, 1);
    copy(&device, page, 5, LATER).unwrap();
    let exists = Err(Partial::new(0, Cause::Exists));
    assert_eq!(copy(&device, page, 6, CopyMode::default()), exists);
    assert_eq!(device.zero(page, Wake::Now), exists);
    reader.assert_waits();
    device.wake(page).unwrap();
    assert_eq!(reader.finish(), 5);
}

#[test]
fn progress_hides_the_reason_until_asked_again() {
    let area = Area::new(5);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    copy(&device, area.run(2, 1), 1, CopyMode::default()).unwrap();
    let all = area.range();
    assert_eq!(
        copy(&device, all, 9, CopyMode::default()),
        Err(Partial::new(2, Cause::Again))
    );
    assert_eq!(
        copy(&device, all.skip(2), 9, CopyMode::default()),
        Err(Partial::new(0, Cause::Exists))
    );
    copy(&device, all.skip(3), 9, CopyMode::default()).unwrap();
    assert_eq!((area.read(1), area.read(2), area.read(4)), (9, 1, 9));
}

#[test]
fn copying_to_what_is_not_registered_is_refused() {
    let area = Area::new(2);
    let device = open_or_skip!(Features::NONE);
    assert_eq!(
        copy(&device, area.run(0, 1), 1, CopyMode::default()),
        Err(Partial::new(0, Cause::Absent))
    );
    register(&device, area.run(0, 1), RegisterMode::MISSING);
    // SAFETY: the kernel finds that the source is not mapped and says so.
    let bad = unsafe { device.copy(area.run(0, 1), std::ptr::null(), CopyMode::default()) };
    assert_eq!(bad, Err(Partial::new(0, Cause::BadSource)));
    let other = open_or_skip!(Features::NONE);
    // SAFETY: the area belongs to the test.
    let taken = unsafe { other.register(area.run(0, 1), RegisterMode::MISSING) };
    assert_eq!(taken.unwrap_err().cause, Cause::Busy);
    device.unregister(area.run(0, 1)).unwrap();
    assert_eq!(area.read(0), 0);
}

/// Reads from a pipe into a page, as a program's system call would.
fn read_into(area: &Area, index: u64) -> Result<usize, Errno> {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"from a pipe").unwrap();
    // SAFETY: the page belongs to the area and nobody else uses it now.
    let page = unsafe { std::slice::from_raw_parts_mut(area.ptr(index), PAGE_SIZE) };
    rustix::io::read(&reader, page)
}

#[test]
fn system_calls_that_touch_far_memory_wait_for_the_handler() {
    let area = Area::new(1);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    let caller = {
        let area = area.clone();
        spawn(move || read_into(&area, 0))
    };
    next_fault(&device);
    device.zero(area.range(), Wake::Now).unwrap();
    assert_eq!(caller.finish(), Ok(11));
    assert_eq!(area.read(0), b'f');
}

#[test]
fn user_mode_only_turns_system_calls_into_efault() {
    let device = match Userfaultfd::open_user_mode_only(Features::NONE, Features::NONE) {
        Ok(device) => device,
        Err(error) => return skip(absent(error)),
    };
    let area = Area::new(1);
    register(&device, area.range(), RegisterMode::MISSING);
    assert_eq!(read_into(&area, 0), Err(Errno::FAULT));
}

#[test]
fn closing_the_descriptor_frees_waiting_threads() {
    let area = Area::new(1);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    let reader = {
        let area = area.clone();
        spawn(move || area.read(0))
    };
    next_fault(&device);
    reader.assert_waits();
    drop(device);
    assert_eq!(reader.finish(), 0, "an absent page reads as zeros then");
}

#[test]
fn a_write_to_a_protected_page_waits_until_it_is_allowed() {
    let area = Area::new(2);
    let device = open_or_skip!(Features::PAGEFAULT_FLAG_WP);
    area.fill(1);
    register(&device, area.range(), RegisterMode::WRITE_PROTECT);
    device.write_protect(area.range(), true, Wake::Now).unwrap();
    assert_eq!(area.read(1), 2, "reading goes on");
    let writer = {
        let area = area.clone();
        spawn(move || area.write(1, 50))
    };
    let fault = next_fault(&device);
    assert_eq!(
        (fault.page(), fault.kind),
        (area.page(1), FaultKind::WriteProtected)
    );
    writer.assert_waits();
    device
        .write_protect(area.run(1, 1), false, Wake::Now)
        .unwrap();
    writer.finish();
    assert_eq!(area.read(1), 50);
}

#[test]
fn a_poisoned_page_is_sigbus_which_a_guarded_copy_survives() {
    let area = Area::new(2);
    let device = open_or_skip!(Features::POISON);
    area.write(0, 3);
    register(&device, area.range(), RegisterMode::MISSING);
    device.poison(area.run(1, 1), Wake::Now).unwrap();
    let mut into = [0; 2 * PAGE_SIZE];
    // SAFETY: both ranges are as long as said; the second page is poisoned, which is the point.
    let result = unsafe { guarded_copy(into.as_mut_ptr(), area.ptr(0), into.len()) };
    assert_eq!(
        result,
        Err(BusFault {
            copied: PAGE_SIZE,
            len: 2 * PAGE_SIZE
        })
    );
    assert_eq!(
        device.zero(area.run(1, 1), Wake::Now),
        Err(Partial::new(0, Cause::Exists)),
        "for zeros the mark counts as a page"
    );
    copy(&device, area.run(1, 1), 4, CopyMode::default()).unwrap();
    assert_eq!(area.read(1), 4, "a copy heals the page");
}

#[test]
fn a_guard_is_filled_by_a_copy_but_not_by_zeros() {
    const GUARD_INSTALL: libc::c_int = 102;
    let area = Area::new(2);
    let device = open_or_skip!(Features::MOVE);
    register(&device, area.range(), RegisterMode::MISSING);
    // SAFETY: the page is the test's, and nothing is in it.
    let done = unsafe { libc::madvise(area.ptr(1).cast(), PAGE_SIZE, GUARD_INSTALL) };
    if done != 0 {
        return skip("this kernel has no guards (Linux 6.13)");
    }
    assert_eq!(
        device.zero(area.run(1, 1), Wake::Now),
        Err(Partial::new(0, Cause::Exists))
    );
    // The reason why pages that nobody touched do not come along in a program with guards. A kernel that
    // refuses this one day may have that back.
    copy(&device, area.run(1, 1), 4, CopyMode::default()).unwrap();
    assert_eq!(area.read(1), 4);
}

#[test]
fn marks_on_absent_pages_stop_zeros_and_moves_but_not_copies() {
    let _turn = common::turn();
    let (area, stage) = (Area::new(4), Area::new(4));
    let device = open_or_skip!(Features::WP_UNPOPULATED | Features::MOVE);
    area.write(3, 3);
    for range in [area.range(), stage.range()] {
        register(&device, range, RegisterMode::MISSING_AND_WRITE_PROTECT);
    }
    // Protecting absent pages leaves a mark in the page table.
    device
        .write_protect(area.run(0, 3), true, Wake::Now)
        .unwrap();
    let exists = Err(Partial::new(0, Cause::Exists));
    // SAFETY: both sides lie in areas of the test.
    let move_page =
        |to, from| unsafe { device.move_pages(to, PageRange::one(from), MoveMode::default()) };
    assert_eq!(device.zero(area.run(0, 1), Wake::Now), exists);
    assert_eq!(move_page(area.page(0), area.page(3)), exists);
    assert_eq!(
        move_page(stage.page(0), area.page(1)),
        Err(Partial::new(0, Cause::BadSource)),
        "as a source a mark is an error, not a hole"
    );
    copy(&device, area.run(0, 1), 9, CopyMode::default()).unwrap();
    area.write(0, 10);
    assert!(
        !device.wait(Some(std::time::Duration::ZERO)).unwrap(),
        "the mark is gone with the copy"
    );
    // Taking the protection away takes the mark away.
    device
        .write_protect(area.run(2, 1), false, Wake::Now)
        .unwrap();
    device.zero(area.run(2, 1), Wake::Now).unwrap();
}

#[test]
fn pages_in_the_page_cache_are_mapped_by_resume() {
    let device = open_or_skip!(Features::MINOR_SHMEM);
    let memfd = Memfd::create("minor", Bytes::pages(2)).unwrap();
    let map = |memfd: &Memfd| {
        let mapping = Mapping::options()
            .shared()
            .file(memfd.as_fd(), 0, Bytes::pages(2))
            .unwrap();
        Area(std::sync::Arc::new(mapping))
    };
    let (writer, area) = (map(&memfd), map(&memfd));
    writer.fill(30);
    let minor = RegisterMode {
        minor: true,
        ..RegisterMode::default()
    };
    register(&device, area.range(), minor);
    let reader = {
        let area = area.clone();
        spawn(move || area.read(1))
    };
    assert_eq!(next_fault(&device).kind, FaultKind::Minor);
    device.resume(area.run(1, 1), CopyMode::default()).unwrap();
    assert_eq!(reader.finish(), 31);
}

#[test]
fn two_readers_of_one_page_are_both_woken_by_one_copy() {
    let area = Area::new(1);
    let device = open_or_skip!(Features::NONE);
    register(&device, area.range(), RegisterMode::MISSING);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let area = area.clone();
            spawn(move || area.read(0))
        })
        .collect();
    for reader in &readers {
        reader.until_faulted();
    }
    eventually(
        || match copy(&device, area.range(), 8, CopyMode::default()) {
            Ok(()) => Some(()),
            Err(partial) => panic!("{partial}"),
        },
    );
    for reader in readers {
        assert_eq!(reader.finish(), 8);
    }
}
