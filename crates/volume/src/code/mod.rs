//! The code of a row: any `k` pieces give all others.
//!
//! Parity 0 is the sum of the data pages, parity 1 the sum of the data pages times powers of two, in the
//! field of 256 elements ([`gf`]), as in RAID 6. A [`Recipe`] says how one piece is made of others: to
//! encode and to reconstruct are the same.
//!
//! From: H. P. Anvin, The mathematics of RAID-6.

pub mod gf;
mod vector;

use gf::{mul, power_of_two};
use muninn_policy::stripe::{DATA_MAX, Pieces, Stripes};
pub use vector::Vector;

const WIDTH: usize = DATA_MAX as usize;

/// How a piece is made: the sum of other pieces, each times a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Pieces and their factors, none of which is zero.
    terms: Vec<(usize, u8)>,
}

/// A piece as a sum of data pieces.
fn in_data(stripes: Stripes, piece: usize) -> [u8; WIDTH] {
    let mut row = [0; WIDTH];
    let data = stripes.data();
    match piece.checked_sub(data) {
        None => row[piece] = 1,
        Some(0) => row[..data].fill(1),
        Some(_) => {
            for (at, factor) in row[..data].iter_mut().enumerate() {
                *factor = power_of_two(at);
            }
        }
    }
    row
}

impl Recipe {
    /// How `piece` is made of those in `from`. Panics if these are too few.
    pub fn new(stripes: Stripes, from: Pieces, piece: usize) -> Recipe {
        if from.has(piece) {
            return Recipe {
                terms: vec![(piece, 1)],
            };
        }
        let data = stripes.data();
        // Of data pieces before others: their part of the matrix is the identity.
        let from: Vec<usize> = from.iter().take(data).collect();
        assert_eq!(from.len(), data, "too few pieces");
        let matrix = from.iter().map(|piece| in_data(stripes, *piece)).collect();
        let inverse = inverted(matrix, data);
        let wanted = in_data(stripes, piece);
        let factor = |at: usize| {
            let products = (0..data).map(|column| mul(wanted[column], inverse[column][at]));
            products.fold(0, |sum, product| sum ^ product)
        };
        let terms = from.iter().enumerate();
        let terms = terms.map(|(at, piece)| (*piece, factor(at)));
        Recipe {
            terms: terms.filter(|(_, factor)| *factor != 0).collect(),
        }
    }

    /// Makes the piece. `source` gives the others, all as long as `out`.
    pub fn make<'a>(&self, vector: Vector, out: &mut [u8], source: impl Fn(usize) -> &'a [u8]) {
        let mut terms = self.terms.iter();
        match terms.next() {
            Some((piece, 1)) => out.copy_from_slice(source(*piece)),
            Some((piece, factor)) => {
                out.fill(0);
                vector.mul_add(out, source(*piece), *factor);
            }
            None => out.fill(0),
        }
        for (piece, factor) in terms {
            vector.mul_add(out, source(*piece), *factor);
        }
    }
}

/// The inverse of a matrix, by Gauss and Jordan.
fn inverted(mut matrix: Vec<[u8; WIDTH]>, size: usize) -> Vec<[u8; WIDTH]> {
    let unit = |at: usize| {
        let mut row = [0; WIDTH];
        row[at] = 1;
        row
    };
    let mut inverse: Vec<[u8; WIDTH]> = (0..size).map(unit).collect();
    let scale = |row: &mut [u8; WIDTH], by: u8| row.iter_mut().for_each(|x| *x = mul(*x, by));
    for at in 0..size {
        let pivot = (at..size).find(|row| matrix[*row][at] != 0);
        let pivot = pivot.expect("any k pieces are independent");
        matrix.swap(at, pivot);
        inverse.swap(at, pivot);
        let by = gf::inverse(matrix[at][at]);
        scale(&mut matrix[at], by);
        scale(&mut inverse[at], by);
        for other in (0..size).filter(|other| *other != at) {
            let by = matrix[other][at];
            for column in 0..size {
                let (m, i) = (matrix[at][column], inverse[at][column]);
                matrix[other][column] ^= mul(by, m);
                inverse[other][column] ^= mul(by, i);
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::SplitMix64;
    use proptest::prelude::*;

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut dice = SplitMix64::new(seed);
        (0..len).map(|_| dice.next_u64() as u8).collect()
    }

    /// All pieces of a row of random data.
    fn row(stripes: Stripes, seed: u64, len: usize) -> Vec<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = (0..stripes.data() as u64)
            .map(|at| bytes(seed ^ at, len))
            .collect();
        for piece in stripes.parity_pieces().iter() {
            let recipe = Recipe::new(stripes, stripes.data_pieces(), piece);
            let mut out = vec![0xee; len];
            recipe.make(Vector::detect(), &mut out, |at| &pieces[at]);
            pieces.push(out);
        }
        pieces
    }

    #[test]
    fn parity_is_the_sum_and_the_weighted_sum() {
        let stripes = Stripes::new(3, 2).unwrap();
        let row = row(stripes, 9, 64);
        let [d0, d1, d2, sum, weighted] = &row[..] else {
            panic!("five pieces")
        };
        for at in 0..64 {
            assert_eq!(sum[at], d0[at] ^ d1[at] ^ d2[at]);
            assert_eq!(weighted[at], d0[at] ^ mul(2, d1[at]) ^ mul(4, d2[at]));
        }
    }

    /// Every layout, every set of pieces that suffices, every piece.
    #[test]
    fn any_k_pieces_give_all_others() {
        for (k, m) in [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (5, 2), (8, 2)] {
            let stripes = Stripes::new(k, m).unwrap();
            let row = row(stripes, 77, 100);
            for set in 0..1u32 << stripes.pieces() {
                let there = (0..stripes.pieces()).filter(|piece| set >> piece & 1 != 0);
                let from: Pieces = there.collect();
                if !stripes.suffice(from) {
                    continue;
                }
                for piece in 0..stripes.pieces() {
                    let recipe = Recipe::new(stripes, from, piece);
                    let mut out = vec![0xdd; 100];
                    recipe.make(Vector::detect(), &mut out, |at| {
                        assert!(from.has(at), "{at} is not there");
                        &row[at]
                    });
                    assert_eq!(out, row[piece], "{stripes}: {piece} of {from:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn vectors_compute_what_tables_do(seed: u64, len in 0usize..300, factor: u8) {
            let (source, before) = (bytes(seed, len), bytes(!seed, len));
            let mut expected = before.clone();
            for (sum, byte) in expected.iter_mut().zip(&source) {
                *sum ^= mul(factor, *byte);
            }
            for vector in Vector::all() {
                let mut out = before.clone();
                vector.mul_add(&mut out, &source, factor);
                prop_assert_eq!(&out, &expected, "{:?}", vector);
            }
        }
    }

    #[test]
    fn an_inverse_of_zero_is_never_asked_for() {
        for value in 1..=255 {
            assert_eq!(mul(value, gf::inverse(value)), 1);
        }
    }
}
