//! Extents whose pages lie in rows with parity (`policy::stripe`).
//!
//! A page is read from its own member. When that is gone, late or wrong, any `k` pieces of the row are
//! read instead and the page is computed ([`gather`]). A write changes pages and parity of a row in
//! place: pages of the row that are not written are read first ([`mod@write`]), except where whole rows
//! are written, which is what the pager does with pages that leave together.
//!
//! Invariant: all members that the map names fit together in every row, but for those rows that are
//! being written or that a member is known to lack: any `k` of them give the same pages. What is computed with has been compared with its
//! check sum before.

mod gather;
mod write;

use crate::VolumeError;
use crate::code::{Recipe, Vector};
use crate::extent::{Entry, ExtentId};
use crate::roster::Roster;
use crate::volume::{Page, Transfer, Volume};
use muninn_policy::stripe::{PIECES_MAX, Pieces, Reading, Stripes};
use muninn_types::{Class, PAGE_SIZE, ServerId};
use std::ptr;

/// A row of an extent, and those of its pieces that are here.
pub(crate) struct Row {
    pub extent: ExtentId,
    pub row: u32,
    pub reading: Reading,
    /// Pieces that were compared with their sums.
    checked: Pieces,
    pages: [*mut Page; PIECES_MAX],
}

impl Row {
    pub(crate) fn new(extent: ExtentId, row: u32) -> Row {
        Row {
            extent,
            row,
            reading: Reading::default(),
            checked: Pieces::NONE,
            pages: [ptr::null_mut(); PIECES_MAX],
        }
    }

    /// A piece is wanted, in a page of the caller's.
    fn want_at(&mut self, piece: usize, near: *mut Page) {
        self.reading.wanted |= Pieces::one(piece);
        self.pages[piece] = near;
    }

    /// Where a piece goes.
    fn page(&mut self, piece: usize, scratch: &mut Scratch) -> *mut Page {
        if self.pages[piece].is_null() {
            self.pages[piece] = scratch.take();
        }
        self.pages[piece]
    }
}

/// Pages to compute in; they are used again by the next call.
#[derive(Default)]
struct Scratch {
    pages: Vec<Box<Page>>,
    used: usize,
}

impl Scratch {
    fn take(&mut self) -> *mut Page {
        if self.used == self.pages.len() {
            self.pages.push(Box::new([0; PAGE_SIZE]));
        }
        self.used += 1;
        &raw mut *self.pages[self.used - 1]
    }
}

/// What a volume with parity has besides.
pub(crate) struct Parity {
    pub stripes: Stripes,
    vector: Vector,
    /// How each parity piece is made of data.
    encode: Vec<Recipe>,
    /// How a piece was last made of others.
    last: Option<(Pieces, usize, Recipe)>,
    scratch: Scratch,
    zeros: Box<Page>,
}

impl Parity {
    pub(crate) fn new(stripes: Stripes) -> Parity {
        let recipe = |piece| Recipe::new(stripes, stripes.data_pieces(), piece);
        Parity {
            stripes,
            vector: Vector::detect(),
            encode: stripes.parity_pieces().iter().map(recipe).collect(),
            last: None,
            scratch: Scratch::default(),
            zeros: Box::new([0; PAGE_SIZE]),
        }
    }

    fn recipe(&mut self, from: Pieces, piece: usize) -> Recipe {
        match &self.last {
            Some((known, made, recipe)) if *known == from && *made == piece => recipe.clone(),
            _ => {
                let recipe = Recipe::new(self.stripes, from, piece);
                self.last = Some((from, piece, recipe.clone()));
                recipe
            }
        }
    }
}

/// Pieces of a row whose members are expected to answer, and those whose are not; neither if a member is
/// gone or lacks the row.
fn standing(roster: &Roster, entry: &Entry, row: u32) -> (Pieces, Pieces) {
    let (mut sure, mut unsure) = (Pieces::NONE, Pieces::NONE);
    let members = entry.members.iter().filter(|member| member.has(row));
    for member in members.filter(|member| roster.counts(&member.at)) {
        let piece = Pieces::one(usize::from(member.piece));
        match member.mapped.is_some() || !roster.is_suspected(member.at.server) {
            true => sure |= piece,
            false => unsure |= piece,
        }
    }
    (sure, unsure)
}

