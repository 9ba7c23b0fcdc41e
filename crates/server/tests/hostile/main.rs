//! Clients that mean harm: each test is something that once worked for one.
//!
//! Servers run in processes of their own where their memory or their threads are looked at, so that
//! nothing of the attacker is counted.

#[path = "../../../net/tests/common/mod.rs"]
mod common;

mod agents;
mod beside;
mod between;
mod crowds;
mod held;
mod hoarding;
mod identities;
mod namespaces;
mod packets;
mod servers;
mod strangers;

/// A child that is to be a server.
#[test]
fn child() {
    common::serve_if_asked();
}
