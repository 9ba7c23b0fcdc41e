//! A tree of keys in order: every node has many, all leaves are as deep.
//!
//! Invariant: a node other than the root has at least [`LEAST`] keys, and one child more than it has
//! keys unless it is a leaf.

use super::items::Items;
use super::{Element, Key};
use crate::error::HeapError;
use crate::mutator::Scope;
use crate::typed::{Local, Ref};
use muninn_heap_macros::Managed;
use std::cmp::Ordering;

/// Values or references by keys, in the order of keys. Make one with [`Scope::btree_map`].
// A schema: there are no values to show.
#[allow(missing_debug_implementations)]
#[derive(Managed)]
pub struct FarBTreeMap<K: Key, V: Element> {
    count: usize,
    root: Ref<Node<K, V>>,
}

#[allow(missing_debug_implementations)]
#[derive(Managed)]
pub struct Node<K: Key, V: Element> {
    keys_used: usize,
    keys: Ref<K::Array>,
    values: Ref<V::Array>,
    /// None of a leaf.
    children: Ref<[Ref<Node<K, V>>]>,
}

/// Keys of a node.
const MOST: usize = 15;
const LEAST: usize = MOST / 2;

type Children<'s, K, V> = Local<'s, [Ref<Node<K, V>>]>;
type Entry<'s, K, V> = (<K as Items>::Value<'s>, <V as Items>::Value<'s>);

impl<'s> Scope<'s> {
    /// A new, empty map.
    pub fn btree_map<K: Key, V: Element>(&self) -> Result<Local<'s, FarBTreeMap<K, V>>, HeapError> {
        let init = FarBTreeMapInit {
            count: 0,
            root: None,
        };
        self.alloc(init)
    }

    fn tree_node<K: Key, V: Element>(
        &self,
        is_leaf: bool,
    ) -> Result<Local<'s, Node<K, V>>, HeapError> {
        let children = match is_leaf {
            true => None,
            false => Some(self.alloc_refs_of(MOST + 1)?),
        };
        self.alloc(NodeInit {
            keys_used: 0,
            keys: Some(K::alloc(self, MOST)?),
            values: Some(V::alloc(self, MOST)?),
            children,
        })
    }
}

/// What was to be changed is no tree any more.
fn torn() -> HeapError {
    let why = "mutators have changed one FarBTreeMap at the same time: guard it, or clear it";
    HeapError::BadField(why.to_string())
}

/// A node with its arrays at hand. Places are looked at: another mutator may have changed the node.
struct Open<'s, K: Key, V: Element> {
    node: Local<'s, Node<K, V>>,
    keys: Local<'s, K::Array>,
    values: Local<'s, V::Array>,
    children: Option<Children<'s, K, V>>,
}

impl<K: Key, V: Element> Clone for Open<'_, K, V> {
    fn clone(&self) -> Self {
        Open {
            node: self.node.clone(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            children: self.children.clone(),
        }
    }
}

impl<'s, K: Key, V: Element> Open<'s, K, V> {
    fn new(node: Local<'s, Node<K, V>>) -> Option<Self> {
        Some(Open {
            keys: node.keys()?,
            values: node.values()?,
            children: node.children(),
            node,
        })
    }

    fn len(&self) -> usize {
        self.node.keys_used().min(MOST)
    }
    fn set_len(&self, len: usize) {
        self.node.set_keys_used(len);
    }
    fn is_leaf(&self) -> bool {
        self.children.is_none()
    }

