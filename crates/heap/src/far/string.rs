//! A text that grows.

use super::vec::FarVec;
use crate::error::HeapError;
use crate::mutator::Scope;
use crate::typed::{Local, Ref};
use muninn_heap_macros::Managed;

/// A text that can be added to; one that stays as it is takes less as a `str`. Make one with
/// [`Scope::string`].
#[derive(Debug, Managed)]
pub struct FarString {
    bytes: Ref<FarVec<u8>>,
}

impl<'s> Scope<'s> {
    /// A new text.
    pub fn string(&self, text: &str) -> Result<Local<'s, FarString>, HeapError> {
        let bytes = Some(self.vec()?);
        let string = self.alloc(FarStringInit { bytes })?;
        string.push_str(self, text)?;
        Ok(string)
    }
}

impl<'s> Local<'s, FarString> {
    /// Bytes of the text.
    pub fn len(&self) -> usize {
        self.bytes().map_or(0, |bytes| bytes.len())
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn push_str(&self, s: &Scope<'s>, text: &str) -> Result<(), HeapError> {
        match self.bytes() {
            Some(bytes) => bytes.extend(s, text.bytes()),
            None => Ok(()),
        }
    }
    pub fn push(&self, s: &Scope<'s>, letter: char) -> Result<(), HeapError> {
        self.push_str(s, letter.encode_utf8(&mut [0; 4]))
    }
    /// Takes the last letter.
    pub fn pop(&self) -> Option<char> {
        let letter = self.text().pop()?;
        let bytes = self.bytes()?;
        bytes.truncate(bytes.len().saturating_sub(letter.len_utf8()));
        Some(letter)
    }
    pub fn clear(&self) {
        if let Some(bytes) = self.bytes() {
            bytes.clear();
        }
    }
    /// A copy of the text. What two mutators mixed up shows as �.
    pub fn text(&self) -> String {
        let bytes = self.bytes().map_or_else(Vec::new, |bytes| bytes.to_vec());
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}
