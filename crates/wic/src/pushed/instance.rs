//! A module with a memory of its own, in which one call at a time runs; kept for the next call.
//!
//! Making one takes microseconds, so each thread keeps some. Between two calls the memory is put back as
//! it was at the start: all of it, or, where a module says by `__heap_base` where its heap begins, what lies
//! below. One whose call went wrong, or whose memory has grown, is not used again. Known limit: what a module
//! leaves in its heap, or in globals of its own, the next call of it may find. It belongs to one identity, or
//! to the operator, so nobody learns by that what they could not know.

use super::host::{self, Host};
use super::module::{Module, ModuleError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wasmi::{Linker, Memory, Store, TypedFunc, Val};

/// Bytes of memory that one may have.
pub(super) const MEMORY_MAX: usize = 16 << 20;
/// Elements of its tables.
const TABLE_MAX: usize = 4096;
/// Kept by a thread for one module, and bytes of memory for all.
const KEPT_OF_MODULE: usize = 64;
const KEPT_BYTES: usize = 32 << 20;

/// A module that runs.
pub(super) struct Instance {
    pub store: Store<Host>,
    pub memory: Memory,
    pub functions: Vec<TypedFunc<i32, i64>>,
    /// Of its memory, at the start.
    bytes: usize,
}

impl Instance {
    pub(super) fn new(module: &Module) -> Result<Instance, ModuleError> {
        let failed = |error: wasmi::Error| ModuleError::Start(error.to_string());
        let limits = wasmi::StoreLimitsBuilder::new()
            .memory_size(MEMORY_MAX)
            .table_elements(TABLE_MAX)
            .instances(1)
            .tables(4)
            .memories(1)
            // Whoever takes too much is ended, as at every place.
            .trap_on_grow_failure(true)
            .build();
        let mut store = Store::new(&module.engine, Host::new(limits));
        store.limiter(|host| &mut host.limits);
        // For what a data segment costs; a call gets its own.
        store.set_fuel(1 << 20).map_err(failed)?;
        let mut linker = Linker::new(&module.engine);
        host::define(&mut linker).map_err(failed)?;
        let instance = linker
            .instantiate_and_start(&mut store, &module.code)
            .map_err(failed)?;
        let memory = instance
            .get_memory(&store, "memory")
            .ok_or(ModuleError::NoMemory)?;
        store.data_mut().memory = Some(memory);
        let functions: Result<Vec<_>, _> = module
            .functions()
            .iter()
            .map(|f| instance.get_typed_func(&store, &f.export))
            .collect();
        let bytes = memory.data(&store).len();
        let heap = instance.get_global(&store, "__heap_base");
        let restored = match heap.map(|heap| heap.get(&store)) {
            Some(Val::I32(at)) => (at as u32 as usize).min(bytes),
            _ => bytes,
        };
        let image = &memory.data(&store)[..restored];
        module.image.get_or_init(|| image.into());
        Ok(Instance {
            functions: functions.map_err(failed)?,
            store,
            memory,
            bytes,
        })
    }

    /// Back to how it was, if that can be done.
    fn restore(&mut self, module: &Module) -> bool {
        self.store.data_mut().forget();
        let memory = self.memory.data_mut(&mut self.store);
        let Some(image) = module.image.get().filter(|_| memory.len() == self.bytes) else {
            return false;
        };
        memory[..image.len()].copy_from_slice(image);
        true
    }
}

#[derive(Default)]
struct Kept {
    modules: HashMap<u64, (Arc<Module>, Vec<Instance>)>,
    bytes: usize,
    looked: u64,
}

/// Counts modules that were removed.
static REMOVALS: AtomicU64 = AtomicU64::new(0);

pub(super) fn look_again() {
    REMOVALS.fetch_add(1, Relaxed);
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl Kept {
    /// Lets go of what belongs to modules that were removed.
    fn look(&mut self) {
        let removals = REMOVALS.load(Relaxed);
        if removals == self.looked {
            return;
        }
        self.looked = removals;
        let freed = &mut self.bytes;
        self.modules.retain(|_, (module, kept)| {
            if module.is_removed() {
                *freed -= kept.iter().map(|instance| instance.bytes).sum::<usize>();
            }
            !module.is_removed()
        });
    }
}

/// One for a call.
pub(super) fn take(module: &Arc<Module>) -> Result<Instance, ModuleError> {
    let kept = KEPT.with_borrow_mut(|kept| {
        kept.look();
        let instance = kept.modules.get_mut(&module.serial)?.1.pop()?;
        kept.bytes -= instance.bytes;
        Some(instance)
    });
    match kept {
        Some(instance) => Ok(instance),
        None => Instance::new(module),
    }
}

/// One whose call has ended well.
pub(super) fn give_back(module: &Arc<Module>, mut instance: Instance) {
    if !instance.restore(module) {
        return;
    }
    // A thread that is ending keeps nothing.
    let _ = KEPT.try_with(|kept| {
        let kept = &mut *kept.borrow_mut();
        kept.look();
        if module.is_removed() || kept.bytes + instance.bytes > KEPT_BYTES {
            return;
        }
        let (_, of_module) = (kept.modules)
            .entry(module.serial)
            .or_insert_with(|| (Arc::clone(module), Vec::new()));
        if of_module.len() < KEPT_OF_MODULE {
            kept.bytes += instance.bytes;
            of_module.push(instance);
        }
    });
}
