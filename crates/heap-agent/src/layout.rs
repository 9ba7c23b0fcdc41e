//! How objects lie in the heap: regions, tablets, headers, references, type descriptors.
//!
//! The heap is one linear space of bytes, cut into regions of a power of two; behind the regions
//! lie the tablets of the indirection table, a quarter of a region each. A compute node and its
//! servers read the same bytes with no translation, because nothing in them is an address: a
//! *direct* reference is a place in the linear space, an *indirect* one names a tablet and an entry
//! in it, and 0 is null in both.
//!
//! ```text
//! header   type 12 bits | entry 24 bits | length 28 bits     then the fields, to 16 bytes
//! moved    0xFFF 12 bits | new place ÷ 16, 52 bits
//! region   64 bytes of its own (tag ⟨dirty, version⟩), then objects one behind the other
//! entry    place of the object in its region ÷ 16, 32 bits; 0 is free
//! ```
//!
//! Invariant: objects lie at multiples of [`GRANULE`] and, unless humongous, inside of one region,
//! so one bit for each granule is enough for every bitmap (0.78 % of the heap).

use crate::bytes::{Reader, Short, Writer};

/// Objects lie at multiples of this, and are as long.
pub const GRANULE: u64 = 16;
pub const GRANULE_SHIFT: u32 = 4;
/// Bytes at the start of a region that no object uses; the tag is among them.
pub const REGION_HEAD: u64 = 64;
/// Bytes of a header.
pub const HEADER: u64 = 8;
/// The type of what was moved away.
const MOVED: u64 = 0xfff;
/// The most types of a heap.
pub const MAX_TYPES: usize = 4094;
/// The longest array.
pub const MAX_LEN: u64 = (1 << 28) - 1;
/// The smallest and the largest region, as powers of two.
pub const REGION_SHIFTS: std::ops::RangeInclusive<u32> = 16..=26;

/// What a reference in the heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A place in the linear space.
    Direct,
    /// A tablet and an entry.
    Indirect,
}

/// Shape of a heap; the same at the compute node and at all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub region_shift: u32,
    pub regions: u32,
    /// Regions of one server; the last may have fewer.
    pub regions_per_server: u32,
    pub mode: Mode,
}

impl Geometry {
    pub const fn region_bytes(&self) -> u64 {
        1 << self.region_shift
    }
    pub const fn tablet_bytes(&self) -> u64 {
        self.region_bytes() / 4
    }
    pub const fn heap_bytes(&self) -> u64 {
        (self.regions as u64) << self.region_shift
    }
    /// Bits of the bitmap of a region or tablet.
    pub const fn granules(&self) -> u32 {
        1 << (self.region_shift - GRANULE_SHIFT)
    }
    pub const fn region_start(&self, region: u32) -> u64 {
        (region as u64) << self.region_shift
    }
    pub const fn tablet_start(&self, tablet: u32) -> u64 {
        self.heap_bytes() + tablet as u64 * self.tablet_bytes()
    }
    /// The whole space: regions, then tablets where there are any.
    pub const fn space_bytes(&self) -> u64 {
        match self.mode {
            Mode::Direct => self.heap_bytes(),
            Mode::Indirect => self.tablet_start(self.regions),
        }
    }
    pub const fn region_of(&self, at: u64) -> u32 {
        (at >> self.region_shift) as u32
    }
    pub const fn server_of(&self, region: u32) -> u32 {
        region / self.regions_per_server
    }
    /// The regions of one server.
    pub fn own_regions(&self, server: u32) -> std::ops::Range<u32> {
        let first = server
            .saturating_mul(self.regions_per_server)
            .min(self.regions);
        first
            ..first
                .saturating_add(self.regions_per_server)
                .min(self.regions)
    }
    pub const fn granule_of(&self, at: u64) -> u32 {
        ((at & (self.region_bytes() - 1)) >> GRANULE_SHIFT) as u32
    }
    /// Where an entry of the table lies.
    pub const fn entry_at(&self, tablet: u32, entry: u32) -> u64 {
        self.tablet_start(tablet) + entry as u64 * 4
    }
    /// Objects longer than this get regions of their own.
    pub const fn humongous_bytes(&self) -> u64 {
        self.region_bytes() / 2
    }
    /// Regions that a humongous object takes.
    pub const fn regions_for(&self, bytes: u64) -> u32 {
        ((bytes + REGION_HEAD).div_ceil(self.region_bytes())) as u32
    }
    /// Whether a word can be a reference: the region (or tablet) and the index in it.
    pub fn split(&self, word: u64) -> Option<(u32, u32)> {
        let (unit, index) = match self.mode {
            Mode::Direct => {
                if word & (GRANULE - 1) != 0 {
                    return None;
                }
                (word >> self.region_shift, self.granule_of(word))
            }
            Mode::Indirect => (word >> 32, word as u32),
        };
        let least = match self.mode {
            Mode::Direct => (REGION_HEAD >> GRANULE_SHIFT) as u32,
            Mode::Indirect => 1,
        };
        let fits = unit < u64::from(self.regions) && (least..self.granules()).contains(&index);
        fits.then_some((unit as u32, index))
    }

