//! All of Linux that Muninn touches, each part with a fake beside it.
//!
//! The idea: no other crate makes a system call by itself. Each part is a thin layer over the
//! kernel, behind a small trait where a test may want to stand in its place, and says in its
//! errors what happened, to what, and what to do. Known limits: x86-64; made for Linux
//! 6.8 or newer, from 5.7 on what is missing is done in slower ways.
#![warn(unreachable_pub)]
#![cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), allow(unused))]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("muninn-sys is written for Linux on x86-64");

pub mod affinity;
pub mod alt_stack;
pub mod bell;
pub mod cgroup;
pub mod child;
pub mod clock;
pub mod epoll;
pub mod fd_store;
pub mod files;
pub mod group;
pub mod limits;
pub mod memory;
pub mod notify;
pub mod own;
pub mod pagemap;
pub mod perf;
pub mod pm_qos;
pub mod proc;
pub mod rand;
pub mod reap;
pub mod relay;
pub mod secret;
pub mod sigbus;
pub mod signal;
pub mod socket;
pub mod still;
pub mod swap;
pub mod uffd;
