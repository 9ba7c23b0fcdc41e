//! A managed heap whose objects live on memory servers, and its collectors.
//!
//! ```no_run
//! use muninn_heap::{Heap, HeapError, Managed, Plan, Ref};
//!
//! #[derive(Managed)]
//! struct Node { value: u64, next: Ref<Node> }
//!
//! # fn main() -> Result<(), HeapError> {
//! let pool = std::sync::Arc::new(muninn_net::Pool::connect(
//!     "unix:/run/a.sock,unix:/run/b.sock", Default::default())?);
//! let heap = Heap::builder().plan(Plan::Mako).pool(pool).build()?;
//! let mut mutator = heap.mutator()?;
//! let list = mutator.enter(|s| {
//!     let last = s.alloc(NodeInit { value: 2, next: None })?;
//!     let first = s.alloc(NodeInit { value: 1, next: Some(last) })?;
//!     Ok(s.root(&first))
//! })?;
//! mutator.enter(|s| {
//!     assert_eq!(s.open(&list)?.next().unwrap().value(), 2);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! References cannot leave their scope, cannot be used in another heap's or on another thread, and
//! cannot be made up; nothing but values and references is kept in the heap. What must not compile is
//! in `tests/compile_fail`, what is an error instead in `tests/attacks.rs`.

/// Examples of the documentation are run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/HEAP.md")]
struct Documentation;

mod alarm;
mod error;
pub mod far;
mod heap;
mod inside;
mod mutator;
mod object;
mod pager;
mod phase;
mod plain;
pub mod plan;
mod regions;
mod roots;
mod slots;
mod stats;
mod sync;
mod typed;
mod verify;
mod words;
mod world;

pub use error::HeapError;
pub use far::{Element, FarBTreeMap, FarHashMap, FarString, FarVec, Key};
pub use heap::{Builder, Heap};
pub use muninn_heap_agent::evacuate::Order;
pub use muninn_heap_agent::layout::{Geometry, Shape, TypeDescriptor};
pub use muninn_heap_macros::{Managed, Plain};
pub use muninn_policy::layout::Layout;
pub use mutator::{Mutator, Scope};
pub use object::Object;
pub use phase::Phase;
pub use plain::{Plain, Whole, align_of_plain, size_of_plain};
pub use plan::Plan;
pub use roots::Root;
pub use stats::{AgentStats, Footprint, Pause, PauseKind, Stats};
pub use typed::{Fresh, Init, Local, Managed, Ref, Referent};
pub use verify::Audit;

// Lets the derive macros name this crate in its own tests.
extern crate self as muninn_heap;
