//! The shadow model: what memory must hold, judged only by what was asked and what was answered.
//!
//! For every grant it keeps the settled bytes and the writes whose fate is not settled. A byte that
//! is read must be the settled one, or that of a write which was under way while it was read. The
//! first words of a grant are for atomic operations: every addition that was acknowledged must be
//! found exactly once, in an order that explains every old value that was returned.
//!
//! The model relies on one discipline, which is also a client's: at any time all writes to a grant
//! travel on one lane, so that their order is known.

use muninn_types::GrantId;
use std::collections::BTreeMap;

/// Which grant of which life of which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub server: usize,
    pub epoch: u32,
    pub grant: GrantId,
}

/// A part of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub key: Key,
    pub offset: u32,
    pub len: u32,
}

/// Words 0..4 are added to, words 4..8 are swapped; the rest is for reads and writes.
pub const ADD_WORDS: usize = 4;
pub const WORDS: usize = 8;
pub const WORDS_BYTES: u32 = 8 * WORDS as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    No,
    Asked,
    Yes,
}

#[derive(Debug)]
struct Unsettled {
    id: u64,
    offset: u32,
    data: Vec<u8>,
    /// Nobody waits for it: it may happen, or have happened in part, or not.
    given_up: bool,
}

#[derive(Debug, Default)]
struct AddWord {
    /// Old value and what was added.
    acked: Vec<(u64, u64)>,
    given_up: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct SwapWord {
    pub value: u64,
    pub busy: bool,
    pub unknown: bool,
}

#[derive(Debug)]
pub struct Grant {
    pub bytes: u32,
    pub owner: usize,
    pub frozen: Frozen,
    /// The lane its writes travel on.
    pub lane: usize,
    /// Atomic operations under way, and reads of the words.
    pub atomics: u32,
    pub word_reads: u32,
    pub swaps: [SwapWord; WORDS - ADD_WORDS],
    adds: [AddWord; ADD_WORDS],
    settled: Vec<u8>,
    unsettled: Vec<Unsettled>,
    /// What was settled while reads were under way: when, where and what.
    recent: Vec<(u64, u32, Vec<u8>)>,
    reads: u32,
    pub touched: bool,
}

/// A read under way: what was settled when it was asked for.
#[derive(Debug)]
pub struct Look {
    since: u64,
    before: Vec<u8>,
    frozen: bool,
    pub words: bool,
    pub fresh: bool,
}

#[derive(Debug, Default)]
pub struct Shadow {
    pub grants: BTreeMap<Key, Grant>,
    clock: u64,
}

/// Bytes of a client: never zero, and never those of another client.
pub fn pattern(client: usize, random: u8) -> u8 {
    ((client as u8 + 1) << 5) | (random & 31)
}

fn whose(byte: u8) -> String {
    match byte >> 5 {
        0 if byte == 0 => "nobody (zero)".to_string(),
        0 => "nobody".to_string(),
        n => format!("client {}", n - 1),
    }
}

/// Whether some of these add up to `sum`.
fn some_of(parts: &[u64], sum: u64) -> bool {
    let count = parts.len().min(12);
    (0u32..1 << count).any(|set| {
        let chosen = parts[..count].iter().enumerate();
        let chosen = chosen.filter(|(i, _)| set >> i & 1 == 1);
        chosen.fold(0u64, |a, (_, b)| a.wrapping_add(*b)) == sum
    })
}

impl Grant {
    pub fn is_quiet(&self) -> bool {
        self.unsettled.is_empty() && self.atomics == 0
    }
    pub fn writes_waited_for(&self) -> bool {
        self.unsettled.iter().any(|write| !write.given_up)
    }
    pub fn can_add(&self, word: usize) -> bool {
        self.adds[word].given_up.len() < 6
    }

