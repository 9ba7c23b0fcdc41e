//! The command line of Muninn. One file for each command, in [`cmd`].

pub mod cli;
pub mod client;
pub mod cmd;
pub mod config;
pub mod embedded;
pub mod failure;
pub mod key_file;
pub mod launched;
pub mod ui;
