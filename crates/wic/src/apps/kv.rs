//! A key-value store on a cuckoo hash table: every key lies in one of two buckets of four.
//!
//! A service with one lock has the whole table under it, as WICKit does; one with more has its buckets
//! spread over them, and operations on different buckets go on side by side. Locks are always taken in
//! the order of their numbers.
//!
//! Every change of a slot is written down first (an *intent*, one for each lock), made valid by one
//! compare-and-swap, done, and struck out by another. Whoever takes a lock that was left by a dead
//! holder does the valid intent again before anything else. To make room a key is first copied to its
//! other bucket and then struck from this one, so at no moment is it in neither; while it is in both,
//! the first bucket's copy is the truth.

extern crate alloc;

use crate::{Addr, Memory, WicError, WicGuard, WicLock, bounded, wic};
use alloc::vec;
use alloc::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// There is no room for another key.
pub const FULL: u32 = 1;
/// 0 is not a key: it marks a free slot.
pub const NO_KEY: u32 = 2;
/// The memory is too small for a table.
pub const TOO_SMALL: u32 = 3;
/// An intent is not what it must be under its lock: somebody writes without it.
pub const BROKEN: u32 = 4;

const SLOTS: usize = 4;
const BUCKET: u64 = 64;
const INTENT: u64 = 64;
/// Buckets that are looked at for a way to make room.
const SEARCH_MAX: usize = 128;
/// Attempts to make room while others change the table.
const ATTEMPTS: usize = 32;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Slot {
    pub key: u64,
    pub value: u64,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Bucket {
    pub slots: [Slot; SLOTS],
}

impl Bucket {
    fn find(&self, key: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.key == key)
    }
    fn room(&self) -> Option<usize> {
        self.find(0)
    }
}

/// A change of one slot, as it is written down. The word before it says whether it is valid.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Intent {
    at: Addr,
    slot: Slot,
}

/// Where things lie.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    base: Addr,
    locks: u32,
    buckets: u64,
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

impl Table {
    pub fn new(base: Addr, end: Addr, locks: u32) -> Result<Table, WicError> {
        let room = (end.0 - base.0).saturating_sub(u64::from(locks) * INTENT);
        let buckets = room / BUCKET;
        if buckets < 2 || locks == 0 {
            return Err(WicError::App(TOO_SMALL));
        }
        Ok(Table {
            base,
            locks,
            buckets: 1 << buckets.ilog2(),
        })
    }
    fn of(mem: &impl Memory) -> Result<Table, WicError> {
        Table::new(mem.base(), mem.end(), mem.locks())
    }
    pub fn slots(&self) -> u64 {
        self.buckets * SLOTS as u64
    }

    fn bucket(&self, number: u64) -> Addr {
        self.base
            .plus(u64::from(self.locks) * INTENT + number * BUCKET)
    }
    fn slot(&self, bucket: u64, slot: usize) -> Addr {
        self.bucket(bucket).plus((slot * size_of::<Slot>()) as u64)
    }
    fn lock_of(&self, bucket: u64) -> u32 {
        (bucket % u64::from(self.locks)) as u32
    }
    fn intent(&self, lock: u32) -> Addr {
        self.base.plus(u64::from(lock) * INTENT)
    }
    /// The two buckets of a key, the first one first.
    fn homes(&self, key: u64) -> [u64; 2] {
        let first = mix(key) & (self.buckets - 1);
        let second = mix(key ^ 0x9E37_79B9_7F4A_7C15) & (self.buckets - 1);
        match first == second {
            true => [first, (second + 1) & (self.buckets - 1)],
            false => [first, second],
        }
    }
    fn other(&self, key: u64, bucket: u64) -> u64 {
        let [first, second] = self.homes(key);
        if bucket == first { second } else { first }
    }
}

/// Locks that are held, all of some buckets'.
struct Held<'m, M: Memory>(Vec<WicGuard<'m, M>>);

impl<M: Memory> Held<'_, M> {
    async fn unlock(self) -> Result<(), WicError> {
        for guard in self.0 {
            guard.unlock().await?;
        }
        Ok(())
    }
}

async fn lock_all<'m, M: Memory>(
    mem: &'m M,
    table: &Table,
    buckets: &[u64],
) -> Result<Held<'m, M>, WicError> {
    let mut locks: Vec<u32> = buckets.iter().map(|b| table.lock_of(*b)).collect();
    locks.sort_unstable();
    locks.dedup();
    let mut held = Held(Vec::with_capacity(locks.len()));
    for lock in locks {
        let guard = WicLock::new(lock).lock(mem).await?;
        let orphaned = guard.is_orphaned();
        held.0.push(guard);
        if orphaned {
            recover(mem, table.intent(lock)).await?;
        }
    }
    Ok(held)
}

/// Does again what a dead holder may have left half done.
async fn recover<M: Memory>(mem: &M, intent: Addr) -> Result<(), WicError> {
    if mem.read::<u64>(intent).await? == 1 {
        let Intent { at, slot } = mem.read::<Intent>(intent.plus(8)).await?;
        mem.write(at, &slot).await?;
        strike_out(mem, intent).await?;
    }
    Ok(())
}

async fn strike_out<M: Memory>(mem: &M, intent: Addr) -> Result<(), WicError> {
    match mem.compare_swap(intent, 1, 0).await? {
        1 => Ok(()),
        _ => Err(WicError::App(BROKEN)),
    }
}

