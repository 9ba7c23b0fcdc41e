//! The lock and the executor under every order of threads that a random scheduler comes up with.
//!
//! Memory is made of the scheduler's own atomic words, so that it may change threads at each access;
//! the lock, the guard and the window are the real ones. A failing schedule is printed and can be
//! replayed.

use muninn_types::Nanos;
use muninn_wic::local::{Outcome, Window};
use muninn_wic::{Addr, Ended, Memory, Reply, WicError, WicLock};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

const LOCK: WicLock = WicLock::new(0);
/// Schedules that each test tries.
const SCHEDULES: usize = 10_000;
/// The lock's word, and two that it protects.
const WORDS: usize = 3;

#[derive(Clone)]
struct Words {
    words: Arc<[AtomicU64; WORDS]>,
    holder: u64,
}

impl Words {
    fn word(&self, at: Addr) -> Result<&AtomicU64, WicError> {
        let word = self.words.get((at.0 / 8) as usize);
        word.ok_or(WicError::Bounds(at.0))
    }
}

/// Suspended once: the window goes on to the next.
struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        }
    }
}

impl Memory for Words {
    fn base(&self) -> Addr {
        Addr(8)
    }
    fn end(&self) -> Addr {
        Addr(8 * WORDS as u64)
    }
    async fn read_into(&self, at: Addr, into: &mut [u8]) -> Result<(), WicError> {
        Yield(false).await;
        into.copy_from_slice(&self.word(at)?.load(SeqCst).to_le_bytes());
        Ok(())
    }
    async fn write_from(&self, at: Addr, from: &[u8]) -> Result<(), WicError> {
        Yield(false).await;
        let bytes = from.try_into().map_err(|_| WicError::Args)?;
        self.word(at)?.store(u64::from_le_bytes(bytes), SeqCst);
        Ok(())
    }
    async fn compare_swap(&self, at: Addr, expect: u64, new: u64) -> Result<u64, WicError> {
        let swapped = self.word(at)?.compare_exchange(expect, new, SeqCst, SeqCst);
        Ok(swapped.unwrap_or_else(|found| found))
    }
    async fn fetch_add(&self, at: Addr, add: u64) -> Result<u64, WicError> {
        Ok(self.word(at)?.fetch_add(add, SeqCst))
    }
    fn locks(&self) -> u32 {
        1
    }
    fn tick(&self) -> Result<(), WicError> {
        Ok(())
    }
    async fn pause(&self) -> Result<(), WicError> {
        // The holder may be on another thread, or in this very window.
        thread::yield_now();
        Yield(false).await;
        Ok(())
    }
    fn holder(&self) -> u64 {
        self.holder
    }
    async fn swap_lock(&self, _index: u32, expect: u64, new: u64) -> Result<u64, WicError> {
        self.compare_swap(Addr(0), expect, new).await
    }
    fn orphan_lock(&self, _index: u32) {
        let _ = self.words[0].compare_exchange(self.holder, 1, SeqCst, SeqCst);
    }
}

/// Adds one to both words, which no one may ever find different under the lock.
async fn add_to_both(mem: &Words, die: bool) -> Result<u64, WicError> {
    let guard = LOCK.lock(mem).await?;
    let first = mem.read::<u64>(Addr(8)).await?;
    let second = mem.read::<u64>(Addr(16)).await?;
    // One that died had changed the first and not the second; whoever comes next is told, and undoes.
    let count = match guard.is_orphaned() {
        true => second,
        false => {
            assert_eq!(first, second, "two were in there at once");
            first
        }
    };
    mem.write(Addr(8), &(count + 1)).await?;
    if die {
        return Err(WicError::App(1));
    }
    mem.write(Addr(16), &(count + 1)).await?;
    guard.unlock().await?;
    Ok(count)
}

fn run_threads(threads: u64, calls: u64, dying: bool) {
    let words: Arc<[AtomicU64; WORDS]> = Arc::new(Default::default());
    let workers: Vec<_> = (0..threads)
        .map(|worker| {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut window = Window::new(2, 1 << 20);
                for call in 0..calls {
                    let mem = Words {
                        words: Arc::clone(&words),
                        holder: 256 + worker * calls + call,
                    };
                    let die = dying && call % 2 == 1;
                    let running = Box::pin(async move {
                        let result = add_to_both(&mem, die).await;
                        Ended {
                            result: result.and_then(|n| Reply::encode(&n)),
                            accesses: 0,
                        }
                    });
                    window.push(running, die, Nanos(u64::MAX));
                }
                let mut done = 0;
                while !window.is_empty() {
                    window.run(Nanos::ZERO, |die, outcome| match outcome {
                        Outcome::Ended(ended) => {
                            assert_eq!(ended.result.is_err(), die);
                            done += u64::from(!die);
                        }
                        other => panic!("{other:?}"),
                    });
                    thread::yield_now();
                }
                done
            })
        })
        .collect();
    let done: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
    assert_eq!(words[2].load(SeqCst), done, "a change was lost");
    assert!(words[0].load(SeqCst) <= 1, "somebody still holds the lock");
}

#[test]
fn at_most_one_holds_the_lock_in_any_order() {
    shuttle::check_random(|| run_threads(3, 3, false), SCHEDULES);
}

#[test]
fn a_lock_left_behind_is_found_by_the_next_in_any_order() {
    shuttle::check_random(|| run_threads(3, 4, true), SCHEDULES);
}