impl Volume {
    pub(crate) fn parity(&mut self) -> &mut Parity {
        self.parity.as_mut().expect("only with parity")
    }

    pub(crate) fn stripes(&self) -> Stripes {
        let parity = self.parity.as_ref();
        parity.expect("only with parity").stripes
    }

    fn lost(&self, id: ExtentId, why: &str) -> VolumeError {
        let whole = self.map.get(id).map_or(0, |entry| {
            let members = entry.whole();
            members.filter(|m| self.roster.counts(&m.at)).count()
        });
        VolumeError::Lost(format!(
            "too few pieces of {} can be reached, {whole} are whole and {} are needed: {why}",
            self.describe(id),
            self.stripes().data()
        ))
    }

    /// Reads pages.
    ///
    /// # Safety
    ///
    /// As for [`Volume::read`].
    pub(crate) unsafe fn read_rows(
        &mut self,
        batch: &[Transfer],
        class: Class,
    ) -> Result<(), VolumeError> {
        self.parity().scratch.used = 0;
        let stripes = self.stripes();
        let mut rows: Vec<Row> = Vec::with_capacity(batch.len());
        for transfer in batch {
            let (number, piece) = stripes.row_of(transfer.place);
            // Pages of one row travel together: one that is lost takes the others anyway.
            let same = |row: &&mut Row| {
                let same = row.extent == transfer.extent && row.row == number;
                same && !row.reading.wanted.has(piece)
            };
            let known = rows.iter_mut().rev().take(stripes.data()).find(same);
            match known {
                Some(row) => row.want_at(piece, transfer.near),
                None => {
                    let mut row = Row::new(transfer.extent, number);
                    row.want_at(piece, transfer.near);
                    rows.push(row);
                }
            }
        }
        // SAFETY: as the caller says.
        unsafe { self.gather(&mut rows, class, false) }
    }

    /// Reads a page and compares it with its sum, so that whoever is wrong is passed over (`n` is 0), or
    /// computes it without its own member (1). Nobody who is late is waited for as long as others can answer.
    ///
    /// # Safety
    ///
    /// As for [`Volume::read`].
    pub(crate) unsafe fn read_piece(
        &mut self,
        transfer: &Transfer,
        class: Class,
        n: usize,
    ) -> Option<Result<ServerId, VolumeError>> {
        self.parity().scratch.used = 0;
        let (number, piece) = self.stripes().row_of(transfer.place);
        let mut row = Row::new(transfer.extent, number);
        row.want_at(piece, transfer.near);
        // Whom not to ask.
        row.reading.asked = match n {
            0 => Pieces::NONE,
            1 => Pieces::one(piece),
            _ => return None,
        };
        let entry = self.map.get(transfer.extent)?;
        let server = match n {
            0 => entry.holder(piece),
            _ => entry.members.first(),
        };
        let server = server.map(|member| member.at.server);
        // SAFETY: as the caller says.
        let read = unsafe { self.gather(std::slice::from_mut(&mut row), class, n == 0) };
        let gone = || VolumeError::Lost(format!("nobody has this piece of {}", transfer.extent));
        Some(read.and_then(|()| server.ok_or_else(gone)))
    }

    /// Reads a piece of a row into a page of the caller's.
    pub(crate) fn make_piece(
        &mut self,
        extent: ExtentId,
        number: u32,
        piece: usize,
        page: &mut Page,
    ) -> Result<(), VolumeError> {
        self.parity().scratch.used = 0;
        let mut row = Row::new(extent, number);
        row.want_at(piece, page);
        // SAFETY: the page is borrowed for the call.
        unsafe { self.gather(std::slice::from_mut(&mut row), Class::Prefetch, true) }
    }
}
