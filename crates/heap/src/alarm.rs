//! The one word that every access of a mutator looks at when it is done.
//!
//! A set bit sends the mutator out of its fast path: to stop, to answer a handshake, or to learn
//! that a page could not be had. Looking *after* an access covers all three with one test: a value
//! that came from a page which could not be fetched is never handed out, and a safepoint finds
//! every reference in its slot.

use crate::sync::AtomicU32;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Mutators are to stop.
pub const STOP: u32 = 1;
/// Mutators are to give up direct references into a region.
pub const HANDSHAKE: u32 = 2;
/// Memory is lost.
pub const LOST: u32 = 4;

#[derive(Debug, Default)]
pub struct Alarm {
    bits: AtomicU32,
    why: OnceLock<String>,
}

impl Alarm {
    #[inline(always)]
    pub fn is_set(&self) -> bool {
        self.bits.load(Ordering::Relaxed) != 0
    }
    pub fn has(&self, bit: u32) -> bool {
        self.bits.load(Ordering::Acquire) & bit != 0
    }
    pub fn raise(&self, bit: u32) {
        self.bits.fetch_or(bit, Ordering::SeqCst);
    }
    pub fn lower(&self, bit: u32) {
        self.bits.fetch_and(!bit, Ordering::SeqCst);
    }
    /// Memory is lost, and nothing of this heap can be trusted to be whole any more. The first
    /// reason stays.
    pub fn lose(&self, why: impl FnOnce() -> String) {
        self.why.get_or_init(why);
        self.raise(LOST);
    }
    pub fn lost(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }
}
