//! `muninn run` with real far memory: contents, programs, limits, and ends of every kind.
//!
//! Each test starts real processes at a limit well below what they touch. At most two run at a time:
//! machines are small, and what is tested is not how much of it they can do at once. What a machine
//! cannot do is skipped with a printed reason. `MUNINN_TEST_FULL=1` runs the long forms.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

mod contents;
mod ends;
mod harness;
mod kinds;
mod limit;
mod many;
mod nothing;
mod programs;
mod redis;
mod redis_client;
mod tune;
mod waits;
