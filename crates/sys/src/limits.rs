//! Limits of this process: open files, locked memory, memory of its own.
//!
//! A server needs a descriptor for each connection and each segment, and the usual soft limit of
//! 1,024 is there for programs that use `select`, which we do not. Invariant: only soft limits are
//! changed, and none is lowered but that of the process's own memory. Known limit: a hard limit can be raised by root only; the errors say
//! how.

use muninn_types::Bytes;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limited {
    OpenFiles,
    LockedMemory,
}

impl Limited {
    const fn resource(self) -> Resource {
        match self {
            Limited::OpenFiles => Resource::Nofile,
            Limited::LockedMemory => Resource::Memlock,
        }
    }
}

/// A limit: what holds now, and how far it can be raised. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// A limit could not be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot raise the limit of open files: {0}; raise it before the start (ulimit -n)")]
pub struct LimitError(Errno);

pub fn limit(what: Limited) -> Limit {
    let found = getrlimit(what.resource());
    Limit {
        soft: found.current,
        hard: found.maximum,
    }
}

/// Raises the soft limit of open files to the hard one; what holds afterwards.
pub fn raise_open_files() -> Result<Limit, LimitError> {
    let hard = limit(Limited::OpenFiles).hard;
    let wanted = Rlimit {
        current: hard,
        maximum: hard,
    };
    setrlimit(Resource::Nofile, wanted).map_err(LimitError)?;
    Ok(limit(Limited::OpenFiles))
}

/// A limit could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot limit the process's own memory to {0}: {1}")]
pub struct OwnMemoryError(Bytes, Errno);

/// From now on the process gets at most this much private memory, heap and stacks included; what it
/// maps of others does not count. An allocation beyond fails.
pub fn limit_own_memory(most: Bytes) -> Result<(), OwnMemoryError> {
    let hard = getrlimit(Resource::Data).maximum;
    let wanted = Rlimit {
        current: Some(most.0),
        maximum: hard,
    };
    setrlimit(Resource::Data, wanted).map_err(|errno| OwnMemoryError(most, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_raised_to_the_hard_limit() {
        let before = limit(Limited::OpenFiles);
        let after = raise_open_files().unwrap();
        assert_eq!(after.soft, after.hard);
        assert_eq!(after.hard, before.hard);
        assert!(limit(Limited::LockedMemory).soft != Some(u64::MAX));
    }
}
