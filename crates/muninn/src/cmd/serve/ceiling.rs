//! How much of its memory a server may grant now: a size in a file, which a node agent keeps up to date.
//!
//! A file and not a message: it outlives agent and server, and who may change it is who may write there.
//! When more is granted than the file says, the server drains until that is no longer so. Invariant: a
//! file that cannot be read, or makes no sense, changes nothing.
//!
//! Known limit: clients are asked for all they have, and some will have moved more than was needed before
//! they hear that it is enough. A drain that a person begins meanwhile ends with this one.

use crate::failure::Failure;
use muninn_server::Server;
use muninn_types::Bytes;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What clients are told; it is renewed as long as it takes.
const WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Ceiling {
    path: PathBuf,
    now: Bytes,
    set: bool,
    draining: bool,
}

impl Ceiling {
    pub fn open(path: &Path) -> Result<Ceiling, Failure> {
        let now = read(path).map_err(|why| {
            let path = path.display();
            Failure::usage(format!("--ceiling-file {path}: {why}"))
        })?;
        Ok(Ceiling {
            path: path.to_path_buf(),
            now,
            set: false,
            draining: false,
        })
    }

    pub(super) fn look_after(&mut self, server: &Server) {
        if let Ok(ceiling) = read(&self.path)
            && (ceiling != self.now || !self.set)
        {
            self.now = ceiling;
            self.set = true;
            server.set_ceiling(ceiling);
        }
        let too_much = server.pool().granted > self.now;
        if too_much != self.draining {
            self.draining = too_much;
            server.drain(too_much.then_some(WITHIN));
        }
    }
}

fn read(path: &Path) -> Result<Bytes, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.trim()
        .parse()
        .map_err(|_| "it holds no size, such as 512MiB".to_string())
}

/// Writes it so that nobody reads half of it.
pub fn write(path: &Path, ceiling: Bytes) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, format!("{}\n", ceiling.0))?;
    std::fs::rename(&beside, path)
}
