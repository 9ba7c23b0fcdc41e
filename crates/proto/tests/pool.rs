//! The pool against a plain model: nothing is lost, nothing overlaps, nothing is granted unwiped.

use muninn_proto::server::{
    Backing, Extent, FakeBacking, FakeSegment, Pool, PoolConfig, SegmentMemory, Wipe,
};
use muninn_types::{Bytes, SegmentId, SessionId};
use muninn_wire::{ErrorCode, ShortText, Transport};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn config(memory: u64, quotas: HashMap<String, Bytes>) -> PoolConfig {
    PoolConfig {
        memory: Bytes(memory),
        segment: Bytes::kib(64),
        quotas,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Alloc { session: u64, pages: u64 },
    Free(usize),
    Take,
    Wipe(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1u64..5, 1u64..17).prop_map(|(session, pages)| Act::Alloc { session, pages }),
        3 => any::<usize>().prop_map(Act::Free),
        2 => Just(Act::Take),
        2 => any::<usize>().prop_map(Act::Wipe),
    ]
}

type Place = (u32, u32, u64, u64);

fn place(extent: &Extent<FakeBacking>) -> Place {
    (
        extent.segment().0,
        extent.incarnation(),
        extent.start(),
        extent.bytes(),
    )
}

proptest! {
    #[test]
    fn memory_goes_round_in_one_direction(
        pages in 1u64..100,
        acts in proptest::collection::vec(act(), 1..200),
    ) {
        let memory = pages * 4096 + 17; // the part of a page does not count
        let pool = Pool::new(FakeBacking, config(memory, HashMap::new())).unwrap();
        let memory = pages * 4096;
        let whole = pool.stats().largest_free;
        let mut held: Vec<Arc<Extent<FakeBacking>>> = Vec::new();
        let mut wipes: Vec<Wipe<FakeSegment>> = Vec::new();
        for act in acts {
            match act {
                Act::Alloc { session, pages } => {
                    // Odd sessions map their memory.
                    let shm = session % 2 == 1;
                    let transport = if shm { Transport::Shm } else { Transport::Tcp };
                    let name = ShortText::lossy("a", 8);
                    match pool.alloc(SessionId(session), &name, transport, pages * 4096) {
                        Ok(extent) => {
                            let mut bytes = vec![1; extent.bytes() as usize];
                            extent.mem().read(extent.start(), &mut bytes);
                            prop_assert!(bytes.iter().all(|b| *b == 0), "not wiped");
                            extent.mem().write(extent.start(), &vec![session as u8; bytes.len()]);
                            held.push(extent);
                        }
                        Err(refusal) => {
                            let known = [ErrorCode::PoolFull, ErrorCode::TryAgain, ErrorCode::BadSize];
                            prop_assert!(known.contains(&refusal.code));
                            if refusal.code != ErrorCode::BadSize {
                                prop_assert!(refusal.b < refusal.a, "refused though it fits");
                            }
                        }
                    }
                }
                Act::Free(pick) if !held.is_empty() => {
                    held.swap_remove(pick % held.len());
                }
                Act::Take => wipes.extend(pool.take_wipe()),
                Act::Wipe(pick) if !wipes.is_empty() => {
                    pool.wipe(wipes.swap_remove(pick % wipes.len())).unwrap();
                }
                _ => {}
            }
            let stats = pool.stats();
            let granted: u64 = held.iter().map(|extent| extent.bytes()).sum();
            prop_assert_eq!(stats.granted.0, granted);
            prop_assert_eq!(stats.extents as usize, held.len());
            prop_assert_eq!(stats.granted.0 + stats.wiping.0 + pool.free_bytes().0, memory);
            let mut places: Vec<Place> = held.iter().map(|extent| place(extent)).collect();
            places.sort_unstable();
            for pair in places.windows(2) {
                let ((s1, i1, start, len), (s2, i2, next, _)) = (pair[0], pair[1]);
                prop_assert!((s1, i1) != (s2, i2) || start + len <= next, "two extents overlap");
            }
        }
        // Two that map memory never lie in the same segment.
        held.clear();
        for wipe in wipes {
            pool.wipe(wipe).unwrap();
        }
        pool.wipe_all().unwrap();
        let stats = pool.stats();
        prop_assert_eq!((stats.granted.0, stats.wiping.0, stats.extents), (0, 0, 0));
        prop_assert_eq!(stats.largest_free, whole);
        prop_assert_eq!(pool.free_bytes().0, memory);
    }
}

