//! For where-independent functions that are compiled to WebAssembly and pushed to a running server.
//!
//! It has the names of `muninn-wic`, so one source is built either way: natively with that crate, for
//! `wasm32-unknown-unknown` with this one under its name.
//!
//! ```ignore
//! #![no_std]
//! #[cfg(target_arch = "wasm32")]
//! extern crate muninn_wic_guest as muninn_wic;
//! use muninn_wic::{Addr, Memory, WicError, wic};
//!
//! #[wic(idempotent)]
//! pub async fn first(mem: &impl Memory) -> Result<u64, WicError> {
//!     mem.read::<u64>(mem.base()).await
//! }
//! ```
//!
//! Here an access is a call of the host, which suspends the whole module if it has to wait; so no future is
//! ever pending but at [`Memory::pause`]. Invariant: nothing is left over from one call to the next, as the host
//! puts back what lies below the heap, the allocator's own place included. Known limit: memory that was given
//! back in the middle is not used again before the call ends.
#![cfg_attr(not(test), no_std)]
#![warn(unreachable_pub)]

mod call;
mod error;
#[cfg(target_arch = "wasm32")]
mod heap;
mod host;
mod lock;
mod memory;

pub use call::{MAX_ARGS, Wic};
pub use error::WicError;
pub use lock::{WicGuard, WicLock};
pub use memory::{Addr, Guest, Memory, Record};
pub use muninn_wic_macros::{bounded, wic};

#[doc(hidden)]
pub use call::call as __call;

/// Natively a function is registered when it is linked; a module's are exported by `#[wic]`.
#[macro_export]
macro_rules! register {
    ($wic:ty) => {};
}

/// A module that panics is ended: its caller gets `Panicked`.
#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
