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
//! References cannot leave their scope, and cannot be used in another heap's:
//!
//! ```compile_fail
//! # use muninn_heap::*;
//! # #[derive(Managed)] struct Node { value: u64, next: Ref<Node> }
//! # fn f(mut m: Mutator) {
//! let mut kept = None;
//! m.enter(|s| { kept = Some(s.alloc(NodeInit { value: 1, next: None })?); Ok(()) });
//! # }
//! ```
//! ```compile_fail
//! # use muninn_heap::*;
//! # #[derive(Managed)] struct Node { value: u64, next: Ref<Node> }
//! # fn f(mut a: Mutator, mut b: Mutator) {
//! a.enter(|s| {
//!     let here = s.alloc(NodeInit { value: 1, next: None })?;
//!     b.enter(|t| { t.alloc(NodeInit { value: 2, next: Some(here) })?; Ok(()) })
//! });
//! # }
//! ```
//! A reference is not `Send`, a type needs to be managed, and a reference of the heap cannot be
//! made up:
//!
//! ```compile_fail
//! # use muninn_heap::*;
//! # #[derive(Managed)] struct Node { value: u64, next: Ref<Node> }
//! # fn f(mut m: Mutator) {
//! m.enter(|s| {
//!     let here = s.alloc(NodeInit { value: 1, next: None })?;
//!     std::thread::scope(|t| { t.spawn(|| here.value()); });
//!     Ok(())
//! });
//! # }
//! ```
//! ```compile_fail
//! # use muninn_heap::*;
//! #[derive(Managed)]
//! struct Holder { text: String }
//! ```
//! ```compile_fail
//! # use muninn_heap::*;
//! # #[derive(Managed)] struct Node { value: u64, next: Ref<Node> }
//! fn f(r: Ref<Node>) { let again = r.clone(); }
//! ```
//! ```compile_fail
//! # use muninn_heap::*;
//! #[derive(Clone, Copy, Plain)]
//! enum Shape { Circle(f64), Square }
//! ```

mod alarm;
mod error;
mod heap;
mod mutator;
mod object;
mod pager;
mod phase;
pub mod plan;
mod regions;
mod roots;
mod slots;
mod stats;
mod typed;
mod verify;
mod words;
mod world;

pub use error::HeapError;
pub use heap::{Builder, Heap};
pub use muninn_heap_agent::evacuate::Order;
pub use muninn_heap_agent::layout::{Geometry, Shape, TypeDescriptor};
pub use muninn_heap_macros::{Managed, Plain};
pub use mutator::{Mutator, Scope};
pub use object::Object;
pub use phase::Phase;
pub use plan::Plan;
pub use roots::Root;
pub use stats::{AgentStats, Footprint, Pause, PauseKind, Stats};
pub use typed::{Fresh, Init, Local, Managed, Plain, Ref, Referent, align_of_plain};
pub use verify::Audit;

// Lets the derive macros name this crate in its own tests.
extern crate self as muninn_heap;
