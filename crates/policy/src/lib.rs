//! Every decision of Muninn, pure: no clock, no thread, no I/O, no unsafe code.
//!
//! An event and the time go in, what to do comes out; randomness comes from a seed. The live pager,
//! the server and the simulators call the same functions, so there is never a second copy of a
//! policy that could drift from the first.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod admission;
pub mod donor;
pub mod evenly;
pub mod evict;
pub mod first_touch;
pub mod fit;
pub mod hedge;
pub mod kinds;
pub mod layout;
pub mod membership;
pub mod mover;
pub mod once;
pub mod overdraft;
pub mod pace;
pub mod placement;
pub mod prefetch;
pub mod profile;
pub mod rebalance;
pub mod replenish;
pub mod seat;
pub mod share;
pub mod staging;
pub mod stripe;
pub mod take_over;
pub mod threshold;
pub mod tune;
pub mod turnstile;
pub mod urgency;
pub mod wic_place;
pub mod wrr;
