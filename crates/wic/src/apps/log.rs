//! A shared log: appended to and read at its end by many clients, under one lock.
//!
//! The first word counts the entries. An append writes its entry behind the last one and then adds one
//! to the count, with one compare-and-swap: before it the entry is not in the log, after it it is. So a
//! client that dies in between has appended nothing, and there is nothing to repair. When the memory
//! is full the oldest entries are overwritten.

use crate::{Addr, Memory, WicError, WicLock, wic};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The one lock.
pub const LOCK: WicLock = WicLock::new(0);
/// The count is not what it must be under the lock: somebody writes without it.
pub const BROKEN: u32 = 1;
/// Bytes of the count's line, and of an entry.
pub const HEAD: u64 = 64;
pub const ENTRY: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// Its number in the log, counted from 0.
    pub number: u64,
    pub writer: u64,
    pub value: u64,
    pub rest: [u64; 5],
}

/// Entries that the memory has room for.
pub fn capacity(base: Addr, end: Addr) -> u64 {
    (end.0 - base.0).saturating_sub(HEAD) / ENTRY
}

/// Where an entry lies.
pub fn address_of(base: Addr, end: Addr, number: u64) -> Addr {
    base.plus(HEAD + number % capacity(base, end).max(1) * ENTRY)
}

/// Appends an entry; its number.
#[wic(locks)]
pub async fn append(mem: &impl Memory, writer: u64, value: u64) -> Result<u64, WicError> {
    let guard = LOCK.lock(mem).await?;
    let count = mem.read::<u64>(mem.base()).await?;
    let entry = Entry {
        number: count,
        writer,
        value,
        rest: [value; 5],
    };
    let at = address_of(mem.base(), mem.end(), count);
    mem.write(at, &entry).await?;
    if mem.compare_swap(mem.base(), count, count + 1).await? != count {
        return Err(WicError::App(BROKEN));
    }
    guard.unlock().await?;
    Ok(count)
}

/// The last entry's number, writer and value, if there is one.
#[wic(idempotent, locks)]
pub async fn read_tail(mem: &impl Memory) -> Result<Option<(u64, u64, u64)>, WicError> {
    let guard = LOCK.lock(mem).await?;
    let count = mem.read::<u64>(mem.base()).await?;
    let last = match count.checked_sub(1) {
        Some(last) => {
            let at = address_of(mem.base(), mem.end(), last);
            let entry = mem.read::<Entry>(at).await?;
            if entry.number != last {
                return Err(WicError::App(BROKEN));
            }
            Some((last, entry.writer, entry.value))
        }
        None => None,
    };
    guard.unlock().await?;
    Ok(last)
}
