//! What memory must hold: the shadow of every page, kept as the few numbers it follows from.
//!
//! A page was filled from one number (0: zeros) and has a few small writes on top. Contents do not
//! depend on the place, so whatever copies or moves pages copies or moves their shadows. A page
//! after `MADV_FREE` holds its old contents or zeros, and nobody can know which: then both are right
//! and neither goes into the digest.

use crate::dice::{Digest, mix, nth};

pub const PAGE: usize = 4096;
pub const WORDS: usize = PAGE / 8;

/// Small writes on top of one page; with more, it is filled anew.
const LAYERS_MAX: usize = 6;

/// Bytes `from..to` of a page, each of which follows from `id` and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    pub from: u16,
    pub to: u16,
    pub id: u64,
}

impl Layer {
    fn byte(&self, n: u16) -> u8 {
        mix(self.id ^ u64::from(n)) as u8
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// 0: zeros.
    pub base: u64,
    pub layers: Vec<Layer>,
    /// It may be zeros as well.
    pub either: bool,
}

impl Content {
    pub fn of(base: u64) -> Content {
        let (layers, either) = (Vec::new(), false);
        Content {
            base,
            layers,
            either,
        }
    }

    fn word(&self, n: usize) -> u64 {
        match self.base {
            0 => 0,
            base => nth(base, n as u64),
        }
    }

    /// All of it, layers included.
    pub fn words(&self) -> [u64; WORDS] {
        let mut words = std::array::from_fn(|n| self.word(n));
        for layer in &self.layers {
            for n in layer.from..layer.to {
                let (word, shift) = (usize::from(n) / 8, n % 8 * 8);
                words[word] &= !(0xff << shift);
                words[word] |= u64::from(layer.byte(n)) << shift;
            }
        }
        words
    }

    /// A page of it, to memory. Not inline, as below: deep recursions need small frames.
    #[inline(never)]
    pub fn write(&self, at: usize) {
        for (n, word) in self.words().into_iter().enumerate() {
            // SAFETY: the actor owns this page, and its shadow says that it may be written.
            unsafe { ((at + n * 8) as *mut u64).write_volatile(word) };
        }
    }

    /// A few bytes on top, to memory and to the shadow.
    pub fn poke(&mut self, at: usize, layer: Layer) {
        if self.either || self.layers.len() == LAYERS_MAX {
            *self = Content::of(layer.id);
            self.write(at);
        }
        for n in layer.from..layer.to {
            // SAFETY: as above.
            unsafe { ((at + usize::from(n)) as *mut u8).write_volatile(layer.byte(n)) };
        }
        self.layers.push(layer);
    }

    /// A page without small writes is there. Fit for a handler on a small stack.
    pub fn is_at(&self, at: usize) -> bool {
        (0..WORDS).all(|n| read(at, n) == self.word(n))
    }

    /// Compares a page with what it must be, and adds it to the sum.
    #[inline(never)]
    pub fn check(&self, at: usize, digest: &mut Digest) -> Result<(), String> {
        let expected = self.words();
        let mut sum = 0u64;
        for (n, expected) in expected.iter().enumerate() {
            let found = read(at, n);
            if found != *expected {
                if self.either && is_zero(at) {
                    return Ok(());
                }
                return Err(wrong(at, n, &self.words(), found));
            }
            sum = (sum ^ found)
                .wrapping_mul(0x0000_0100_0000_01B3)
                .rotate_left(7);
        }
        if !self.either {
            digest.fold(sum);
        }
        Ok(())
    }
}

/// Every load is one from memory.
fn read(at: usize, n: usize) -> u64 {
    // SAFETY: the actor owns this page, and its shadow says that it may be read.
    unsafe { ((at + n * 8) as *const u64).read_volatile() }
}

fn is_zero(at: usize) -> bool {
    (0..WORDS).all(|n| read(at, n) == 0)
}

/// What is there instead, as whoever looks for the mistake will ask.
fn wrong(at: usize, n: usize, expected: &[u64; WORDS], found: u64) -> String {
    let bad = (0..WORDS).filter(|&n| read(at, n) != expected[n]).count();
    let holds = if is_zero(at) {
        "it is all zeros".to_string()
    } else {
        format!("{bad} of {WORDS} words are wrong")
    };
    let (expected, again) = (expected[n], read(at, n));
    format!(
        "word {n} of the page at {at:#x} is {found:#018x} and not {expected:#018x}; {holds}; read \
         again it is {again:#018x}"
    )
}

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guard {
    Closed,
    ReadOnly,
    Open,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub content: Content,
    pub guard: Guard,
    /// Which transfer by reference has it; 0: none. Nobody writes to it until that is done.
    pub held: u32,
    pub wiped_on_fork: bool,
    pub not_forked: bool,
    pub locked: bool,
}

impl Page {
    pub fn new(content: Content) -> Page {
        Page {
            content,
            guard: Guard::Open,
            held: 0,
            wiped_on_fork: false,
            not_forked: false,
            locked: false,
        }
    }

    pub fn zero() -> Page {
        Page::new(Content::default())
    }

    /// Whether it can be copied: one that may be zeros may become zeros halfway.
    pub fn is_steady(&self) -> bool {
        self.is_readable() && !self.content.either
    }

    pub fn is_readable(&self) -> bool {
        self.guard >= Guard::ReadOnly
    }

    pub fn is_writable(&self) -> bool {
        self.guard == Guard::Open && self.held == 0
    }

    /// As fresh memory is: nothing was said about it.
    pub fn is_plain(&self) -> bool {
        self.guard == Guard::Open && !self.wiped_on_fork && !self.not_forked && !self.locked
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole pages of its own mapping: every call is allowed.
    Mapped,
    /// From malloc: may be read and written, and freed.
    Heap,
    /// Static memory or above the break: stays for ever.
    Fixed,
}

#[derive(Clone, Debug)]
pub struct Area {
    pub at: usize,
    pub kind: Kind,
    pub pages: Vec<Page>,
}

impl Area {
    pub fn new(at: usize, kind: Kind, pages: usize) -> Area {
        Area {
            at,
            kind,
            pages: vec![Page::zero(); pages],
        }
    }

    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    pub fn address(&self, page: usize) -> usize {
        self.at + page * PAGE
    }
}
