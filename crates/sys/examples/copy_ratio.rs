//! Prints how long a guarded copy takes, as a ratio to a plain one: cold pages and 256 KiB.
//!
//! Both take turns on random places of a memory file larger than the caches, so that whatever else
//! the machine does slows both down. Run with `cargo run --release --example copy_ratio`.

use std::time::Instant;

use muninn_sys::memory::{Mapping, Memfd, guarded_copy};
use muninn_types::{Bytes, SplitMix64};

const POOL: usize = 512 << 20;
const ROUNDS: usize = 2000;

fn main() {
    let memfd = Memfd::create("copy-ratio", Bytes(POOL as u64)).expect("a memory file");
    let pool = Mapping::options()
        .shared()
        .populate()
        .file(&memfd, 0, Bytes(POOL as u64))
        .expect("a mapping of it");
    let into = Mapping::options()
        .populate()
        .anonymous(Bytes::mib(1))
        .expect("memory");
    let mut rng = SplitMix64::new(1);
    for (name, len, copies) in [("4 KiB, cold", 4096, 64), ("256 KiB, cold", 256 << 10, 4)] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (kind, times) in times.iter_mut().enumerate() {
                let places: Vec<usize> = (0..copies)
                    .map(|_| rng.below((POOL / len) as u64) as usize * len)
                    .collect();
                let start = Instant::now();
                for place in places {
                    // SAFETY: the place plus the length stays inside of the pool, and the length
                    // inside of the destination; nobody else uses either.
                    unsafe {
                        let from = pool.as_ptr().add(place);
                        match kind {
                            0 => std::ptr::copy_nonoverlapping(from, into.as_ptr(), len),
                            _ => guarded_copy(into.as_ptr(), from, len).expect("nothing vanishes"),
                        }
                    }
                }
                times.push(start.elapsed().as_nanos() as u64 / copies as u64);
            }
        }
        let [plain, guarded] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        });
        println!(
            "{name}: plain {plain} ns, guarded {guarded} ns, ratio {:.3}",
            guarded as f64 / plain as f64
        );
    }
}
