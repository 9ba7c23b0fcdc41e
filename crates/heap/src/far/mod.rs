//! Collections of the managed heap: objects like any other, referred to and moved like them.
//!
//! They hold [plain](crate::Plain) values or references: `FarVec<u64>`, `FarHashMap<Ref<str>, Ref<Node>>`.
//! What adds to one needs the scope, as it may allocate, and so may move everything else. Two mutators
//! may use one collection at a time without harm to the heap, but one may undo what the other did:
//! guard them, or give each its own.

mod map;
mod string;
mod tree;
mod vec;

pub use map::{FarHashMap, MapIter};
pub use string::FarString;
pub use tree::{FarBTreeMap, TreeIter};
pub use vec::{FarVec, VecIter};

use crate::error::HeapError;
use crate::mutator::Scope;
use crate::plain::Plain;
use crate::typed::{Local, Ref, Referent};
use std::cmp::Ordering;
use std::hash::Hash;

/// What is kept in collections: values are kept in place, references lead elsewhere and are never
/// null.
pub trait Element: items::Items {}
impl<E: items::Items> Element for E {}

pub(crate) mod items {
    use super::*;

    /// How elements lie in an array. Only for this crate: places are not checked.
    pub trait Items: 'static {
        type Array: Referent + ?Sized + 'static;
        /// An element outside of its array.
        type Value<'s>: Clone;

        fn alloc<'s>(s: &Scope<'s>, len: usize) -> Result<Local<'s, Self::Array>, HeapError>;
        /// The element at a place that the array has.
        fn at<'s>(array: &Local<'s, Self::Array>, at: usize) -> Option<Self::Value<'s>>;
        /// Changes the element at a place that the array has.
        fn put<'s>(array: &Local<'s, Self::Array>, at: usize, value: &Self::Value<'s>);
        /// Forgets the element at a place that the array has.
        fn forget(array: &Local<'_, Self::Array>, at: usize);
    }

    impl<P: Plain> Items for P {
        type Array = [P];
        type Value<'s> = P;

        fn alloc<'s>(s: &Scope<'s>, len: usize) -> Result<Local<'s, [P]>, HeapError> {
            s.alloc_zeros(len)
        }
        #[inline]
        fn at<'s>(array: &Local<'s, [P]>, at: usize) -> Option<P> {
            Some(array.raw().get(at * size_of::<P>()))
        }
        #[inline]
        fn put<'s>(array: &Local<'s, [P]>, at: usize, value: &P) {
            array.raw().set(at * size_of::<P>(), *value);
        }
        fn forget(_: &Local<'_, [P]>, _: usize) {}
    }

    impl<T: ?Sized + 'static> Items for Ref<T> {
        type Array = [Ref<T>];
        type Value<'s> = Local<'s, T>;

        fn alloc<'s>(s: &Scope<'s>, len: usize) -> Result<Local<'s, [Ref<T>]>, HeapError> {
            s.alloc_refs_of(len)
        }
        #[inline]
        fn at<'s>(array: &Local<'s, [Ref<T>]>, at: usize) -> Option<Local<'s, T>> {
            array.raw().get_ref(at * 8).map(Local::from_object)
        }
        #[inline]
        fn put<'s>(array: &Local<'s, [Ref<T>]>, at: usize, value: &Local<'s, T>) {
            array.raw().set_ref(at * 8, Some(value.raw()));
        }
        fn forget(array: &Local<'_, [Ref<T>]>, at: usize) {
            array.raw().set_ref(at * 8, None);
        }
    }
}

/// Copies elements between two arrays that have these places.
fn copy<'s, E: Element>(
    (from, start): (&Local<'s, E::Array>, usize),
    (to, at): (&Local<'s, E::Array>, usize),
    count: usize,
) {
    for step in 0..count {
        match E::at(from, start + step) {
            Some(value) => E::put(to, at + step, &value),
            None => E::forget(to, at + step),
        }
    }
}

/// What things are found by: plain values that can be hashed and ordered, and strings.
pub trait Key: Element {
    /// What is looked for: the value itself, or a `str`.
    type Query: ?Sized + Hash;
    #[doc(hidden)]
    fn compare(key: &Self::Value<'_>, query: &Self::Query) -> Ordering;
    #[doc(hidden)]
    fn is_equal(key: &Self::Value<'_>, query: &Self::Query) -> bool {
        Self::compare(key, query) == Ordering::Equal
    }
    /// The key as it is kept.
    #[doc(hidden)]
    fn keep<'s>(s: &Scope<'s>, query: &Self::Query) -> Result<Self::Value<'s>, HeapError>;
}

impl<P: Plain + Hash + Ord> Key for P {
    type Query = P;
    fn compare(key: &P, query: &P) -> Ordering {
        key.cmp(query)
    }
    fn keep<'s>(_: &Scope<'s>, query: &P) -> Result<P, HeapError> {
        Ok(*query)
    }
}

impl Key for Ref<str> {
    type Query = str;
    fn compare(key: &Local<'_, str>, query: &str) -> Ordering {
        key.compare(query)
    }
    fn is_equal(key: &Local<'_, str>, query: &str) -> bool {
        key.len() == query.len() && key.compare(query) == Ordering::Equal
    }
    fn keep<'s>(s: &Scope<'s>, query: &str) -> Result<Local<'s, str>, HeapError> {
        s.alloc_str(query)
    }
}
