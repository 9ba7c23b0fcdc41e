//! A hash table: open addressing, places in a row, three arrays beside each other.

use super::{Element, Key};
use crate::error::HeapError;
use crate::mutator::Scope;
use crate::typed::{Local, Ref};
use muninn_heap_macros::Managed;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Values or references by keys. Make one with [`Scope::hash_map`].
#[derive(Debug, Managed)]
pub struct FarHashMap<K: Key, V: Element> {
    count: usize,
    /// Places that are not empty: with those that something was taken from.
    used: usize,
    hashes: Ref<[u64]>,
    keys: Ref<K::Array>,
    values: Ref<V::Array>,
}

// Instead of a hash.
const EMPTY: u64 = 0;
const GONE: u64 = 1;
const FIRST_CAPACITY: usize = 8;

/// Of this process, and random: nobody outside can choose keys that fall together.
static HASHER: OnceLock<RandomState> = OnceLock::new();

fn hash<K: Key>(query: &K::Query) -> u64 {
    let hasher = HASHER.get_or_init(RandomState::new);
    hasher.hash_one(query).max(GONE + 1)
}

impl<'s> Scope<'s> {
    /// A new, empty map.
    pub fn hash_map<K: Key, V: Element>(&self) -> Result<Local<'s, FarHashMap<K, V>>, HeapError> {
        self.alloc(FarHashMapInit {
            count: 0,
            used: 0,
            hashes: None,
            keys: None,
            values: None,
        })
    }
}

/// The arrays of a map, which have as many places each.
struct Parts<'s, K: Key, V: Element> {
    hashes: Local<'s, [u64]>,
    keys: Local<'s, K::Array>,
    values: Local<'s, V::Array>,
    places: usize,
}

impl<'s, K: Key, V: Element> Parts<'s, K, V> {
    fn hash_at(&self, place: usize) -> u64 {
        self.hashes.raw().get(place * 8)
    }
    fn put_hash(&self, place: usize, hash: u64) {
        self.hashes.raw().set(place * 8, hash);
    }

    /// Where a key is; else where it may go.
    fn find(&self, hash: u64, query: &K::Query) -> Result<usize, Option<usize>> {
        let mut free = None;
        for step in 0..self.places {
            let place = (hash as usize).wrapping_add(step) & (self.places - 1);
            match self.hash_at(place) {
                EMPTY => return Err(free.or(Some(place))),
                GONE => free = free.or(Some(place)),
                other if other == hash => {
                    let key = K::at(&self.keys, place);
                    if key.is_some_and(|key| K::is_equal(&key, query)) {
                        return Ok(place);
                    }
                }
                _ => {}
            }
        }
        Err(free)
    }

    /// A place for a key that is not there; the table has one.
    fn first_empty(&self, hash: u64) -> Option<usize> {
        let places = 0..self.places;
        let mut places = places.map(|step| (hash as usize).wrapping_add(step) & (self.places - 1));
        places.find(|place| self.hash_at(*place) == EMPTY)
    }
}

