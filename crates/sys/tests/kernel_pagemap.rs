//! Facts about PAGEMAP_SCAN and the classic entries of pagemap.

mod common;

use common::{Area, register};
use muninn_sys::pagemap::{
    Categories, PageScan, Pagemap, PagemapEntry, PagemapError, Query, Region,
};
use muninn_sys::uffd::{Cause, FaultDevice, Features, PageRange, RegisterMode, Wake};
use muninn_testing::skip;
use muninn_types::PageNo;

const NOTHING: Region = Region {
    range: PageRange::one(PageNo(0)),
    categories: Categories::NONE,
};

#[test]
fn written_pages_are_found_by_scan_without_any_event() {
    let area = Area::new(16);
    let device = open_or_skip!(Features::WP_ASYNC.union(Features::WP_UNPOPULATED));
    area.fill(1);
    let pagemap = Pagemap::open().unwrap();
    let mut found = [NOTHING; 8];
    let untracked = pagemap.scan(area.range(), &Query::TAKE_WRITTEN, &mut found);
    assert!(
        untracked.is_err(),
        "writes are not tracked before registration"
    );
    register(&device, area.range(), RegisterMode::WRITE_PROTECT);
    device.write_protect(area.range(), true, Wake::Now).unwrap();
    let mut take = |room: usize| {
        let scanned = pagemap
            .scan(area.range(), &Query::TAKE_WRITTEN, &mut found[..room])
            .unwrap();
        let runs: Vec<(u64, u64)> = found[..scanned.regions]
            .iter()
            .map(|r| (r.range.first().0 - area.page(0).0, r.range.pages()))
            .collect();
        (runs, scanned.next.0 - area.page(0).0)
    };
    assert_eq!(take(8), (vec![], 16));
    for index in [3, 4, 9] {
        area.write(index, 100);
    }
    assert_eq!(take(8), (vec![(3, 2), (9, 1)], 16));
    assert_eq!(take(8), (vec![], 16), "asking protected them again");
    for index in [0, 2, 5] {
        area.write(index, 100);
    }
    let (runs, next) = take(1);
    assert_eq!(runs, [(0, 1)]);
    assert!((1..=2).contains(&next), "goes on at {next}");
    assert!(!device.wait(Some(std::time::Duration::ZERO)).unwrap());
    let mut entries = [PagemapEntry::default(); 16];
    assert_eq!(pagemap.read_entries(area.page(0), &mut entries), Ok(16));
    assert!(entries.iter().all(|entry| entry.is_present()));
    assert!(entries[0].is_write_protected() && !entries[2].is_write_protected());
}

#[test]
fn scans_find_what_is_present_in_bounds() {
    let area = Area::new(200);
    for index in (0..200).filter(|index| index % 2 == 0) {
        area.write(index, 1);
    }
    let pagemap = Pagemap::open().unwrap();
    let mut found = [NOTHING; 150];
    let scanned = match pagemap.scan(area.range(), &Query::PRESENT, &mut found) {
        Ok(scanned) => scanned,
        Err(error @ PagemapError::NoScan) => return skip(error),
        Err(error) => panic!("{error}"),
    };
    assert_eq!((scanned.regions, scanned.next), (100, area.range().end()));
    assert!(found[..100].iter().all(|r| r.range.pages() == 1));
    let few = Query {
        pages_max: 7,
        ..Query::PRESENT
    };
    let scanned = pagemap.scan(area.range(), &few, &mut found).unwrap();
    assert_eq!(scanned.regions, 7);
    let absent = Query {
        none_of: Categories::PRESENT,
        tell: Categories::PRESENT,
        ..Query::default()
    };
    let scanned = pagemap.scan(area.range(), &absent, &mut found).unwrap();
    assert_eq!(scanned.regions, 100);
    assert_eq!(found[0].range.first(), area.page(1));
}

#[test]
fn absent_pages_count_as_written_and_bear_a_mark_once_they_are_taken() {
    let area = Area::new(4);
    let device = open_or_skip!(Features::WP_ASYNC.union(Features::WP_UNPOPULATED));
    // At both ends, so that the page table of the absent ones is there.
    area.write(0, 1);
    area.write(3, 1);
    register(
        &device,
        area.range(),
        RegisterMode::MISSING_AND_WRITE_PROTECT,
    );
    let pagemap = Pagemap::open().unwrap();
    let mut found = [NOTHING; 4];
    let present_only = Query {
        all_of: Categories::WRITTEN | Categories::PRESENT,
        protect: false,
        ..Query::TAKE_WRITTEN
    };
    let scanned = pagemap
        .scan(area.range(), &present_only, &mut found)
        .unwrap();
    assert_eq!(scanned.regions, 2);
    assert_eq!(found[0].range, area.run(0, 1));
    assert_eq!(found[1].range, area.run(3, 1));
    let scanned = pagemap
        .scan(area.range(), &Query::TAKE_WRITTEN, &mut found)
        .unwrap();
    assert_eq!(scanned.regions, 1);
    assert_eq!(found[0].range, area.range(), "all of them");
    assert_eq!(
        device.zero(area.run(1, 1), Wake::Now).unwrap_err().cause,
        Cause::Exists
    );
}
