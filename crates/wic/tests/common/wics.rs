//! Functions that misbehave, and such that show it.
#![allow(dead_code)] // each test uses a part of it

use muninn_wic::{Memory, Wic, WicError, WicLock, wic};
use std::future::Future;

pub const LOCK: WicLock = WicLock::new(0);

/// Takes the lock, writes a sign, and never gives it back.
#[wic]
pub async fn hold(mem: &impl Memory, sign: u64) -> Result<(), WicError> {
    let guard = LOCK.lock(mem).await?;
    mem.write(mem.base(), &sign).await?;
    while mem.read::<u64>(mem.base()).await? == sign {
        mem.pause().await?;
    }
    guard.unlock().await
}

/// Whether the lock was left by one that did not give it back.
#[wic]
pub async fn find_orphan(mem: &impl Memory) -> Result<bool, WicError> {
    let guard = LOCK.lock(mem).await?;
    let orphaned = guard.is_orphaned();
    guard.unlock().await?;
    Ok(orphaned)
}

/// Fails with the lock in its hand.
#[wic]
pub async fn fail_holding(mem: &impl Memory) -> Result<(), WicError> {
    let _guard = LOCK.lock(mem).await?;
    Err(WicError::App(5))
}

/// Computes without end.
#[wic]
pub async fn spin(mem: &impl Memory) -> Result<u64, WicError> {
    let mut n = 0u64;
    loop {
        n = n.wrapping_mul(3).wrapping_add(1);
        if n == 0 {
            return Ok(n);
        }
    }
}

/// Reads without end.
#[wic]
pub async fn read_on(mem: &impl Memory) -> Result<u64, WicError> {
    loop {
        mem.read::<u64>(mem.base()).await?;
    }
}

/// Takes memory without end.
#[wic]
pub async fn hoard(mem: &impl Memory) -> Result<u64, WicError> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(vec![1; 1 << 16]);
        mem.read::<u64>(mem.base()).await?;
    }
}

#[wic]
pub async fn panics(mem: &impl Memory) -> Result<u64, WicError> {
    let value = mem.read::<u64>(mem.base()).await?;
    assert!(value == u64::MAX, "this one is meant to panic");
    Ok(value)
}

/// Adds to a word.
#[wic]
pub async fn add(mem: &impl Memory, to: u64) -> Result<u64, WicError> {
    mem.fetch_add(mem.base().plus(8), to).await
}

#[wic(idempotent)]
pub async fn get(mem: &impl Memory) -> Result<u64, WicError> {
    mem.read::<u64>(mem.base().plus(8)).await
}

/// More than fits a reply.
#[wic]
pub async fn talk(_mem: &impl Memory) -> Result<Vec<u8>, WicError> {
    Ok(vec![7; 4000])
}

#[wic(name = "test.versioned", version = 2)]
pub async fn versioned(_mem: &impl Memory) -> Result<u64, WicError> {
    Ok(2)
}

/// The version before, as an older client has it; not registered here.
#[derive(Clone, Copy, Debug)]
pub struct Older;

impl Wic for Older {
    const NAME: &'static str = "test.versioned";
    const VERSION: u32 = 1;
    const IDEMPOTENT: bool = false;
    type Args = ();
    type Reply = u64;
    fn run<M: Memory>(_: &M, (): ()) -> impl Future<Output = Result<u64, WicError>> {
        std::future::ready(Ok(1))
    }
}
