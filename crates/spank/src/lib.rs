//! The plug-in with which Slurm puts jobs on far memory: `--far-memory` and `--far-profile`, and tasks of
//! such jobs started under `muninn run --pool agent`.
//!
//! That is all it does. What a job may hold is between its launcher and the node's agent, when it starts
//! between the coordinator and Slurm; the agent hears of a job's end from the kernel, by the connection
//! of its launcher. A job that asks for no far memory is not touched.
//!
//! In `plugstack.conf`: `optional /usr/lib/muninn/libmuninn_spank.so muninn=/usr/bin/muninn
//! agent=/run/muninn/agent.sock`. In the path of the socket, `%n` is the name of the node.
//!
//! The declarations in [`slurm`] are written from the documented interface (`man 8 spank`); no code of
//! Slurm's is in here.

mod slurm;
mod task;