    fn key(&self, at: usize) -> Option<K::Value<'s>> {
        match self.keys.raw().has_quietly(at) {
            true => K::at(&self.keys, at),
            false => None,
        }
    }
    fn value(&self, at: usize) -> Option<V::Value<'s>> {
        match self.values.raw().has_quietly(at) {
            true => V::at(&self.values, at),
            false => None,
        }
    }
    fn entry(&self, at: usize) -> Option<Entry<'s, K, V>> {
        Some((self.key(at)?, self.value(at)?))
    }
    fn put(&self, at: usize, (key, value): &Entry<'s, K, V>) {
        if self.keys.raw().has_quietly(at) && self.values.raw().has_quietly(at) {
            K::put(&self.keys, at, key);
            V::put(&self.values, at, value);
        }
    }
    fn forget(&self, at: usize) {
        if self.keys.raw().has_quietly(at) && self.values.raw().has_quietly(at) {
            K::forget(&self.keys, at);
            V::forget(&self.values, at);
        }
    }
    fn child(&self, at: usize) -> Option<Open<'s, K, V>> {
        let children = self.children.as_ref()?;
        match children.raw().has_quietly(at) {
            true => Open::new(children.get(at)?),
            false => None,
        }
    }
    fn put_child(&self, at: usize, child: Option<&Local<'s, Node<K, V>>>) {
        if let Some(children) = &self.children
            && children.raw().has_quietly(at)
        {
            children.set(at, child);
        }
    }
    fn take_child(&self, at: usize) -> Option<Local<'s, Node<K, V>>> {
        let children = self.children.as_ref()?;
        if !children.raw().has_quietly(at) {
            return None;
        }
        let child = children.get(at);
        children.set(at, None);
        child
    }

    /// Where a key is, or before which one it belongs.
    fn search(&self, query: &K::Query) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            let order = match self.key(middle) {
                Some(key) => K::compare(&key, query),
                None => return Err(low),
            };
            match order {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Makes room for an entry, and for a child behind it.
    fn open_gap(&self, at: usize) {
        let len = self.len();
        for place in (at..len).rev() {
            if let Some(entry) = self.entry(place) {
                self.put(place + 1, &entry);
            }
        }
        if !self.is_leaf() {
            for place in (at + 1..=len).rev() {
                let child = self.take_child(place);
                self.put_child(place + 1, child.as_ref());
            }
        }
        self.set_len(len + 1);
    }

    /// Takes an entry out, and of a node that is no leaf the child behind it.
    fn close_gap(&self, at: usize) -> Option<Entry<'s, K, V>> {
        let len = self.len();
        let taken = self.entry(at);
        for place in at + 1..len {
            if let Some(entry) = self.entry(place) {
                self.put(place - 1, &entry);
            }
        }
        if !self.is_leaf() {
            self.take_child(at + 1);
            for place in at + 2..=len {
                let child = self.take_child(place);
                self.put_child(place - 1, child.as_ref());
            }
        }
        self.forget(len.saturating_sub(1));
        self.set_len(len.saturating_sub(1));
        taken
    }

    /// Halves a full child; the middle entry comes up.
    fn split_child(&self, s: &Scope<'s>, at: usize) -> Result<(), HeapError> {
        let Some(left) = self.child(at) else {
            return Ok(());
        };
        let Some(right) = Open::new(s.tree_node(left.is_leaf())?) else {
            return Ok(());
        };
        let (len, middle) = (left.len(), left.len() / 2);
        for place in middle + 1..len {
            if let Some(entry) = left.entry(place) {
                right.put(place - middle - 1, &entry);
                left.forget(place);
            }
        }
        if !left.is_leaf() {
            for place in middle + 1..=len {
                right.put_child(place - middle - 1, left.take_child(place).as_ref());
            }
        }
        right.set_len(len - middle - 1);
        let Some(up) = left.entry(middle) else {
            return Ok(());
        };
        left.forget(middle);
        left.set_len(middle);
        self.open_gap(at);
        self.put(at, &up);
        self.put_child(at + 1, Some(&right.node));
        Ok(())
    }

    /// Puts an entry at the end, with the child behind it.
    fn append(&self, entry: &Entry<'s, K, V>, child: Option<&Local<'s, Node<K, V>>>) {
        let len = self.len();
        self.put(len, entry);
        self.put_child(len + 1, child);
        self.set_len(len + 1);
    }

    /// A child may have one key too few: it gets one from beside it, or the two become one.
    fn mend_child(&self, at: usize) -> Option<()> {
        let child = self.child(at)?;
        if child.len() >= LEAST {
            return Some(());
        }
        let left = at.checked_sub(1).and_then(|left| self.child(left));
        let right = match at < self.len() {
            true => self.child(at + 1),
            false => None,
        };
        match (left, right) {
            (Some(left), _) if left.len() > LEAST => {
                let last = left.len();
                let moved = left.take_child(last);
                let up = left.entry(last - 1)?;
                left.forget(last - 1);
                left.set_len(last - 1);
                let down = self.entry(at - 1)?;
                self.put(at - 1, &up);
                let first = child.take_child(0);
                child.open_gap(0);
                child.put(0, &down);
                child.put_child(1, first.as_ref());
                child.put_child(0, moved.as_ref());
            }
            (_, Some(right)) if right.len() > LEAST => {
                let moved = right.take_child(0);
                let second = right.take_child(1);
                let up = right.close_gap(0)?;
                right.put_child(0, second.as_ref());
                child.append(&self.entry(at)?, moved.as_ref());
                self.put(at, &up);
            }
            (Some(left), _) => self.join(at - 1, &left, &child)?,
            (_, Some(right)) => self.join(at, &child, &right)?,
            // The root's only child becomes the root.
            (None, None) => {}
        }
        Some(())
    }

    /// Two children and the entry between them become one.
    fn join(&self, at: usize, left: &Open<'s, K, V>, right: &Open<'s, K, V>) -> Option<()> {
        let between = self.close_gap(at)?;
        left.append(&between, right.take_child(0).as_ref());
        for place in 0..right.len() {
            let entry = right.entry(place)?;
            left.append(&entry, right.take_child(place + 1).as_ref());
        }
        Some(())
    }

    fn remove(&self, query: &K::Query) -> Option<V::Value<'s>> {
        match (self.search(query), self.is_leaf()) {
            (Ok(at), true) => Some(self.close_gap(at)?.1),
            (Err(_), true) => None,
            (Ok(at), false) => {
                let value = self.value(at);
                let before = self.child(at)?.remove_last()?;
                self.put(at, &before);
                self.mend_child(at);
                value
            }
            (Err(at), false) => {
                let value = self.child(at)?.remove(query);
                self.mend_child(at);
                value
            }
        }
    }

    fn remove_last(&self) -> Option<Entry<'s, K, V>> {
        let len = self.len();
        if self.is_leaf() {
            return self.close_gap(len.checked_sub(1)?);
        }
        let last = self.child(len)?.remove_last();
        self.mend_child(len);
        last
    }
}

