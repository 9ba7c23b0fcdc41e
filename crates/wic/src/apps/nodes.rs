//! Following the links of a list. This file is compiled natively, and for WebAssembly by
//! `examples/wasm-apps`.

use crate::{Addr, Memory, WicError, wic};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Node {
    pub value: u64,
    pub next: Addr,
}

/// Reads `hops` nodes from `start` on; the value of the last.
#[wic(idempotent)]
pub async fn traverse(mem: &impl Memory, start: u64, hops: u32) -> Result<u64, WicError> {
    let mut at = Addr(start);
    let mut value = 0;
    for _ in 0..hops {
        let node = mem.read::<Node>(at).await?;
        value = node.value;
        at = node.next;
    }
    Ok(value)
}
