//! An object as a mutator reaches it: accesses through the barriers.
//!
//! This is the raw interface, for implementers of languages; the typed one is built on it. An
//! [`Object`] is a handle: it keeps the object alive and follows it when it is moved.
//!
//! Invariant: an access touches the heap first and looks at the alarm afterwards. So a safepoint
//! finds all references in slots, and nothing that came from a lost page is handed out. In a lost
//! heap an access unwinds; in a destructor that runs because of a panic already it cannot, and gives
//! null, zeros and empty arrays instead ([`Inner::is_void`]).
//!
//! All accesses are atomic, as other mutators may use the same object. References are stored with
//! release and loaded with acquire, so whoever finds an object finds it filled.

use crate::error::HeapError;
use crate::heap::Inner;
use crate::mutator::Scope;
use crate::plain::{Plain, Whole, zero};
use crate::slots::Slot;
use crate::words::word_at;
use crate::world::Context;
use muninn_heap_agent::layout::{HEADER, Header, Mode, Shape};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

/// Zeros, word by word: a fault in the middle is answered and the store done again.
///
/// # Safety
///
/// The range must lie in a heap, be aligned to 8, and belong to the caller.
pub(crate) unsafe fn clear(address: *mut u8, len: u64) {
    for offset in (0..len as usize).step_by(8) {
        // SAFETY: inside of the range, as the caller vouches for.
        unsafe { word_at(address.add(offset)).store(0, Ordering::Relaxed) };
    }
}

/// A handle of an object of any type.
pub struct Object<'s> {
    slot: *const Slot,
    context: &'s Context,
    pub(crate) inner: &'s Inner,
    brand: PhantomData<fn(&'s ()) -> &'s ()>,
}

impl std::fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({:#x})", self.word())
    }
}

impl Drop for Object<'_> {
    #[inline]
    fn drop(&mut self) {
        self.context.slots.give_back(self.slot);
    }
}

impl Clone for Object<'_> {
    fn clone(&self) -> Self {
        Object::build(
            self.inner,
            self.context,
            self.slot().address.get(),
            self.word(),
        )
    }
}

impl<'s> Object<'s> {
    #[inline]
    pub(crate) fn new(scope: &Scope<'s>, address: *mut u8, word: u64) -> Object<'s> {
        Object::build(scope.inner, scope.context, address, word)
    }

    #[inline]
    fn build(inner: &'s Inner, context: &'s Context, address: *mut u8, word: u64) -> Object<'s> {
        let slot = context.slots.take();
        let object = Object {
            slot,
            context,
            inner,
            brand: PhantomData,
        };
        object.slot().address.set(address);
        object.slot().word.set(word);
        object
    }

    /// The object that a word of the heap names. Look at the alarm when done.
    #[inline]
    pub(crate) fn of_word(scope: &Scope<'s>, word: u64) -> Object<'s> {
        let address = scope.inner.resolve(word);
        Object::build(scope.inner, scope.context, address, word)
    }

    #[inline(always)]
    fn slot(&self) -> &Slot {
        // SAFETY: slots live as long as the context, and this one is ours until we are dropped.
        unsafe { &*self.slot }
    }

    /// The word by which the heap names the object.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.slot().word.get()
    }

