//! The network against theory, and whole runs against each other.

use super::calendar::Calendar;
use super::config::{Config, JobKind, Module};
use super::engine::run;
use super::fabric::{Fabric, Hop, Packet};
use super::sweep::Sweep;
use super::topology::Topology;
use muninn_policy::wrr::Weights;
use muninn_types::{Class, Nanos, SplitMix64};

#[derive(Clone, Copy, Debug)]
enum Event {
    Hop(Hop),
    Arrival,
}
impl From<Hop> for Event {
    fn from(hop: Hop) -> Event {
        Event::Hop(hop)
    }
}

const BYTES: u32 = 16384;
/// 16 KiB at 10 Gb/s.
const SERVICE_US: f64 = 13.1072;

/// Two servers under one leaf.
fn two_servers() -> Topology {
    Topology {
        spines: 1,
        leaves: 1,
        servers_per_leaf: 2,
        ..Topology::default()
    }
}

/// Sends packets at random times with this load on the sender's link, each of a class that `class`
/// draws, and gives the mean time in the network beyond an empty one's, by class.
fn mean_wait_us(
    load: f64,
    weights: Weights,
    packets: u32,
    class: fn(&mut SplitMix64) -> Class,
) -> [f64; Class::COUNT] {
    let mut rng = SplitMix64::new(42);
    let mut events: Calendar<Event> = Calendar::new();
    let mut fabric = Fabric::new(two_servers(), 1.0, weights);
    let mut sent_at = Vec::new();
    let (mut sum_us, mut count) = ([0.0; Class::COUNT], [0u32; Class::COUNT]);
    events.add(Nanos::ZERO, Event::Arrival);
    while let Some((now, event)) = events.take() {
        match event {
            Event::Arrival => {
                let packet = Packet {
                    bytes: BYTES,
                    from: 0,
                    to: 1,
                    spine: 0,
                    class: class(&mut rng),
                    tag: sent_at.len() as u32,
                };
                sent_at.push(now);
                fabric.send(&mut events, packet);
                if sent_at.len() < packets as usize {
                    let gap_ns = rng.exponential(SERVICE_US * 1000.0 / load);
                    events.add(now + Nanos(gap_ns as u64), Event::Arrival);
                }
            }
            Event::Hop(hop) => {
                if let Some(packet) = fabric.handle(&mut events, hop) {
                    let took = now - sent_at[packet.tag as usize];
                    let empty_us = 2.0 * (SERVICE_US + 3.0);
                    sum_us[packet.class.index()] += took.0 as f64 / 1000.0 - empty_us;
                    count[packet.class.index()] += 1;
                }
                fabric.check_conservation();
            }
        }
    }
    assert_eq!(fabric.delivered().0, u64::from(packets) * u64::from(BYTES));
    std::array::from_fn(|i| sum_us[i] / f64::from(count[i].max(1)))
}

#[test]
fn one_saturated_link_waits_as_theory_says() {
    // M/D/1 (Pollaczek-Khinchine): ρ ÷ (2 (1 − ρ)) service times. The second link receives what the
    // first one sends, at the same rate, so nothing waits there.
    for load in [0.3, 0.6, 0.8, 0.9] {
        let theory_us = load / (2.0 * (1.0 - load)) * SERVICE_US;
        let wait = mean_wait_us(load, Weights::equal(), 400_000, |_| Class::Demand);
        let measured_us = wait[Class::Demand.index()];
        let error = measured_us / theory_us - 1.0;
        assert!(
            error.abs() < 0.04,
            "load {load}: {measured_us:.2} µs, theory {theory_us:.2} µs"
        );
    }
}

#[test]
fn the_order_of_classes_moves_waiting_and_does_not_make_it() {
    // Conservation law: with equal sizes and no idling the mean over all packets is M/D/1's, whatever
    // the order; and the urgent wait less.
    let load = 0.8;
    let theory_us = load / (2.0 * (1.0 - load)) * SERVICE_US;
    let wait = mean_wait_us(load, Weights::default(), 400_000, |rng| {
        if rng.chance(0.25) {
            Class::UrgentEviction
        } else {
            Class::Eviction(2)
        }
    });
    let urgent_us = wait[Class::UrgentEviction.index()];
    let regular_us = wait[Class::Eviction(2).index()];
    let mean_us = 0.25 * urgent_us + 0.75 * regular_us;
    assert!(
        (mean_us / theory_us - 1.0).abs() < 0.04,
        "{mean_us} of {theory_us} µs"
    );
    assert!(
        urgent_us < 0.6 * regular_us,
        "{urgent_us} and {regular_us} µs"
    );
}

#[test]
fn an_empty_network_takes_the_time_of_its_links() {
    let mut events: Calendar<Event> = Calendar::new();
    let topology = Topology::default();
    let mut fabric = Fabric::new(topology, 1.0, Weights::equal());
    let packet = Packet {
        bytes: BYTES,
        from: 0,
        to: 95,
        spine: 1,
        class: Class::Demand,
        tag: 7,
    };
    fabric.send(&mut events, packet);
    let mut arrived = None;
    while let Some((now, Event::Hop(hop))) = events.take() {
        if let Some(packet) = fabric.handle(&mut events, hop) {
            arrived = Some((now, packet.tag));
        }
    }
    // Twice 13.107 µs at 10 Gb/s, twice 5.242 µs at 25 Gb/s, four times 3 µs.
    assert_eq!(arrived, Some((Nanos(13_107 * 2 + 5_242 * 2 + 12_000), 7)));
}

fn small(module: Module) -> Config {
    Config {
        topology: Topology {
            spines: 1,
            leaves: 3,
            servers_per_leaf: 8,
            ..Topology::default()
        },
        intensive_servers: 8,
        scale: 64.0,
        module,
        ..Config::default()
    }
}

#[test]
fn the_same_seed_gives_the_same_run_on_any_number_of_threads() {
    let sweep = Sweep {
        base: small(Module::Fixed),
        jobs: vec![JobKind::Quicksort],
        local_ratios: vec![0.4, 0.8],
        bandwidths: vec![1.0],
        modules: vec![Module::Both],
    };
    let one = sweep.run(1, || {}).unwrap();
    assert_eq!(one, sweep.run(3, || {}).unwrap());
    assert_eq!(one.len(), 2);
    assert_eq!(sweep.len(), 4, "the fixed runs are made as well");
    let other = Sweep {
        base: Config {
            seed: 2,
            ..sweep.base.clone()
        },
        ..sweep.clone()
    };
    assert_ne!(one, other.run(2, || {}).unwrap());
}

#[test]
fn glitter_helps_blocked_jobs_and_the_others_do_not_notice() {
    let [fixed, threshold, urgency, both] = Module::ALL.map(|module| run(&small(module)));
    assert!(urgency.fct_us_mean < 0.9 * fixed.fct_us_mean);
    assert!(urgency.fct_us_p99 < 0.8 * fixed.fct_us_p99);
    assert!(threshold.uef_count < fixed.uef_count);
    assert!(urgency.jct_s < 0.95 * fixed.jct_s);
    assert!(both.jct_s < 0.95 * fixed.jct_s);
    for other in [&threshold, &urgency, &both] {
        assert!(other.others_jct_s < 1.01 * fixed.others_jct_s);
    }
}

#[test]
fn enough_local_memory_means_no_blocking() {
    let report = run(&Config {
        local_ratio: 1.0,
        ..small(Module::Fixed)
    });
    let share = report.blocked_s / report.jct_s;
    assert!(share < 0.02, "blocked for {share} of the time");
}
