//! The page engine: all that is known of a process's pages, and what is done about them.
//!
//! Pure: no clock, no thread, no system call, no unsafe code. What the program does comes in (a
//! [touch](fault::Touch) of an absent page, pages that are unmapped, moved, given back), with the time;
//! what is to be done goes to the kernel and the pool, behind the traits of [`below`]. The live pager, the
//! model test and `muninn sim evict` run it alike: over userfaultfd and servers, over a fake address space
//! whose every refusal can be played back, and over recorded traces, where a page is but a number.
//!
//! A page that leaves is moved to a frame of the [`staging`] area, its fingerprint taken, and written if it
//! changed; one that comes in is read, compared, and copied into a new page of the program. A thread that
//! touches a page on its way out has it back at the cost of a move.
//!
//! [`engine`] has the state, [`fault`] brings pages in, [`evict`] takes them out, [`space`] follows changes
//! of the address space, [`compact`] moves far pages together. [`table`], [`chunk`], [`slots`] and
//! [`staging`] are the books. [`order`] and [`ranges`] serve those who feed events in.
#![forbid(unsafe_code)]

pub mod below;
pub mod chunk;
pub mod compact;
pub mod engine;
pub mod evict;
pub mod fault;
pub mod order;
pub mod print;
pub mod ranges;
pub mod slots;
pub mod space;
pub mod staging;
pub mod table;

pub use below::{
    CHUNKS_AT_ONCE_MAX, Count, Far, FarError, FarPlace, Incoming, Kernel, Outgoing, Stillness, Wait,
};
pub use chunk::{CHUNK_PAGES, Chunk, ChunkNo, Mask, bit, place_of, places};
pub use engine::{Engine, Fatal, Gauges, Settings};
pub use evict::Evicted;
pub use fault::{BATCH_MAX, Served, Touch};
pub use order::{Change, Order};
pub use print::{Hash, KeyNo, Print, Seal, TAG_LEN};
pub use ranges::{Ranges, Recently};
pub use slots::SlotNo;
