//! UFFDIO_MOVE may move a page and say that it did not: so does Linux 6.18, when somebody else had the page
//! in hand and it had to try twice. The pager relies on what is true all the same: the page is then at its
//! destination, whole, and nowhere else.

mod common;

use common::{Area, fork, register, spawn};
use muninn_sys::memory::program;
use muninn_sys::pagemap::{Pagemap, PagemapEntry};
use muninn_sys::uffd::{
    Cause, FaultDevice, Features, MoveMode, PageRange, Partial, RegisterMode, Wake,
};
use muninn_types::PageNo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGES: u64 = 16;
const ROUNDS: u32 = 1500;
const STOP: u32 = u32::MAX;

fn is_there(pagemap: &Pagemap, page: PageNo) -> bool {
    let mut entry = [PagemapEntry::default()];
    pagemap.read_entries(page, &mut entry).unwrap();
    entry[0].is_present()
}

/// Moves whatever can be moved, once; how many times the kernel said that a destination exists.
fn move_some(device: &impl FaultDevice, pagemap: &Pagemap, from: &Area, to: &Area) -> u32 {
    let mode = MoveMode {
        wake: Wake::Later,
        allow_holes: false,
    };
    let mut untold = 0;
    for at in (0..PAGES).filter(|&at| !is_there(pagemap, to.page(at))) {
        let some = PageRange::new(from.page(at), PAGES - at);
        // SAFETY: both sides are areas of the test.
        let moved = unsafe { device.move_pages(to.page(at), some, mode) };
        if moved == Err(Partial::new(0, Cause::Exists)) {
            untold += 1;
            assert!(is_there(pagemap, to.page(at)), "page {at} is nowhere");
            assert!(
                !is_there(pagemap, from.page(at)),
                "page {at} is in two places"
            );
        }
    }
    untold
}

#[test]
fn a_page_is_where_the_table_has_it_whatever_was_told() {
    let _turn = common::turn();
    let pagemap = Pagemap::open().unwrap();
    let round = Arc::new(AtomicU32::new(0));
    let done = Arc::new(AtomicU32::new(0));
    let (program, stage) = (Area::new(PAGES), Area::new(PAGES));
    let device = open_or_skip!(Features::MOVE.union(Features::SIGBUS));
    register(&device, stage.range(), RegisterMode::MISSING);
    let other = {
        let (program, round, done) = (program.clone(), Arc::clone(&round), Arc::clone(&done));
        spawn(move || {
            let mut seen = 0;
            while seen != STOP {
                let now = round.load(Ordering::Acquire);
                if now == seen {
                    std::hint::spin_loop();
                    continue;
                }
                seen = now;
                // Each page becomes the parent's own again, while it is moved away.
                for at in 0..PAGES {
                    let _ = program::unshare(program.run(at, 1));
                }
                done.store(now, Ordering::Release);
            }
        })
    };
    let mut untold = 0;
    for now in 1..=ROUNDS {
        // While it is registered, absent pages are refused, so that nobody finds new ones there.
        device.unregister(program.range()).unwrap();
        program.discard(0, PAGES);
        stage.discard(0, PAGES);
        program.fill(1);
        register(&device, program.range(), RegisterMode::MISSING);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let raw = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let kept = std::os::fd::AsRawFd::as_raw_fd(&writer);
        let child = fork(|| {
            let mut byte = 0u8;
            // SAFETY: system calls on descriptors of ours and a local byte; waits for the parent.
            unsafe {
                libc::close(kept);
                libc::read(raw, (&raw mut byte).cast(), 1);
            }
            0
        });
        round.store(now, Ordering::Release);
        while done.load(Ordering::Acquire) != now {
            untold += move_some(&device, &pagemap, &program, &stage);
        }
        drop(writer);
        assert_eq!(child.exit_code(), Some(0));
        for at in 0..PAGES {
            let area = match is_there(&pagemap, stage.page(at)) {
                true => &stage,
                false => &program,
            };
            assert_eq!(area.read(at), 1 + at as u8, "page {at} in round {now}");
        }
    }
    round.store(STOP, Ordering::Release);
    other.finish();
    println!("{untold} answers in {ROUNDS} rounds did not tell of a page that was moved");
}
