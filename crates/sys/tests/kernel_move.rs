//! Facts about UFFDIO_MOVE, which takes pages out of a program.

mod common;

use common::{Area, copy, fork, next_event, register, spawn};
use muninn_sys::pagemap::{Pagemap, PagemapEntry};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, FaultDevice, Features, MoveMode, PageRange, Partial, RegisterMode,
    Userfaultfd, Wake,
};
use muninn_testing::skip;
use muninn_types::{PAGE_SIZE, PageNo};

const STRICT: MoveMode = MoveMode {
    wake: Wake::Now,
    allow_holes: false,
};
const HOLES: MoveMode = MoveMode {
    wake: Wake::Now,
    allow_holes: true,
};

fn move_pages(
    device: &Userfaultfd,
    to: PageNo,
    from: PageRange,
    mode: MoveMode,
) -> Result<(), Partial> {
    // SAFETY: both sides lie in areas of the test.
    unsafe { device.move_pages(to, from, mode) }
}

/// Pages of a program, filled, and a staging area, each on a descriptor of its own.
struct Setup {
    program: Area,
    stage: Area,
    of_program: Userfaultfd,
    of_stage: Userfaultfd,
    _turn: std::sync::MutexGuard<'static, ()>,
}

/// Holds the turn: a fork by another test would share our pages, which cannot be moved then.
fn setup(pages: u64) -> Option<Setup> {
    let turn = common::turn();
    let of_program = common::open(Features::MOVE)?;
    let of_stage = common::open(Features::MOVE)?;
    let (program, stage) = (Area::new(pages), Area::new(pages));
    program.fill(10);
    register(&of_program, program.range(), RegisterMode::MISSING);
    register(&of_stage, stage.range(), RegisterMode::MISSING);
    Some(Setup {
        program,
        stage,
        of_program,
        of_stage,
        _turn: turn,
    })
}

#[test]
fn a_move_is_asked_of_the_descriptor_of_its_destination() {
    let Some(s) = setup(4) else { return };
    let wrong = move_pages(&s.of_program, s.stage.page(0), s.program.range(), STRICT);
    assert_eq!(wrong, Err(Partial::new(0, Cause::Invalid)));
    let nobodys = Area::new(4);
    assert_eq!(
        move_pages(&s.of_stage, nobodys.page(0), s.program.range(), STRICT),
        Err(Partial::new(0, Cause::Invalid)),
        "a destination that is not registered"
    );
    move_pages(&s.of_stage, s.stage.page(0), s.program.range(), STRICT).unwrap();
    for index in 0..4 {
        assert_eq!(s.stage.read(index), 10 + index as u8);
    }
    // Gone from the program: touching faults, and moving back answers.
    let reader = {
        let program = s.program.clone();
        spawn(move || program.read(2))
    };
    assert!(matches!(next_event(&s.of_program), Event::Fault(f) if f.page() == s.program.page(2)));
    move_pages(&s.of_program, s.program.page(2), s.stage.run(2, 1), STRICT).unwrap();
    assert_eq!(reader.finish(), 12);
}

#[test]
fn a_destination_that_exists_ends_the_move() {
    let Some(s) = setup(4) else { return };
    copy(&s.of_stage, s.stage.run(2, 1), 1, CopyMode::default()).unwrap();
    let all = s.program.range();
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), all, STRICT),
        Err(Partial::new(2, Cause::Again))
    );
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(2), all.skip(2), STRICT),
        Err(Partial::new(0, Cause::Exists))
    );
}

#[test]
fn holes_need_to_be_allowed() {
    let Some(s) = setup(4) else { return };
    s.program.discard(1, 1);
    let all = s.program.range();
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), all, STRICT),
        Err(Partial::new(1, Cause::Again))
    );
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(1), all.skip(1), STRICT),
        Err(Partial::new(0, Cause::Absent))
    );
    move_pages(&s.of_stage, s.stage.page(1), all.skip(1), HOLES).unwrap();
    let mut entries = [PagemapEntry::default(); 4];
    let pagemap = Pagemap::open().unwrap();
    pagemap.read_entries(s.stage.page(0), &mut entries).unwrap();
    let present: Vec<bool> = entries.iter().map(|entry| entry.is_present()).collect();
    assert_eq!(present, [true, false, true, true]);
}

