//! Memory whose contents follow from its place.
//!
//! A span is a range of addresses and the index of its first word. The word at index `i` in
//! generation `g` is a hash of the seed, `g` and `i`; in generation 0 it is zero, as the kernel gives
//! it. A span that moves keeps its indices, so a page that came back in another's place is found.
//! Words are read and written one by one and never cached: what is checked is memory, not registers.

use crate::calls;

pub const PAGE: usize = 4096;
pub const WORDS: usize = PAGE / 8;

/// Whole pages of this many bytes.
pub fn whole(bytes: usize) -> usize {
    bytes & !(PAGE - 1)
}

/// A finalizer of good quality: neighbours, generations and seeds have nothing in common.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The word at an index, in a generation.
pub fn value(seed: u64, generation: u32, index: u64) -> u64 {
    if generation == 0 {
        return 0;
    }
    let base = mix(seed ^ (u64::from(generation) << 40));
    mix(base.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))) | 1
}

/// Random choices from a seed.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed ^ 0x6D75_6E69_6E6E))
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
    /// All of `0..n`, in random order.
    pub fn order(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub at: usize,
    pub len: usize,
    /// Of its first word.
    pub index: u64,
    pub seed: u64,
}

impl Span {
    pub fn new(at: usize, len: usize, seed: u64) -> Span {
        let index = 0;
        Span {
            at,
            len,
            index,
            seed,
        }
    }

    /// Fresh private anonymous memory.
    pub fn map(len: usize, seed: u64) -> Result<Span, String> {
        Ok(Span::new(calls::map(len)?, len, seed))
    }

    pub fn pages(&self) -> usize {
        self.len / PAGE
    }

    pub fn end(&self) -> usize {
        self.at + self.len
    }

    /// Bytes `from..from + len`, with the indices they have here.
    pub fn part(&self, from: usize, len: usize) -> Span {
        assert!(from + len <= self.len && from.is_multiple_of(8));
        Span {
            at: self.at + from,
            len,
            index: self.index + from as u64 / 8,
            seed: self.seed,
        }
    }

    /// Pages `from..from + count`.
    pub fn page_range(&self, from: usize, count: usize) -> Span {
        self.part(from * PAGE, count * PAGE)
    }

    pub fn page(&self, n: usize) -> Span {
        self.page_range(n, 1)
    }

    /// The same contents at another place.
    pub fn moved(&self, at: usize) -> Span {
        Span { at, ..*self }
    }

    fn word(&self, n: usize) -> *mut u64 {
        (self.at + n * 8) as *mut u64
    }

    pub fn write(&self, generation: u32) {
        for n in 0..self.len / 8 {
            let value = value(self.seed, generation, self.index + n as u64);
            // SAFETY: the span is mapped and writable, or the fault is what is being checked.
            unsafe { self.word(n).write_volatile(value) };
        }
    }

    pub fn read(&self, n: usize) -> u64 {
        // SAFETY: the span is mapped and readable, or the fault is what is being checked.
        unsafe { self.word(n).read_volatile() }
    }

    pub fn verify(&self, generation: u32) -> Result<(), String> {
        for n in 0..self.len / 8 {
            let expected = value(self.seed, generation, self.index + n as u64);
            let found = self.read(n);
            if found != expected {
                return Err(self.wrong(n, generation, expected, found));
            }
        }
        Ok(())
    }

    /// Every page once, in random order.
    pub fn verify_random(&self, generation: u32, dice: &mut Dice) -> Result<(), String> {
        for page in dice.order(self.pages()) {
            self.page(page as usize).verify(generation)?;
        }
        Ok(())
    }

    pub fn matches(&self, generation: u32) -> bool {
        (0..self.len / 8)
            .all(|n| self.read(n) == value(self.seed, generation, self.index + n as u64))
    }

    /// Whole pages that are each either of this generation or zero.
    pub fn verify_or_zero(&self, generation: u32) -> Result<(), String> {
        for page in 0..self.pages() {
            let page = self.page(page);
            if let Err(why) = page.verify(generation)
                // It may become zeros at any moment, also while it is looked at.
                && !page.matches(0)
            {
                return Err(why);
            }
        }
        Ok(())
    }

    /// What is there instead: the first question whoever looks for the mistake will ask.
    fn wrong(&self, n: usize, generation: u32, expected: u64, found: u64) -> String {
        let from = n / WORDS * WORDS;
        let count = WORDS.min(self.len / 8 - from);
        let page = self.part(from * 8, count * 8);
        let bad = |words: &Span| {
            (0..words.len / 8)
                .filter(|&i| words.read(i) != value(self.seed, generation, words.index + i as u64))
                .count()
        };
        let other = (0..generation + 8).find(|&g| g != generation && page.matches(g));
        let holds = match other {
            Some(0) => "the page is all zeros".to_string(),
            Some(g) => format!("the page is of generation {g}"),
            None => format!("{} of {count} words of the page are wrong", bad(&page)),
        };
        format!(
            "address {:#x} (page {} of {}, word {} of it, seed {}): expected {expected:#018x} of \
             generation {generation}, found {found:#018x}; {holds}; read again: {:#018x}",
            self.at + n * 8,
            n / WORDS,
            self.len / PAGE,
            n % WORDS,
            self.seed,
            self.read(n),
        )
    }
}

type Spoil = fn(&Span);

/// The checker itself: each kind of wrong memory is found, and called what it is.
pub fn self_test(args: &crate::args::Args) -> crate::Outcome {
    let span = Span::map(args.size, args.seed)?;
    let middle = span.page(span.pages() / 2);
    let spoil: [(&str, Spoil); 4] = [
        ("the page is all zeros", |page| page.write(0)),
        ("the page is of generation 1", |page| page.write(1)),
        ("1 of 512 words of the page are wrong", |page| {
            Span {
                index: page.index + 511,
                len: 8,
                at: page.at + 4088,
                ..*page
            }
            .write(1);
        }),
        ("512 of 512 words of the page are wrong", |page| {
            Span {
                index: page.index + WORDS as u64,
                ..*page
            }
            .write(2);
        }),
    ];
    for (said, spoil) in spoil {
        span.write(2);
        span.verify(2)?;
        spoil(&middle);
        match span.verify(2) {
            Err(wrong) if wrong.contains(said) => {}
            other => return Err(format!("'{said}' was expected, the check said {other:?}")),
        }
    }
    crate::ok("four kinds of wrong memory are found")
}
