//! How long the memory-time policy takes: `cargo run --release -p muninn-policy --example memory_time_speed`.

use muninn_policy::profile::Profile;
use muninn_policy::rebalance::{Effort, Guess, Job, MemoryTime};
use muninn_types::{Bytes, SplitMix64};
use std::time::Instant;

const POLYNOMIALS: [&[f64]; 4] = [
    &[-1984.129, 4548.033, -3588.554, 1048.644, 252.997],
    &[-1617.416, 3789.953, -2993.734, 1225.477],
    &[-8258.542, 25767.366, -28409.394, 12549.084, -1289.025],
    &[-11626.894, 32733.914, -31797.375, 11484.578, 113.33],
];

fn main() {
    let profiles = POLYNOMIALS.map(|p| Profile::from_polynomial(p, 0.5).expect("published"));
    for (name, effort) in [("thorough", Effort::THOROUGH), ("quick", Effort::QUICK)] {
        println!("{name}\njobs  median_us  p99_us");
        for count in [2, 5, 8, 12, 25, 50] {
            measure(&profiles, effort, count);
        }
    }
}

fn measure(profiles: &[Profile], effort: Effort, count: usize) {
    let mut solver = MemoryTime::new(effort);
    let mut guess = Guess::default();
    let mut ratios = Vec::new();
    let mut rng = SplitMix64::new(1);
    let mut took_us: Vec<f64> = Vec::new();
    for _ in 0..2000 {
        let jobs: Vec<Job<'_>> = (0..count)
            .map(|_| Job {
                profile: &profiles[rng.below(4) as usize],
                memory: Bytes::mib(4000 + rng.below(32_000)),
                min_ratio: 0.5,
                progress: rng.unit(),
            })
            .collect();
        let wanted: f64 = jobs.iter().map(|j| j.memory.0 as f64).sum();
        let local = Bytes((wanted * (0.55 + 0.4 * rng.unit())) as u64);
        let begin = Instant::now();
        let divided = solver.divide(&jobs, local, &mut guess, &mut ratios);
        took_us.push(begin.elapsed().as_secs_f64() * 1e6);
        divided.expect("half fits");
    }
    took_us.sort_by(f64::total_cmp);
    println!("{count:4}  {:9.2}  {:6.1}", took_us[1000], took_us[1980]);
}
