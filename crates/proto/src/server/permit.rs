//! Who may do what: one table, role by operation.
//!
//! | | session | status | drain | push | push, where clients may |
//! |---|---|---|---|---|---|
//! | anybody, where there is no key | yes | yes | no | no | yes |
//! | who has the shared key | yes | yes | yes | yes | yes |
//! | client | yes | yes | no | no | yes |
//! | server | yes | yes | no | no | no |
//! | operator | no | yes | yes | yes | yes |
//!
//! Over a Unix socket root and the server's own user may drain and push as well: they could end the server.
//! They alone may take it over, whoever they have proved to be. To *push* is to give the server functions to
//! run; what operators push is there for everybody, what a client pushes for those of its identity.

use crate::secure::Role;
use muninn_wire::Lock;

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Session,
    Status,
    Drain,
    /// Functions for everybody.
    Push,
    /// Functions of its own, at a server that lets clients do so.
    PushOwn,
}

/// Who somebody is, as far as was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Anybody,
    SharedKey,
    Identity(Role),
}

impl Standing {
    pub fn of(lock: Lock, role: Option<Role>) -> Standing {
        match (lock, role) {
            (_, Some(role)) => Standing::Identity(role),
            (Lock::Shared, None) => Standing::SharedKey,
            // Without a certificate nobody comes through a lock of identities.
            (Lock::Open | Lock::Identity, None) => Standing::Anybody,
        }
    }
}

/// The table above.
pub const fn permits(who: Standing, action: Action) -> bool {
    match (who, action) {
        (_, Action::Status) => true,
        (Standing::Anybody | Standing::SharedKey, Action::Session) => true,
        (Standing::Identity(Role::Client | Role::Server), Action::Session) => true,
        (Standing::Identity(Role::Operator), Action::Session) => false,
        (
            Standing::SharedKey | Standing::Identity(Role::Operator),
            Action::Drain | Action::Push,
        ) => true,
        (Standing::Anybody | Standing::Identity(_), Action::Drain | Action::Push) => false,
        (Standing::Identity(Role::Server), Action::PushOwn) => false,
        (_, Action::PushOwn) => true,
    }
}
