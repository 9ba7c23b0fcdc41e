//! Runs one call of a module as a future, on memory of any kind.
//!
//! The interpreter runs until the module has ended, asks for something that has to be waited for, or has used
//! up its slice. In the last two cases the future is suspended in the same way as that of a function that was
//! built in, and so is scheduled as those are.

use super::Pushed;
use super::host::{Asked, Ended as HostEnded, LOCKS_MAX};
use super::instance::{self, Instance};
use crate::client::FarMemory;
use crate::error::WicError;
use crate::local::{Limits, LocalMemory, Why, suspend};
use crate::lock::WicLock;
use crate::memory::{Addr, Memory};
use crate::registry::{Ended, Reply, Running};
use muninn_proto::server::LOCK_FREE;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use wasmi::{TrapCode, TypedResumableCall, Val};

/// Instructions that a step stands for: a turn of a loop, with what is done in it.
const STEP: u64 = 64;

/// What both kinds of memory know of the call that runs on them.
pub(super) trait Ground: Memory + Sized + 'static {
    /// Itself, where accesses are loads and stores.
    fn near(this: &Rc<Self>) -> Option<Rc<LocalMemory>>;
    fn accesses(&self) -> u32;
    fn limits(&self) -> Limits;
    fn before_reply(&self) -> impl Future<Output = ()>;
}

impl Ground for LocalMemory {
    fn near(this: &Rc<Self>) -> Option<Rc<LocalMemory>> {
        Some(Rc::clone(this))
    }
    fn accesses(&self) -> u32 {
        LocalMemory::accesses(self)
    }
    fn limits(&self) -> Limits {
        LocalMemory::limits(self)
    }
    fn before_reply(&self) -> impl Future<Output = ()> {
        LocalMemory::before_reply(self)
    }
}

impl Ground for FarMemory {
    fn near(_: &Rc<Self>) -> Option<Rc<LocalMemory>> {
        None
    }
    fn accesses(&self) -> u32 {
        FarMemory::accesses(self)
    }
    fn limits(&self) -> Limits {
        FarMemory::limits(self)
    }
    async fn before_reply(&self) {}
}

/// The locks of one call. Those that it leaves behind, however it ends, are orphaned.
struct Held<M: Ground> {
    mem: Rc<M>,
    locks: RefCell<Vec<u32>>,
}

impl<M: Ground> Drop for Held<M> {
    fn drop(&mut self) {
        for index in self.locks.get_mut().drain(..) {
            self.mem.orphan_lock(index);
        }
    }
}

pub(super) fn start<M: Ground>(
    function: &Pushed,
    mem: M,
    args: &[u8],
) -> Result<Running, WicError> {
    function.exported().calls.fetch_add(1, Relaxed);
    let function = function.clone();
    let args = args.to_vec();
    Ok(Box::pin(async move {
        let mem = Rc::new(mem);
        let held = Held {
            mem: Rc::clone(&mem),
            locks: RefCell::default(),
        };
        let result = drive(&function, &mem, &held, args).await;
        drop(held);
        mem.before_reply().await;
        Ended {
            result,
            accesses: mem.accesses(),
        }
    }))
}

