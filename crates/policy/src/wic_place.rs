//! Where to run a function: at the client, at the server, or at the nic beside it.
//!
//! The idea: the only honest estimate of a place is to run there under the load that there is. So
//! calls go to one place, the *incumbent*, and now and then all of them go to another one for a short
//! *trial*. A trial first waits until the whole load has come over: until nothing is under way
//! elsewhere, and as many calls as are under way then have ended; so does the way back. (Calls that
//! meet half of the load are fast anywhere; to believe them moves everything to and fro.) It waits a
//! moment longer, [`Config::settle`]: a thread that served the other place may spin for a while before it
//! leaves its processor, and a connection finds its pace. Then it takes the means of a few *windows* of
//! calls, and so does the incumbent all the time: means, because with so many calls under way the mean
//! time of one is what the rate of all depends on (Little), whatever the shape; without the slowest
//! few, which the machine is to blame for. The least of its last few means is
//! what a place can do: whatever else the machine does only ever adds. A place that is better by
//! [`Config::margin`] in [`Config::wins`] trials, with fresh figures of the incumbent in between,
//! becomes the new one.
//!
//! A trial costs what its calls take longer than they would have at the incumbent; the next trial of
//! that place comes after so many calls that this is less than [`Config::regret`] of their time, so a
//! place that is far worse is tried rarely, and the choice stays near the best; and never so soon that
//! trials were more than [`Config::share`] of all calls. The pause doubles with every trial lost. When the incumbent's
//! own cost changes, the others are tried again sooner.
//!
//! Before the load follows, a trial sends one call: where a single one takes far longer than the mean at the
//! incumbent ([`Config::probe`]), many would only queue up behind each other; that is what a function does
//! that takes locks one message at a time. And a place is not tried at all while it is known that it cannot
//! be good: accesses times the round trip of each are more than the whole call takes elsewhere
//! ([`Chooser::expect`]). Whoever has several choosers lets one of them try at a time
//! ([`Chooser::choose_if`]): two trials at once measure each other.
//!
//! The time of a call is to be taken until its caller can have the result. Whoever leaves the end of the
//! way out makes a place look good that does many calls in a row before it hands out the first.
//!
//! WICKit leaves the choice to whoever starts a program; this is its future work. Known limits: the
//! cost is the time of a call, so what the processors at each place cost does not count; and a
//! change that makes another place better, but not the incumbent worse, is seen with the next trial
//! of that place only.

use muninn_types::Nanos;
use std::collections::VecDeque;
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
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Calls of a window; it grows with the number that is under way, up to `window_max`.
    pub window: u32,
    pub window_max: u32,
    /// Windows of a trial, and those of the incumbent that it is compared with.
    pub windows: u32,
    /// Another place must be better by this part to win a trial.
    pub margin: f64,
    /// Trials to be won in a row.
    pub wins: u32,
    /// How long the load must have been at a place before it counts.
    pub settle: Nanos,
    /// The part of the time of calls that trials of one place may cost.
    pub regret: f64,
    /// The part of all calls that may be trials of one place: to move the load to and fro costs, too,
    /// whatever the place is worth.
    pub share: f64,
    /// A trial ends before its time when the place is worse by this factor in two windows.
    pub hopeless: f64,
    /// One call goes ahead of a trial, and ends it if it takes longer than at the incumbent by this factor;
    /// infinite: none does.
    pub probe: f64,
    /// The incumbent's cost changed by this factor: everything is tried again sooner.
    pub change: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window: 32,
            window_max: 256,
            windows: 4,
            margin: 0.05,
            wins: 2,
            settle: Nanos::millis(2),
            regret: 0.01,
            share: 0.02,
            hopeless: 2.0,
            probe: 4.0,
            change: 1.5,
        }
    }
}

/// What a call counts that was lost: ten seconds.
const LOST: f64 = 1e10;
/// A trial has cost this many windows of the incumbent: whatever it measures, that is enough.
const COST_MAX: f64 = 256.0;
/// However bad a place was, it is tried again after this many calls at most for each of a trial's.
const WORSE_MAX: f64 = 1000.0;
/// What a trial cost counts up to this factor of what its means say.
const BLAME_MAX: f64 = 8.0;
/// A place that loses again and again is tried less and less often, down to one in 2^this.
const BACKOFF_MAX: u32 = 5;

/// What is known of one place.
#[derive(Clone, Copy, Debug)]
struct Known<P> {
    place: P,
    available: bool,
    /// Mean time of a call, in ns, when it was last looked at under the whole load.
    cost: Option<f64>,
    wins: u32,
    /// Trials lost in a row.
    losses: u32,
    under_way: u64,
    /// Not to be tried again before so many calls have ended.
    next_trial: u64,
    /// What a call takes there at least, as far as is known.
    floor: f64,
}

