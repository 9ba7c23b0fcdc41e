//! Check sums of what the members of an extent hold: of its pages, or of the pieces of its rows.
//!
//! What is wrong spoils whatever is made of it: a copy at another server, a page that is computed, the
//! parity of a row of which one page is written. So it is looked at before anything is made of it. Sums are
//! of 32 bits, one in a thousand of the memory they are of, and keyed with a number that no server
//! knows; that a *page* is what was written is decided by the pager, with a longer one.

use crate::volume::Page;
use muninn_policy::stripe::Pieces;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Nothing was ever written there: it is zeros.
const NEVER: u32 = 0;
/// Somebody else wrote it.
const UNKNOWN: u32 = 1;

/// The sum of a page under a key.
pub(crate) fn sum_of(key: u64, page: &Page) -> u32 {
    let sum = xxh3_64_with_seed(page, key) as u32;
    sum.max(UNKNOWN + 1)
}

#[derive(Debug)]
pub(crate) struct Sums {
    key: u64,
    pieces: usize,
    sums: Box<[AtomicU32]>,
}

impl Sums {
    /// For an extent with rows of zeros, or of contents that are not known.
    ///
    /// `pieces` is 1 for whole copies: all of them are alike.
    pub(crate) fn new(pieces: usize, rows: u32, key: u64, known: bool) -> Sums {
        let first = if known { NEVER } else { UNKNOWN };
        let sums = (0..rows as usize * pieces).map(|_| AtomicU32::new(first));
        Sums {
            key,
            pieces,
            sums: sums.collect(),
        }
    }

    pub(crate) fn rows(&self) -> u32 {
        (self.sums.len() / self.pieces) as u32
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces
    }

    fn at(&self, row: u32, piece: usize) -> &AtomicU32 {
        assert!(piece < self.pieces);
        &self.sums[row as usize * self.pieces + piece]
    }

    fn of(&self, page: &Page) -> u32 {
        sum_of(self.key, page)
    }

    pub(crate) fn note(&self, row: u32, piece: usize, page: &Page) {
        self.note_sum(row, piece, self.of(page));
    }

    /// The same of a page whose sum was made before.
    pub(crate) fn note_sum(&self, row: u32, piece: usize, sum: u32) {
        self.at(row, piece).store(sum, SeqCst);
    }

    /// It was changed, and nobody looked at what it holds now.
    pub(crate) fn forget(&self, row: u32, piece: usize) {
        self.at(row, piece).store(UNKNOWN, SeqCst);
    }

    /// Whether a page is what was written there, as far as that is known.
    pub(crate) fn is_right(&self, row: u32, piece: usize, page: &Page) -> bool {
        match self.at(row, piece).load(SeqCst) {
            UNKNOWN => true,
            NEVER => page.iter().all(|byte| *byte == 0),
            sum => sum == self.of(page),
        }
    }

    /// Pieces that hold zeros because nobody wrote to them.
    pub(crate) fn zeros(&self, row: u32) -> Pieces {
        let zero = |piece: &usize| self.at(row, *piece).load(SeqCst) == NEVER;
        (0..self.pieces).filter(zero).collect()
    }
}