async fn drive<M: Ground>(
    function: &Pushed,
    mem: &Rc<M>,
    held: &Held<M>,
    args: Vec<u8>,
) -> Result<Reply, WicError> {
    let module = &function.module;
    let trapped = |why: String| WicError::Trapped(why);
    let mut instance = instance::take(module).map_err(|error| trapped(error.to_string()))?;
    let len = args.len() as i32;
    let host = instance.store.data_mut();
    host.near = M::near(mem);
    host.range = (mem.base().0, mem.end().0);
    host.locks = mem.locks();
    host.args = args;
    let limits = mem.limits();
    let slice = u64::from(limits.slice) * STEP;
    let mut left = u64::from(limits.steps) * STEP;
    let first = slice.min(left);
    left -= first;
    let set = |instance: &mut Instance, fuel| {
        let set = instance.store.set_fuel(fuel);
        set.map_err(|error| WicError::Trapped(error.to_string()))
    };
    set(&mut instance, first)?;
    let mut state = instance.functions[function.at].call_resumable(&mut instance.store, len);
    let code = loop {
        match state.map_err(|error| why(&error))? {
            TypedResumableCall::Finished(code) => break code as u64,
            TypedResumableCall::OutOfFuel(call) => {
                let more = slice.max(call.required_fuel());
                if more > left {
                    return Err(WicError::Steps(u64::from(limits.steps)));
                }
                left -= more;
                let rest = instance.store.get_fuel().unwrap_or(0);
                set(&mut instance, rest + more)?;
                suspend(Why::Slice).await;
                mem.tick()?;
                state = call.resume(&mut instance.store);
            }
            TypedResumableCall::HostTrap(call) => {
                let Some(asked) = instance.store.data_mut().asked.take() else {
                    return Err(why(call.host_error()));
                };
                let done = carry_out(asked, &mut instance, &**mem, held).await;
                let code = match done {
                    Ok(()) => 0,
                    Err(error) => instance.store.data_mut().tell(error)?,
                };
                state = call.resume(&mut instance.store, &[Val::I32(code)]);
            }
        }
    };
    let host = instance.store.data();
    let result = match (code & 0xffff_ffff, &host.told) {
        (0, _) if host.too_long => Err(WicError::Reply),
        (0, _) => Ok(Reply::from_bytes(&host.reply)),
        (7, _) => Err(WicError::Args),
        (8, _) => Err(WicError::Reply),
        (9, _) => Err(WicError::App((code >> 32) as u32)),
        // It passes on what it was told.
        (kind, Some(error)) if kind == error.to_refusal().a => Err(error.clone()),
        (1, _) => Err(WicError::Bounds(code >> 32)),
        (2, _) => Err(WicError::Misaligned(code >> 32)),
        (3, _) => Err(WicError::NoLock((code >> 32) as u32)),
        _ => Err(trapped(format!(
            "it gave back {code:#x}, which means nothing"
        ))),
    };
    instance::give_back(module, instance);
    result
}

/// Why a call did not reach its end.
fn why(error: &wasmi::Error) -> WicError {
    match error.downcast_ref::<HostEnded>() {
        Some(HostEnded::Failed(error)) => return error.clone(),
        Some(other) => return WicError::Trapped(other.to_string()),
        None => {}
    }
    match error.as_trap_code() {
        Some(TrapCode::UnreachableCodeReached) => WicError::Panicked,
        Some(TrapCode::GrowthOperationLimited) => WicError::Allocated(instance::MEMORY_MAX as u64),
        _ => WicError::Trapped(error.to_string()),
    }
}

/// Does what the module was suspended for.
async fn carry_out<M: Ground>(
    asked: Asked,
    instance: &mut Instance,
    mem: &M,
    held: &Held<M>,
) -> Result<(), WicError> {
    let memory = instance.memory;
    match asked {
        Asked::Read { at, to } => {
            // Straight into the module's memory, which nobody else can touch meanwhile.
            let to = to.of_mut(memory.data_mut(&mut instance.store));
            mem.read_into(Addr(at), to).await
        }
        Asked::Write { at, from } => {
            let from = from.of_mut(memory.data_mut(&mut instance.store));
            mem.write_from(Addr(at), from).await
        }
        Asked::CompareSwap {
            at,
            expect,
            new,
            found,
        } => {
            let word = mem.compare_swap(Addr(at), expect, new).await?;
            let to = found.of_mut(memory.data_mut(&mut instance.store));
            to.copy_from_slice(&word.to_le_bytes());
            Ok(())
        }
        Asked::FetchAdd { at, add, found } => {
            let word = mem.fetch_add(Addr(at), add).await?;
            let to = found.of_mut(memory.data_mut(&mut instance.store));
            to.copy_from_slice(&word.to_le_bytes());
            Ok(())
        }
        Asked::Lock { index, orphaned } => {
            if held.locks.borrow().len() >= LOCKS_MAX {
                return Err(WicError::NoLock(index));
            }
            let guard = WicLock::new(index).lock(mem).await?;
            let was = u32::from(guard.is_orphaned());
            guard.keep();
            held.locks.borrow_mut().push(index);
            let to = orphaned.of_mut(memory.data_mut(&mut instance.store));
            to.copy_from_slice(&was.to_le_bytes());
            Ok(())
        }
        Asked::Unlock { index } => {
            let place = held.locks.borrow().iter().position(|held| *held == index);
            let Some(place) = place else {
                return Err(WicError::NoLock(index));
            };
            mem.swap_lock(index, mem.holder(), LOCK_FREE).await?;
            held.locks.borrow_mut().swap_remove(place);
            Ok(())
        }
        Asked::Pause => mem.pause().await,
    }
}
