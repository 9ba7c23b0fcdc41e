//! What a module can ask of its host, and how each thing is checked.
//!
//! Addresses of the service's memory are 64 bits, places in the module's own memory 32. An access that can be
//! made at once is made here; one that must wait is written down, and the module is suspended until
//! [`super::run`] has done it. Invariant: a place in the module's memory is used only after its bounds were
//! checked, at the moment of use; one that is not in it ends the call.

use crate::error::WicError;
use crate::local::LocalMemory;
use crate::memory::Addr;
use muninn_wire::MAX_ARGS;
use std::fmt;
use std::rc::Rc;
use wasmi::errors::HostError;
use wasmi::{Caller, Error, Linker, Memory, StoreLimits};

/// Locks that one call holds at most.
pub(super) const LOCKS_MAX: usize = 64;

/// What is to be done before the module can go on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Read {
        at: u64,
        to: Place,
    },
    Write {
        at: u64,
        from: Place,
    },
    CompareSwap {
        at: u64,
        expect: u64,
        new: u64,
        found: Place,
    },
    FetchAdd {
        at: u64,
        add: u64,
        found: Place,
    },
    Lock {
        index: u32,
        orphaned: Place,
    },
    Unlock {
        index: u32,
    },
    Pause,
}

/// A range of the module's memory that was in it when it was asked for; memories never shrink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub start: usize,
    pub len: usize,
}

impl Place {
    fn of(start: i32, len: i32, memory: &[u8]) -> Result<Place, Error> {
        let place = Place {
            start: start as u32 as usize,
            len: len as u32 as usize,
        };
        match place.start.checked_add(place.len) {
            Some(end) if end <= memory.len() => Ok(place),
            _ => Err(Error::host(Ended::Outside)),
        }
    }
    pub(super) fn of_mut(self, memory: &mut [u8]) -> &mut [u8] {
        &mut memory[self.start..self.start + self.len]
    }
}

/// Why a function of the host does not come back to the module.
#[derive(Debug)]
pub(super) enum Ended {
    /// It is suspended: what it asked for is in [`Host::asked`].
    Suspended,
    /// It named memory that it does not have.
    Outside,
    /// Its time or its memory is used up.
    Failed(WicError),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Suspended => f.write_str("suspended"),
            Ended::Outside => f.write_str("it named memory that it does not have"),
            Ended::Failed(error) => error.fmt(f),
        }
    }
}
impl HostError for Ended {}

/// One call, as far as its module's imports go.
pub(super) struct Host {
    pub limits: StoreLimits,
    pub memory: Option<Memory>,
    /// Where the service's memory can be loaded from and stored to.
    pub near: Option<Rc<LocalMemory>>,
    pub range: (u64, u64),
    pub locks: u32,
    pub args: Vec<u8>,
    pub reply: Vec<u8>,
    pub too_long: bool,
    pub asked: Option<Asked>,
    /// The last error that the module was told of, with all that it was not.
    pub told: Option<WicError>,
}

impl Host {
    pub(super) fn new(limits: StoreLimits) -> Host {
        Host {
            limits,
            memory: None,
            near: None,
            range: (0, 0),
            locks: 0,
            args: Vec::new(),
            reply: Vec::new(),
            too_long: false,
            asked: None,
            told: None,
        }
    }
    /// The call has ended.
    pub(super) fn forget(&mut self) {
        self.near = None;
        self.args.clear();
        self.reply.clear();
        self.too_long = false;
        (self.asked, self.told) = (None, None);
    }

    /// What the module is told of an error, if it is one that it can do something about.
    pub(super) fn tell(&mut self, error: WicError) -> Result<i32, WicError> {
        let code = match error {
            WicError::Bounds(_) => 1,
            WicError::Misaligned(_) => 2,
            WicError::NoLock(_) => 3,
            WicError::Access(_) => 10,
            fatal => return Err(fatal),
        };
        self.told = Some(error);
        Ok(code)
    }
    fn result(&mut self, result: Result<(), WicError>) -> Result<i32, Error> {
        match result {
            Ok(()) => Ok(0),
            Err(error) => (self.tell(error)).map_err(|fatal| Error::host(Ended::Failed(fatal))),
        }
    }
    fn suspend(&mut self, asked: Asked) -> Result<i32, Error> {
        self.asked = Some(asked);
        Err(Error::host(Ended::Suspended))
    }
}

type Call<'a> = Caller<'a, Host>;

