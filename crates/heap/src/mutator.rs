//! Mutators and scopes: the only way to the objects.
//!
//! [`Mutator::enter`] runs a closure inside of the heap. References live in slots that belong to the
//! scope, and their type carries the scope's lifetime, which no other scope has: they can neither
//! leave it nor be mixed up with those of another heap. What is to live longer is a [`Root`].

use crate::error::HeapError;
use crate::heap::{Heap, Inner};
use crate::inside::{self, Parked};
use crate::object::Object;
use crate::pager::Pager;
use crate::plain::Plain;
use crate::roots::Root;
use crate::typed::{Fresh, Init, Local, Ref, Referent};
use crate::world::{Context, OUTSIDE};
use muninn_heap_agent::layout::{Header, MAX_LEN, Mode, Shape, TypeDescriptor};
use std::any::TypeId;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Unwinds a mutator out of its closure: memory is lost.
pub(crate) struct LostSignal;

/// The right to use a heap from one thread at a time.
#[derive(Debug)]
pub struct Mutator {
    heap: Heap,
    context: Arc<Context>,
    /// Types used so far; few, so a list is fastest.
    types: RefCell<Vec<(TypeId, u16)>>,
}

impl Mutator {
    pub(crate) fn new(heap: Heap) -> Result<Mutator, HeapError> {
        inside::check_not_observing()?;
        heap.inner.lost()?;
        let context = {
            // Whoever stops the world holds the list of mutators.
            let _parked = Parked::new();
            heap.inner.world.add()
        };
        Ok(Mutator {
            heap,
            context,
            types: RefCell::default(),
        })
    }

    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Bytes that this mutator has allocated.
    pub fn allocated_bytes(&self) -> u64 {
        self.context.allocated_bytes.get()
    }

