//! Where to run a function: at the client, at the server, or at the nic beside it.
//!
//! The idea: the only honest estimate of a place is to run there under the load that there is. So
//! calls go to one place, the *incumbent*, and now and then all of them go to another one for a short
//! *trial*. A place that is better by [`Config::margin`] in [`Config::wins`] trials becomes the
//! incumbent (hysteresis: noise does not move anything). A trial costs what its calls take longer than
//! they would have at the incumbent; the next trial of that place comes when that is less than
//! [`Config::regret`] of the time since, so a place that is far worse is tried rarely, and the choice
//! stays near the best. When the incumbent's own cost changes, the others are tried again sooner.
//!
//! Places are compared by the *median* time of their calls: on a machine that does other things as well,
//! a mean says more about those than about the place. What a trial cost is counted as it was.
//!
//! WICKit leaves the choice to whoever starts a program; this is its future work. Known limits: the
//! cost is the time of a call, so what the processors at each place cost does not count; and a
//! change that makes another place better, but not the incumbent worse, is seen with the next trial
//! of that place only.

use muninn_types::Nanos;
use std::fmt;

/// Where a function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Client,
    Server,
    Nic,
}

impl Place {
    pub const ALL: [Place; 3] = [Place::Client, Place::Server, Place::Nic];

    pub const fn name(self) -> &'static str {
        match self {
            Place::Client => "client",
            Place::Server => "server",
            Place::Nic => "nic",
        }
    }
    const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Calls of a trial; the first few, which still see the load of before, do not count.
    pub trial: u32,
    pub settle: u32,
    /// Another place must be better by this part to win a trial.
    pub margin: f64,
    /// Trials to be won in a row.
    pub wins: u32,
    /// The part of the time that trials may cost.
    pub regret: f64,
    /// The incumbent's cost changed by this factor: everything is tried again sooner.
    pub change: f64,
    /// Calls after which the incumbent's cost counts as known.
    pub sample: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            trial: 48,
            settle: 16,
            margin: 0.05,
            wins: 2,
            regret: 0.02,
            change: 1.5,
            sample: 64,
        }
    }
}

/// What is known of one place.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    available: bool,
    /// Median time of a call, in ns, when it was last looked at under the whole load.
    cost: Option<f64>,
    wins: u32,
    /// Not to be tried again before.
    next_trial: Nanos,
    calls: u64,
}

/// A trial under way.
#[derive(Clone, Debug)]
struct Trial {
    place: Place,
    sent: u32,
    ended: u32,
    /// Times of all its calls together, and of those that count.
    sum: f64,
    times: Vec<f64>,
}

fn median(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Why the incumbent is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    First,
    Won { over: Place, by: f64 },
    OnlyOneLeft,
}

/// The choice for one function.
#[derive(Clone, Debug)]
pub struct Chooser {
    config: Config,
    known: [Known; 3],
    incumbent: Place,
    since: Nanos,
    reason: Reason,
    moves: u64,
    trial: Option<Trial>,
    /// Of the incumbent's calls, since its cost was last taken.
    times: Vec<f64>,
    accesses: f64,
}

impl Chooser {
    /// Starts at the first of the places, and knows nothing.
    pub fn new(places: &[Place], config: Config, now: Nanos) -> Chooser {
        let mut known = [Known::default(); 3];
        for place in places {
            known[place.index()].available = true;
        }
        Chooser {
            config,
            known,
            incumbent: places.first().copied().unwrap_or(Place::Server),
            since: now,
            reason: Reason::First,
            moves: 0,
            trial: None,
            times: Vec::with_capacity(config.sample as usize),
            accesses: 0.0,
        }
    }

    pub fn incumbent(&self) -> Place {
        self.incumbent
    }
    /// How often the incumbent has changed.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// A place came or went.
    pub fn set_available(&mut self, place: Place, available: bool, now: Nanos) {
        let known = &mut self.known[place.index()];
        if known.available == available {
            return;
        }
        known.available = available;
        known.cost = None;
        known.wins = 0;
        known.next_trial = now;
        if self.trial.as_ref().is_some_and(|t| t.place == place) {
            self.trial = None;
        }
        if !available && self.incumbent == place {
            let cost = |p: &Place| self.known[p.index()].cost.unwrap_or(f64::MAX);
            let rest = Place::ALL.into_iter();
            let rest = rest.filter(|p| self.known[p.index()].available);
            if let Some(next) = rest.min_by(|a, b| cost(a).total_cmp(&cost(b))) {
                self.settle_at(next, Reason::OnlyOneLeft, now);
            }
        }
    }

