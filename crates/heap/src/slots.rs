//! The references of a mutator: slots that the collector sees and may change.
//!
//! A [`Slot`] holds the word by which the heap names an object and, between two safepoints, the
//! address at which the object lies. The address is what accesses use; the collector changes it when
//! it moves the object, or clears it (Mako), and then the word leads to the object again. Invariant:
//! an address in a slot is good until the mutator next passes a safepoint.

use std::cell::{Cell, UnsafeCell};

/// Slots come in blocks, so that they never move.
const BLOCK: usize = 256;
/// The most references that a mutator may hold at a time.
const BLOCKS_MAX: usize = 4096;

/// A reference that a mutator holds.
#[derive(Debug)]
pub struct Slot {
    pub address: Cell<*mut u8>,
    /// 0: the slot is free.
    pub word: Cell<u64>,
}

type Block = Box<[Slot; BLOCK]>;

/// All slots of a mutator.
#[derive(Debug, Default)]
pub struct Slots {
    blocks: UnsafeCell<Vec<Block>>,
    free: UnsafeCell<Vec<*const Slot>>,
}

impl Slots {
    /// A free slot. It stays where it is as long as the mutator lives.
    #[inline]
    pub fn take(&self) -> *const Slot {
        // SAFETY: only the mutator's own thread takes and gives back slots, never in the middle of
        // doing so; the collector reads the blocks only while that thread is stopped.
        let free = unsafe { &mut *self.free.get() };
        match free.pop() {
            Some(slot) => slot,
            None => self.more(),
        }
    }

    #[cold]
    fn more(&self) -> *const Slot {
        // SAFETY: as in `take`.
        let (blocks, free) = unsafe { (&mut *self.blocks.get(), &mut *self.free.get()) };
        assert!(
            blocks.len() < BLOCKS_MAX,
            "a mutator holds more than {} references at once: drop some",
            BLOCKS_MAX * BLOCK
        );
        let block: Block = Box::new(
            [const {
                Slot {
                    address: Cell::new(std::ptr::null_mut()),
                    word: Cell::new(0),
                }
            }; BLOCK],
        );
        free.extend(block.iter().rev().map(std::ptr::from_ref));
        blocks.push(block);
        free.pop().expect("a block has slots")
    }

    #[inline]
    pub fn give_back(&self, slot: *const Slot) {
        // SAFETY: the slot is one of ours, in a block that is never freed before the mutator.
        unsafe { (*slot).word.set(0) };
        // SAFETY: as in `take`.
        unsafe { (*self.free.get()).push(slot) };
    }

    /// All slots in use.
    ///
    /// # Safety
    ///
    /// The mutator must be stopped, or be the caller.
    pub unsafe fn each(&self, mut show: impl FnMut(&Slot)) {
        // SAFETY: nobody else uses the blocks, as the caller vouches for.
        for block in unsafe { &*self.blocks.get() } {
            block
                .iter()
                .filter(|s| s.word.get() != 0)
                .for_each(&mut show);
        }
    }

    /// Frees all slots: what held them is gone.
    pub fn clear(&self) {
        // SAFETY: as in `take`.
        let (blocks, free) = unsafe { (&*self.blocks.get(), &mut *self.free.get()) };
        free.clear();
        for block in blocks {
            for slot in block.iter() {
                slot.word.set(0);
            }
            free.extend(block.iter().rev().map(std::ptr::from_ref));
        }
    }
}
