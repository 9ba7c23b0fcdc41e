//! Objects with Rust types.
//!
//! A type that derives [`Managed`] is a schema; objects of it are reached by [`Local`] and the
//! accessors that the derive macro makes. Arrays are `[P]` of [`Plain`] values and `[Ref<T>]` of
//! references; strings are `str`.

use crate::object::Object;
use crate::plain::{Plain, Whole, align_of_plain, size_of_plain};
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
///
/// # Safety
///
/// `write` fills references with what the descriptor of the type says is there.
pub unsafe trait Init<'s> {
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
///
/// # Safety
///
/// The description and the size belong to the key, and are the same whenever they are asked for.
pub unsafe trait Referent {
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

// SAFETY: all three are of one type.
unsafe impl<T: Managed> Referent for T {
    type Key = T;
    fn describe() -> TypeDescriptor {
        T::descriptor()
    }
    fn size(_: u64) -> u64 {
        rounded(T::BYTES)
    }
}

// SAFETY: all three are of one type.
unsafe impl<P: Plain> Referent for [P] {
    type Key = [P];
    fn describe() -> TypeDescriptor {
        let _ = const { align_of_plain::<P>() };
        TypeDescriptor {
            name: format!("[{}]", std::any::type_name::<P>()),
            shape: Shape::Values {
                bytes: const { size_of_plain::<P>() }.max(1) as u32,
            },
        }
    }
    fn size(len: u64) -> u64 {
        rounded(const { size_of_plain::<P>() }.max(1) as u64 * len)
    }
}

// SAFETY: all three are of one type.
unsafe impl<T: ?Sized + 'static> Referent for [Ref<T>] {
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

// SAFETY: all three are of one type.
unsafe impl Referent for str {
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
    /// The type has a reference to a U at this offset.
    #[doc(hidden)]
    pub unsafe fn swap_ref<U: ?Sized>(
        &self,
        offset: usize,
        current: Option<&Local<'s, U>>,
        new: Option<&Local<'s, U>>,
    ) -> Result<(), Option<Local<'s, U>>> {
        let (current, new) = (current.map(Local::raw), new.map(Local::raw));
        let swapped = self.object.swap_ref(offset, current, new);
        swapped.map_err(|found| found.map(Local::from_object))
    }
    /// # Safety
    ///
    /// The type has a P at this offset.
    #[doc(hidden)]
    pub unsafe fn swap_plain<P: Whole>(&self, offset: usize, current: P, new: P) -> Result<(), P> {
        self.object.swap(offset, current, new)
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
        if !self.object.has_element(at) {
            return None;
        }
        // SAFETY: an element of an array of references to T.
        unsafe { self.load_ref(at * 8) }
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn set(&self, at: usize, value: Option<&Local<'s, T>>) {
        if self.object.has_element(at) {
            // SAFETY: an element of an array of references to T.
            unsafe { self.store_ref(at * 8, value) };
        }
    }
    /// The elements that are not null. Whether a place is there is looked at once.
    pub fn iter(&self) -> crate::far::VecIter<'s, Ref<T>>
    where
        T: 'static,
    {
        crate::far::VecIter::of(self.clone())
    }
    /// Changes an element if it is `current`; what it is, if that is something else.
    ///
    /// # Panics
    ///
    /// If there is no such element.
    pub fn swap(
        &self,
        at: usize,
        current: Option<&Local<'s, T>>,
        new: Option<&Local<'s, T>>,
    ) -> Result<(), Option<Local<'s, T>>> {
        match self.object.has_element(at) {
            // SAFETY: an element of an array of references to T.
            true => unsafe { self.swap_ref(at * 8, current, new) },
            false => Err(None),
        }
    }
}

impl<'s, P: Plain> Local<'s, [P]> {
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
        match self.object.has_element(at) {
            true => self.object.get(at * size_of::<P>()),
            false => crate::plain::zero(),
        }
    }
    /// # Panics
    ///
    /// If there is no such element.
    #[inline]
    pub fn set(&self, at: usize, value: P) {
        if self.object.has_element(at) {
            self.object.set(at * size_of::<P>(), value);
        }
    }
    /// The elements. Whether a place is there is looked at once.
    pub fn iter(&self) -> crate::far::VecIter<'s, P> {
        crate::far::VecIter::of(self.clone())
    }
    /// Changes an element if it is `current`; what it is, if that is something else.
    ///
    /// # Panics
    ///
    /// If there is no such element.
    pub fn swap(&self, at: usize, current: P, new: P) -> Result<(), P>
    where
        P: Whole,
    {
        match self.object.has_element(at) {
            true => self.object.swap(at * size_of::<P>(), current, new),
            false => Err(crate::plain::zero()),
        }
    }
    pub fn to_vec(&self) -> Vec<P> {
        self.iter().collect()
    }
}

impl Local<'_, str> {
    pub fn len(&self) -> usize {
        self.object.len()
    }
    /// Compares the text with another, byte by byte.
    pub fn compare(&self, other: &str) -> std::cmp::Ordering {
        let mut piece = [0; 64];
        let (len, mut rest) = (self.len(), other.as_bytes());
        for start in (0..len).step_by(piece.len()) {
            let piece = &mut piece[..(len - start).min(64)];
            self.object.load_bytes(start, piece);
            let (same, after) = rest.split_at(rest.len().min(piece.len()));
            match piece[..same.len()].cmp(same) {
                std::cmp::Ordering::Equal if same.len() == piece.len() => rest = after,
                std::cmp::Ordering::Equal => return std::cmp::Ordering::Greater,
                other => return other,
            }
        }
        match rest.is_empty() {
            true => std::cmp::Ordering::Equal,
            false => std::cmp::Ordering::Less,
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A copy of the text.
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.len()];
        self.object.load_bytes(0, &mut bytes);
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(_) => {
                self.object.is_no_value("a text");
                String::new()
            }
        }
    }
}