#[test]
fn a_moved_page_is_writable_and_has_lost_its_protection() {
    let _turn = common::turn();
    let features = Features::MOVE.union(Features::PAGEFAULT_FLAG_WP);
    let (program, stage) = (Area::new(1), Area::new(1));
    let device = open_or_skip!(features);
    program.fill(1);
    for area in [&program, &stage] {
        register(
            &device,
            area.range(),
            RegisterMode::MISSING_AND_WRITE_PROTECT,
        );
    }
    device
        .write_protect(program.range(), true, Wake::Now)
        .unwrap();
    let pagemap = Pagemap::open().unwrap();
    let mut entry = [PagemapEntry::default()];
    pagemap.read_entries(program.page(0), &mut entry).unwrap();
    assert!(entry[0].is_write_protected());
    move_pages(&device, stage.page(0), program.range(), STRICT).unwrap();
    pagemap.read_entries(stage.page(0), &mut entry).unwrap();
    assert!(entry[0].is_present() && !entry[0].is_write_protected());
    stage.write(0, 2);
    assert!(!device.wait(Some(std::time::Duration::ZERO)).unwrap());
}

/// What keeps a page of new memory from being taken for one of the memory before it.
#[test]
fn within_one_device_nothing_is_moved_while_the_address_space_changes() {
    let _turn = common::turn();
    let (program, other, stage) = (Area::new(2), Area::new(2), Area::new(2));
    let device = open_or_skip!(Features::MOVE.union(Features::EVENT_REMOVE));
    program.fill(1);
    for area in [&program, &other, &stage] {
        register(&device, area.range(), RegisterMode::MISSING);
    }
    let first = program.run(0, 1);
    move_pages(&device, stage.page(0), first, STRICT).unwrap();
    let changing = {
        let other = other.clone();
        spawn(move || other.discard(0, 1))
    };
    common::eventually(|| device.is_changing().then_some(()));
    let second = program.run(1, 1);
    let refused = Err(Partial::new(0, Cause::Again));
    assert_eq!(move_pages(&device, stage.page(1), second, STRICT), refused);
    assert!(matches!(next_event(&device), Event::Remove(_)));
    changing.finish();
    common::eventually(|| move_pages(&device, stage.page(1), second, STRICT).ok());
    assert_eq!(stage.read(1), 2);
}

#[test]
fn both_sides_must_be_writable() {
    let Some(s) = setup(1) else { return };
    // SAFETY: changes the access of memory of the test only.
    unsafe {
        rustix::mm::mprotect(
            s.program.ptr(0).cast(),
            PAGE_SIZE,
            rustix::mm::MprotectFlags::READ,
        )
    }
    .unwrap();
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), s.program.range(), STRICT),
        Err(Partial::new(0, Cause::Invalid))
    );
}

#[test]
fn pages_shared_after_a_fork_are_busy() {
    let Some(s) = setup(2) else { return };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let raw_reader = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let raw_writer = std::os::fd::AsRawFd::as_raw_fd(&writer);
    let child = fork(|| {
        let mut byte = 0u8;
        // SAFETY: system calls on descriptors of ours and a local byte; waits for the parent.
        unsafe {
            libc::close(raw_writer);
            libc::read(raw_reader, (&raw mut byte).cast(), 1);
        }
        0
    });
    let busy = Err(Partial::new(0, Cause::Busy));
    let first = s.program.run(0, 1);
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), first, STRICT),
        busy
    );
    // The parent's write gives it a page of its own.
    s.program.write(1, 99);
    move_pages(&s.of_stage, s.stage.page(1), s.program.run(1, 1), STRICT).unwrap();
    drop(writer);
    assert_eq!(child.exit_code(), Some(0));
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), first, STRICT),
        busy,
        "it stays busy after the child has ended"
    );
    s.program.write(0, 98);
    move_pages(&s.of_stage, s.stage.page(0), first, STRICT).unwrap();
    assert_eq!(s.stage.read(0), 98);
}

/// An io_uring whose only use is to pin a page.
struct Pin(std::os::fd::OwnedFd);

fn pin(area: &Area) -> Option<Pin> {
    const REGISTER_BUFFERS: u32 = 0;
    let mut params = [0u64; 15];
    // SAFETY: the struct of parameters is 120 bytes, all zeros is valid; the descriptor is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr());
        if fd < 0 {
            return None;
        }
        let ring = <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32);
        let buffer = libc::iovec {
            iov_base: area.ptr(0).cast(),
            iov_len: PAGE_SIZE,
        };
        let done = libc::syscall(
            libc::SYS_io_uring_register,
            fd,
            REGISTER_BUFFERS,
            &raw const buffer,
            1,
        );
        (done == 0).then_some(Pin(ring))
    }
}

#[test]
fn pinned_pages_are_busy() {
    let Some(s) = setup(1) else { return };
    let Some(pin) = pin(&s.program) else {
        return skip("no io_uring to pin a page with");
    };
    assert_eq!(
        move_pages(&s.of_stage, s.stage.page(0), s.program.range(), STRICT),
        Err(Partial::new(0, Cause::Busy))
    );
    drop(pin.0);
    // The kernel lets go of the page in its own time.
    common::eventually(|| move_pages(&s.of_stage, s.stage.page(0), s.program.range(), STRICT).ok());
    assert_eq!(s.stage.read(0), 10);
}
