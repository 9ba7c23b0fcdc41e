//! The bytes of the heap as an algorithm sees them: words at places of the linear space.
//!
//! At a server they are the grants of a session, which may vanish under an agent; at the compute
//! node they are the local cache, and a load may bring a page. The same tracing and evacuation run
//! over both.

use crate::layout::{Geometry, Header, Mode, Shape, Types};

/// The memory behind a place is gone, or was never there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory behind place {at:#x} of the heap is gone")]
pub struct Gone {
    pub at: u64,
}

/// Words at multiples of 8 of the linear space.
pub trait Words {
    fn load(&self, at: u64) -> Result<u64, Gone>;
    fn store(&self, at: u64, word: u64) -> Result<(), Gone>;
    /// `from` and `to` do not overlap.
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone>;
}

/// What every algorithm needs to read objects.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, W: ?Sized> {
    pub geometry: &'a Geometry,
    pub types: &'a Types,
    pub words: &'a W,
}

impl<W: Words + ?Sized> View<'_, W> {
    /// The 32-bit entry of the indirection table.
    pub fn entry(&self, tablet: u32, entry: u32) -> Result<u32, Gone> {
        let at = self.geometry.entry_at(tablet, entry);
        let word = self.words.load(at & !7)?;
        Ok((word >> (8 * (at & 4))) as u32)
    }

    pub fn set_entry(&self, tablet: u32, entry: u32, granule: u32) -> Result<(), Gone> {
        let at = self.geometry.entry_at(tablet, entry);
        let shift = 8 * (at & 4);
        let word = self.words.load(at & !7)?;
        let word = word & !(0xffff_ffff << shift) | u64::from(granule) << shift;
        self.words.store(at & !7, word)
    }

    /// Header and size of the object at a place; none where no object can be there.
    pub fn object(&self, at: u64) -> Result<Option<(Header, u64)>, Gone> {
        let header = Header(self.words.load(at)?);
        let Some(size) = self.types.size_of(header) else {
            return Ok(None);
        };
        let end = if size > self.geometry.humongous_bytes() {
            self.geometry.heap_bytes()
        } else {
            self.geometry.region_start(self.geometry.region_of(at) + 1)
        };
        Ok((at + size <= end).then_some((header, size)))
    }

    /// Shows each reference of an object: the place it is kept at, and the word.
    pub fn each_ref<E: From<Gone>>(
        &self,
        at: u64,
        header: Header,
        mut show: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let fields = at + crate::layout::HEADER;
        match self.types.get(header.type_id()).map(|t| &t.shape) {
            Some(Shape::Struct { refs, .. }) => {
                for offset in refs {
                    let slot = fields + u64::from(*offset);
                    match self.words.load(slot)? {
                        0 => {}
                        word => show(slot, word)?,
                    }
                }
            }
            Some(Shape::Refs) => {
                for index in 0..header.len() {
                    let slot = fields + index * 8;
                    match self.words.load(slot)? {
                        0 => {}
                        word => show(slot, word)?,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows every object of a region from its start to `bump`, dead ones too.
    pub fn each_object<E: From<Gone>>(
        &self,
        region: u32,
        bump: u64,
        mut show: impl FnMut(u64, Header, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = self.geometry.region_start(region) + crate::layout::REGION_HEAD;
        let end = self.geometry.region_start(region) + bump;
        while at < end {
            let Some((header, size)) = self.object(at)? else {
                return Err(Gone { at }.into());
            };
            show(at, header, size)?;
            at += size;
        }
        Ok(())
    }

    /// Where the object of a reference lies; none for words that name no object now.
    pub fn place(&self, word: u64, region_of_tablet: &[u32]) -> Result<Option<u64>, Gone> {
        let Some((unit, index)) = self.geometry.split(word) else {
            return Ok(None);
        };
        match self.geometry.mode {
            Mode::Direct => Ok(Some(word)),
            Mode::Indirect => {
                let region = region_of_tablet[unit as usize];
                let granule = self.entry(unit, index)?;
                if region >= self.geometry.regions || granule >= self.geometry.granules() {
                    return Ok(None);
                }
                let at = u64::from(granule) << crate::layout::GRANULE_SHIFT;
                let at = self.geometry.region_start(region) + at;
                Ok((granule != 0).then_some(at))
            }
        }
    }
}

/// Plain words in this process, for tests.
#[derive(Debug)]
pub struct PlainWords(pub Vec<std::cell::Cell<u64>>);

impl PlainWords {
    pub fn new(bytes: u64) -> PlainWords {
        PlainWords(vec![std::cell::Cell::new(0); bytes as usize / 8])
    }
    fn at(&self, at: u64) -> Result<&std::cell::Cell<u64>, Gone> {
        self.0.get(at as usize / 8).ok_or(Gone { at })
    }
}

impl Words for PlainWords {
    fn load(&self, at: u64) -> Result<u64, Gone> {
        Ok(self.at(at)?.get())
    }
    fn store(&self, at: u64, word: u64) -> Result<(), Gone> {
        self.at(at)?.set(word);
        Ok(())
    }
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone> {
        for offset in (0..len).step_by(8) {
            self.store(to + offset, self.load(from + offset)?)?;
        }
        Ok(())
    }
}
