//! Everything at once, at random, from several threads, for as long as asked.
//!
//! Each thread has an area of its own, cut into blocks, and knows the generation of every page
//! (zero: untouched or dropped). A step takes a block and writes, checks, drops, unmaps and maps
//! again, moves, protects or forks; blocks are swapped in place by `mremap`, so that a page's
//! contents wander. The other threads never stop, so everything happens beside faults and
//! reclaim. At the end every byte is checked. Two runs with one seed make the same steps in each
//! thread, up to where time ends them.

use crate::args::Args;
use crate::calls::{self, PRIVATE, RW};
use crate::span::{Dice, PAGE, Span};
use crate::{Outcome, ok};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pages of a block.
const BLOCK: usize = 128;

struct Worker {
    blocks: Vec<Span>,
    /// Of each page of each block.
    generations: Vec<[u32; BLOCK]>,
    dice: Dice,
    next: u32,
    steps: [u64; KINDS.len()],
}

const KINDS: [&str; 7] = [
    "write", "check", "drop", "unmap", "remap", "protect", "fork",
];

impl Worker {
    fn new(args: &Args, n: usize) -> Result<Worker, String> {
        let len = args.size / args.threads / (BLOCK * PAGE) * (BLOCK * PAGE);
        let whole = Span::map(len.max(BLOCK * PAGE), args.seed * 1000 + n as u64)?;
        let count = whole.pages() / BLOCK;
        Ok(Worker {
            blocks: (0..count)
                .map(|b| whole.page_range(b * BLOCK, BLOCK))
                .collect(),
            generations: vec![[0; BLOCK]; count],
            dice: Dice::new(args.seed * 77 + n as u64),
            next: 1,
            steps: [0; KINDS.len()],
        })
    }

    fn generation(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn step(&mut self, without: &[String]) -> Result<(), String> {
        let block = self.dice.below(self.blocks.len());
        let kind = match self.dice.below(200) {
            0..90 => 0,
            90..160 => 1,
            160..172 => 2,
            172..180 => 3,
            180..192 => 4,
            192..198 => 5,
            _ => 6,
        };
        if without.iter().any(|word| word == KINDS[kind]) {
            return Ok(());
        }
        self.steps[kind] += 1;
        let done = match kind {
            0 => self.write(block),
            1 => self.check(block),
            2 => self.drop_range(block),
            3 => self.unmap(block),
            4 => self.swap(block),
            5 => self.protect(block),
            _ => self.fork(),
        };
        done.map_err(|wrong| format!("{} of block {block}: {wrong}", KINDS[kind]))
    }

    /// A run of pages of a block.
    fn run(&mut self) -> (usize, usize) {
        let from = self.dice.below(BLOCK);
        let count = match self.dice.below(3) {
            0 => 1,
            1 => 1 + self.dice.below(8),
            _ => BLOCK,
        };
        (from, count.min(BLOCK - from))
    }

    fn write(&mut self, block: usize) -> Result<(), String> {
        let (from, count) = self.run();
        let generation = self.generation();
        for page in from..from + count {
            let span = self.blocks[block].page(page);
            // What is there first: a fault by reading, then one by writing.
            if self.dice.below(4) == 0 {
                span.verify(self.generations[block][page])?;
            }
            span.write(generation);
            self.generations[block][page] = generation;
        }
        Ok(())
    }

    fn check(&mut self, block: usize) -> Result<(), String> {
        let (from, count) = self.run();
        (from..from + count).try_for_each(|page| {
            let expected = self.generations[block][page];
            self.blocks[block].page(page).verify(expected)
        })
    }

    fn drop_range(&mut self, block: usize) -> Result<(), String> {
        let (from, count) = self.run();
        let gone = self.blocks[block].page_range(from, count);
        calls::advise(gone.at, gone.len, libc::MADV_DONTNEED)?;
        self.generations[block][from..from + count].fill(0);
        if self.dice.below(2) == 0 {
            gone.verify(0)?;
        }
        Ok(())
    }

    /// Away, and fresh memory in its place; or over it, in one call.
    fn unmap(&mut self, block: usize) -> Result<(), String> {
        let span = self.blocks[block];
        if self.dice.below(2) == 0 {
            calls::map_fixed(span.at, span.len, RW)?;
        } else {
            calls::unmap(span.at, span.len)?;
            // Another thread's mapping may have come into the hole.
            let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
            let at = match calls::map_at(span.at, span.len, RW, flags, -1) {
                Ok(at) => at,
                Err(_) => calls::map(span.len)?,
            };
            self.blocks[block] = span.moved(at);
        }
        self.generations[block] = [0; BLOCK];
        Ok(())
    }

    /// Two blocks change places, through a third; or one goes to a new place.
    fn swap(&mut self, block: usize) -> Result<(), String> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let len = BLOCK * PAGE;
        let place = calls::map_at(0, len, libc::PROT_NONE, PRIVATE, -1)?;
        let one = self.blocks[block];
        calls::remap(one.at, len, len, flags, place)?;
        self.blocks[block] = one.moved(place);
        if self.dice.below(2) == 0 {
            let other = self.dice.below(self.blocks.len());
            if other != block
                && calls::map_at(
                    one.at,
                    len,
                    libc::PROT_NONE,
                    PRIVATE | libc::MAP_FIXED_NOREPLACE,
                    -1,
                )
                .is_ok()
            {
                let two = self.blocks[other];
                calls::remap(two.at, len, len, flags, one.at)?;
                self.blocks[other] = two.moved(one.at);
                self.check_all_of(other)?;
            }
        }
        self.check_all_of(block)
    }

