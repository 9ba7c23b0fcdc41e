use super::*;
use muninn_types::SplitMix64;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Runs calls one after the other; the part of the time that the best place would have needed.
fn run(chooser: &mut Chooser, calls: u32, now: &mut Nanos, cost: impl Fn(Place) -> u64) -> f64 {
    let begin = *now;
    for _ in 0..calls {
        let place = chooser.choose();
        let took = Nanos(cost(place));
        *now += took;
        chooser.ended(place, took, 4, *now);
    }
    let best = Place::ALL.map(&cost).into_iter().min().unwrap();
    (*now - begin).0 as f64 / (best * u64::from(calls)) as f64
}

fn costs(client: u64, server: u64, nic: u64) -> impl Fn(Place) -> u64 {
    move |place| match place {
        Place::Client => client,
        Place::Server => server,
        Place::Nic => nic,
    }
}

fn chooser() -> Chooser {
    let places = [Place::Server, Place::Client, Place::Nic];
    Chooser::new(&places, Config::default(), Nanos::ZERO)
}

#[test]
fn it_finds_the_best_place_and_stays_near_its_cost() {
    for (client, server, nic, best) in [
        (40_000, 10_000, 14_000, Place::Server),
        (300, 10_000, 12_000, Place::Client),
        (40_000, 90_000, 14_000, Place::Nic),
    ] {
        let mut now = Nanos::ZERO;
        let mut chooser = chooser();
        run(&mut chooser, 20_000, &mut now, costs(client, server, nic));
        assert_eq!(chooser.incumbent(), best);
        let ratio = run(&mut chooser, 50_000, &mut now, costs(client, server, nic));
        assert!(ratio < 1.1, "{ratio} times the best place");
    }
}

#[test]
fn noise_moves_nothing() {
    let mut rng = SplitMix64::new(4);
    let mut now = Nanos::ZERO;
    let mut chooser = chooser();
    for _ in 0..200_000 {
        let place = chooser.choose();
        let took = Nanos(9_000 + rng.below(2_000));
        now += took;
        chooser.ended(place, took, 4, now);
    }
    assert_eq!(chooser.moves(), 0, "{}", chooser.explain(now));
}

#[test]
fn it_moves_when_the_load_changes() {
    let mut now = Nanos::ZERO;
    let mut chooser = chooser();
    run(&mut chooser, 5000, &mut now, costs(40_000, 10_000, 14_000));
    assert_eq!(chooser.incumbent(), Place::Server);
    let ratio = run(
        &mut chooser,
        20_000,
        &mut now,
        costs(40_000, 60_000, 14_000),
    );
    assert_eq!(chooser.incumbent(), Place::Nic);
    assert!(ratio < 1.2, "{ratio}");
}

#[test]
fn a_place_that_goes_away_is_left_at_once() {
    let mut now = Nanos::ZERO;
    let mut chooser = chooser();
    run(&mut chooser, 5000, &mut now, costs(40_000, 90_000, 14_000));
    chooser.set_available(Place::Nic, false, now);
    assert_eq!(chooser.incumbent(), Place::Client);
    for _ in 0..100 {
        assert_ne!(chooser.choose(), Place::Nic);
    }
    assert!(
        chooser
            .explain(now)
            .starts_with("client for 0s (another went away;"),
        "{}",
        chooser.explain(now)
    );
}

#[test]
fn a_place_that_fails_is_left() {
    let mut now = Nanos::ZERO;
    let mut chooser = chooser();
    run(&mut chooser, 5000, &mut now, costs(40_000, 10_000, 14_000));
    assert_eq!(chooser.incumbent(), Place::Server);
    for _ in 0..20_000 {
        let place = chooser.choose();
        now += Nanos(14_000);
        match place {
            Place::Server => chooser.failed(place, now),
            _ => chooser.ended(place, Nanos(costs(40_000, 0, 14_000)(place)), 4, now),
        }
    }
    assert_eq!(chooser.incumbent(), Place::Nic);
}

/// A machine on which each place does one call after the other, as long as it has a processor.
struct Machine {
    /// What a call takes of the processor of its place, and on the way there and back.
    work: [u64; 3],
    way: [u64; 3],
    free_at: [u64; 3],
    /// Every so often the processor of the server and the nic is away for so long.
    away: Option<(u64, u64)>,
    /// The server and the nic share a processor, and each spins on it for so long after its last call.
    spins: Option<u64>,
    used_at: [u64; 3],
    /// The client hands results out when all that it has begun are done.
    in_a_row: bool,
    rng: SplitMix64,
}

