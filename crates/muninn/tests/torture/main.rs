//! Programs written to tell `muninn run` from a plain run, and to break it.
//!
//! Each C program in `programs/` has one purpose, checks itself, prints what it found without anything
//! that differs from run to run, and exits with 0 when all was right. A test runs it plainly and under
//! `muninn run`, over shared memory, over TCP and without moves, and both must say and return the same.
//! A program that does not end in time has found a hang: its group is killed and the test fails.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

#[allow(dead_code)]
#[path = "../run/harness.rs"]
mod harness;

#[macro_use]
mod both;

mod collision;
mod fits;
mod forks;
mod idle;
mod killed;
mod known;
mod leftovers;
mod limit;
mod memory;
mod privileges;
mod references;
mod strangers;
mod threads;
mod watcher;