    fn check_all_of(&self, block: usize) -> Result<(), String> {
        (0..BLOCK).try_for_each(|page| {
            let expected = self.generations[block][page];
            self.blocks[block].page(page).verify(expected)
        })
    }

    fn protect(&mut self, block: usize) -> Result<(), String> {
        let span = self.blocks[block];
        calls::protect(span.at, span.len, libc::PROT_READ)?;
        self.check(block)?;
        calls::protect(span.at, span.len, RW)?;
        self.write(block)
    }

    /// The child checks a part of this thread's memory while everything goes on.
    fn fork(&mut self) -> Result<(), String> {
        let mut dice = self.dice.clone();
        let (blocks, generations) = (&self.blocks, &self.generations);
        let child = calls::fork_doing(|| {
            for _ in 0..blocks.len().min(24) {
                let block = dice.below(blocks.len());
                (0..BLOCK).try_for_each(|page| {
                    let expected = generations[block][page];
                    blocks[block].page(page).verify(expected)
                })?;
            }
            Ok(())
        })?;
        for _ in 0..4 {
            let block = self.dice.below(self.blocks.len());
            self.write(block)?;
        }
        calls::wait_good(child, "a child")
    }

    fn check_everything(&self) -> Result<(), String> {
        (0..self.blocks.len()).try_for_each(|block| {
            self.check_all_of(block)
                .map_err(|wrong| format!("at the end, block {block}: {wrong}"))
        })
    }
}

pub fn pressure(args: &Args) -> Outcome {
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let failed = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads)
            .map(|n| {
                let failed = &failed;
                scope.spawn(move || {
                    let mut worker = Worker::new(args, n)?;
                    let mut go = || {
                        // Everything is written once, so that it does not fit from the start.
                        for block in 0..worker.blocks.len() {
                            worker.blocks[block].write(1);
                            worker.generations[block] = [1; BLOCK];
                        }
                        while Instant::now() < until && !failed.load(Ordering::Relaxed) {
                            worker.step(&args.without)?;
                        }
                        worker.check_everything()
                    };
                    let done: Result<(), String> = go();
                    failed.fetch_or(done.is_err(), Ordering::Relaxed);
                    done.map_err(|wrong| format!("thread {n}, seed {}: {wrong}", args.seed))?;
                    Ok::<_, String>(worker.steps)
                })
            })
            .collect();
        let mut sum = [0u64; KINDS.len()];
        let mut first = Ok(());
        for worker in workers {
            let result = worker.join().map_err(|_| "a worker panicked".to_string());
            match result.and_then(|steps| steps) {
                Ok(steps) => sum.iter_mut().zip(steps).for_each(|(sum, n)| *sum += n),
                Err(wrong) => first = first.and(Err(wrong)),
            }
        }
        first.map(|()| sum)
    })?;
    let parts: Vec<String> = KINDS
        .iter()
        .zip(counts)
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    ok(format!(
        "{} s, {} threads: {}",
        args.seconds,
        args.threads,
        parts.join(", ")
    ))
}
