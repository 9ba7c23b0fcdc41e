//! What holds for every policy, and what each is for.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A page table in which a page's slot is its number, turned around in blocks of 8 so that slot order
/// is not address order.
struct Table {
    far: Vec<bool>,
}

impl Table {
    fn all_far(pages: usize) -> Table {
        Table {
            far: vec![true; pages],
        }
    }
}

impl FarPages for Table {
    fn is_far(&self, page: PageIndex) -> bool {
        self.far.get(page.at()).copied().unwrap_or(false)
    }
    fn slot_of(&self, page: PageIndex) -> Option<FarSlot> {
        Some(FarSlot(u64::from(page.0 ^ 7)))
    }
    fn page_at(&self, slot: FarSlot) -> Option<PageIndex> {
        u32::try_from(slot.0).ok().map(|slot| PageIndex(slot ^ 7))
    }
}

fn far_fault(page: u32, thread: u32) -> Fault {
    Fault {
        page: PageIndex(page),
        thread,
        source: Source::Far,
    }
}

/// Walks the pages in this order; what is mapped is used without a fault. Returns the faults.
fn faults_of(policy: PrefetchPolicy, pages: usize, walk: impl Iterator<Item = (u32, u32)>) -> u32 {
    let mut prefetch = policy.build();
    let mut table = Table::all_far(pages);
    let mut window = Window::default();
    let mut buffered = BTreeSet::new();
    let mut faults = 0;
    for (page, thread) in walk {
        let source = match buffered.remove(&page) {
            true => Source::Buffer,
            false if table.is_far(PageIndex(page)) => Source::Far,
            false => continue,
        };
        faults += u32::from(source == Source::Far);
        table.far[page as usize] = false;
        let fault = Fault {
            source,
            ..far_fault(page, thread)
        };
        prefetch.handle_fault(fault, &table, &mut window);
        for page in window.pages() {
            table.far[page.at()] = false;
            if window.landing == Landing::Buffered {
                buffered.insert(page.0);
            }
        }
    }
    faults
}

#[test]
fn a_walk_through_memory_faults_seldom() {
    let faults = |policy| faults_of(policy, 6_400, (0..6_400).map(|page| (page, 0)));
    assert_eq!(faults(PrefetchPolicy::None), 6_400);
    assert_eq!(faults(PrefetchPolicy::Fixed), 400);
    assert!(faults(PrefetchPolicy::Adaptive) <= 110);
    assert!(faults(PrefetchPolicy::Trend) <= 110);
    assert!(faults(PrefetchPolicy::Slot) <= 200);
}

#[test]
fn backwards_and_in_strides_too() {
    for policy in [PrefetchPolicy::Adaptive, PrefetchPolicy::Trend] {
        let back = faults_of(policy, 6_400, (0..6_400).rev().map(|page| (page, 0)));
        assert!(back <= 110, "{policy}: {back} faults backwards");
        let strided = (0..6_400 / 7).map(|i| (i * 7, 0));
        let strided = faults_of(policy, 6_400, strided);
        assert!(
            strided <= 50,
            "{policy}: {strided} faults of 914 in steps of 7"
        );
    }
}

#[test]
fn threads_do_not_disturb_each_other_and_adaptive_tells_streams_of_one_thread_apart() {
    // Four walks, a page of each in turn.
    let walks = |threads: u32| {
        (0..1_600).flat_map(move |i| (0..4).map(move |k| (k * 1_600 + i, k % threads)))
    };
    for policy in [PrefetchPolicy::Adaptive, PrefetchPolicy::Trend] {
        let faults = faults_of(policy, 6_400, walks(4));
        assert!(
            faults <= 160,
            "{policy}: {faults} faults with a thread for each walk"
        );
    }
    let faults = faults_of(PrefetchPolicy::Adaptive, 6_400, walks(1));
    assert!(faults <= 160, "{faults} faults with one thread");
}

#[test]
fn slot_neighbours_shut_when_wasted_and_open_again() {
    let table = Table::all_far(6_400);
    let mut policy = SlotNeighbours::new();
    let mut window = Window::default();
    let mut size_at = |policy: &mut SlotNeighbours, page| {
        policy.handle_fault(far_fault(page, 0), &table, &mut window);
        window.pages().len()
    };
    assert_eq!(size_at(&mut policy, 100), 15, "COMEX's 16 pages");
    for _ in 0..1_000 {
        policy.handle_wasted(PageIndex(1));
    }
    let sizes: Vec<usize> = (0..64).map(|i| size_at(&mut policy, i * 64)).collect();
    assert_eq!(sizes.iter().filter(|s| **s == 0).count(), 63);
    assert_eq!(sizes.iter().filter(|s| **s == 3).count(), 1, "one probe");
    for _ in 0..1_000 {
        let hit = Fault {
            source: Source::Buffer,
            ..far_fault(5, 0)
        };
        policy.handle_fault(hit, &table, &mut window);
    }
    policy.handle_fault(far_fault(1_000, 0), &table, &mut window);
    assert_eq!(window.pages().len(), 63);
    assert_eq!(window.landing, Landing::Mapped);
}

proptest! {
    #[test]
    fn windows_hold_far_pages_once_and_never_the_faulted_one(
        faults in prop::collection::vec((0u32..500, 0u32..40, any::<bool>(), any::<bool>()), 0..300),
        far in prop::collection::vec(any::<bool>(), 500),
    ) {
        let table = Table { far };
        for policy in PrefetchPolicy::ALL {
            let mut prefetch = policy.build();
            let mut window = Window::default();
            let mut last = 0;
            for &(page, thread, follow, buffer) in &faults {
                // Half of the faults go on from the last one, so that streams form.
                let page = if follow { (last + 3) % 500 } else { page };
                last = page;
                let source = if buffer { Source::Buffer } else { Source::Far };
                let fault = Fault { page: PageIndex(page), thread, source };
                prefetch.handle_fault(fault, &table, &mut window);
                let pages: BTreeSet<PageIndex> = window.pages().iter().copied().collect();
                prop_assert_eq!(pages.len(), window.pages().len(), "{} repeats a page", policy);
                prop_assert!(!pages.contains(&PageIndex(page)));
                prop_assert!(pages.iter().all(|p| table.is_far(*p)));
                if buffer {
                    prefetch.handle_wasted(PageIndex(page));
                }
            }
        }
    }
}

#[test]
fn ends_of_the_address_range_are_harmless() {
    let table = Table::all_far(10);
    for policy in PrefetchPolicy::ALL {
        let mut prefetch = policy.build();
        let mut window = Window::default();
        for page in [0, 1, 2, u32::MAX - 2, u32::MAX - 1, u32::MAX, 9, 8, 7, 1, 0] {
            prefetch.handle_fault(far_fault(page, u32::MAX), &table, &mut window);
        }
    }
}

#[test]
fn names_read_back_and_an_unknown_one_lists_them() {
    for policy in PrefetchPolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(
        "psychic".parse::<PrefetchPolicy>().unwrap_err().to_string(),
        "'psychic' is not a prefetch policy: use none, fixed, adaptive, trend or slot"
    );
}
