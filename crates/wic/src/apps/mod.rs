//! Three applications of where-independent code, as WICKit evaluates it: a linked list, a shared log,
//! and a key-value store.
//!
//! The latter two survive that a client dies in the middle of an operation: whatever happens, an
//! operation is done whole or not at all. Each makes its change visible with one atomic operation on
//! one word; see their pages.

pub mod kv;
pub mod list;
pub mod log;
mod nodes;
