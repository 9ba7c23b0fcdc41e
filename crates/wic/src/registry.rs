//! Functions by name and version.
//!
//! `#[wic]` registers each function of a program when it is linked; the order differs between builds,
//! so the list is sorted by name. A client asks a server for the number of a function by its name and
//! version: if the two were built from different sources, that is where it shows.

use crate::client::FarMemory;
use crate::error::WicError;
use crate::local::LocalMemory;
use crate::memory::Memory;
use crate::pushed::Pushed;
use muninn_wire::MAX_ARGS;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::pin::Pin;

/// A where-independent function. Made by `#[wic]`.
pub trait Wic: Copy + 'static {
    const NAME: &'static str;
    const VERSION: u32;
    /// Doing it twice is the same as doing it once: it is tried again after a failure.
    const IDEMPOTENT: bool;
    /// It takes locks of its service: where Muninn chooses the place, all that do have the same one.
    const LOCKS: bool = false;
    type Args: Serialize + DeserializeOwned + 'static;
    type Reply: Serialize + DeserializeOwned + 'static;
    fn run<M: Memory>(
        mem: &M,
        args: Self::Args,
    ) -> impl Future<Output = Result<Self::Reply, WicError>>;
}

/// An encoded reply: most are short, and then nothing is allocated for them.
#[derive(Clone, Debug)]
pub struct Reply {
    len: u16,
    short: [u8; Reply::SHORT],
    long: Vec<u8>,
}

impl Reply {
    const SHORT: usize = 46;

    pub fn from_bytes(bytes: &[u8]) -> Reply {
        let mut reply = Reply {
            len: bytes.len() as u16,
            short: [0; Reply::SHORT],
            long: Vec::new(),
        };
        match reply.short.get_mut(..bytes.len()) {
            Some(short) => short.copy_from_slice(bytes),
            None => reply.long = bytes.to_vec(),
        }
        reply
    }
    pub fn encode<T: Serialize>(value: &T) -> Result<Reply, WicError> {
        let mut short = [0; Reply::SHORT];
        if let Ok(used) = postcard::to_slice(value, &mut short) {
            return Ok(Reply {
                len: used.len() as u16,
                short,
                long: Vec::new(),
            });
        }
        let long = postcard::to_stdvec(value).map_err(|_| WicError::Reply)?;
        if long.len() > MAX_ARGS {
            return Err(WicError::Reply);
        }
        Ok(Reply::from_bytes(&long))
    }
    pub fn decode<T: DeserializeOwned>(&self) -> Option<T> {
        postcard::from_bytes(self.bytes()).ok()
    }
    pub fn bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..usize::from(self.len)]
        } else {
            &self.long
        }
    }
}

/// What a function that was started ends with.
#[derive(Debug)]
pub struct Ended {
    pub result: Result<Reply, WicError>,
    /// Accesses to memory it made.
    pub accesses: u32,
}

/// A function that was started.
pub type Running = Pin<Box<dyn Future<Output = Ended>>>;

/// A function as a host knows it.
#[derive(Clone, Copy, Debug)]
pub struct WicEntry {
    pub name: &'static str,
    pub version: u32,
    pub idempotent: bool,
    pub locks: bool,
    /// Starts it on memory that can be loaded from and stored to.
    pub start: fn(LocalMemory, &[u8]) -> Result<Running, WicError>,
    /// Starts it on memory over a network.
    pub(crate) start_far: fn(FarMemory, &[u8]) -> Result<Running, WicError>,
}

impl WicEntry {
    pub const fn of<W: Wic>() -> WicEntry {
        WicEntry {
            name: W::NAME,
            version: W::VERSION,
            idempotent: W::IDEMPOTENT,
            locks: W::LOCKS,
            start: start::<W>,
            start_far: start_far::<W>,
        }
    }
}

