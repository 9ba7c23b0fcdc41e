//! The command line as a person or a script meets it: the real binary, its words, its exit codes.

mod bad_input;
mod common;
mod configuration;
mod definitions;
mod drain;
mod keys;
mod machine;
mod metrics;
mod nic;
mod serve;
mod status;
mod stored;
mod take_over;
mod wics;