/// Waits until the load has come to one place.
#[derive(Clone, Copy, Debug)]
enum Settling {
    /// Calls are under way elsewhere.
    Coming,
    /// All are here; so many of them met less than the whole load, and none counts before this time.
    Here(u64, Nanos),
}

impl Settling {
    const DONE: Settling = Settling::Here(0, Nanos::ZERO);

    /// A call has ended here; whether it met the whole load. One in sixteen may stay away: a call that
    /// waits for a lock elsewhere must not hold up everything.
    fn counts(&mut self, (here, all): (u64, u64), now: Nanos, settle: Nanos) -> bool {
        match self {
            Settling::Coming if all.saturating_sub(here) > all / 16 => return false,
            Settling::Coming => *self = Settling::Here(here, now + settle),
            Settling::Here(0, since) => return now >= *since,
            Settling::Here(left, _) => *left -= 1,
        }
        false
    }
}

/// A trial under way.
#[derive(Clone, Debug)]
struct Trial {
    at: usize,
    /// One call went ahead, and nothing follows before it is back.
    probing: bool,
    settling: Settling,
    /// Calls that were under way when it began.
    before: u64,
    window: usize,
    sent: u64,
    ended: u64,
    /// Times of all its calls together.
    sum: f64,
    times: Vec<f64>,
    means: Vec<f64>,
}

/// The mean without the slowest sixteenth, and an empty list.
fn take_mean(times: &mut Vec<f64>) -> f64 {
    let counted = times.len() - times.len() / 16;
    times.select_nth_unstable_by(counted - 1, f64::total_cmp);
    let sum: f64 = times[..counted].iter().sum();
    times.clear();
    sum / counted as f64
}

fn least<'a>(means: impl IntoIterator<Item = &'a f64>) -> Option<f64> {
    means.into_iter().copied().min_by(f64::total_cmp)
}

/// Why the incumbent is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason<P> {
    First,
    Won { over: P, by: f64 },
    OnlyOneLeft,
}

/// The choice for one function.
#[derive(Clone, Debug)]
pub struct Chooser<P = Place> {
    config: Config,
    known: Vec<Known<P>>,
    incumbent: usize,
    since: Nanos,
    reason: Reason<P>,
    moves: u64,
    trial: Option<Trial>,
    /// Calls that have ended.
    calls: u64,
    under_way: u64,
    /// The incumbent's load, after a trial.
    settling: Settling,
    /// Of the incumbent's calls.
    times: Vec<f64>,
    means: VecDeque<f64>,
    /// Windows of the incumbent since the last trial.
    fresh: u32,
    /// The incumbent's cost when it last changed.
    reference: Option<f64>,
    accesses: f64,
}

impl<P: Copy + PartialEq + fmt::Display> Chooser<P> {
    /// Starts at the first of the places, and knows nothing.
    pub fn new(places: &[P], config: Config, now: Nanos) -> Chooser<P> {
        assert!(!places.is_empty(), "a call must run somewhere");
        assert!(config.window > 0 && config.windows > 0);
        let known = |place: &P| Known {
            place: *place,
            available: true,
            cost: None,
            wins: 0,
            losses: 0,
            under_way: 0,
            next_trial: 0,
            floor: 0.0,
        };
        Chooser {
            config,
            known: places.iter().map(known).collect(),
            incumbent: 0,
            since: now,
            reason: Reason::First,
            moves: 0,
            trial: None,
            calls: 0,
            under_way: 0,
            settling: Settling::Coming,
            times: Vec::with_capacity(config.window_max as usize),
            means: VecDeque::with_capacity(config.windows as usize + 1),
            fresh: 0,
            reference: None,
            accesses: 0.0,
        }
    }

