//! Extents: what far memory is given out in.

use std::fmt;

/// Names an extent of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extent {}", self.0)
    }
}

/// An extent as its user knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    pub id: ExtentId,
    pub pages: u32,
}

impl Extent {
    /// The most pages that one has.
    pub const PAGES_MAX: u32 = 4096;
}