impl Machine {
    fn new(work: [u64; 3], way: [u64; 3], seed: u64) -> Machine {
        Machine {
            work,
            way,
            free_at: [0; 3],
            away: None,
            spins: None,
            used_at: [0; 3],
            in_a_row: false,
            rng: SplitMix64::new(seed),
        }
    }

    /// When a call is back that is sent now.
    fn send(&mut self, place: Place, now: u64) -> u64 {
        let at = place as usize;
        let mut work = self.work[at] * (80 + self.rng.below(40)) / 100;
        let neighbour = match place {
            Place::Client => None,
            Place::Server => Some(Place::Nic),
            Place::Nic => Some(Place::Server),
        };
        if let (Some(spins), Some(other)) = (self.spins, neighbour) {
            let spun_until = self.used_at[other as usize] + spins;
            work *= if now < spun_until { 4 } else { 1 };
        }
        let mut begin = (now + self.way[at] / 2).max(self.free_at[at]);
        if let Some((every, long)) = self.away
            && begin % every < long
        {
            begin += long - begin % every;
        }
        self.free_at[at] = begin + work;
        self.used_at[at] = self.free_at[at];
        if self.in_a_row && place == Place::Client {
            // All that were begun together are handed out together.
            let row = 64 * self.work[at];
            return self.free_at[at].next_multiple_of(row);
        }
        self.free_at[at] + self.way[at] / 2
    }

    /// `in_flight` calls at any time, placed by `choose`; calls a second.
    fn closed(
        &mut self,
        (in_flight, time): (u32, Nanos),
        mut choose: impl FnMut() -> Place,
        mut ended: impl FnMut(Place, Nanos, Nanos),
    ) -> f64 {
        let mut under_way = BinaryHeap::new();
        for _ in 0..in_flight {
            let place = choose();
            under_way.push(Reverse((self.send(place, 0), 0, place as usize)));
        }
        let mut calls = 0;
        while let Some(Reverse((now, sent, at))) = under_way.pop() {
            if now > time.0 {
                break;
            }
            calls += 1;
            ended(Place::ALL[at], Nanos(now - sent), Nanos(now));
            let place = choose();
            under_way.push(Reverse((self.send(place, now), now, place as usize)));
        }
        f64::from(calls) * 1e9 / time.0 as f64
    }
}

/// Muninn's choice against the best of the places, each alone on such a machine.
fn against_best(machine: impl Fn() -> Machine, in_flight: u32, time: Nanos) -> (f64, String) {
    let alone = |place| machine().closed((in_flight, time), || place, |_, _, _| {});
    let best = Place::ALL.map(alone).into_iter().fold(0.0, f64::max);
    let chooser = std::cell::RefCell::new(chooser());
    let rate = machine().closed(
        (in_flight, time),
        || chooser.borrow_mut().choose(),
        |place, took, now| chooser.borrow_mut().ended(place, took, 4, now),
    );
    (rate / best, chooser.borrow().explain(time))
}

/// By place: work and way of a call, as measured between two processors.
const SHAPES: [([u64; 3], [u64; 3]); 5] = [
    // Alone the client's way is long; under load it is the work that counts.
    ([3_000, 1_500, 1_400], [40_000, 9_000, 9_500]),
    ([1_000, 1_500, 1_450], [10_500, 10_800, 11_000]),
    ([900, 6_000, 9_000], [0, 1_200, 9_000]),
    ([12_000, 2_500, 1_500], [160_000, 12_000, 12_000]),
    ([3_000, 900, 1_500], [40_000, 9_000, 9_000]),
];

#[test]
fn under_every_load_it_stays_within_a_tenth_of_the_best_place() {
    for (shape, (work, way)) in SHAPES.into_iter().enumerate() {
        for in_flight in [1, 8, 64] {
            let machine = || Machine::new(work, way, 9);
            let time = Nanos::millis(500);
            let (ratio, why) = against_best(machine, in_flight, time);
            assert!(ratio > 0.9, "shape {shape}, {in_flight}: {ratio:.2}: {why}");
        }
    }
}

#[test]
fn a_machine_that_does_other_things_as_well_does_not_deceive_it() {
    for (shape, (work, way)) in SHAPES.into_iter().enumerate() {
        for in_flight in [1, 64] {
            let machine = || Machine {
                away: Some((20_000_000, 9_000_000)),
                ..Machine::new(work, way, 11)
            };
            let time = Nanos::millis(1000);
            let (ratio, why) = against_best(machine, in_flight, time);
            assert!(ratio > 0.9, "shape {shape}, {in_flight}: {ratio:.2}: {why}");
        }
    }
}

