//! A traversal of a list, a shared log and a table of keys and values, for every place and processor.
//!
//! `./build` makes `apps.wasm` of it, which is pushed with `muninn wics push`; compiled natively it is a
//! crate of functions like any other. The source is that of `muninn-wic`'s own applications: not a line is
//! written twice.
#![no_std]

#[cfg(not(target_arch = "wasm32"))]
extern crate muninn_wic;
#[cfg(target_arch = "wasm32")]
extern crate muninn_wic_guest as muninn_wic;

pub use muninn_wic::*;

#[path = "../../../crates/wic/src/apps/kv.rs"]
pub mod kv;
#[path = "../../../crates/wic/src/apps/nodes.rs"]
pub mod list;
#[path = "../../../crates/wic/src/apps/log.rs"]
pub mod log;
