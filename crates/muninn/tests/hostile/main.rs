//! Other users of the machine who mean harm: what they leave lying about is neither believed nor
//! touched.

#[allow(dead_code)] // the other suite uses all of it
#[path = "../cli/common.rs"]
mod common;

mod keys;
mod left_lying;
mod memory;
