//! A loop that feeds a fuzz target with random and with mutated bytes for as many seconds as it is told.
//!
//! It has no idea of coverage. An input that ends the process can be had again by its seed, which is printed
//! every ten seconds and when the target panics.

use std::time::{Duration, Instant};

/// Inputs that are kept to be mutated further.
const KEPT: usize = 256;
const LONGEST: u64 = 2048;

#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn main(_: i32, _: *const *const u8) -> i32 {
            $crate::run(|$bytes: &[u8]| $body);
            0
        }
    };
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    fn below(&mut self, n: u64) -> usize {
        (self.next() % n.max(1)) as usize
    }
}

/// Words that lengths and counts are likely to be compared with.
const WORDS: [u64; 10] = [0, 1, 2, 8, 64, 255, 1024, 4096, 262_144, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len() as u64);
    match dice.below(8) {
        0..3 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
        3 => bytes.truncate(at),
        4 => bytes.extend((0..dice.below(64)).map(|_| dice.next() as u8)),
        5 => {
            let word = WORDS[dice.below(WORDS.len() as u64)].to_le_bytes();
            let wide = [1, 2, 4, 8][dice.below(4)];
            let end = (at + wide).min(bytes.len());
            bytes[at..end].copy_from_slice(&word[..end - at]);
        }
        6 => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[dice.below(other.len() as u64).min(other.len())..]);
        }
        _ if !bytes.is_empty() => bytes[at] = dice.below(40) as u8,
        _ => bytes.push(dice.next() as u8),
    }
    bytes.truncate(LONGEST as usize);
}

pub fn run(target: impl Fn(&[u8])) {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let seconds = Duration::from_secs(words.next().unwrap_or(10));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = words.next().unwrap_or_else(|| clock.map_or(1, |now| now.as_nanos() as u64));
    println!("seed {seed}");
    let (mut dice, started) = (Dice(seed), Instant::now());
    let mut kept: Vec<Vec<u8>> = vec![Vec::new()];
    let (mut count, mut said) = (0u64, 10);
    while started.elapsed() < seconds {
        for _ in 0..1000 {
            let mut bytes = kept[dice.below(kept.len() as u64)].clone();
            let other = kept[dice.below(kept.len() as u64)].clone();
            for _ in 0..1 + dice.below(4) {
                mutate(&mut bytes, &other, &mut dice);
            }
            target(&bytes);
            count += 1;
            if kept.len() < KEPT {
                kept.push(bytes);
            } else if dice.below(16) == 0 {
                let at = dice.below(KEPT as u64);
                kept[at] = bytes;
            }
        }
        if started.elapsed().as_secs() >= said {
            println!("{count} inputs in {said} s, seed {seed}");
            said += 10;
        }
    }
    println!("{count} inputs, none of which broke it");
}
