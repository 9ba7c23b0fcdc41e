//! Numbers of what a heap asks of its agents; [`crate::message`] says what goes with each.

use crate::bytes::Short;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The first byte of a body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name = $number,)* }
        impl Op {
            pub const fn from_byte(byte: u8) -> Result<Op, Short> {
                match byte { $($number => Ok(Op::$name),)* _ => Err(Short) }
            }
        }
    };
}

ops! {
    /// Start an agent.
    Attach = 1,
    /// Take this many bytes of the scratch grant as input of what comes next.
    Append = 2,
    /// Queue a task (a [`Task`] byte) with the input so far.
    Run = 3,
    /// Flags, whether a task is queued or runs, and length of the last result.
    Poll = 4,
    /// Put the result from this offset on into the scratch grant.
    Fetch = 5,
    /// Take references that belong to another server, to hand them over there.
    Ghosts = 6,
    /// References to trace, from the heap: the input.
    Roots = 7,
    /// What the agent has used and done.
    Stats = 8,
    /// End the agent.
    Detach = 9,
}

macro_rules! tasks {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What an agent's own thread does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Task { $($(#[$doc])* $name = $number,)* }
        impl Task {
            pub const fn from_byte(byte: u8) -> Result<Task, Short> {
                match byte { $($number => Ok(Task::$name),)* _ => Err(Short) }
            }
        }
    };
}

tasks! {
    /// More types: descriptors one after the other.
    Types = 1,
    /// Region of each tablet.
    Tablets = 2,
    /// Begin a trace of everything, from these words. Goes on until [`Task::TraceEnd`].
    TraceStart = 3,
    /// The trace is over: live bytes of each region (or tablet).
    TraceEnd = 4,
    /// The marks of some tablets.
    Marks = 5,
    /// Empty a region whose references are indirect: tablet, from, to, live entries.
    EvacuateTablet = 6,
    /// Semeru: what has changed since: bumps of regions in use, links, targets, regions freed.
    Changes = 7,
    /// Semeru: trace these regions one by one, in this order, until further notice; roots.
    Schedule = 8,
    /// Semeru: live bytes of regions, as traced; those without are traced now.
    Estimates = 9,
    /// Semeru: empty regions into others.
    Evacuate = 10,
    /// Semeru: rewrite references to what was moved anywhere.
    Update = 11,
    /// Semeru: work out all targets anew from the marks of a full trace.
    Rebuild = 12,
}