/// Changes a slot, whole or not at all.
async fn set<M: Memory>(
    mem: &M,
    table: &Table,
    bucket: u64,
    slot: usize,
    to: Slot,
) -> Result<(), WicError> {
    let intent = table.intent(table.lock_of(bucket));
    let at = table.slot(bucket, slot);
    mem.write(intent.plus(8), &Intent { at, slot: to }).await?;
    if mem.compare_swap(intent, 0, 1).await? != 0 {
        return Err(WicError::App(BROKEN));
    }
    mem.write(at, &to).await?;
    strike_out(mem, intent).await
}

/// The value of a key, if it has one.
#[wic(idempotent, locks)]
pub async fn query(mem: &impl Memory, key: u64) -> Result<Option<u64>, WicError> {
    let table = Table::of(mem)?;
    let homes = table.homes(key);
    let held = lock_all(mem, &table, &homes).await?;
    let mut found = None;
    for home in homes {
        let bucket = mem.read::<Bucket>(table.bucket(home)).await?;
        if let Some(at) = bucket.find(key) {
            found = Some(bucket.slots[at].value);
            break;
        }
    }
    held.unlock().await?;
    Ok(found)
}

/// Gives a key a value; the one it had before.
#[wic(locks)]
pub async fn update(mem: &impl Memory, key: u64, value: u64) -> Result<Option<u64>, WicError> {
    if key == 0 {
        return Err(WicError::App(NO_KEY));
    }
    let table = Table::of(mem)?;
    let homes = table.homes(key);
    let slot = Slot { key, value };
    for _ in 0..ATTEMPTS {
        let held = lock_all(mem, &table, &homes).await?;
        let first = mem.read::<Bucket>(table.bucket(homes[0])).await?;
        let second = mem.read::<Bucket>(table.bucket(homes[1])).await?;
        let place = match (first.find(key), second.find(key)) {
            (Some(at), double) => {
                let old = first.slots[at].value;
                set(mem, &table, homes[0], at, slot).await?;
                if let Some(double) = double {
                    // Left by one that died while it made room.
                    set(mem, &table, homes[1], double, Slot::default()).await?;
                }
                Some(Some(old))
            }
            (None, Some(at)) => {
                let old = second.slots[at].value;
                set(mem, &table, homes[1], at, slot).await?;
                Some(Some(old))
            }
            (None, None) => match (first.room(), second.room()) {
                (Some(at), _) => {
                    set(mem, &table, homes[0], at, slot).await?;
                    Some(None)
                }
                (None, Some(at)) => {
                    set(mem, &table, homes[1], at, slot).await?;
                    Some(None)
                }
                (None, None) => None,
            },
        };
        held.unlock().await?;
        if let Some(old) = place {
            return Ok(old);
        }
        make_room(mem, &table, homes).await?;
    }
    Err(WicError::App(FULL))
}

/// A bucket that was reached by moving a key out of another.
struct Reached {
    bucket: u64,
    /// In the list of those reached, and the key to be moved from there.
    from: Option<(usize, u64)>,
}

/// Moves keys to their other buckets until one of `homes` has room. Looks for a way without locks and
/// checks each move under them: others may have been faster.
#[bounded]
async fn make_room(mem: &impl Memory, table: &Table, homes: [u64; 2]) -> Result<(), WicError> {
    let start = |bucket| Reached { bucket, from: None };
    let mut reached = vec![start(homes[0]), start(homes[1])];
    let mut next = 0;
    let end = loop {
        let Some(here) = reached.get(next) else {
            return Err(WicError::App(FULL));
        };
        let number = here.bucket;
        let bucket = mem.read::<Bucket>(table.bucket(number)).await?;
        if bucket.room().is_some() {
            break next;
        }
        for slot in bucket.slots {
            let other = table.other(slot.key, number);
            if reached.len() < SEARCH_MAX && !reached.iter().any(|r| r.bucket == other) {
                reached.push(Reached {
                    bucket: other,
                    from: Some((next, slot.key)),
                });
            }
        }
        next += 1;
    };
    let mut at = end;
    while let Some((from, key)) = reached[at].from {
        if !move_key(mem, table, key, reached[from].bucket, reached[at].bucket).await? {
            return Ok(());
        }
        at = from;
    }
    Ok(())
}

/// Moves a key between its buckets; false if it is not there any more or there is no room.
async fn move_key<M: Memory>(
    mem: &M,
    table: &Table,
    key: u64,
    from: u64,
    to: u64,
) -> Result<bool, WicError> {
    let held = lock_all(mem, table, &[from, to]).await?;
    let source = mem.read::<Bucket>(table.bucket(from)).await?;
    let target = mem.read::<Bucket>(table.bucket(to)).await?;
    let is_first = table.homes(key)[0] == to;
    let moved = match (source.find(key), target.find(key), target.room()) {
        (None, _, _) | (_, None, None) => false,
        // In both, after a death: the first bucket's is the truth.
        (Some(old), Some(_), _) if is_first => {
            set(mem, table, from, old, Slot::default()).await?;
            true
        }
        (Some(old), Some(new), _) | (Some(old), None, Some(new)) => {
            set(mem, table, to, new, source.slots[old]).await?;
            set(mem, table, from, old, Slot::default()).await?;
            true
        }
    };
    held.unlock().await?;
    Ok(moved)
}