    /// What is settled covers these bytes from now on.
    fn settle(&mut self, id: u64, offset: u32, data: &[u8], clock: u64) {
        let (start, end) = (offset, offset + data.len() as u32);
        // What was given up before this on the same lane cannot come after it.
        let mut rest = Vec::new();
        let (reads, recent) = (self.reads, &mut self.recent);
        self.unsettled.retain_mut(|write| {
            let (from, to) = (write.offset, write.offset + write.data.len() as u32);
            if write.id >= id || !write.given_up || to <= start || from >= end {
                return true;
            }
            if from < start {
                let data = write.data[..(start - from) as usize].to_vec();
                rest.push((write.id, from, data));
            }
            if to > end {
                rest.push((write.id, end, write.data[(end - from) as usize..].to_vec()));
            }
            if reads > 0 {
                // A read under way may still have met it.
                recent.push((clock, from, std::mem::take(&mut write.data)));
            }
            false
        });
        let rest = rest.into_iter().map(|(id, offset, data)| Unsettled {
            id,
            offset,
            data,
            given_up: true,
        });
        self.unsettled.extend(rest);
        if self.reads > 0 {
            self.recent.push((clock, offset, data.to_vec()));
        }
        self.settled[start as usize..end as usize].copy_from_slice(data);
    }

    fn explain(&self, at: u32, byte: u8, since: u64) -> bool {
        let in_it = |offset: u32, data: &[u8]| {
            at.checked_sub(offset)
                .and_then(|i| data.get(i as usize))
                .is_some_and(|b| *b == byte)
        };
        self.settled[at as usize] == byte
            || self.unsettled.iter().any(|w| in_it(w.offset, &w.data))
            || (self.recent.iter()).any(|(when, o, data)| *when > since && in_it(*o, data))
    }

