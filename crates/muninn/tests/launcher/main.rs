//! `muninn run` as a launcher: what it refuses, how it passes exit codes and signals through, what it
//! leaves behind. No page is moved here: a library that does nothing stands for the runtime.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

mod control;
mod jobs;
mod launch;
mod profile;
mod real;
mod refusals;
mod signals;