fn start<W: Wic>(mem: LocalMemory, args: &[u8]) -> Result<Running, WicError> {
    let args = postcard::from_bytes(args).map_err(|_| WicError::Args)?;
    Ok(Box::pin(async move {
        let result = W::run(&mem, args).await;
        mem.before_reply().await;
        Ended {
            result: result.and_then(|reply| Reply::encode(&reply)),
            accesses: mem.accesses(),
        }
    }))
}

fn start_far<W: Wic>(mem: FarMemory, args: &[u8]) -> Result<Running, WicError> {
    let args = postcard::from_bytes(args).map_err(|_| WicError::Args)?;
    Ok(Box::pin(async move {
        let result = W::run(&mem, args).await;
        Ended {
            result: result.and_then(|reply| Reply::encode(&reply)),
            accesses: mem.accesses(),
        }
    }))
}

inventory::collect!(WicEntry);

/// A function, however it came here.
#[derive(Clone, Debug)]
pub enum Function {
    BuiltIn(WicEntry),
    Pushed(Pushed),
}

impl Function {
    pub fn name(&self) -> &str {
        match self {
            Function::BuiltIn(entry) => entry.name,
            Function::Pushed(pushed) => &pushed.exported().name,
        }
    }
    pub fn version(&self) -> u32 {
        match self {
            Function::BuiltIn(entry) => entry.version,
            Function::Pushed(pushed) => pushed.exported().version,
        }
    }
    pub fn idempotent(&self) -> bool {
        match self {
            Function::BuiltIn(entry) => entry.idempotent,
            Function::Pushed(pushed) => pushed.exported().idempotent,
        }
    }
    /// Whether it takes locks of its service.
    pub fn locks(&self) -> bool {
        match self {
            Function::BuiltIn(entry) => entry.locks,
            Function::Pushed(pushed) => pushed.module.locks(),
        }
    }
    /// Whether two are the same function of the same source.
    pub(crate) fn is(&self, other: &Function) -> bool {
        let same_source = match (self, other) {
            (Function::BuiltIn(_), Function::BuiltIn(_)) => true,
            (Function::Pushed(a), Function::Pushed(b)) => a.module.hash() == b.module.hash(),
            _ => false,
        };
        same_source && self.name() == other.name() && self.version() == other.version()
    }
    pub(crate) fn start(&self, mem: LocalMemory, args: &[u8]) -> Result<Running, WicError> {
        match self {
            Function::BuiltIn(entry) => (entry.start)(mem, args),
            Function::Pushed(pushed) => pushed.start(mem, args),
        }
    }
    pub(crate) fn start_far(&self, mem: FarMemory, args: &[u8]) -> Result<Running, WicError> {
        match self {
            Function::BuiltIn(entry) => (entry.start_far)(mem, args),
            Function::Pushed(pushed) => pushed.start_far(mem, args),
        }
    }
}

/// All functions of this program, sorted by name.
#[derive(Clone, Debug)]
pub struct Registry {
    entries: Vec<WicEntry>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::collect()
    }
}

impl Registry {
    pub fn collect() -> Registry {
        let mut entries: Vec<WicEntry> = inventory::iter::<WicEntry>().copied().collect();
        entries.sort_by_key(|entry| (entry.name, entry.version));
        Registry { entries }
    }
    pub fn entries(&self) -> &[WicEntry] {
        &self.entries
    }
    pub fn get(&self, number: u32) -> Option<&WicEntry> {
        self.entries.get(number as usize)
    }

    /// The number of a function, or the latest version that is here instead.
    pub fn find(&self, name: &str, version: u32) -> Result<u32, Option<u32>> {
        let wanted = |e: &WicEntry| e.name == name && e.version == version;
        match self.entries.iter().position(wanted) {
            Some(at) => Ok(at as u32),
            None => {
                let others = self.entries.iter().filter(|e| e.name == name);
                Err(others.map(|e| e.version).max())
            }
        }
    }
}

/// Registers a function. `#[wic]` calls it.
#[macro_export]
macro_rules! register {
    ($wic:ty) => {
        const _: () = {
            use $crate::__inventory as inventory;
            inventory::submit! { $crate::WicEntry::of::<$wic>() }
        };
    };
}
