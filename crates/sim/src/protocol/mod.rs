//! The protocol simulator: both state machines of `muninn-proto` over a network that delays, cuts
//! and reorders, against a shadow model of memory.
//!
//! The idea is that of a deterministic simulation: virtual time, one event queue, one seed. Clients
//! ask for grants, write, read, add, swap, share, release and vanish; servers lose power, wipe late
//! and drain; connections deliver bytes in pieces of any size and break in the middle of a frame,
//! on one side earlier than on the other. The drivers here do with chunks of bytes what the real
//! drivers do with sockets; everything in between is the code that runs in production.
//!
//! The [`shadow`] stands outside: it knows only what clients asked and what they were told. What
//! was acknowledged must be there; what was not may be there; an addition happens exactly once; a
//! fresh grant reads as zeros; nobody sees another's bytes; a session lives for its lease and no
//! longer; in the end all memory is free again.
//!
//! A run that fails gives its seed and the last things that happened; the same seed gives the same
//! run. [`Sabotage`] breaks one thing on purpose, to show that the checks can fail.
//!
//! Known limits: the clocks of all machines agree, and a payload is never corrupted (TCP's job and,
//! end to end, the pager's hash). Sessions that map memory take part, but do not share.

mod account;
mod backing;
mod client;
mod completion;
mod env;
mod mapped;
mod network;
mod server;
mod shadow;
mod trespass;
mod upkeep;
mod workload;
mod world;

use muninn_types::Nanos;
use std::fmt;

/// What a run is made of. The rest is decided by the seed.
#[derive(Clone, Debug)]
pub struct Options {
    pub servers_max: u64,
    pub clients_max: u64,
    /// Virtual time in which clients work and things break.
    pub span: Nanos,
    pub lease: Nanos,
    pub sabotage: Sabotage,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            servers_max: 3,
            clients_max: 3,
            span: Nanos::millis(100),
            lease: Nanos::millis(20),
            sabotage: Sabotage::None,
        }
    }
}

/// One thing broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    #[default]
    None,
    /// Memory is granted again as its last owner left it.
    SkipWipe,
    /// The server's driver goes on writing what a connection brings after its lane was taken over.
    IgnoreFencing,
    /// The network delivers a write of long ago again, after the lane came back.
    StaleWrite,
    /// A client repeats requests under new tags after a cut.
    NewTags,
    /// The server's driver acknowledges a write when its header is there.
    AckEarly,
    /// The server's clock is ahead when it looks at leases.
    ExpireEarly,
    /// The server never looks at leases.
    NeverExpire,
    /// The server's driver keeps what a closed connection held.
    LeakClosed,
    /// After a cut a client takes what it had not heard of for done.
    AssumeDone,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened in a run, counted; many of them can be added up.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Summary { $($(#[$doc])* pub $name: u64,)* }

        impl Summary {
            pub fn add(&mut self, other: &Summary) {
                $(self.$name += other.$name;)*
            }
            /// Every count with its name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counts! {
    events,
    reads, writes, adds, swaps, grants, releases, shares, adoptions, heartbeats, statuses, goodbyes,
    /// Accesses that had to be refused, and were.
    trespasses,
    /// Loads and stores of sessions that map their memory.
    direct_accesses,
    /// Stores through a mapping that its session had lost.
    scribbles,
    bytes_checked, fresh_bytes_checked,
    cuts,
    /// Cuts in the middle of a frame.
    torn,
    /// A connection whose two ends noticed its end at different times.
    half_open,
    stalls, kills, restarts, drains, drain_notices,
    /// A lane came back inside the lease.
    resumes,
    /// A connection was shut because its lane came back on another.
    fenced,
    /// ... while the payload of a write was arriving on it.
    fenced_in_payload,
    /// A request that was done already was answered again and not done again.
    replays,
    hand_offs, sessions, sessions_lost, expiries, ops_lost, abandoned,
    try_agains, pool_fulls, quota_refusals, drain_refusals, frozen_refusals,
    /// Requests that met a release under way.
    raced_releases,
    wipes, retired,
}

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    /// The last things that happened, oldest first.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        write!(f, "  again with MUNINN_SIM_SEED={}", self.seed)
    }
}

impl std::error::Error for Failure {}

/// One run. Costs a few milliseconds.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Failure> {
    // Writing down what happens costs more than letting it happen, so it is done in a second run.
    match world::run(seed, options, false) {
        Ok(summary) => Ok(summary),
        Err(quiet) => match world::run(seed, options, true) {
            Err(told) => Err(told),
            Ok(_) => Err(Failure {
                what: format!("{} (and not a second time: not deterministic)", quiet.what),
                ..quiet
            }),
        },
    }
}
