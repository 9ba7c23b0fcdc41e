//! References that outlive a scope.

use crate::error::HeapError;
use crate::heap::Inner;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

/// The table of roots: words that the collector reads and rewrites.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    words: Vec<u64>,
    free: Vec<u32>,
    /// Name, place in the table, type.
    names: HashMap<String, (u32, u16)>,
}

impl Roots {
    pub fn add(&mut self, word: u64) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.words[at as usize] = word;
                at
            }
            None => {
                self.words.push(word);
                self.words.len() as u32 - 1
            }
        }
    }
    pub fn get(&self, at: u32) -> u64 {
        self.words[at as usize]
    }
    fn remove(&mut self, at: u32) {
        self.words[at as usize] = 0;
        self.free.push(at);
    }
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.words.iter().copied().filter(|word| *word != 0)
    }
    pub fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.words.iter_mut().filter(|word| **word != 0)
    }
    pub fn name(&mut self, name: &str, word: u64, type_id: u16) {
        let at = self.add(word);
        if let Some((old, _)) = self.names.insert(name.to_string(), (at, type_id)) {
            self.remove(old);
        }
    }
    pub fn unname(&mut self, name: &str) -> bool {
        match self.names.remove(name) {
            Some((at, _)) => {
                self.remove(at);
                true
            }
            None => false,
        }
    }
}

/// A reference that may be kept anywhere and as long as one likes, and sent to other threads. The
/// object lives as long as it does.
pub struct Root<T: ?Sized> {
    pub(crate) inner: Arc<Inner>,
    pub(crate) at: u32,
    of: PhantomData<fn(&T) -> &T>,
}

impl<T: ?Sized> Root<T> {
    pub(crate) fn new(inner: &Arc<Inner>, word: u64) -> Root<T> {
        Root {
            inner: Arc::clone(inner),
            at: inner.roots().add(word),
            of: PhantomData,
        }
    }

    pub(crate) fn find(inner: &Arc<Inner>, name: &str, asked: u16) -> Result<Root<T>, HeapError> {
        // One lock for both, so that no collection moves the object between the two.
        let at = {
            let mut roots = inner.roots();
            let (at, found) = *roots
                .names
                .get(name)
                .ok_or_else(|| HeapError::NoRoot(name.to_string()))?;
            if found != asked {
                let types = inner.types();
                let text = |t| types.get(t).map_or_else(String::new, |t| t.name.clone());
                return Err(HeapError::TypeMismatch {
                    name: name.to_string(),
                    found: text(found),
                    asked: text(asked),
                });
            }
            let word = roots.get(at);
            roots.add(word)
        };
        Ok(Root {
            inner: Arc::clone(inner),
            at,
            of: PhantomData,
        })
    }
}

impl<T: ?Sized> Clone for Root<T> {
    fn clone(&self) -> Root<T> {
        let mut roots = self.inner.roots();
        let word = roots.get(self.at);
        Root {
            inner: Arc::clone(&self.inner),
            at: roots.add(word),
            of: PhantomData,
        }
    }
}

impl<T: ?Sized> Drop for Root<T> {
    fn drop(&mut self) {
        self.inner.roots().remove(self.at);
    }
}

impl<T: ?Sized> std::fmt::Debug for Root<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Root({} of heap {})", self.at, self.inner.id)
    }
}