/// The module's memory, and the call.
fn parts<'a>(caller: &'a mut Call<'_>) -> Result<(&'a mut [u8], &'a mut Host), Error> {
    let memory = caller.data().memory;
    let memory = memory.ok_or_else(|| Error::host(Ended::Outside))?;
    Ok(memory.data_and_store_mut(caller))
}

fn args(mut caller: Call<'_>, to: i32, len: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let to = Place::of(to, len, memory)?.of_mut(memory);
    let n = to.len().min(host.args.len());
    to[..n].copy_from_slice(&host.args[..n]);
    Ok(host.args.len() as i32)
}

fn reply(mut caller: Call<'_>, from: i32, len: i32) -> Result<(), Error> {
    let (memory, host) = parts(&mut caller)?;
    let from = Place::of(from, len, memory)?.of_mut(memory);
    host.reply.clear();
    host.too_long = from.len() > MAX_ARGS;
    if !host.too_long {
        host.reply.extend_from_slice(from);
    }
    Ok(())
}

fn read(mut caller: Call<'_>, at: i64, to: i32, len: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let (at, to) = (at as u64, Place::of(to, len, memory)?);
    let now = match &host.near {
        Some(near) => near.read_now(Addr(at), to.of_mut(memory)),
        None => None,
    };
    match now {
        Some(result) => host.result(result),
        None => host.suspend(Asked::Read { at, to }),
    }
}

fn write(mut caller: Call<'_>, at: i64, from: i32, len: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let (at, from) = (at as u64, Place::of(from, len, memory)?);
    let now = match &host.near {
        Some(near) => near.write_now(Addr(at), from.of_mut(memory)),
        None => None,
    };
    match now {
        Some(result) => host.result(result),
        None => host.suspend(Asked::Write { at, from }),
    }
}

/// A word that was found goes to the module's memory.
fn found(host: &mut Host, to: &mut [u8], now: Result<u64, WicError>) -> Result<i32, Error> {
    let result = now.map(|word| to.copy_from_slice(&word.to_le_bytes()));
    host.result(result)
}

fn cas(mut caller: Call<'_>, at: i64, expect: i64, new: i64, to: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let (at, expect, new) = (at as u64, expect as u64, new as u64);
    let to = Place::of(to, 8, memory)?;
    let now = match &host.near {
        Some(near) => near.compare_swap_now(Addr(at), expect, new),
        None => None,
    };
    match now {
        Some(word) => found(host, to.of_mut(memory), word),
        None => host.suspend(Asked::CompareSwap {
            at,
            expect,
            new,
            found: to,
        }),
    }
}

fn fetch_add(mut caller: Call<'_>, at: i64, add: i64, to: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let (at, add, to) = (at as u64, add as u64, Place::of(to, 8, memory)?);
    let now = match &host.near {
        Some(near) => near.fetch_add_now(Addr(at), add),
        None => None,
    };
    match now {
        Some(word) => found(host, to.of_mut(memory), word),
        None => host.suspend(Asked::FetchAdd { at, add, found: to }),
    }
}

fn lock(mut caller: Call<'_>, index: i32, orphaned: i32) -> Result<i32, Error> {
    let (memory, host) = parts(&mut caller)?;
    let orphaned = Place::of(orphaned, 4, memory)?;
    let index = index as u32;
    host.suspend(Asked::Lock { index, orphaned })
}

fn unlock(mut caller: Call<'_>, index: i32) -> Result<i32, Error> {
    let index = index as u32;
    caller.data_mut().suspend(Asked::Unlock { index })
}

fn pause(mut caller: Call<'_>) -> Result<i32, Error> {
    caller.data_mut().suspend(Asked::Pause)
}

/// All that there is to be imported.
pub(super) fn define(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker.func_wrap("muninn", "args", args)?;
    linker.func_wrap("muninn", "reply", reply)?;
    linker.func_wrap("muninn", "base", |caller: Call<'_>| {
        caller.data().range.0 as i64
    })?;
    linker.func_wrap("muninn", "end", |caller: Call<'_>| {
        caller.data().range.1 as i64
    })?;
    linker.func_wrap("muninn", "locks", |caller: Call<'_>| {
        caller.data().locks as i32
    })?;
    linker.func_wrap("muninn", "read", read)?;
    linker.func_wrap("muninn", "write", write)?;
    linker.func_wrap("muninn", "cas", cas)?;
    linker.func_wrap("muninn", "fetch_add", fetch_add)?;
    linker.func_wrap("muninn", "lock", lock)?;
    linker.func_wrap("muninn", "unlock", unlock)?;
    linker.func_wrap("muninn", "pause", pause)?;
    Ok(())
}
