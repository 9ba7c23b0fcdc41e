//! Objects with Rust types.
//!
//! A type that derives [`Managed`] is a schema; objects of it are reached by [`Local`] and the
//! accessors that the derive macro makes. Arrays are `[P]` of [`Plain`] values and `[Ref<T>]` of
//! references; strings are `str`.

use crate::object::Object;
use muninn_heap_agent::layout::{GRANULE, HEADER, Shape, TypeDescriptor};
use std::marker::PhantomData;

/// A reference inside of an object. Only names the type: values of it do not exist outside of the
/// heap.
#[derive(Debug)]
pub struct Ref<T: ?Sized> {
    never: std::convert::Infallible,
    of: PhantomData<fn(&T) -> &T>,
}

impl<T: ?Sized> Ref<T> {
    /// Cannot be called, as there is nothing to call it on.
    pub fn unreachable(&self) -> ! {
        match self.never {}
    }
}

/// A value without references that may lie in the heap.
///
/// # Safety
///
/// A copy of the bytes is a valid value, also when parts of two values of it are mixed at the
/// borders of its primitive parts; it has no references and is aligned to 8 or less.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: a primitive: read and written in one piece.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool char);
// SAFETY: an array of plain values is one.
unsafe impl<P: Plain, const N: usize> Plain for [P; N] {}

/// The alignment of a plain type, which must be at most 8.
pub const fn align_of_plain<P: Plain>() -> usize {
    assert!(align_of::<P>() <= 8, "a plain type is aligned to 8 or less");
    align_of::<P>()
}

/// A struct whose objects the heap manages; see the derive macro.
///
/// # Safety
///
/// The descriptor lists every reference that [`Init`] and the accessors of the type use.
pub unsafe trait Managed: 'static {
    /// Bytes of the fields.
    const BYTES: u64;
    fn descriptor() -> TypeDescriptor;
}

/// What a new object is made from.
pub trait Init<'s> {
    type Object: Managed;
    fn write(self, object: &Fresh<'s>);
}

/// An object that is being made.
#[derive(Debug)]
pub struct Fresh<'s>(pub(crate) Object<'s>);

impl<'s> Fresh<'s> {
    /// # Safety
    ///
    /// The type has a reference at this offset, to what the value is.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn init_ref(&self, offset: usize, value: Option<&Object<'s>>) {
        self.0.init_ref(offset, value);
    }
    /// # Safety
    ///
    /// The type has a P at this offset.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn init_plain<P: Plain>(&self, offset: usize, value: P) {
        self.0.init(offset, value);
    }
}

/// Everything that a reference can lead to.
pub trait Referent {
    #[doc(hidden)]
    type Key: 'static + ?Sized;
    #[doc(hidden)]
    fn describe() -> TypeDescriptor;
    #[doc(hidden)]
    fn size(len: u64) -> u64;
}

const fn rounded(fields: u64) -> u64 {
    (HEADER + fields).next_multiple_of(GRANULE)
}

impl<T: Managed> Referent for T {
    type Key = T;
    fn describe() -> TypeDescriptor {
        T::descriptor()
    }
    fn size(_: u64) -> u64 {
        rounded(T::BYTES)
    }
}

impl<P: Plain> Referent for [P] {
    type Key = [P];
    fn describe() -> TypeDescriptor {
        let _ = align_of_plain::<P>();
        TypeDescriptor {
            name: format!("[{}]", std::any::type_name::<P>()),
            shape: Shape::Values {
                bytes: size_of::<P>().max(1) as u32,
            },
        }
    }
    fn size(len: u64) -> u64 {
        rounded(size_of::<P>().max(1) as u64 * len)
    }
}

impl<T: ?Sized + 'static> Referent for [Ref<T>] {
    type Key = [Ref<T>];
    fn describe() -> TypeDescriptor {
        TypeDescriptor {
            name: format!("[Ref<{}>]", std::any::type_name::<T>()),
            shape: Shape::Refs,
        }
    }
    fn size(len: u64) -> u64 {
        rounded(8 * len)
    }
}

impl Referent for str {
    type Key = str;
    fn describe() -> TypeDescriptor {
        TypeDescriptor {
            name: "str".to_string(),
            shape: Shape::Values { bytes: 1 },
        }
    }
    fn size(len: u64) -> u64 {
        rounded(len)
    }
}

/// A reference that a scope holds. The object may be moved under it; it follows.
pub struct Local<'s, T: ?Sized> {
    object: Object<'s>,
    of: PhantomData<fn(&T) -> &T>,
}

impl<T: ?Sized> Clone for Local<'_, T> {
    fn clone(&self) -> Self {
        Local {
            object: self.object.clone(),
            of: PhantomData,
        }
    }
}

impl<T: ?Sized> std::fmt::Debug for Local<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Local<{}>({:#x})",
            std::any::type_name::<T>(),
            self.object.word()
        )
    }
}

impl<'s, T: ?Sized> Local<'s, T> {
    pub(crate) fn from_object(object: Object<'s>) -> Local<'s, T> {
        Local {
            object,
            of: PhantomData,
        }
    }

    /// The untyped handle.
    pub fn raw(&self) -> &Object<'s> {
        &self.object
    }

    /// Whether both lead to one object.
    pub fn is_same(&self, other: &Local<'s, T>) -> bool {
        self.object.is_same(&other.object)
    }

    /// # Safety
    ///
    /// The type has a reference to a U at this offset.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn load_ref<U: ?Sized>(&self, offset: usize) -> Option<Local<'s, U>> {
        self.object.get_ref(offset).map(Local::from_object)
    }
    /// # Safety
    ///
    /// The type has a reference to a U at this offset.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn store_ref<U: ?Sized>(&self, offset: usize, value: Option<&Local<'s, U>>) {
        self.object.set_ref(offset, value.map(|v| &v.object));
    }
    /// # Safety
    ///
    /// The type has a P at this offset.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn load_plain<P: Plain>(&self, offset: usize) -> P {
        self.object.get(offset)
    }
    /// # Safety
    ///
    /// The type has a P at this offset.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn store_plain<P: Plain>(&self, offset: usize, value: P) {
        self.object.set(offset, value);
    }
}

#[inline(always)]
fn check(at: usize, len: usize) {
    assert!(at < len, "index {at} is outside of an array of {len}");
}

impl<'s, T: ?Sized> Local<'s, [Ref<T>]> {
    #[inline]
    pub fn len(&self) -> usize {
        self.object.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn get(&self, at: usize) -> Option<Local<'s, T>> {
        check(at, self.len());
        // SAFETY: an element of an array of references to T.
        unsafe { self.load_ref(at * 8) }
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn set(&self, at: usize, value: Option<&Local<'s, T>>) {
        check(at, self.len());
        // SAFETY: an element of an array of references to T.
        unsafe { self.store_ref(at * 8, value) };
    }
}

impl<P: Plain> Local<'_, [P]> {
    #[inline]
    pub fn len(&self) -> usize {
        self.object.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn get(&self, at: usize) -> P {
        check(at, self.len());
        self.object.get(at * size_of::<P>())
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn set(&self, at: usize, value: P) {
        check(at, self.len());
        self.object.set(at * size_of::<P>(), value);
    }
    pub fn to_vec(&self) -> Vec<P> {
        (0..self.len()).map(|at| self.get(at)).collect()
    }
}

impl Local<'_, str> {
    pub fn len(&self) -> usize {
        self.object.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A copy of the text.
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.len()];
        self.object.load_bytes(0, &mut bytes);
        String::from_utf8(bytes).unwrap_or_default()
    }
}
