//! The words every other crate uses: ids, sizes, page numbers, classes of traffic, virtual time.
//!
//! Everything that could be mixed up with something else is a type of its own. Sizes and durations
//! read and print the way a person writes them (`512MiB`, `50%`, `10s`); everything here is plain
//! data, without clocks, threads or I/O.
#![forbid(unsafe_code)]

mod class;
mod duration;
mod extent;
mod ids;
mod page_range;
mod partial;
mod rng;
mod size;
mod spread;
mod time;

pub use class::{Class, ClassError, LaneKind};
pub use duration::{ParseDurationError, format_duration, parse_duration};
pub use extent::{Extent, ExtentId};
pub use ids::{
    ConnId, GrantId, LaneId, PageNo, SegmentId, ServerId, ServiceId, SessionId, Slot, Tag,
};
pub use page_range::PageRange;
pub use partial::{Cause, Partial};
pub use rng::SplitMix64;
pub use size::{Bytes, LocalSize, PAGE_SHIFT, PAGE_SIZE, ParseSizeError, Percent};
pub use spread::Spread;
pub use time::Nanos;
