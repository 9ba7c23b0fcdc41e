//! Who may do what: one table, role by operation.
//!
//! | | session | status | drain |
//! |---|---|---|---|
//! | anybody, where there is no key | yes | yes | no |
//! | who has the shared key | yes | yes | yes |
//! | client | yes | yes | no |
//! | server | yes | yes | no |
//! | operator | no | yes | yes |
//!
//! Over a Unix socket root and the server's own user may drain as well: they could end the server. They
//! alone may take it over, whoever they have proved to be.

use crate::secure::Role;
use muninn_wire::Lock;

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Session,
    Status,
    Drain,
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
        (Standing::SharedKey | Standing::Identity(Role::Operator), Action::Drain) => true,
        (Standing::Anybody | Standing::Identity(_), Action::Drain) => false,
    }
}
