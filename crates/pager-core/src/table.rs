//! Where the record of a page is: from addresses to chunks.
//!
//! Two levels: a directory of 1 GiB pieces of the address space, each a table of 16,384 chunk
//! numbers, and the chunks themselves in one growing array. A chunk's index in that array is also
//! its name for the eviction policy. A process that is far costs 22 bytes a page, and 32 more
//! where pages are sealed; one that has no page here costs nothing.
//!
//! Invariant: a chunk is in the table exactly as long as it is not [empty](Chunk::is_empty), except
//! inside of an operation.

use crate::chunk::{Chunk, ChunkNo};
use std::cell::Cell;
use std::ops::Range;

/// Chunks of one piece of the address space.
const PIECE_CHUNKS: usize = 1 << 14;
const NONE: u32 = u32::MAX;

/// A chunk's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkIndex(pub u32);

#[derive(Debug)]
struct Piece {
    chunks: Box<[u32; PIECE_CHUNKS]>,
    used: usize,
}

impl Default for Piece {
    fn default() -> Piece {
        Piece {
            chunks: Box::new([NONE; PIECE_CHUNKS]),
            used: 0,
        }
    }
}

#[derive(Debug, Default)]
pub struct Table {
    /// By number.
    pieces: Vec<(u64, Piece)>,
    chunks: Vec<Chunk>,
    unused: Vec<u32>,
    /// The piece looked up last: faults come in crowds.
    last: Cell<usize>,
}

fn split(number: ChunkNo) -> (u64, usize) {
    (
        number.0 / PIECE_CHUNKS as u64,
        number.0 as usize % PIECE_CHUNKS,
    )
}

impl Table {
    /// Where a piece is, or would be.
    fn piece(&self, piece: u64) -> Result<usize, usize> {
        let last = self.last.get();
        if self
            .pieces
            .get(last)
            .is_some_and(|(number, _)| *number == piece)
        {
            return Ok(last);
        }
        let found = self
            .pieces
            .binary_search_by_key(&piece, |(number, _)| *number);
        if let Ok(at) = found {
            self.last.set(at);
        }
        found
    }

    pub fn find(&self, number: ChunkNo) -> Option<ChunkIndex> {
        let (piece, at) = split(number);
        let found = self.piece(piece).ok()?;
        let index = self.pieces[found].1.chunks[at];
        (index != NONE).then_some(ChunkIndex(index))
    }

    pub fn get(&self, index: ChunkIndex) -> &Chunk {
        &self.chunks[index.0 as usize]
    }
    pub fn get_mut(&mut self, index: ChunkIndex) -> &mut Chunk {
        &mut self.chunks[index.0 as usize]
    }

    /// The chunk, made if there is none.
    pub fn make(&mut self, number: ChunkNo) -> ChunkIndex {
        if let Some(index) = self.find(number) {
            return index;
        }
        let index = match self.unused.pop() {
            Some(index) => {
                self.chunks[index as usize] = Chunk::new(number);
                index
            }
            None => {
                self.chunks.push(Chunk::new(number));
                (self.chunks.len() - 1) as u32
            }
        };
        let (piece, at) = split(number);
        let found = self.piece(piece).unwrap_or_else(|place| {
            self.pieces.insert(place, (piece, Piece::default()));
            place
        });
        let piece = &mut self.pieces[found].1;
        piece.chunks[at] = index;
        piece.used += 1;
        ChunkIndex(index)
    }

    /// Forgets a chunk; its index will be used for another.
    pub fn remove(&mut self, index: ChunkIndex) {
        let (number, at) = split(self.get(index).number);
        if let Ok(found) = self.piece(number) {
            let piece = &mut self.pieces[found].1;
            debug_assert_eq!(piece.chunks[at], index.0);
            piece.chunks[at] = NONE;
            piece.used -= 1;
            if piece.used == 0 {
                self.pieces.remove(found);
            }
        }
        self.unused.push(index.0);
    }

    /// Chunks there ever were at one time: indices are below.
    pub fn capacity(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// All chunks, in the order of their addresses.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let indices = self
            .pieces
            .iter()
            .flat_map(|(_, piece)| piece.chunks.iter());
        indices
            .filter(|&&index| index != NONE)
            .map(|&index| &self.chunks[index as usize])
    }

    /// The next chunk of a range that is in the table, and the number after it, to go on from.
    pub fn next_in(&self, range: Range<ChunkNo>) -> Option<(ChunkIndex, ChunkNo)> {
        let (piece, mut at) = split(range.start);
        let first = self.pieces.partition_point(|(number, _)| *number < piece);
        for (number, chunks) in &self.pieces[first..] {
            if *number != piece {
                at = 0;
            }
            let rest = chunks.chunks[at..].iter().position(|&index| index != NONE);
            if let Some(offset) = rest {
                let number = ChunkNo(number * PIECE_CHUNKS as u64 + (at + offset) as u64);
                let index = ChunkIndex(chunks.chunks[at + offset]);
                return (number < range.end).then_some((index, ChunkNo(number.0 + 1)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_what_was_put_in(steps in prop::collection::vec((any::<bool>(), 0u64..60_000), 0..300)) {
            let mut table = Table::default();
            let mut model = BTreeSet::new();
            for (add, number) in steps {
                if add {
                    let index = table.make(ChunkNo(number));
                    prop_assert_eq!(table.get(index).number, ChunkNo(number));
                    model.insert(number);
                } else if let Some(index) = table.find(ChunkNo(number)) {
                    prop_assert!(model.remove(&number));
                    table.remove(index);
                }
            }
            let mut walked = Vec::new();
            let mut from = ChunkNo(0);
            while let Some((index, next)) = table.next_in(from..ChunkNo(50_000)) {
                walked.push(table.get(index).number.0);
                from = next;
            }
            let expected: Vec<u64> = model.range(..50_000).copied().collect();
            prop_assert_eq!(walked, expected);
            for number in (0..60_000).step_by(7) {
                prop_assert_eq!(table.find(ChunkNo(number)).is_some(), model.contains(&number));
            }
        }
    }
}