    pub fn encode(&self, w: &mut Writer) {
        w.u32(self.region_shift);
        w.u32(self.regions);
        w.u32(self.regions_per_server);
        w.u32(u32::from(self.mode == Mode::Indirect));
    }
    pub fn decode(r: &mut Reader<'_>) -> Result<Geometry, Short> {
        let geometry = Geometry {
            region_shift: r.u32()?,
            regions: r.u32()?,
            regions_per_server: r.u32()?,
            mode: match r.u32()? {
                0 => Mode::Direct,
                1 => Mode::Indirect,
                _ => return Err(Short),
            },
        };
        let sane = REGION_SHIFTS.contains(&geometry.region_shift)
            && (1..=1 << 20).contains(&geometry.regions)
            && geometry.regions_per_server > 0;
        if sane { Ok(geometry) } else { Err(Short) }
    }
}

/// The first word of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    pub const fn new(type_id: u16, entry: u32, len: u64) -> Header {
        Header(type_id as u64 | (entry as u64) << 12 | len << 36)
    }
    pub const fn type_id(self) -> u16 {
        (self.0 & 0xfff) as u16
    }
    pub const fn entry(self) -> u32 {
        (self.0 >> 12 & 0xff_ffff) as u32
    }
    pub const fn len(self) -> u64 {
        self.0 >> 36
    }
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    pub const fn moved_to(at: u64) -> Header {
        Header(MOVED | (at >> GRANULE_SHIFT) << 12)
    }
    /// Where the object went, if it was moved.
    pub const fn moved(self) -> Option<u64> {
        if self.0 & 0xfff == MOVED {
            Some((self.0 >> 12) << GRANULE_SHIFT)
        } else {
            None
        }
    }
}

/// What an object is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Fields at fixed places, some of them references (at multiples of 8).
    Struct { bytes: u32, refs: Vec<u32> },
    /// An array of values of this many bytes each.
    Values { bytes: u32 },
    /// An array of references.
    Refs,
}

/// A type as agents know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeDescriptor {
    pub name: String,
    pub shape: Shape,
}

impl TypeDescriptor {
    /// Bytes of an object with this length, header and padding included.
    pub fn size(&self, len: u64) -> u64 {
        let fields = match &self.shape {
            Shape::Struct { bytes, .. } => u64::from(*bytes),
            Shape::Values { bytes } => u64::from(*bytes) * len,
            Shape::Refs => 8 * len,
        };
        (HEADER + fields).next_multiple_of(GRANULE)
    }

    /// Whether references lie inside of the fields, at multiples of 8, in order.
    pub fn is_sane(&self) -> bool {
        match &self.shape {
            Shape::Struct { bytes, refs } => {
                *bytes < 1 << 24
                    && refs
                        .iter()
                        .all(|at| at % 8 == 0 && at.saturating_add(8) <= *bytes)
                    && refs.is_sorted_by(|a, b| a < b)
            }
            Shape::Values { bytes } => (1..1 << 16).contains(bytes),
            Shape::Refs => true,
        }
    }

