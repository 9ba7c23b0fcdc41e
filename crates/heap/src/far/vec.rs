//! A vector that grows.

use super::{Element, copy};
use crate::error::HeapError;
use crate::mutator::Scope;
use crate::typed::{Local, Ref};
use muninn_heap_macros::Managed;

/// A vector of values or references. Make one with [`Scope::vec`].
#[derive(Debug, Managed)]
pub struct FarVec<E: Element> {
    count: usize,
    items: Ref<E::Array>,
}

const FIRST_CAPACITY: usize = 4;

impl<'s> Scope<'s> {
    /// A new, empty vector.
    pub fn vec<E: Element>(&self) -> Result<Local<'s, FarVec<E>>, HeapError> {
        let init = FarVecInit {
            count: 0,
            items: None,
        };
        self.alloc(init)
    }
}

impl<'s, E: Element> Local<'s, FarVec<E>> {
    /// The array, and how many elements are in it: as many as it has, whatever others do meanwhile.
    fn parts(&self) -> Option<(Local<'s, E::Array>, usize)> {
        let items = self.items()?;
        let len = self.count().min(items.raw().len());
        Some((items, len))
    }

    pub fn len(&self) -> usize {
        self.parts().map_or(0, |(_, len)| len)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a place; none if there are fewer.
    pub fn get(&self, at: usize) -> Option<E::Value<'s>> {
        let (items, len) = self.parts()?;
        if at < len { E::at(&items, at) } else { None }
    }

    /// Changes an element; what it was, or none if there is no such element.
    pub fn set(&self, at: usize, value: E::Value<'s>) -> Option<E::Value<'s>> {
        let (items, len) = self.parts()?;
        if at >= len {
            return None;
        }
        let before = E::at(&items, at);
        E::put(&items, at, &value);
        before
    }

    pub fn push(&self, s: &Scope<'s>, value: E::Value<'s>) -> Result<(), HeapError> {
        let (items, len) = self.with_room(s)?;
        E::put(&items, len, &value);
        self.set_count(len + 1);
        Ok(())
    }

    /// The array with room for one more, and how many elements are in it.
    fn with_room(&self, s: &Scope<'s>) -> Result<(Local<'s, E::Array>, usize), HeapError> {
        let parts = self.parts();
        let len = parts.as_ref().map_or(0, |(_, len)| *len);
        match parts {
            Some((items, len)) if len < items.raw().len() => Ok((items, len)),
            old => {
                let new = E::alloc(s, (2 * len).max(FIRST_CAPACITY))?;
                if let Some((items, len)) = old {
                    copy::<E>((&items, 0), (&new, 0), len);
                }
                self.set_items(Some(&new));
                Ok((new, len))
            }
        }
    }

    pub fn pop(&self) -> Option<E::Value<'s>> {
        let (items, len) = self.parts()?;
        let last = len.checked_sub(1)?;
        let value = E::at(&items, last);
        self.set_count(last);
        E::forget(&items, last);
        value
    }

    /// Puts an element before another, or at the end.
    ///
    /// # Panics
    ///
    /// If there are fewer elements.
    pub fn insert(&self, s: &Scope<'s>, at: usize, value: E::Value<'s>) -> Result<(), HeapError> {
        let (items, len) = self.with_room(s)?;
        assert!(at <= len, "place {at} is behind a vector of {len}");
        for place in (at..len).rev() {
            copy::<E>((&items, place), (&items, place + 1), 1);
        }
        E::put(&items, at, &value);
        self.set_count(len + 1);
        Ok(())
    }

    /// Takes an element out; those behind it move up. None if there is no such element.
    pub fn remove(&self, at: usize) -> Option<E::Value<'s>> {
        let (items, len) = self.parts()?;
        if at >= len {
            return None;
        }
        let value = E::at(&items, at);
        copy::<E>((&items, at + 1), (&items, at), len - at - 1);
        self.set_count(len - 1);
        E::forget(&items, len - 1);
        value
    }

    /// Leaves so many elements at most.
    pub fn truncate(&self, most: usize) {
        if let Some((items, len)) = self.parts()
            && most < len
        {
            self.set_count(most);
            (most..len).for_each(|at| E::forget(&items, at));
        }
    }
    pub fn clear(&self) {
        self.truncate(0);
    }

    pub fn extend(
        &self,
        s: &Scope<'s>,
        values: impl IntoIterator<Item = E::Value<'s>>,
    ) -> Result<(), HeapError> {
        values.into_iter().try_for_each(|value| self.push(s, value))
    }

    /// The elements that are there now. Whether a place is there is looked at once, here.
    pub fn iter(&self) -> VecIter<'s, E> {
        let (items, end) = match self.parts() {
            Some((items, len)) => (Some(items), len),
            None => (None, 0),
        };
        VecIter { items, at: 0, end }
    }
    pub fn to_vec(&self) -> Vec<E::Value<'s>> {
        self.iter().collect()
    }
}

/// Elements of a vector or an array.
pub struct VecIter<'s, E: Element> {
    items: Option<Local<'s, E::Array>>,
    at: usize,
    end: usize,
}

impl<E: Element> std::fmt::Debug for VecIter<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VecIter({}..{})", self.at, self.end)
    }
}

impl<'s, E: Element> VecIter<'s, E> {
    pub(crate) fn of(items: Local<'s, E::Array>) -> VecIter<'s, E> {
        let end = items.raw().len();
        VecIter {
            items: Some(items),
            at: 0,
            end,
        }
    }
}

impl<'s, E: Element> Iterator for VecIter<'s, E> {
    type Item = E::Value<'s>;
    fn next(&mut self) -> Option<E::Value<'s>> {
        let items = self.items.as_ref()?;
        // Null is no element: somebody else took it out.
        while self.at < self.end {
            self.at += 1;
            if let Some(value) = E::at(items, self.at - 1) {
                return Some(value);
            }
        }
        None
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.end - self.at))
    }
}

impl<E: Element> DoubleEndedIterator for VecIter<'_, E> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let items = self.items.as_ref()?;
        while self.at < self.end {
            self.end -= 1;
            if let Some(value) = E::at(items, self.end) {
                return Some(value);
            }
        }
        None
    }
}
