//! A hundred servers and a hundred gibibytes: what the map takes, and that nothing but a fork looks at all of it.
//!
//! Extents are counted as they are looked at, and bytes as they are allocated: times would say little.

use crate::clerk::{Clerk, EXTENT_PAGES};
use crate::extent::ExtentId;
use crate::roster::Roster;
use crate::volume::Volume;
use muninn_net::{Answer, Control, Kind, Lane, NetError, Transport};
use muninn_policy::layout::Layout;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, GrantId, LaneKind, SegmentId, ServerId};
use muninn_wire::{ErrorCode, GrantInfo, Refusal};
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SERVERS: usize = 100;
const FAR: Bytes = Bytes::gib(100);

/// Counts what a thread has allocated and not given back.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all is the system's; the count is a number of this thread's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(layout.size())));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: std::alloc::Layout) {
        let _ = HELD.try_with(|held| held.set(held.get().wrapping_sub(layout.size())));
        // SAFETY: as the caller says.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A server that gives grants of nothing: no page is ever written.
#[derive(Debug)]
struct Hollow {
    address: Address,
    room: u64,
    given: Mutex<u64>,
    drains: AtomicU64,
    asks: AtomicU64,
    next: AtomicU64,
}

impl Transport for Hollow {
    fn kind(&self) -> Kind {
        Kind::Fake
    }
    fn address(&self) -> &Address {
        &self.address
    }
    fn server_name(&self) -> &str {
        "hollow"
    }
    fn max_grant(&self) -> Bytes {
        Bytes::mib(64)
    }
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn lane(&self, _: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        unreachable!("nothing is written")
    }
    fn call(&self, control: Control, _: Duration) -> Result<Answer, NetError> {
        let Control::Grant { bytes } = control else {
            return Ok(Answer::Done);
        };
        let mut given = self.given.lock().unwrap();
        if *given + bytes > self.room {
            let refusal = Refusal::with(ErrorCode::PoolFull, bytes, 0);
            return Err(NetError::Refused(self.address.clone(), refusal));
        }
        *given += bytes;
        Ok(Answer::Granted(GrantInfo {
            grant: GrantId(self.next.fetch_add(1, Relaxed)),
            bytes,
            segment: SegmentId(0),
            incarnation: 0,
            segment_bytes: bytes,
            segment_offset: 0,
            descriptor: false,
        }))
    }
    fn lost(&self) -> Option<String> {
        None
    }
    fn drain_left(&self) -> Option<Duration> {
        (self.drains.load(Relaxed) > 0).then_some(Duration::from_secs(1))
    }
    fn asked_back(&self) -> Bytes {
        Bytes(self.asks.load(Relaxed))
    }
    fn resumes(&self) -> u64 {
        0
    }
}

/// So many members at each server, and no thread of a clerk.
fn volume(layout: Layout, extents: u64) -> Volume {
    let members = extents * layout.members() as u64;
    let member = Bytes::pages(u64::from(
        EXTENT_PAGES / layout.breadth().next_power_of_two(),
    ));
    // Servers are filled one after the other, and at the end as many as there are members must have room.
    let full = SERVERS as u64 - layout.members() as u64;
    let room = member.0 * (members.div_ceil(full) + 2);
    let name = |at: usize| Address::Unix(format!("hollow{at}").into());
    let addresses: Vec<Address> = (0..SERVERS).map(name).collect();
    let connect = move |address: &Address, _| {
        let hollow = Hollow {
            address: address.clone(),
            room,
            given: Mutex::default(),
            drains: AtomicU64::new(0),
            asks: AtomicU64::new(0),
            next: AtomicU64::new(1),
        };
        Ok(Arc::new(hollow) as Arc<dyn Transport>)
    };
    let roster = Roster::new(&addresses, Box::new(connect), Box::new(|_: &str| {}));
    let roster = Arc::new(roster);
    let clerk = Arc::new(Clerk::new(Arc::clone(&roster), layout, 0, 1));
    let mut volume = Volume::new(roster, clerk);
    for _ in 0..extents {
        volume.extent().unwrap();
    }
    volume
}

/// Extents of which a hundred gibibytes are.
fn extents(layout: Layout) -> u64 {
    let pages = match layout.stripes() {
        Some(stripes) => layout.breadth() << (EXTENT_PAGES / stripes.data() as u32).ilog2(),
        None => EXTENT_PAGES,
    };
    FAR.whole_pages() / u64::from(pages)
}

fn layouts() -> Vec<Layout> {
    let all = ["single", "mirror", "mirror:3", "parity:2+1", "parity:4+2"];
    all.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_map_takes_a_thousandth_of_what_servers_hold() {
    for layout in layouts() {
        // The first hundredth of them brings what is there once.
        let (few, many) = (20, 20 + extents(layout) / 100);
        let taken = |count: u64| {
            let before = HELD.get();
            let volume = volume(layout, count);
            let taken = HELD.get().wrapping_sub(before);
            drop(volume);
            taken as u64
        };
        let each = (taken(many) - taken(few)) / (many - few);
        let members = layout.members() as u64;
        let breadth = u64::from(layout.breadth());
        let pages = FAR.whole_pages() / extents(layout);
        let held = Bytes::pages(pages / breadth * members).0;
        println!("{layout}: {each} bytes for {}", Bytes(held));
        assert!(
            each * 1000 <= held,
            "{layout}: {each} bytes for {}",
            Bytes(held)
        );
    }
}

#[test]
fn nothing_looks_at_all_extents() {
    for layout in ["mirror", "parity:2+1"] {
        let layout: Layout = layout.parse().unwrap();
        let count = extents(layout);
        let mut volume = volume(layout, count);
        let at_most = volume.roster.ids().map(|id| volume.map.count_at(id)).max();
        let at_most = at_most.unwrap();
        println!("{layout}: {count} extents, {at_most} at a server");
        let mut looks = |what: &str, most: usize, act: &mut dyn FnMut(&mut Volume)| {
            let before = volume.map.looked.get();
            act(&mut volume);
            let looked = volume.map.looked.get() - before;
            assert!(looked <= most, "{layout}, {what}: {looked} extents");
        };
        let (one, few) = (ServerId(7), 64);
        // Each of those at a server: found, checked, and put into a queue.
        let there = few + 16 * at_most;
        looks("nothing happened", few, &mut Volume::attend);
        looks("news of a server", few, &mut |volume| {
            volume.roster.suspect(one);
            volume.roster.heard(one);
            volume.attend();
        });
        looks("one more", few, &mut |volume| {
            let extent = volume.extent().unwrap();
            volume.release(extent.id);
        });
        looks("one less", few, &mut |volume| volume.release(ExtentId(3)));
        looks("a drain", there, &mut |volume| {
            volume.roster.note_draining(one, true);
            volume.attend();
        });
        looks("while it lasts", few, &mut |volume| {
            volume.roster.suspect(ServerId(8));
            volume.roster.heard(ServerId(8));
            volume.attend();
        });
        looks("its end", there, &mut |volume| {
            volume.roster.note_draining(one, false);
            volume.attend();
        });
        looks("a server that asks", there, &mut |volume| {
            volume.roster.note_asked(one, 1 << 30);
            volume.attend();
        });
        looks("one that asks for nothing", there, &mut |volume| {
            volume.roster.note_asked(one, 0);
            volume.attend();
        });
        looks("a server that is lost", there, &mut |volume| {
            let generation = volume.roster.generation(one);
            volume.roster.lose(one, generation, "it is gone");
            volume.attend();
        });
        looks("what is late", few + at_most, &mut Volume::settle_late);
    }
}
