//! Parity: how the pages of an extent lie in stripes, and which pieces of a row are asked for.
//!
//! An extent with `k+m` is a table. Each of `k` data members holds a column of its pages whole, each of
//! `m` parity members a column that is computed from them; what stands beside each other is a *row*, one
//! page a *piece* of it. Neighbouring pages are neighbours in a row, so pages that leave together fill
//! rows, and a row that is filled at once needs nothing to be read.
//!
//! ```text
//!            data 0   data 1   data 2   data 3 │ parity 0   parity 1
//!   row 0    page 0   page 1   page 2   page 3 │   0+1+2+3 …
//!   row 1    page 4   page 5   page 6   page 7 │   4+5+6+7 …
//! ```
//!
//! Invariant: any `k` pieces of a row give all others. A page is read from its own member as long as
//! that answers; otherwise any `k` pieces are asked for, those that answer first.
//! Known limit: a row is changed in place, so that a page written alone costs `k − 1` reads. Far memory
//! has one writer, who knows what he wrote last, so a row that was half written when a server went is
//! not taken for a whole one: what a member missed is marked.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

pub const DATA_MAX: u8 = 8;
pub const PARITY_MAX: u8 = 2;
/// The most pieces that a row may have.
pub const PIECES_MAX: usize = (DATA_MAX + PARITY_MAX) as usize;

/// Some pieces of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pieces(u16);

impl Pieces {
    pub const NONE: Pieces = Pieces(0);

    pub fn one(piece: usize) -> Pieces {
        Pieces(1 << piece)
    }
    /// The first `count`.
    pub fn first(count: usize) -> Pieces {
        Pieces(((1u32 << count) - 1) as u16)
    }
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub fn has(self, piece: usize) -> bool {
        self.0 >> piece & 1 != 0
    }
    pub fn all_in(self, others: Pieces) -> bool {
        self.0 & !others.0 == 0
    }
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..PIECES_MAX).filter(move |piece| self.has(*piece))
    }
}

impl FromIterator<usize> for Pieces {
    fn from_iter<I: IntoIterator<Item = usize>>(pieces: I) -> Pieces {
        let pieces = pieces.into_iter().map(Pieces::one);
        pieces.fold(Pieces::NONE, |all, piece| all | piece)
    }
}

impl BitOr for Pieces {
    type Output = Pieces;
    fn bitor(self, other: Pieces) -> Pieces {
        Pieces(self.0 | other.0)
    }
}
impl BitOrAssign for Pieces {
    fn bitor_assign(&mut self, other: Pieces) {
        *self = *self | other;
    }
}
impl BitAnd for Pieces {
    type Output = Pieces;
    fn bitand(self, other: Pieces) -> Pieces {
        Pieces(self.0 & other.0)
    }
}
impl Not for Pieces {
    type Output = Pieces;
    fn not(self) -> Pieces {
        Pieces(!self.0)
    }
}

/// So many data and parity members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    data: u8,
    parity: u8,
}

/// What is known of a row while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is needed of it.
    pub wanted: Pieces,
    pub got: Pieces,
    /// Asked for, and not late yet.
    pub waiting: Pieces,
    /// Asked for ever, whatever came of it.
    pub asked: Pieces,
}

impl Stripes {
    /// `None` for numbers that are not supported.
    pub fn new(data: u8, parity: u8) -> Option<Stripes> {
        let known = (2..=DATA_MAX).contains(&data) && (1..=PARITY_MAX).contains(&parity);
        known.then_some(Stripes { data, parity })
    }

    pub fn data(self) -> usize {
        usize::from(self.data)
    }
    pub fn parity(self) -> usize {
        usize::from(self.parity)
    }
    pub fn pieces(self) -> usize {
        self.data() + self.parity()
    }
    pub fn data_pieces(self) -> Pieces {
        Pieces::first(self.data())
    }
    pub fn parity_pieces(self) -> Pieces {
        Pieces::first(self.pieces()) & !self.data_pieces()
    }

    /// The row of a page, and which piece of it the page is.
    pub fn row_of(self, place: u32) -> (u32, usize) {
        let data = u32::from(self.data);
        (place / data, (place % data) as usize)
    }

    /// Whether these are enough to know all of a row.
    pub fn suffice(self, pieces: Pieces) -> bool {
        pieces.len() >= self.data()
    }

    /// Whether what is wanted is there, or can be computed.
    pub fn is_enough(self, reading: &Reading) -> bool {
        reading.wanted.all_in(reading.got) || self.suffice(reading.got)
    }

    /// Pieces to ask for now: of `sure`, members that are expected to answer, before those of `unsure`.
    /// Those that are wanted themselves if all of them can be had, otherwise as many as give the rest.
    pub fn to_ask(self, reading: &Reading, sure: Pieces, unsure: Pieces) -> Pieces {
        let under_way = reading.got | reading.waiting;
        let rest = reading.wanted & !under_way;
        if self.is_enough(reading) || rest.is_empty() {
            return Pieces::NONE;
        }
        let (sure, unsure) = (sure & !reading.asked, unsure & !reading.asked);
        if rest.all_in(sure) {
            return rest;
        }
        let lacking = self.data().saturating_sub(under_way.len());
        let (first, then) = (rest & sure, sure & !rest);
        let open = first.iter().chain(then.iter()).chain(unsure.iter());
        open.take(lacking).collect()
    }