#[test]
fn a_thread_that_spins_after_its_last_call_does_not_deceive_it() {
    for (work, best) in [
        ([9_000, 1_500, 1_000], Place::Nic),
        ([9_000, 1_000, 1_500], Place::Server),
    ] {
        let machine = || Machine {
            spins: Some(1_000_000),
            ..Machine::new(work, [40_000, 9_000, 9_000], 5)
        };
        let (ratio, why) = against_best(machine, 64, Nanos::millis(1000));
        assert!(why.starts_with(best.name()), "{why}");
        assert!(ratio > 0.9, "{ratio:.2}: {why}");
    }
}

#[test]
fn a_client_that_does_many_calls_in_a_row_is_charged_for_the_row() {
    for (work, best) in [
        ([3_000, 1_500, 9_000], Place::Server),
        ([1_000, 1_500, 9_000], Place::Client),
    ] {
        let machine = || Machine {
            in_a_row: true,
            ..Machine::new(work, [0, 1_200, 9_000], 5)
        };
        let (ratio, why) = against_best(machine, 64, Nanos::millis(1000));
        assert!(why.starts_with(best.name()), "{why}");
        assert!(ratio > 0.9, "{ratio:.2}: {why}");
    }
}

#[test]
fn a_place_that_does_not_keep_up_with_what_arrives_is_left_soon() {
    // Calls arrive every 2 us, whether or not the ones before are done.
    let mut machine = Machine::new([50_000, 1_000, 1_500], [0, 9_000, 9_000], 3);
    let mut chooser = chooser();
    let mut under_way = BinaryHeap::new();
    let (mut sent, mut at_client) = (0u64, 0u64);
    for now in (0..1_000_000_000).step_by(2_000) {
        while let Some(Reverse((back, began, at))) = under_way.peek().copied() {
            if back > now {
                break;
            }
            under_way.pop();
            let place: Place = Place::ALL[at];
            chooser.ended(place, Nanos(back - began), 4, Nanos(back));
        }
        let place = chooser.choose();
        sent += 1;
        at_client += u64::from(place == Place::Client);
        under_way.push(Reverse((machine.send(place, now), now, place as usize)));
    }
    assert_eq!(chooser.incumbent(), Place::Server);
    assert!(
        at_client * 100 < sent,
        "{at_client} of {sent} at the client"
    );
}

/// 64 calls under way, each taking what its place says; how many were sent to each.
fn sent(chooser: &mut Chooser, calls: u32, cost: impl Fn(Place) -> u64) -> [u32; 3] {
    let mut under_way = BinaryHeap::new();
    let mut sent = [0; 3];
    let mut now = 0;
    for _ in 0..calls {
        while under_way.len() < 64 {
            let place = chooser.choose();
            sent[place as usize] += 1;
            under_way.push(Reverse((now + cost(place), place as usize, now)));
        }
        if let Some(Reverse((end, place, begun))) = under_way.pop() {
            now = end;
            chooser.ended(Place::ALL[place], Nanos(end - begun), 4, Nanos(now));
        }
    }
    sent
}

/// A place where everybody waits for everybody's lock is found out by one call, not by all of them.
#[test]
fn one_call_goes_ahead_of_a_trial() {
    let mut chooser = chooser();
    let sent = sent(&mut chooser, 400_000, costs(400_000, 10_000, 90_000));
    assert_eq!(chooser.incumbent(), Place::Server);
    for place in [Place::Client, Place::Nic] {
        let count = sent[place as usize];
        assert!(
            (1..200).contains(&count),
            "{count} calls went to the {place}"
        );
    }
}

#[test]
fn a_place_that_cannot_be_good_is_not_tried() {
    let mut chooser = chooser();
    chooser.expect(Place::Client, Nanos(30_000));
    let sent_there = sent(&mut chooser, 400_000, costs(5_000, 10_000, 11_000));
    assert_eq!(sent_there[Place::Client as usize], 0);
    // It is known now to be better than was thought.
    chooser.expect(Place::Client, Nanos(3_000));
    sent(&mut chooser, 400_000, costs(5_000, 10_000, 11_000));
    assert_eq!(chooser.incumbent(), Place::Client);
}

#[test]
fn nothing_is_tried_while_somebody_else_tries() {
    let mut now = Nanos::ZERO;
    let mut chooser = chooser();
    for _ in 0..20_000 {
        let place = chooser.choose_if(false);
        assert_eq!(place, Place::Server);
        now += Nanos(10_000);
        chooser.ended(place, Nanos(10_000), 4, now);
        assert!(!chooser.is_trying());
    }
    chooser.choose_if(true);
    assert!(chooser.is_trying());
}
