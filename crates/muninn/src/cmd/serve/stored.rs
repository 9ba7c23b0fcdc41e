//! What a server leaves to the service manager when it is told to end, and finds there when it is started again.

use crate::failure::Failure;
use muninn_server::Server;
use muninn_sys::fd_store::{self, Store};
use muninn_types::Bytes;
use std::io;
use std::os::fd::OwnedFd;

/// Descriptors are named by their place in what was left.
const NAME: &str = "muninn-";

pub(super) struct Stored {
    store: Option<Store>,
    found: Vec<(usize, OwnedFd)>,
    /// Names that the manager knows.
    known: Vec<usize>,
}

fn name(place: usize) -> String {
    format!("{NAME}{place}")
}

impl Stored {
    /// To be called before anything is opened that others could pass on.
    pub(super) fn find() -> Result<Stored, Failure> {
        let store = Store::find().map_err(Failure::failed)?;
        if store.is_none() {
            eprintln!(
                "muninn: no service manager wants to be told (NOTIFY_SOCKET is not set): --fdstore does nothing"
            );
        }
        let ours = |(name, fd): (String, OwnedFd)| {
            let place = name.strip_prefix(NAME)?.parse().ok()?;
            Some((place, fd))
        };
        let mut found: Vec<(usize, OwnedFd)> =
            fd_store::passed().into_iter().filter_map(ours).collect();
        found.sort_by_key(|(place, _)| *place);
        let known = found.iter().map(|(place, _)| *place).collect();
        Ok(Stored {
            store,
            found,
            known,
        })
    }

    /// What the process before left, if it did. Some of it is as good as nothing.
    pub(super) fn take(&mut self) -> Option<Vec<OwnedFd>> {
        let found = std::mem::take(&mut self.found);
        if found.is_empty() {
            return None;
        }
        if !found.iter().map(|(place, _)| *place).eq(0..found.len()) {
            eprintln!(
                "muninn: the service manager kept only a part of what was left: it is given up"
            );
            // Its sockets are in use as long as the manager has them.
            drop(found);
            self.forget();
            self.known.clear();
            if let Some(store) = &self.store {
                let _ = store.settle();
            }
            return None;
        }
        Some(found.into_iter().map(|(_, fd)| fd).collect())
    }

    /// It is ours again, or worthless: the manager must not keep memory that is given back here.
    pub(super) fn forget(&self) {
        let Some(store) = &self.store else { return };
        for place in &self.known {
            if let Err(why) = store.forget(&name(*place)) {
                eprintln!("muninn: the service manager was not told what to forget: {why}");
                return;
            }
        }
    }

    /// Leaves all there is. What was kept when it failed is forgotten.
    pub(super) fn put(&self, server: &mut Server) -> Result<Bytes, String> {
        let store = self.store.as_ref().ok_or("there is none")?;
        let room: Option<usize> = std::env::var("FDSTORE").ok().and_then(|n| n.parse().ok());
        let mut sent = 0;
        let left = server.leave(|fds| {
            if room.is_some_and(|room| room < fds.len()) {
                let count = fds.len();
                return Err(io::Error::other(format!(
                    "it keeps fewer descriptors than {count}: raise FileDescriptorStoreMax="
                )));
            }
            for (place, fd) in fds.iter().enumerate() {
                store.keep(&name(place), *fd)?;
                sent = place + 1;
            }
            store.settle()
        });
        left.map_err(|why| {
            (0..sent).for_each(|place| drop(store.forget(&name(place))));
            why.to_string()
        })
    }
}