    pub fn encode(&self, w: &mut Writer) {
        w.text(&self.name);
        match &self.shape {
            Shape::Struct { bytes, refs } => {
                w.u32(0);
                w.u32(*bytes);
                w.u32(refs.len() as u32);
                refs.iter().for_each(|at| w.u32(*at));
            }
            Shape::Values { bytes } => {
                w.u32(1);
                w.u32(*bytes);
            }
            Shape::Refs => w.u32(2),
        }
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<TypeDescriptor, Short> {
        let name = r.text()?;
        let shape = match r.u32()? {
            0 => {
                let (bytes, count) = (r.u32()?, r.u32()?);
                let refs = (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?;
                Shape::Struct { bytes, refs }
            }
            1 => Shape::Values { bytes: r.u32()? },
            2 => Shape::Refs,
            _ => return Err(Short),
        };
        let descriptor = TypeDescriptor { name, shape };
        if descriptor.is_sane() {
            Ok(descriptor)
        } else {
            Err(Short)
        }
    }
}

/// All types of a heap; the first has number 1.
#[derive(Clone, Debug, Default)]
pub struct Types(Vec<TypeDescriptor>);

impl Types {
    /// The number of the new type; none where there are too many or it makes no sense.
    pub fn add(&mut self, descriptor: TypeDescriptor) -> Option<u16> {
        if self.0.len() >= MAX_TYPES || !descriptor.is_sane() {
            return None;
        }
        self.0.push(descriptor);
        Some(self.0.len() as u16)
    }
    pub fn get(&self, type_id: u16) -> Option<&TypeDescriptor> {
        self.0.get(usize::from(type_id).wrapping_sub(1))
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Bytes of the object with this header; none where it is no header.
    pub fn size_of(&self, header: Header) -> Option<u64> {
        Some(self.get(header.type_id())?.size(header.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_what_they_are_given() {
        let header = Header::new(4094, 0xff_ffff, MAX_LEN);
        assert_eq!(
            (header.type_id(), header.entry(), header.len()),
            (4094, 0xff_ffff, MAX_LEN)
        );
        assert_eq!(header.moved(), None);
        let far = (1u64 << 55) - GRANULE;
        assert_eq!(Header::moved_to(far).moved(), Some(far));
    }

    #[test]
    fn words_that_are_no_references_are_told_apart() {
        let geometry = Geometry {
            region_shift: 20,
            regions: 4,
            regions_per_server: 2,
            mode: Mode::Direct,
        };
        assert_eq!(geometry.split(0), None);
        assert_eq!(geometry.split(48), None, "inside of the region's head");
        assert_eq!(geometry.split(64), Some((0, 4)));
        assert_eq!(geometry.split(72), None, "between granules");
        assert_eq!(geometry.split(4 << 20), None, "behind the heap");
        let indirect = Geometry {
            mode: Mode::Indirect,
            ..geometry
        };
        assert_eq!(indirect.split(3 << 32 | 7), Some((3, 7)));
        assert_eq!(indirect.split(3 << 32), None, "entry 0 is none");
        assert_eq!(indirect.split(4 << 32 | 7), None);
        assert_eq!(indirect.split(3 << 32 | 1 << 16), None);
    }

    #[test]
    fn descriptors_travel_and_bad_ones_are_refused() {
        for shape in [
            Shape::Struct {
                bytes: 24,
                refs: vec![0, 16],
            },
            Shape::Values { bytes: 3 },
            Shape::Refs,
        ] {
            let descriptor = TypeDescriptor {
                name: "a type".to_string(),
                shape,
            };
            let mut w = Writer::default();
            descriptor.encode(&mut w);
            assert_eq!(
                TypeDescriptor::decode(&mut Reader::new(&w.0)),
                Ok(descriptor)
            );
        }
        let bad = |refs| TypeDescriptor {
            name: String::new(),
            shape: Shape::Struct { bytes: 16, refs },
        };
        assert!(bad(vec![0, 8]).is_sane());
        for refs in [vec![4], vec![16], vec![8, 0], vec![8, 8]] {
            assert!(!bad(refs).is_sane());
        }
    }
}