impl<'s, K: Key, V: Element> Local<'s, FarHashMap<K, V>> {
    fn parts(&self) -> Option<Parts<'s, K, V>> {
        let (hashes, keys, values) = (self.hashes()?, self.keys()?, self.values()?);
        // The same for all, unless another mutator has just exchanged them: then what all have.
        let places = hashes.len().min(keys.raw().len()).min(values.raw().len());
        let places = match places {
            0 => return None,
            places => 1 << places.ilog2(),
        };
        Some(Parts {
            hashes,
            keys,
            values,
            places,
        })
    }

    pub fn len(&self) -> usize {
        self.count()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &K::Query) -> Option<V::Value<'s>> {
        let parts = self.parts()?;
        let place = parts.find(hash::<K>(key), key).ok()?;
        V::at(&parts.values, place)
    }
    pub fn contains_key(&self, key: &K::Query) -> bool {
        let parts = self.parts();
        parts.is_some_and(|parts| parts.find(hash::<K>(key), key).is_ok())
    }

    /// Puts a value where a key says; what was there.
    pub fn insert(
        &self,
        s: &Scope<'s>,
        key: &K::Query,
        value: V::Value<'s>,
    ) -> Result<Option<V::Value<'s>>, HeapError> {
        let hash = hash::<K>(key);
        let parts = match self.parts() {
            // One of eight places stays empty, so that searches end.
            Some(parts) if self.used() < parts.places / 8 * 7 => parts,
            old => self.grow(s, old)?,
        };
        let place = match parts.find(hash, key) {
            Ok(place) => {
                let before = V::at(&parts.values, place);
                V::put(&parts.values, place, &value);
                return Ok(before);
            }
            Err(place) => place,
        };
        let kept = K::keep(s, key)?;
        let (parts, place) = match place {
            Some(place) => (parts, place),
            // Other mutators have filled it meanwhile.
            None => {
                let parts = self.grow(s, Some(parts))?;
                let place = parts.first_empty(hash).expect("half of it is empty");
                (parts, place)
            }
        };
        if parts.hash_at(place) == EMPTY {
            self.set_used(self.used() + 1);
        }
        K::put(&parts.keys, place, &kept);
        V::put(&parts.values, place, &value);
        parts.put_hash(place, hash);
        self.set_count(self.count() + 1);
        Ok(None)
    }

    /// Larger arrays, or as large ones, without what is gone.
    fn grow(
        &self,
        s: &Scope<'s>,
        old: Option<Parts<'s, K, V>>,
    ) -> Result<Parts<'s, K, V>, HeapError> {
        let places = (2 * (self.count() + 1)).next_power_of_two();
        let places = places.max(FIRST_CAPACITY);
        let new = Parts::<K, V> {
            hashes: s.alloc_zeros(places)?,
            keys: K::alloc(s, places)?,
            values: V::alloc(s, places)?,
            places,
        };
        let mut count = 0;
        if let Some(old) = &old {
            for place in 0..old.places {
                let hash = old.hash_at(place);
                let (key, value) = (K::at(&old.keys, place), V::at(&old.values, place));
                if hash > GONE
                    && let (Some(key), Some(value)) = (key, value)
                    && let Some(to) = new.first_empty(hash)
                {
                    K::put(&new.keys, to, &key);
                    V::put(&new.values, to, &value);
                    new.put_hash(to, hash);
                    count += 1;
                }
            }
        }
        self.set_hashes(Some(&new.hashes));
        self.set_keys(Some(&new.keys));
        self.set_values(Some(&new.values));
        self.set_used(count);
        self.set_count(count);
        Ok(new)
    }

    /// Takes a value out.
    pub fn remove(&self, key: &K::Query) -> Option<V::Value<'s>> {
        let parts = self.parts()?;
        let place = parts.find(hash::<K>(key), key).ok()?;
        let value = V::at(&parts.values, place);
        parts.put_hash(place, GONE);
        K::forget(&parts.keys, place);
        V::forget(&parts.values, place);
        self.set_count(self.count().saturating_sub(1));
        value
    }

    pub fn clear(&self) {
        self.set_hashes(None);
        self.set_keys(None);
        self.set_values(None);
        self.set_used(0);
        self.set_count(0);
    }

    /// Keys and values, in no order.
    pub fn iter(&self) -> MapIter<'s, K, V> {
        MapIter {
            parts: self.parts(),
            at: 0,
        }
    }
}

/// Keys and values of a map.
pub struct MapIter<'s, K: Key, V: Element> {
    parts: Option<Parts<'s, K, V>>,
    at: usize,
}

impl<K: Key, V: Element> std::fmt::Debug for MapIter<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MapIter(at {})", self.at)
    }
}

impl<'s, K: Key, V: Element> Iterator for MapIter<'s, K, V> {
    type Item = (K::Value<'s>, V::Value<'s>);
    fn next(&mut self) -> Option<Self::Item> {
        let parts = self.parts.as_ref()?;
        while self.at < parts.places {
            let place = self.at;
            self.at += 1;
            if parts.hash_at(place) > GONE
                && let Some(key) = K::at(&parts.keys, place)
                && let Some(value) = V::at(&parts.values, place)
            {
                return Some((key, value));
            }
        }
        None
    }
}