    fn check_words(&self, words: &[u8]) -> Result<(), String> {
        for (i, word) in words.chunks_exact(8).enumerate().take(WORDS) {
            let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if i < ADD_WORDS {
                self.adds[i]
                    .check(value)
                    .map_err(|what| format!("counter {i}: {what}"))?;
            } else {
                let model = &self.swaps[i - ADD_WORDS];
                if !model.unknown && model.value != value {
                    let want = model.value;
                    return Err(format!(
                        "word {i} is {value:#x}, its last swap left {want:#x}"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl AddWord {
    /// Every addition exactly once, in an order that explains the old values.
    fn check(&self, value: u64) -> Result<(), String> {
        let mut acked = self.acked.clone();
        acked.sort_unstable();
        let mut sum = 0u64;
        for (old, add) in acked {
            if !some_of(&self.given_up, old.wrapping_sub(sum)) {
                return Err(format!(
                    "an addition found {old} where those before it make {sum}"
                ));
            }
            sum = sum.wrapping_add(add);
        }
        if some_of(&self.given_up, value.wrapping_sub(sum)) {
            Ok(())
        } else {
            Err(format!(
                "it is {value}, the additions that were acknowledged make {sum}"
            ))
        }
    }
}

impl Shadow {
    pub fn granted(
        &mut self,
        key: Key,
        bytes: u32,
        owner: usize,
        lane: usize,
    ) -> Result<(), String> {
        let grant = Grant {
            bytes,
            owner,
            frozen: Frozen::No,
            lane,
            atomics: 0,
            word_reads: 0,
            swaps: Default::default(),
            adds: Default::default(),
            settled: vec![0; bytes as usize],
            unsettled: Vec::new(),
            recent: Vec::new(),
            reads: 0,
            touched: false,
        };
        match self.grants.insert(key, grant) {
            None => Ok(()),
            Some(_) => Err(format!("{} was granted twice", key.grant)),
        }
    }

    pub fn get(&self, key: Key) -> &Grant {
        &self.grants[&key]
    }
    pub fn get_mut(&mut self, key: Key) -> &mut Grant {
        self.grants
            .get_mut(&key)
            .expect("grants are never forgotten")
    }

    /// A write is posted.
    pub fn writing(&mut self, id: u64, parts: &[Part], data: &[u8]) {
        let mut at = 0;
        for part in parts {
            let grant = self.get_mut(part.key);
            grant.touched = true;
            grant.unsettled.push(Unsettled {
                id,
                offset: part.offset,
                data: data[at..at + part.len as usize].to_vec(),
                given_up: false,
            });
            at += part.len as usize;
        }
    }
    /// A write was acknowledged.
    pub fn written(&mut self, id: u64, parts: &[Part], data: &[u8]) {
        self.clock += 1;
        let clock = self.clock;
        let mut at = 0;
        for part in parts {
            let grant = self.get_mut(part.key);
            grant
                .unsettled
                .retain(|write| write.id != id || write.given_up);
        }
        for part in parts {
            let data = &data[at..at + part.len as usize];
            self.get_mut(part.key).settle(id, part.offset, data, clock);
            at += part.len as usize;
        }
    }
    /// Nobody will learn what became of a write.
    pub fn give_up_write(&mut self, id: u64, parts: &[Part]) {
        for part in parts {
            let unsettled = &mut self.get_mut(part.key).unsettled;
            let its = unsettled.iter_mut().filter(|write| write.id == id);
            its.for_each(|write| write.given_up = true);
        }
    }

    /// A read is posted.
    pub fn look(&mut self, parts: &[Part]) -> Look {
        let mut look = Look {
            since: self.clock,
            before: Vec::new(),
            frozen: true,
            words: false,
            fresh: true,
        };
        for part in parts {
            let words = part.offset < WORDS_BYTES;
            let grant = self.get_mut(part.key);
            grant.reads += 1;
            grant.word_reads += u32::from(words);
            let range = part.offset as usize..(part.offset + part.len) as usize;
            look.before.extend_from_slice(&grant.settled[range]);
            look.frozen &= grant.frozen == Frozen::Yes;
            look.fresh &= !grant.touched;
            look.words |= words;
        }
        look
    }
    /// A read ended without an answer.
    pub fn looked_away(&mut self, parts: &[Part]) {
        for part in parts {
            let grant = self.get_mut(part.key);
            grant.reads -= 1;
            grant.word_reads -= u32::from(part.offset < WORDS_BYTES);
            if grant.reads == 0 {
                grant.recent.clear();
            }
        }
    }
    /// A read was answered with these bytes.
    pub fn seen(&mut self, look: &Look, parts: &[Part], bytes: &[u8]) -> Result<(), String> {
        let (mut at, clock) = (0, self.clock);
        for part in parts {
            let len = part.len as usize;
            let (got, before) = (&bytes[at..at + len], &look.before[at..at + len]);
            let grant = self.get_mut(part.key);
            let mut skip = 0;
            if part.offset == 0 && len >= WORDS_BYTES as usize {
                grant
                    .check_words(&got[..WORDS_BYTES as usize])
                    .map_err(|what| format!("grant {}, {what}", part.key.grant))?;
                skip = WORDS_BYTES as usize;
            }
            let range = part.offset as usize + skip..part.offset as usize + len;
            if got[skip..] != grant.settled[range] {
                for i in skip..len {
                    let place = part.offset + i as u32;
                    if got[i] != before[i] && !grant.explain(place, got[i], look.since) {
                        return Err(format!(
                            "grant {} of client {} on server {} byte {place}: read {:#04x} of {}, \
                             expected {:#04x}",
                            part.key.grant,
                            grant.owner,
                            part.key.server,
                            got[i],
                            whose(got[i]),
                            grant.settled[place as usize],
                        ));
                    }
                }
                if look.frozen {
                    // It must stay as it was seen now.
                    let (offset, got) = (part.offset + skip as u32, got[skip..].to_vec());
                    grant.settle(u64::MAX, offset, &got, clock);
                }
            }
            at += len;
        }
        self.looked_away(parts);
        Ok(())
    }

    pub fn added(&mut self, key: Key, word: usize, add: u64, old: Option<u64>) {
        let grant = self.get_mut(key);
        grant.atomics -= 1;
        match old {
            Some(old) => grant.adds[word].acked.push((old, add)),
            None => grant.adds[word].given_up.push(add),
        }
    }
}