#[test]
fn sessions_that_map_memory_have_segments_of_their_own() {
    let pool = Pool::new(FakeBacking, config(256 << 10, HashMap::new())).unwrap();
    let name = ShortText::lossy("a", 8);
    let alloc = |session, transport| {
        pool.alloc(SessionId(session), &name, transport, 4096)
            .unwrap()
    };
    let shm = [
        alloc(1, Transport::Shm),
        alloc(1, Transport::Shm),
        alloc(3, Transport::Shm),
    ];
    let tcp = [alloc(2, Transport::Tcp), alloc(4, Transport::Tcp)];
    let segment = |extent: &Arc<Extent<FakeBacking>>| extent.segment();
    assert_eq!(segment(&shm[0]), segment(&shm[1]));
    assert_eq!(segment(&tcp[0]), segment(&tcp[1]));
    assert_ne!(segment(&shm[0]), segment(&shm[2]));
    assert_ne!(segment(&shm[0]), segment(&tcp[0]));
    let (first, memory) = (segment(&shm[0]), Arc::clone(shm[0].mem()));
    drop(shm);
    pool.wipe_all().unwrap();
    // Its memory is new: a mapping that was kept shows nothing of the next owner.
    let [a, b, c] = [5, 6, 7].map(|session| alloc(session, Transport::Shm));
    let again = [&a, &b, &c]
        .into_iter()
        .find(|extent| segment(extent) == first)
        .unwrap();
    assert_eq!(again.incarnation(), 1);
    assert!(!Arc::ptr_eq(again.mem(), &memory));
}

/// Memory files run out now and then.
#[derive(Debug)]
struct Scarce(Arc<AtomicBool>);

impl Backing for Scarce {
    type Segment = FakeSegment;
    fn create(&self, id: SegmentId, bytes: Bytes) -> io::Result<FakeSegment> {
        if self.0.load(Relaxed) {
            return Err(io::Error::other("too many open files"));
        }
        FakeBacking.create(id, bytes)
    }
}

#[test]
fn a_segment_whose_memory_cannot_be_replaced_is_tried_again() {
    let scarce = Arc::new(AtomicBool::new(false));
    let pool = Pool::new(
        Scarce(Arc::clone(&scarce)),
        config(64 << 10, HashMap::new()),
    )
    .unwrap();
    let name = ShortText::lossy("a", 8);
    drop(
        pool.alloc(SessionId(1), &name, Transport::Shm, 4096)
            .unwrap(),
    );
    scarce.store(true, Relaxed);
    assert!(pool.wipe_all().is_err());
    assert_eq!(pool.stats().wiping, Bytes::kib(64));
    let refused = pool
        .alloc(SessionId(2), &name, Transport::Tcp, 4096)
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::TryAgain);
    scarce.store(false, Relaxed);
    pool.wipe_all().unwrap();
    assert_eq!(pool.stats().wiping, Bytes::ZERO);
    pool.alloc(SessionId(2), &name, Transport::Tcp, 64 << 10)
        .unwrap();
}

#[test]
fn nothing_is_granted_beyond_the_ceiling_and_what_is_granted_stays() {
    let pool = Pool::new(FakeBacking, config(1 << 20, HashMap::new())).unwrap();
    let name = ShortText::lossy("a", 8);
    let ask = |bytes| pool.alloc(SessionId(2), &name, Transport::Tcp, bytes);
    let first = ask(64 << 10).unwrap();
    pool.set_ceiling(Bytes::kib(96));
    let stats = pool.stats();
    assert_eq!(
        (stats.memory, stats.largest_free),
        (Bytes::kib(96), Bytes::kib(32))
    );
    let refusal = ask(64 << 10).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::PoolFull);
    let second = ask(32 << 10).unwrap();
    pool.set_ceiling(Bytes::ZERO);
    assert!(ask(4096).is_err());
    let stats = pool.stats();
    assert_eq!(
        (stats.memory, stats.granted),
        (Bytes::kib(96), Bytes::kib(96))
    );
    drop((first, second));
    assert_eq!(pool.stats().granted, Bytes::ZERO);
    assert!(ask(4096).is_err());
    pool.set_ceiling(Bytes::mib(1));
    while let Some(work) = pool.take_wipe() {
        pool.wipe(work).unwrap();
    }
    assert!(ask(64 << 10).is_ok());
}
