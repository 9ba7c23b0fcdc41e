//! Node agents and a coordinator: who has how much memory, near and far, and which job may start.
//!
//! | file | what |
//! |---|---|
//! | [`node`] | one node's memory among its jobs and its donor, pure |
//! | [`profiles`] | what was learned of jobs, by user and name |
//! | [`ledger`] | far memory promised and used, admission, and why; pure |
//! | [`replay`] | a stream of jobs through that book, in simulated time |
//! | [`message`] | what launchers, agents, the coordinator and people say to each other |
//! | [`mod@line`], [`channel`] | messages as lines, over a socket of this machine or records of `proto` |
//! | [`slurm`] | Slurm through its own commands: what it says, and what it is told |
//! | [`state_file`] | a file that is whole or not there |
//! | [`agent`], [`coordinator`] | the two services, which drive all of it |
//!
//! Invariant: neither service stands in a page's way. A job goes on with what it has when its agent is
//! gone, and an agent when its coordinator is.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod agent;
pub mod channel;
pub mod coordinator;
pub mod ledger;
pub mod line;
pub mod message;
pub mod node;
pub mod profiles;
pub mod replay;
pub mod slurm;
pub mod state_file;