    fn settle_at(&mut self, place: Place, reason: Reason, now: Nanos) {
        self.incumbent = place;
        self.since = now;
        self.reason = reason;
        self.moves += 1;
        self.trial = None;
        self.times.clear();
        for known in &mut self.known {
            known.wins = 0;
        }
    }

    /// Where the next call goes.
    pub fn choose(&mut self, now: Nanos) -> Place {
        if let Some(trial) = &mut self.trial {
            if trial.sent < self.config.trial {
                trial.sent += 1;
                return trial.place;
            }
            return self.incumbent;
        }
        if self.known[self.incumbent.index()].cost.is_none() {
            return self.incumbent;
        }
        let due = |p: &Place| {
            let known = &self.known[p.index()];
            *p != self.incumbent && known.available && known.next_trial <= now
        };
        let longest_ago = |p: &Place| self.known[p.index()].next_trial;
        let next = Place::ALL.into_iter().filter(due).min_by_key(longest_ago);
        if let Some(place) = next {
            self.trial = Some(Trial {
                place,
                sent: 1,
                ended: 0,
                sum: 0.0,
                times: Vec::with_capacity(self.config.trial as usize),
            });
            return place;
        }
        self.incumbent
    }

    /// A call that was sent to `place` has ended.
    pub fn ended(&mut self, place: Place, took: Nanos, accesses: u32, now: Nanos) {
        let took = took.0 as f64;
        self.known[place.index()].calls += 1;
        self.accesses += (f64::from(accesses) - self.accesses) / 32.0;
        match &mut self.trial {
            Some(trial) if trial.place == place => {
                trial.ended += 1;
                trial.sum += took;
                if trial.ended > self.config.settle {
                    trial.times.push(took);
                }
                if trial.ended >= self.config.trial {
                    self.judge(now);
                }
            }
            // What goes on at the incumbent during a trial has its load divided.
            Some(_) => {}
            None if place == self.incumbent => {
                self.times.push(took);
                if self.times.len() >= self.config.sample as usize {
                    self.take_cost(now);
                }
            }
            None => {}
        }
    }

    /// A call to `place` was lost: trials do not wait for it.
    pub fn failed(&mut self, place: Place, now: Nanos) {
        if let Some(trial) = &mut self.trial
            && trial.place == place
        {
            trial.ended += 1;
            if trial.ended >= self.config.trial {
                self.judge(now);
            }
        }
    }

    fn take_cost(&mut self, now: Nanos) {
        let Some(fresh) = median(&mut self.times) else {
            return;
        };
        self.times.clear();
        let known = &mut self.known[self.incumbent.index()];
        let Some(before) = known.cost else {
            known.cost = Some(fresh);
            return;
        };
        // A quarter of the new: one hiccup is not a change.
        let cost = before + (fresh - before) / 4.0;
        known.cost = Some(cost);
        let factor = (fresh / before).max(before / fresh);
        if factor > self.config.change {
            known.cost = Some(fresh);
            for known in &mut self.known {
                let left = known.next_trial.saturating_sub(now);
                known.next_trial = now + Nanos(left.0 / 8);
            }
        }
    }

    fn judge(&mut self, now: Nanos) {
        let Some(mut trial) = self.trial.take() else {
            return;
        };
        // All of them failed: as bad as can be.
        let cost = median(&mut trial.times).unwrap_or(1e12);
        let own = self.known[self.incumbent.index()].cost.unwrap_or(cost);
        let known = &mut self.known[trial.place.index()];
        known.cost = Some(cost);
        if cost < own * (1.0 - self.config.margin) {
            known.wins += 1;
            if known.wins >= self.config.wins {
                let by = 1.0 - cost / own;
                let over = self.incumbent;
                known.next_trial = now;
                self.settle_at(trial.place, Reason::Won { over, by }, now);
                self.known[trial.place.index()].cost = Some(cost);
                // The old one is good for a while: it has just been measured.
                let pause = Nanos((own * f64::from(self.config.trial) / self.config.regret) as u64);
                self.known[over.index()].next_trial = now + pause;
            }
            return;
        }
        known.wins = 0;
        let calls = f64::from(self.config.trial);
        let lost = (trial.sum - own * calls).max(own * self.config.margin * calls);
        known.next_trial = now + Nanos((lost / self.config.regret) as u64);
    }

