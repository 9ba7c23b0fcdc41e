//! A bounded run of what `fuzz/fuzz_targets/modules.rs` does without end: modules whose bytes were changed, and
//! calls of the host in any order with arguments at the edges.

use muninn_types::SplitMix64;
use muninn_wic::fuzzing;
use std::time::{Duration, Instant};

const SEED: u64 = 20_261_119;
/// Cases, or as many as there is time for on a slow machine.
const CASES: u32 = 600;
const ENOUGH: Duration = Duration::from_secs(4);

#[test]
fn modules_with_bytes_changed_are_refused_or_run_and_hurt_nobody() {
    let whole = include_bytes!("../../../examples/wasm-apps/apps.wasm");
    let small = wat::parse_str(include_str!("../../../examples/wasm-apps/list.wat")).unwrap();
    assert!(
        fuzzing::module(&small) && fuzzing::module(whole),
        "they are good as they are"
    );
    let mut rng = SplitMix64::new(SEED);
    let (started, mut good) = (Instant::now(), 0);
    for case in 0..CASES {
        let mut bytes = match case % 8 {
            0 => whole.to_vec(),
            _ => small.clone(),
        };
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] ^= 1 << rng.below(8),
                _ => bytes[at] = rng.next_u64() as u8,
            }
        }
        good += u32::from(fuzzing::module(&bytes));
        if started.elapsed() > ENOUGH {
            break;
        }
    }
    assert!(good > 0, "no changed module was ever run, seed {SEED}");
}

#[test]
fn calls_of_the_host_in_any_order_touch_nothing_else_and_leave_no_lock() {
    let mut rng = SplitMix64::new(SEED);
    let started = Instant::now();
    for _ in 0..CASES {
        let calls: Vec<u8> = (0..rng.below(150)).map(|_| rng.next_u64() as u8).collect();
        fuzzing::body(&calls);
        if started.elapsed() > ENOUGH {
            break;
        }
    }
}
