//! Functions as modules of WebAssembly: the same bytes at every place and on every processor, given to a
//! server while it runs.
//!
//! A module may do what it imports and nothing else: look at its arguments, access the service's memory,
//! take its locks, give its reply. What it computes is interpreted, so an endless loop is suspended like
//! any long function, and an access that has to wait suspends it as an `await` does one that was built in;
//! so the same executors run both ([`crate::local`], [`crate::client`]). Docs: `docs/WIC.md`.
//!
//! Invariant: whatever a module does, it costs its caller at most the steps and the memory that any function may
//! take; a call of it that goes wrong ends with an error and leaves its locks orphaned, and nobody else
//! notices. Known limit: an interpreter is several times slower at computing than what a compiler makes; what
//! these functions mostly do, accesses, is done by this program's own code.

mod host;
mod instance;
mod module;
mod run;
mod shelf;

pub(crate) use module::hash_of;
pub use module::{Exported, Module, ModuleError};
pub use shelf::{Push, Shelf};

use crate::client::FarMemory;
use crate::error::WicError;
use crate::local::LocalMemory;
use crate::registry::Running;
use std::sync::Arc;

/// One function of a module.
#[derive(Clone, Debug)]
pub struct Pushed {
    pub(crate) module: Arc<Module>,
    pub(crate) at: usize,
}

impl Pushed {
    /// All functions of a module.
    pub fn all(module: &Arc<Module>) -> impl Iterator<Item = Pushed> + use<'_> {
        (0..module.functions().len()).map(|at| Pushed {
            module: Arc::clone(module),
            at,
        })
    }
    pub fn exported(&self) -> &Exported {
        &self.module.functions()[self.at]
    }
    pub(crate) fn start(&self, mem: LocalMemory, args: &[u8]) -> Result<Running, WicError> {
        run::start(self, mem, args)
    }
    pub(crate) fn start_far(&self, mem: FarMemory, args: &[u8]) -> Result<Running, WicError> {
        run::start(self, mem, args)
    }
}