    /// For a person: where, since when and why.
    pub fn explain(&self, now: Nanos) -> String {
        let us = |cost: Option<f64>| match cost {
            Some(ns) => format!("{:.1}us", ns / 1e3),
            None => "?".to_string(),
        };
        let why = match self.reason {
            Reason::First => "start".to_string(),
            Reason::Won { over, by } => format!("{:.0}% under {over}", by * 100.0),
            Reason::OnlyOneLeft => "another went away".to_string(),
        };
        let costs: Vec<String> = Place::ALL
            .into_iter()
            .filter(|p| self.known[p.index()].available)
            .map(|p| format!("{p} {}", us(self.known[p.index()].cost)))
            .collect();
        format!(
            "{} for {:.0}s ({why}; {}; {:.1} accesses, {} moves)",
            self.incumbent,
            now.saturating_sub(self.since).0 as f64 / 1e9,
            costs.join(", "),
            self.accesses,
            self.moves
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::SplitMix64;

    /// Runs calls one after the other; the part of the time that the best place would have needed.
    fn run(chooser: &mut Chooser, calls: u32, now: &mut Nanos, cost: impl Fn(Place) -> u64) -> f64 {
        let begin = *now;
        for _ in 0..calls {
            let place = chooser.choose(*now);
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

    #[test]
    fn it_finds_the_best_place_and_stays_near_its_cost() {
        for (client, server, nic, best) in [
            (40_000, 10_000, 14_000, Place::Server),
            (300, 10_000, 12_000, Place::Client),
            (40_000, 90_000, 14_000, Place::Nic),
        ] {
            let mut now = Nanos::ZERO;
            let mut chooser = Chooser::new(&Place::ALL, Config::default(), now);
            run(&mut chooser, 2000, &mut now, costs(client, server, nic));
            assert_eq!(chooser.incumbent(), best);
            let ratio = run(&mut chooser, 50_000, &mut now, costs(client, server, nic));
            assert!(ratio < 1.1, "{ratio} times the best place");
        }
    }

    #[test]
    fn noise_moves_nothing() {
        let mut rng = SplitMix64::new(4);
        let mut now = Nanos::ZERO;
        let mut chooser = Chooser::new(&Place::ALL, Config::default(), now);
        for _ in 0..200_000 {
            let place = chooser.choose(now);
            let took = Nanos(9_000 + rng.below(2_000));
            now += took;
            chooser.ended(place, took, 4, now);
        }
        assert_eq!(chooser.moves(), 0, "{}", chooser.explain(now));
    }

    #[test]
    fn it_moves_when_the_load_changes() {
        let mut now = Nanos::ZERO;
        let mut chooser = Chooser::new(&Place::ALL, Config::default(), now);
        run(&mut chooser, 5000, &mut now, costs(40_000, 10_000, 14_000));
        assert_eq!(chooser.incumbent(), Place::Server);
        let ratio = run(&mut chooser, 5000, &mut now, costs(40_000, 60_000, 14_000));
        assert_eq!(chooser.incumbent(), Place::Nic);
        assert!(ratio < 1.2, "{ratio}");
    }

    #[test]
    fn a_place_that_goes_away_is_left_at_once() {
        let mut now = Nanos::ZERO;
        let mut chooser = Chooser::new(&Place::ALL, Config::default(), now);
        run(&mut chooser, 5000, &mut now, costs(40_000, 90_000, 14_000));
        chooser.set_available(Place::Nic, false, now);
        assert_eq!(chooser.incumbent(), Place::Client);
        for _ in 0..100 {
            assert_ne!(chooser.choose(now), Place::Nic);
        }
        assert!(
            chooser
                .explain(now)
                .starts_with("client for 0s (another went away;"),
            "{}",
            chooser.explain(now)
        );
    }
}