    /// Runs `work` inside of the heap. If memory of the heap is lost meanwhile, `work` is unwound
    /// and the error is returned. A thread is inside of one heap once: for what takes long, or waits,
    /// there is [`Scope::blocking`].
    pub fn enter<R>(
        &mut self,
        work: impl for<'s> FnOnce(&Scope<'s>) -> Result<R, HeapError>,
    ) -> Result<R, HeapError> {
        Pager::prepare_thread()?;
        let inner = &self.heap.inner;
        inner.lost()?;
        let inside = inside::enter(inner, &self.context)?;
        inner.world.enter(&self.context, OUTSIDE);
        let scope = Scope {
            inner,
            context: &self.context,
            types: &self.types,
            brand: PhantomData,
        };
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // A handshake may have been waiting for somebody to be inside.
            if inner.alarm.is_set() {
                inner.poll_slow(&self.context);
            }
            work(&scope)
        }));
        self.context.slots.clear();
        inner.world.leave(&self.context, OUTSIDE);
        drop(inside);
        match result {
            Ok(result) => result,
            Err(panic) if panic.is::<LostSignal>() => Err(inner.lost_error()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Mutator {
    fn drop(&mut self) {
        let inner = &self.heap.inner;
        let _parked = Parked::new();
        // Nobody may collect while the region is handed back.
        let _one = inner.lock_collecting();
        inner.retire(&self.context);
        inner.state.leave(&self.context);
        inner.world.remove(&self.context);
    }
}

/// Inside of a heap.
pub struct Scope<'s> {
    pub(crate) inner: &'s Arc<Inner>,
    pub(crate) context: &'s Context,
    types: &'s RefCell<Vec<(TypeId, u16)>>,
    /// Invariant: one scope's references are no other's.
    brand: PhantomData<fn(&'s ()) -> &'s ()>,
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scope(heap {})", self.inner.id)
    }
}

impl<'s> Scope<'s> {
    /// Lets a collection happen here, if one is wanted. Accesses and allocations do so as well.
    #[inline]
    pub fn safepoint(&self) {
        if self.inner.alarm.is_set() {
            self.inner.poll_slow(self.context);
        }
    }

    /// Waits, or computes for long, without keeping collections from running: `work` runs as if the
    /// scope were at a safepoint all the time. It may use nothing of the scope, which is why it can
    /// borrow nothing: what it needs moves in, and what it is to give back it returns.
    ///
    /// ```compile_fail
    /// # use muninn_heap::*;
    /// # fn f(s: &Scope<'_>, text: Local<'_, str>) {
    /// s.blocking(move || text.len());
    /// # }
    /// ```
    pub fn blocking<R>(&self, work: impl FnOnce() -> R + 'static) -> R {
        let parked = Parked::new();
        let result = work();
        drop(parked);
        self.safepoint();
        result
    }

    /// Collects everything that cannot be reached; what the scope holds stays, and is followed where
    /// it is moved.
    pub fn collect(&self) -> Result<(), HeapError> {
        let parked = Parked::new();
        let collected = self.inner.collect(None, true);
        drop(parked);
        self.safepoint();
        collected
    }

    fn type_of<T: Referent + ?Sized>(&self) -> Result<u16, HeapError> {
        let key = TypeId::of::<T::Key>();
        let known = self
            .types
            .borrow()
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, n)| *n);
        if let Some(number) = known {
            return Ok(number);
        }
        let number = self.inner.rust_type::<T>()?;
        self.types.borrow_mut().push((key, number));
        Ok(number)
    }

    /// A new object; its fields are zeros until something is stored.
    fn object(&self, type_id: u16, len: u64, size: u64) -> Result<Object<'s>, HeapError> {
        let at = self.inner.room(self.context, size)?;
        let word = match self.inner.geometry.mode {
            Mode::Direct => at,
            Mode::Indirect => self.inner.state.new_entry(self.inner, self.context, at),
        };
        let entry = match self.inner.geometry.mode {
            Mode::Direct => 0,
            Mode::Indirect => word as u32,
        };
        let address = self.inner.pager.address(at);
        // SAFETY: the room is ours alone, as long as the object; pages that are absent come.
        unsafe {
            crate::object::clear(address.add(8), size - 8);
            crate::words::word_at(address).store(
                Header::new(type_id, entry, len).0,
                std::sync::atomic::Ordering::Relaxed,
            );
        }
        let allocated = &self.context.allocated_bytes;
        allocated.set(allocated.get() + size);
        let object = Object::new(self, address, word);
        match object.after() {
            false => Ok(object),
            true => Err(self.inner.lost_error()),
        }
    }

    /// A new object of a struct.
    #[inline]
    pub fn alloc<I: Init<'s>>(&self, init: I) -> Result<Local<'s, I::Object>, HeapError> {
        let type_id = self.type_of::<I::Object>()?;
        let size = <I::Object as Referent>::size(0);
        let object = self.object(type_id, 0, size)?;
        let fresh = Fresh(object);
        init.write(&fresh);
        fresh.0.after();
        Ok(Local::from_object(fresh.0))
    }

    fn array<T: Referent + ?Sized>(&self, len: usize) -> Result<Object<'s>, HeapError> {
        let len = len as u64;
        if len > MAX_LEN {
            return Err(HeapError::TooLong(len));
        }
        let type_id = self.type_of::<T>()?;
        self.object(type_id, len, T::size(len))
    }

    /// A new array of references, all null.
    pub fn alloc_refs<T: Referent + ?Sized + 'static>(
        &self,
        len: usize,
    ) -> Result<Local<'s, [Ref<T>]>, HeapError> {
        Ok(Local::from_object(self.array::<[Ref<T>]>(len)?))
    }

    /// The same, where nothing but this crate names the type.
    pub(crate) fn alloc_refs_of<T: ?Sized + 'static>(
        &self,
        len: usize,
    ) -> Result<Local<'s, [Ref<T>]>, HeapError> {
        Ok(Local::from_object(self.array::<[Ref<T>]>(len)?))
    }

    /// A new array of zeros: of the first variant for an enum, of null letters.
    pub fn alloc_zeros<P: Plain>(&self, len: usize) -> Result<Local<'s, [P]>, HeapError> {
        Ok(Local::from_object(self.array::<[P]>(len)?))
    }

    /// A new array of these values.
    pub fn alloc_values<P: Plain>(&self, values: &[P]) -> Result<Local<'s, [P]>, HeapError> {
        let array: Local<'s, [P]> = Local::from_object(self.array::<[P]>(values.len())?);
        fill(&array, values.len(), |at| values[at]);
        Ok(array)
    }

    /// A new array of one value again and again.
    pub fn alloc_filled<P: Plain>(
        &self,
        len: usize,
        value: P,
    ) -> Result<Local<'s, [P]>, HeapError> {
        let array: Local<'s, [P]> = Local::from_object(self.array::<[P]>(len)?);
        fill(&array, len, |_| value);
        Ok(array)
    }

    /// A new string.
    pub fn alloc_str(&self, text: &str) -> Result<Local<'s, str>, HeapError> {
        let object = self.array::<str>(text.len())?;
        object.store_bytes(0, text.as_bytes());
        Ok(Local::from_object(object))
    }

    /// Keeps an object beyond this scope.
    pub fn root<T: Referent + ?Sized>(&self, local: &Local<'s, T>) -> Root<T> {
        Root::new(self.inner, local.raw().word())
    }

    /// Keeps an object under a name, in place of what had it before.
    pub fn name<T: Referent + ?Sized>(
        &self,
        name: &str,
        local: &Local<'s, T>,
    ) -> Result<(), HeapError> {
        let type_id = self.type_of::<T>()?;
        self.inner.roots().name(name, local.raw().word(), type_id);
        Ok(())
    }

    /// Forgets a name; whether there was one.
    pub fn unname(&self, name: &str) -> bool {
        self.inner.roots().unname(name)
    }

    /// The object of a root.
    pub fn open<T: Referent + ?Sized>(&self, root: &Root<T>) -> Result<Local<'s, T>, HeapError> {
        self.rooted(&root.inner, root.at).map(Local::from_object)
    }

    fn rooted(&self, inner: &Arc<Inner>, at: u32) -> Result<Object<'s>, HeapError> {
        if !Arc::ptr_eq(inner, self.inner) {
            return Err(HeapError::Foreign);
        }
        let word = self.inner.roots().get(at);
        let object = Object::of_word(self, word);
        match object.after() {
            false => Ok(object),
            true => Err(self.inner.lost_error()),
        }
    }

    // --- for implementers of languages

    /// A new object of a type that was registered at run time; `len` is that of an array.
    pub fn alloc_raw(&self, type_id: u16, len: usize) -> Result<Object<'s>, HeapError> {
        let types = self.inner.types();
        let descriptor: &TypeDescriptor = types
            .get(type_id)
            .ok_or_else(|| HeapError::BadField(format!("there is no type {type_id}")))?;
        let len = match descriptor.shape {
            Shape::Struct { .. } => 0,
            _ => len as u64,
        };
        if len > MAX_LEN {
            return Err(HeapError::TooLong(len));
        }
        self.object(type_id, len, descriptor.size(len))
    }

    /// Keeps an object of any type beyond this scope.
    pub fn root_raw(&self, object: &Object<'s>) -> Root<()> {
        Root::new(self.inner, object.word())
    }

    pub fn open_raw(&self, root: &Root<()>) -> Result<Object<'s>, HeapError> {
        self.rooted(&root.inner, root.at)
    }
}

/// Elements of a new array that are filled between two safepoints.
const FILL: usize = 4096;

/// Fills a new array that has this many elements.
fn fill<P: Plain>(array: &Local<'_, [P]>, len: usize, value: impl Fn(usize) -> P) {
    let object = array.raw();
    for start in (0..len).step_by(FILL) {
        for at in start..len.min(start + FILL) {
            object.init(at * size_of::<P>(), value(at));
        }
        object.after();
    }
}