    /// What a write of some data pieces changes.
    pub fn touched(self, new: Pieces) -> Pieces {
        new | self.parity_pieces()
    }

    /// Which of the members that a write should change are passed over: those that do not answer, as
    /// long as the others keep the row.
    pub fn passed_over(self, touched: Pieces, sure: Pieces, unsure: Pieces) -> Pieces {
        match self.suffice(sure) {
            true => touched & unsure,
            false => Pieces::NONE,
        }
    }
}

impl fmt::Display for Stripes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stripes() -> impl Strategy<Value = Stripes> {
        (2..=DATA_MAX, 1..=PARITY_MAX).prop_map(|(k, m)| Stripes::new(k, m).unwrap())
    }

    #[test]
    fn numbers_that_are_not_supported() {
        for (data, parity) in [(1, 1), (0, 1), (2, 0), (4, 3), (9, 1)] {
            assert_eq!(Stripes::new(data, parity), None);
        }
    }

    #[test]
    fn a_healthy_row_is_asked_for_one_piece() {
        let stripes = Stripes::new(4, 2).unwrap();
        let reading = Reading {
            wanted: Pieces::one(2),
            ..Reading::default()
        };
        let all = Pieces::first(6);
        assert_eq!(stripes.to_ask(&reading, all, Pieces::NONE), Pieces::one(2));
        // Its member does not answer: any four of the others.
        let asked = stripes.to_ask(&reading, all & !Pieces::one(2), Pieces::one(2));
        assert_eq!(asked.len(), 4);
        assert!(!asked.has(2));
        // Nobody else can give it: it is asked for all the same.
        let few = [0, 1, 3].into_iter().collect();
        let asked = stripes.to_ask(&reading, few, Pieces::one(2));
        assert!(asked.has(2));
    }

    proptest! {
        #[test]
        fn places_fill_rows_in_order(stripes in stripes(), place in 0u32..4096) {
            let (row, piece) = stripes.row_of(place);
            prop_assert!(stripes.data_pieces().has(piece));
            prop_assert_eq!(row * stripes.data() as u32 + piece as u32, place);
            prop_assert_eq!(stripes.data_pieces() & stripes.parity_pieces(), Pieces::NONE);
            prop_assert_eq!(stripes.touched(Pieces::one(piece)).len(), 1 + stripes.parity());
        }

        /// Servers fail, lag and come late in any order: a row is read whenever it can be.
        #[test]
        fn a_row_is_read_whenever_it_can_be(
            stripes in stripes(),
            wanted in 1u16..256,
            present: u16,
            unsure: u16,
            broken: u16,
            fates in prop::collection::vec(0u8..3, 200),
        ) {
            let all = Pieces::first(stripes.pieces());
            let wanted = Pieces(wanted) & stripes.data_pieces();
            let present = Pieces(present) & all;
            let broken = Pieces(broken);
            let mut reading = Reading { wanted, ..Reading::default() };
            let mut late = Pieces::NONE;
            let mut fates = fates.into_iter();
            loop {
                let (sure, unsure) = (present & !Pieces(unsure), present & Pieces(unsure));
                let ask = stripes.to_ask(&reading, sure, unsure);
                prop_assert!(ask.all_in(present & !reading.asked), "nobody is asked twice");
                reading.asked |= ask;
                reading.waiting |= ask;
                if stripes.is_enough(&reading) {
                    break;
                }
                // One of those under way answers, fails, or is late.
                let Some(piece) = reading.waiting.iter().next() else {
                    let Some(piece) = late.iter().next() else { break };
                    late = late & !Pieces::one(piece);
                    if !broken.has(piece) {
                        reading.got |= Pieces::one(piece);
                    }
                    continue;
                };
                let one = Pieces::one(piece);
                reading.waiting = reading.waiting & !one;
                match fates.next().unwrap_or(0) {
                    0 if !broken.has(piece) => reading.got |= one,
                    1 => late |= one,
                    _ if broken.has(piece) => {}
                    _ => reading.got |= one,
                }
            }
            let good = present & !broken;
            let possible = wanted.all_in(good) || stripes.suffice(good);
            prop_assert_eq!(stripes.is_enough(&reading), possible);
        }

        #[test]
        fn who_is_passed_over_is_not_needed(stripes in stripes(), new: u16, sure: u16, unsure: u16) {
            let all = Pieces::first(stripes.pieces());
            let (sure, unsure) = (Pieces(sure) & all, Pieces(unsure) & all & !Pieces(sure));
            let touched = stripes.touched(Pieces(new) & stripes.data_pieces());
            let over = stripes.passed_over(touched, sure, unsure);
            prop_assert!(over.all_in(unsure & touched));
            prop_assert!(over.is_empty() || stripes.suffice((sure | unsure) & !over));
        }
    }
}
