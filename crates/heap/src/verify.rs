//! A re-tracer that stands outside of the collectors: it walks everything that can be reached, by
//! its own code, and sums it up so that two heaps can be compared whatever the places of objects.
//!
//! Objects are numbered in the order in which they are first reached; an object's part of the sum
//! is its number, type, length, plain bytes and the numbers of what it refers to. Equal sums mean
//! equal graphs with equal contents (up to a collision of a 64-bit hash).

use crate::error::HeapError;
use crate::heap::Inner;
use crate::plan::local::root_words;
use crate::world::Stopped;
use muninn_heap_agent::layout::{HEADER, Header, Mode, Shape};
use muninn_heap_agent::words::Words;
use std::collections::HashMap;

/// Everything that can be reached, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub objects: u64,
    pub bytes: u64,
    pub sum: u64,
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
}

pub(crate) fn audit(inner: &Inner, stopped: &Stopped<'_>) -> Result<Audit, HeapError> {
    let words = crate::words::CachedWords(&inner.pager);
    let types = inner.types();
    let wrong = |what: String| inner.lost().err().unwrap_or(HeapError::Lost(what));
    let load = |at: u64| words.load(at).map_err(|e| wrong(e.to_string()));
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let mut list: Vec<u64> = Vec::new();
    let mut audit = Audit::default();
    let mut number = |word: u64, list: &mut Vec<u64>| {
        let next = numbers.len() as u64;
        *numbers.entry(word).or_insert_with(|| {
            list.push(word);
            next
        })
    };
    for word in root_words(inner, stopped) {
        audit.sum = mix(audit.sum, number(word, &mut list));
    }
    let mut done = 0;
    while done < list.len() {
        let word = list[done];
        done += 1;
        if inner.geometry.split(word).is_none() {
            return Err(wrong(format!("{word:#x} is no reference")));
        }
        let at = match inner.geometry.mode {
            Mode::Direct => word,
            Mode::Indirect => {
                let address = inner.state.resolve(inner, word);
                if address.is_null() {
                    return Err(wrong(format!(
                        "{word:#x} is being moved in a stopped world"
                    )));
                }
                inner.pager.place(address)
            }
        };
        let header = Header(load(at)?);
        let Some(descriptor) = types.get(header.type_id()) else {
            return Err(wrong(format!(
                "there is no object at {at:#x}: {:#x}",
                header.0
            )));
        };
        if inner.geometry.mode == Mode::Indirect && header.entry() != word as u32 {
            return Err(wrong(format!(
                "the object at {at:#x} is not that of {word:#x}"
            )));
        }
        audit.objects += 1;
        audit.bytes += descriptor.size(header.len());
        let mut sum = mix(u64::from(header.type_id()), header.len());
        let fields = at + HEADER;
        let (refs, bytes): (Vec<u64>, u64) = match &descriptor.shape {
            Shape::Struct { bytes, refs } => (
                refs.iter().map(|r| u64::from(*r)).collect(),
                u64::from(*bytes),
            ),
            Shape::Values { bytes } => (Vec::new(), u64::from(*bytes) * header.len()),
            Shape::Refs => ((0..header.len()).map(|i| i * 8).collect(), 8 * header.len()),
        };
        let mut next_ref = refs.iter().peekable();
        for offset in (0..bytes).step_by(8) {
            let value = load(fields + offset)?;
            if next_ref.next_if(|r| **r == offset).is_some() {
                let named = if value == 0 {
                    u64::MAX
                } else {
                    number(value, &mut list)
                };
                sum = mix(sum, named);
            } else {
                let tail = bytes - offset;
                let mask = if tail >= 8 {
                    u64::MAX
                } else {
                    (1 << (8 * tail)) - 1
                };
                sum = mix(sum, value & mask);
            }
        }
        audit.sum = mix(audit.sum, sum);
    }
    Ok(audit)
}
