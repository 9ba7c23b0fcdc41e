//! The command line of Muninn. One file for each command, in [`cmd`].

pub mod cli;
pub mod cmd;
pub mod failure;
pub mod ui;