impl<'s, K: Key, V: Element> Local<'s, FarBTreeMap<K, V>> {
    fn top(&self) -> Option<Open<'s, K, V>> {
        Open::new(self.root()?)
    }

    pub fn len(&self) -> usize {
        self.count()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &K::Query) -> Option<V::Value<'s>> {
        let mut node = self.top()?;
        loop {
            match node.search(key) {
                Ok(at) => return node.value(at),
                Err(at) => node = node.child(at)?,
            }
        }
    }
    pub fn contains_key(&self, key: &K::Query) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value where a key says; what was there.
    pub fn insert(
        &self,
        s: &Scope<'s>,
        key: &K::Query,
        value: V::Value<'s>,
    ) -> Result<Option<V::Value<'s>>, HeapError> {
        let full = |node: &Open<'s, K, V>| node.len() == MOST;
        let mut node = match self.top() {
            Some(top) if full(&top) => {
                let above = s.tree_node(false)?;
                if let Some(children) = above.children() {
                    children.set(0, Some(&top.node));
                }
                let Some(above) = Open::new(above) else {
                    return Err(torn());
                };
                above.split_child(s, 0)?;
                self.set_root(Some(&above.node));
                above
            }
            Some(top) => top,
            None => {
                let leaf = s.tree_node(true)?;
                self.set_root(Some(&leaf));
                match Open::new(leaf) {
                    Some(leaf) => leaf,
                    None => return Err(torn()),
                }
            }
        };
        loop {
            let at = match node.search(key) {
                Ok(at) => {
                    let before = node.value(at);
                    if node.values.raw().has_quietly(at) {
                        V::put(&node.values, at, &value);
                    }
                    return Ok(before);
                }
                Err(at) => at,
            };
            if node.is_leaf() {
                let kept = K::keep(s, key)?;
                node.open_gap(at);
                node.put(at, &(kept, value));
                self.set_count(self.count() + 1);
                return Ok(None);
            }
            match node.child(at) {
                Some(child) if full(&child) => {
                    node.split_child(s, at)?;
                    if full(&child) {
                        return Err(torn());
                    }
                }
                Some(child) => node = child,
                None => return Err(torn()),
            }
        }
    }

    /// Takes a value out.
    pub fn remove(&self, key: &K::Query) -> Option<V::Value<'s>> {
        let top = self.top()?;
        let value = top.remove(key);
        if top.len() == 0 {
            self.set_root(top.take_child(0).as_ref());
        }
        if value.is_some() {
            self.set_count(self.count().saturating_sub(1));
        }
        value
    }

    pub fn clear(&self) {
        self.set_root(None);
        self.set_count(0);
    }

    /// Keys and values in the order of keys.
    pub fn iter(&self) -> TreeIter<'s, K, V> {
        let mut iter = TreeIter { path: Vec::new() };
        iter.go_down(self.top());
        iter
    }

    /// Keys and values from this key on.
    pub fn range_from(&self, key: &K::Query) -> TreeIter<'s, K, V> {
        let mut path = Vec::new();
        let mut next = self.top();
        while let Some(node) = next {
            let (Ok(at) | Err(at)) = node.search(key);
            next = match node.search(key) {
                Ok(_) => None,
                Err(at) => node.child(at),
            };
            path.push((node, at));
        }
        TreeIter { path }
    }
}

/// Keys and values of a tree.
pub struct TreeIter<'s, K: Key, V: Element> {
    /// Nodes from the root down, and which of their keys comes next.
    path: Vec<(Open<'s, K, V>, usize)>,
}

impl<K: Key, V: Element> std::fmt::Debug for TreeIter<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TreeIter({} deep)", self.path.len())
    }
}

impl<'s, K: Key, V: Element> TreeIter<'s, K, V> {
    fn go_down(&mut self, mut next: Option<Open<'s, K, V>>) {
        while let Some(node) = next {
            next = node.child(0);
            self.path.push((node, 0));
        }
    }
}

impl<'s, K: Key, V: Element> Iterator for TreeIter<'s, K, V> {
    type Item = Entry<'s, K, V>;
    fn next(&mut self) -> Option<Entry<'s, K, V>> {
        loop {
            let (node, at) = self.path.last_mut()?;
            if *at >= node.len() {
                self.path.pop();
                continue;
            }
            let entry = node.entry(*at);
            *at += 1;
            let below = node.child(*at);
            self.go_down(below);
            if entry.is_some() {
                return entry;
            }
        }
    }
}