    /// Where the object lies, until the next look at the alarm. None where the heap is lost and the
    /// thread unwinds.
    #[inline(always)]
    fn address(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.slot().address.get()).or_else(|| self.find_again())
    }

    /// The collector has moved the object, or does so now: waits, then follows it.
    #[cold]
    #[inline(never)]
    fn find_again(&self) -> Option<NonNull<u8>> {
        loop {
            let address = self.inner.resolve(self.word());
            if let Some(found) = NonNull::new(address) {
                self.slot().address.set(address);
                return Some(found);
            }
            self.inner
                .state
                .wait_for_region(self.inner, self.context, self.word());
            if self.inner.is_void() {
                return None;
            }
        }
    }

    /// The end of an access: a safepoint, and the check that what was read is real. True where it is
    /// not, and cannot be said by unwinding.
    #[inline(always)]
    pub(crate) fn after(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        self.inner.alarm.is_set() && self.inner.poll_slow(self.context)
    }

    /// What was read is no value of its type: a server gave back other bytes than it was given.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_no_value(&self, what: &str) {
        self.inner
            .alarm
            .lose(|| format!("what was read of {self:?} is not {what}"));
        self.after();
    }

    /// A field that is about to be read.
    #[inline(always)]
    fn field(&self, offset: usize) -> Option<*mut u8> {
        let field = self
            .address()?
            .as_ptr()
            .wrapping_add(HEADER as usize + offset);
        self.inner.pager.expect_read(field);
        Some(field)
    }

    /// A field that is about to be written.
    #[inline(always)]
    fn field_mut(&self, offset: usize) -> Option<*mut u8> {
        let field = self
            .address()?
            .as_ptr()
            .wrapping_add(HEADER as usize + offset);
        self.inner.pager.expect_write(field);
        Some(field)
    }

    /// A field of an object that nobody else knows yet. Its page has only just been mapped: no look
    /// is needed.
    #[inline(always)]
    fn fresh_field(&self, offset: usize) -> Option<*mut u8> {
        let address = self.address()?.as_ptr();
        Some(address.wrapping_add(HEADER as usize + offset))
    }

    #[inline]
    fn header(&self) -> Header {
        const NONE: Header = Header(0);
        let Some(address) = self.address() else {
            return NONE;
        };
        self.inner.pager.expect_read(address.as_ptr());
        // SAFETY: an object starts with its header.
        let header = unsafe { word_at(address.as_ptr()) }.load(Ordering::Relaxed);
        match self.after() {
            false => Header(header),
            true => NONE,
        }
    }

    /// The number of its type.
    pub fn type_id(&self) -> u16 {
        self.header().type_id()
    }

    /// Elements of an array; 0 for a struct.
    #[inline]
    pub fn len(&self) -> usize {
        self.header().len() as usize
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether two handles lead to one object.
    pub fn is_same(&self, other: &Object<'s>) -> bool {
        self.word() == other.word()
    }

    /// Whether an array has this element: if not it is a panic, or the heap is lost and the thread
    /// unwinds already.
    #[inline(always)]
    pub(crate) fn has_element(&self, at: usize) -> bool {
        let len = self.len();
        at < len || self.has_no_element(at, len)
    }

    /// The same where it is no mistake of the caller's if not.
    pub(crate) fn has_quietly(&self, at: usize) -> bool {
        at < self.len()
    }

    #[cold]
    #[inline(never)]
    fn has_no_element(&self, at: usize, len: usize) -> bool {
        let is_void = self.inner.is_void();
        assert!(is_void, "index {at} is outside of an array of {len}");
        false
    }

    // --- unchecked: the typed interface knows what it does

    /// The reference at an offset that holds one.
    #[inline]
    pub(crate) fn get_ref(&self, offset: usize) -> Option<Object<'s>> {
        // SAFETY: the caller names a reference of the object's type.
        let word = unsafe { word_at(self.field(offset)?) }.load(Ordering::Acquire);
        self.found(word)
    }

    /// What a word that was read leads to.
    #[inline(always)]
    fn found(&self, word: u64) -> Option<Object<'s>> {
        if word == 0 {
            self.after();
            return None;
        }
        // The load barrier.
        let address = self.inner.resolve(word);
        let found = Object::build(self.inner, self.context, address, word);
        match self.after() {
            false => Some(found),
            true => None,
        }
    }

    #[inline]
    pub(crate) fn set_ref(&self, offset: usize, value: Option<&Object<'s>>) {
        let Some(field) = self.field_mut(offset) else {
            return;
        };
        let word = value.map_or(0, Object::word);
        // SAFETY: as in `get_ref`.
        let cell = unsafe { word_at(field) };
        // The store barrier.
        if self.inner.config.barriers {
            self.inner.before_store(self.context, field, cell, word);
        }
        cell.store(word, Ordering::Release);
        self.after();
    }

    /// Fills a reference of an object that nobody else knows yet.
    #[inline]
    pub(crate) fn init_ref(&self, offset: usize, value: Option<&Object<'s>>) {
        let (Some(value), Some(field)) = (value, self.fresh_field(offset)) else {
            return;
        };
        // SAFETY: as in `get_ref`.
        let cell = unsafe { word_at(field) };
        if self.inner.config.barriers {
            self.inner
                .before_store(self.context, field, cell, value.word());
        }
        cell.store(value.word(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get<P: Plain>(&self, offset: usize) -> P {
        let Some(field) = self.field(offset) else {
            return zero();
        };
        // SAFETY: the caller names a place of a P, aligned for it.
        let value = unsafe { P::load(field) };
        if self.after() {
            return zero();
        }
        value.unwrap_or_else(|| {
            self.is_no_value(std::any::type_name::<P>());
            zero()
        })
    }

    #[inline]
    pub(crate) fn set<P: Plain>(&self, offset: usize, value: P) {
        if let Some(field) = self.field_mut(offset) {
            // SAFETY: as in `get`.
            unsafe { value.store(field) };
            self.after();
        }
    }

    /// Fills a value of an object that nobody else knows yet.
    #[inline(always)]
    pub(crate) fn init<P: Plain>(&self, offset: usize, value: P) {
        if let Some(field) = self.fresh_field(offset) {
            // SAFETY: as in `get`.
            unsafe { value.store(field) };
        }
    }

    /// Stores a reference if the field holds `current`; what it holds, if that is something else.
    pub(crate) fn swap_ref(
        &self,
        offset: usize,
        current: Option<&Object<'s>>,
        new: Option<&Object<'s>>,
    ) -> Result<(), Option<Object<'s>>> {
        let field = self.field_mut(offset).ok_or(None)?;
        let (current, new) = (current.map_or(0, Object::word), new.map_or(0, Object::word));
        // SAFETY: as in `get_ref`.
        let cell = unsafe { word_at(field) };
        if self.inner.config.barriers {
            // One too many where nothing is stored: that only costs.
            self.inner.before_store(self.context, field, cell, new);
        }
        match cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.after();
                Ok(())
            }
            Err(word) => Err(self.found(word)),
        }
    }

    /// Stores a value if the field holds `current`; what it holds, if that is something else.
    pub(crate) fn swap<P: Whole>(&self, offset: usize, current: P, new: P) -> Result<(), P> {
        let Some(field) = self.field_mut(offset) else {
            return Err(zero());
        };
        // SAFETY: as in `get`.
        let swapped = unsafe { P::swap(field, current, new) };
        match self.after() {
            false => swapped,
            true => Err(zero()),
        }
    }

    pub(crate) fn store_bytes(&self, offset: usize, bytes: &[u8]) {
        let Some(field) = self.field_mut(offset) else {
            return;
        };
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the caller names a range of the object; bytes of it are accessed atomically.
            unsafe { AtomicU8::from_ptr(field.add(at)) }.store(*byte, Ordering::Relaxed);
        }
        self.after();
    }

    pub(crate) fn load_bytes(&self, offset: usize, into: &mut [u8]) {
        if let Some(field) = self.field(offset) {
            for (at, byte) in into.iter_mut().enumerate() {
                // SAFETY: as in `store_bytes`.
                *byte = unsafe { AtomicU8::from_ptr(field.add(at)) }.load(Ordering::Relaxed);
            }
            if self.after() {
                into.fill(0);
            }
        }
    }

    // --- checked against the descriptor

    fn check(&self, offset: usize, len: usize, is_ref: bool) -> Result<(), HeapError> {
        let header = self.header();
        let types = self.inner.types();
        let descriptor = types
            .get(header.type_id())
            .ok_or_else(|| HeapError::BadField("an object without a type".to_string()))?;
        let bad = |what: &str| {
            let name = &descriptor.name;
            Err(HeapError::BadField(format!(
                "{name} has no {what} at offset {offset}"
            )))
        };
        let end = offset.checked_add(len);
        let holds = |bytes: u64| end.is_some_and(|end| end as u64 <= bytes);
        match (&descriptor.shape, is_ref) {
            (Shape::Struct { refs, .. }, true) if refs.contains(&(offset as u32)) => Ok(()),
            (Shape::Refs, true) if offset.is_multiple_of(8) && holds(8 * header.len()) => Ok(()),
            (_, true) => bad("reference"),
            (Shape::Struct { bytes, refs }, false) => {
                let touches = |at: &u32| (*at as usize) < offset + len && offset < *at as usize + 8;
                if holds(u64::from(*bytes)) && !refs.iter().any(touches) {
                    Ok(())
                } else {
                    bad("value")
                }
            }
            (Shape::Values { bytes }, false) if holds(u64::from(*bytes) * header.len()) => Ok(()),
            (_, false) => bad("value"),
        }
    }

    fn check_is_raw(&self) -> Result<(), HeapError> {
        let type_id = self.type_id();
        if !self.inner.is_rust_type(type_id) {
            return Ok(());
        }
        let types = self.inner.types();
        let name = types.get(type_id).map_or("?", |known| known.name.as_str());
        Err(HeapError::BadField(format!(
            "{name} is a type of Rust: change its objects with their own accessors"
        )))
    }

    /// The reference at an offset.
    pub fn load_ref(&self, offset: usize) -> Result<Option<Object<'s>>, HeapError> {
        self.check(offset, 8, true)?;
        Ok(self.get_ref(offset))
    }

    /// Stores a reference to an object of any type. Only in objects of types that were registered at
    /// run time: what a reference of a Rust type leads to is fixed, and typed accessors rely on it.
    pub fn store_ref(&self, offset: usize, value: Option<&Object<'s>>) -> Result<(), HeapError> {
        self.check(offset, 8, true)?;
        self.check_is_raw()?;
        self.set_ref(offset, value);
        Ok(())
    }

    /// The bytes at an offset.
    pub fn load(&self, offset: usize, into: &mut [u8]) -> Result<(), HeapError> {
        self.check(offset, into.len(), false)?;
        self.load_bytes(offset, into);
        Ok(())
    }

    /// Stores bytes. Only in objects of types that were registered at run time: not all bytes are
    /// values of a Rust type.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HeapError> {
        self.check(offset, bytes.len(), false)?;
        self.check_is_raw()?;
        self.store_bytes(offset, bytes);
        Ok(())
    }
}

impl Inner {
    /// The address of what a word names; null while the collector moves it (Mako's load barrier).
    #[inline(always)]
    pub(crate) fn resolve(&self, word: u64) -> *mut u8 {
        self.state.resolve(self, word)
    }

    /// What the plan has to know before a reference is stored.
    #[inline(always)]
    fn before_store(
        &self,
        context: &Context,
        field: *mut u8,
        cell: &std::sync::atomic::AtomicU64,
        word: u64,
    ) {
        match self.geometry.mode {
            Mode::Direct => {
                let at = self.pager.place(field);
                let crosses = (at ^ word) >> self.geometry.region_shift != 0;
                if crosses && word != 0 {
                    self.state.crossing(context, at, word);
                }
            }
            Mode::Indirect => {
                if self.state.is_tracing() {
                    let old = cell.load(Ordering::Relaxed);
                    if old != 0 {
                        self.state.overwritten(context, old);
                    }
                }
            }
        }
    }
}