    pub fn incumbent(&self) -> P {
        self.known[self.incumbent].place
    }
    /// How often the incumbent has changed.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn position(&self, place: P) -> Option<usize> {
        self.known.iter().position(|known| known.place == place)
    }

    /// A place came or went.
    pub fn set_available(&mut self, place: P, available: bool, now: Nanos) {
        let at = self.position(place).unwrap_or_else(|| {
            self.known.push(Known {
                place,
                available: false,
                cost: None,
                wins: 0,
                losses: 0,
                under_way: 0,
                next_trial: 0,
                floor: 0.0,
            });
            self.known.len() - 1
        });
        let known = &mut self.known[at];
        if known.available == available {
            return;
        }
        known.available = available;
        known.cost = None;
        known.wins = 0;
        known.losses = 0;
        known.next_trial = self.calls;
        if self.trial.as_ref().is_some_and(|trial| trial.at == at) {
            self.trial = None;
            self.recover();
        }
        if !available && self.incumbent == at {
            let cost = |at: &usize| self.known[*at].cost.unwrap_or(f64::MAX);
            let rest = (0..self.known.len()).filter(|at| self.known[*at].available);
            if let Some(next) = rest.min_by(|a, b| cost(a).total_cmp(&cost(b))) {
                self.settle_at(next, Reason::OnlyOneLeft, now);
                self.means.clear();
                self.recover();
            }
        }
    }

    fn settle_at(&mut self, at: usize, reason: Reason<P>, now: Nanos) {
        self.incumbent = at;
        self.since = now;
        self.reason = reason;
        self.moves += 1;
        self.trial = None;
        self.times.clear();
        self.reference = None;
        for known in &mut self.known {
            known.wins = 0;
        }
    }

    /// The load comes back to the incumbent: what is under way elsewhere does not count yet.
    fn recover(&mut self) {
        self.settling = Settling::Coming;
        self.times.clear();
        self.fresh = 0;
    }

    /// Calls of a window, with what is under way.
    fn window(&self) -> usize {
        let (least, most) = (self.config.window, self.config.window_max);
        self.under_way.clamp(u64::from(least), u64::from(most)) as usize
    }

    /// Whether calls are, or one of them is, on trial somewhere.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }
    /// Accesses of a call, over the last few.
    pub fn accesses(&self) -> f64 {
        self.accesses
    }
    /// A call takes at least so long at a place, whatever else.
    pub fn expect(&mut self, place: P, at_least: Nanos) {
        if let Some(at) = self.position(place) {
            self.known[at].floor = at_least.0 as f64;
        }
    }

    /// Where the next call goes.
    pub fn choose(&mut self) -> P {
        self.choose_if(true)
    }
    /// The same; a trial begins only if it may.
    pub fn choose_if(&mut self, may_try: bool) -> P {
        let at = self.next(may_try);
        self.under_way += 1;
        self.known[at].under_way += 1;
        self.known[at].place
    }

    fn next(&mut self, may_try: bool) -> usize {
        if let Some(trial) = &mut self.trial {
            if trial.probing {
                return self.incumbent;
            }
            trial.sent += 1;
            return trial.at;
        }
        if may_try
            && self.fresh >= self.config.windows
            && let Some(at) = self.due()
        {
            self.trial = Some(Trial {
                at,
                probing: self.config.probe.is_finite(),
                settling: Settling::Coming,
                before: self.under_way,
                window: self.window(),
                sent: 1,
                ended: 0,
                sum: 0.0,
                times: std::mem::take(&mut self.times),
                means: Vec::with_capacity(self.config.windows as usize),
            });
            if let Some(trial) = &mut self.trial {
                trial.times.clear();
            }
            return at;
        }
        self.incumbent
    }

    /// The place whose trial is due for the longest time.
    fn due(&self) -> Option<usize> {
        let own = self.known[self.incumbent].cost.unwrap_or(f64::MAX);
        let due = |at: &usize| {
            let known = &self.known[*at];
            let may_be_good = known.floor <= own * self.config.hopeless;
            *at != self.incumbent
                && known.available
                && may_be_good
                && known.next_trial <= self.calls
        };
        let all = (0..self.known.len()).filter(due);
        all.min_by_key(|at| self.known[*at].next_trial)
    }

    /// A call that has failed is sent again, without being chosen for.
    pub fn sent_again(&mut self, place: P) {
        if let Some(at) = self.position(place) {
            self.under_way += 1;
            self.known[at].under_way += 1;
        }
    }

    /// A call that was sent to `place` has ended.
    pub fn ended(&mut self, place: P, took: Nanos, accesses: u32, now: Nanos) {
        self.accesses += (f64::from(accesses) - self.accesses) / 32.0;
        self.count(place, took.0 as f64, now);
    }

    /// A call to `place` was lost.
    pub fn failed(&mut self, place: P, now: Nanos) {
        self.count(place, LOST, now);
    }

    fn count(&mut self, place: P, took: f64, now: Nanos) {
        let Some(at) = self.position(place) else {
            return;
        };
        self.calls += 1;
        let known = &mut self.known[at];
        known.under_way = known.under_way.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
        let load = (known.under_way, self.under_way);
        let settle = self.config.settle;
        match &mut self.trial {
            Some(trial) => {
                if trial.at == at && trial.probing {
                    let own = self.known[self.incumbent].cost.unwrap_or(f64::MAX);
                    if took > own * self.config.probe {
                        trial.ended = 1;
                        trial.sum = took;
                        self.judge(took, now);
                        return;
                    }
                    // It may be good: all the others follow.
                    trial.probing = false;
                    trial.before = self.under_way;
                    return;
                }
                if trial.probing {
                    return;
                }
                if trial.at == at {
                    trial.ended += 1;
                    trial.sum += took;
                    if trial.settling.counts(load, now, settle) {
                        trial.times.push(took);
                    }
                }
                self.look_at_trial(now);
            }
            None if at == self.incumbent && self.settling.counts(load, now, settle) => {
                self.times.push(took);
                if self.times.len() >= self.window() {
                    self.take_cost();
                }
            }
            None => {}
        }
    }

    fn take_cost(&mut self) {
        let mean = take_mean(&mut self.times);
        if self.means.len() >= self.config.windows as usize {
            self.means.pop_front();
        }
        self.means.push_back(mean);
        self.fresh = self.fresh.saturating_add(1);
        let Some(cost) = least(&self.means) else {
            return;
        };
        self.known[self.incumbent].cost = Some(cost);
        if self.fresh < self.config.windows {
            return;
        }
        let before = *self.reference.get_or_insert(cost);
        if (cost / before).max(before / cost) > self.config.change {
            self.reference = Some(cost);
            for known in &mut self.known {
                let left = known.next_trial.saturating_sub(self.calls);
                known.next_trial = self.calls + left / 8;
                known.losses = 0;
            }
        }
    }

    /// Ends the trial when it is known how it went.
    fn look_at_trial(&mut self, now: Nanos) {
        let Some(trial) = &mut self.trial else {
            return;
        };
        let own = self.known[self.incumbent].cost.unwrap_or(f64::MAX);
        if trial.times.len() >= trial.window {
            let mean = take_mean(&mut trial.times);
            trial.means.push(mean);
        }
        let found = least(&trial.means);
        let hopeless =
            trial.means.len() >= 2 && found.is_some_and(|cost| cost > own * self.config.hopeless);
        let all = trial.means.len() >= self.config.windows as usize;
        let too_dear = trial.sum > own * trial.window as f64 * COST_MAX;
        // More is sent there than comes back: it does not keep up with what arrives.
        let stuck = trial.sent - trial.ended > 2 * (trial.before + trial.window as u64);
        if !(all || hopeless || too_dear || stuck) {
            return;
        }
        let mean = trial.sum / trial.ended.max(1) as f64;
        let cost = match found {
            Some(cost) if all || hopeless => cost,
            _ if stuck => mean.max(own * self.config.hopeless),
            _ => mean,
        };
        self.judge(cost, now);
    }

    fn judge(&mut self, cost: f64, now: Nanos) {
        let Some(trial) = self.trial.take() else {
            return;
        };
        let own = self.known[self.incumbent].cost.unwrap_or(cost);
        let calls = match trial.probing {
            true => 1.0,
            false => trial.ended.max(trial.window as u64) as f64,
        };
        let pause = |worse: f64| {
            let worse = worse.clamp(0.0, WORSE_MAX);
            calls * (worse / self.config.regret).max(1.0 / self.config.share)
        };
        let (if_lost, if_won) = (pause(cost / own - 1.0), pause(own / cost - 1.0));
        // What it really cost, other than by the means; but somebody else may be to blame for that.
        let spent = (trial.sum / own - calls) / self.config.regret;
        let known = &mut self.known[trial.at];
        known.cost = Some(cost);
        if cost >= own * (1.0 - self.config.margin) {
            let pause = if_lost.max(spent.min(if_lost * BLAME_MAX));
            let backoff = 1 << known.losses.min(BACKOFF_MAX);
            known.wins = 0;
            known.losses += 1;
            known.next_trial = self.calls + pause as u64 * backoff;
            self.recover();
            return;
        }
        known.wins += 1;
        known.losses = 0;
        if known.wins < self.config.wins {
            self.recover();
            return;
        }
        let over = self.incumbent;
        let reason = Reason::Won {
            over: self.known[over].place,
            by: 1.0 - cost / own,
        };
        self.settle_at(trial.at, reason, now);
        // It has the whole load already, and has just been measured; so has the old one.
        self.means.clear();
        self.means.extend(trial.means);
        self.fresh = 0;
        self.settling = Settling::DONE;
        self.known[over].next_trial = self.calls + if_won as u64;
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
        let available = self.known.iter().filter(|known| known.available);
        let costs: Vec<String> = available
            .map(|known| format!("{} {}", known.place, us(known.cost)))
            .collect();
        format!(
            "{} for {:.0}s ({why}; {}; {:.1} accesses, {} moves)",
            self.incumbent(),
            now.saturating_sub(self.since).0 as f64 / 1e9,
            costs.join(", "),
            self.accesses,
            self.moves
        )
    }
}

#[cfg(test)]
mod tests;
