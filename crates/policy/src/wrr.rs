//! Weighted round-robin over the classes of traffic.
//!
//! Idea: one first-in-first-out queue for each class. The classes take turns in the order of
//! [`Class::ALL`]; a class that comes to its turn may send `weight × quantum` bytes. What it sends
//! beyond that (an item may not be divisible) is a debt that its next turns pay, so shares are kept
//! in bytes whatever the items' sizes (deficit round-robin with a debt, "surplus round-robin").
//! The memory server's event loops and the simulated switch ports both schedule with this file.
//!
//! Invariants: *work-conserving* ([`Wrr::next`] gives an item whenever there is one); *no class
//! starves* (between two turns of a backlogged class that owes nothing, each other class sends at
//! most its turn and one item); *shares* of backlogged classes approach the weights; items of one
//! class keep their order. Nothing is saved up: an idle class keeps its debt, not its credit, and
//! debts are forgiven when every queue has run empty.
//!
//! Known limit: as in any round-robin, an item that arrives at an idle class waits for the turn
//! that is being served and those before its own; keep the quantum small where latency counts.
//!
//! Source: Glitter, "Scheduling at Switch"; Shreedhar and Varghese, "Efficient Fair Queueing Using
//! Deficit Round-Robin" (1995). Glitter does not publish its weights: the defaults are ours.

use muninn_types::{Bytes, Class};
use std::collections::VecDeque;

/// How much each class may send in one round, relative to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights([u32; Class::COUNT]);

/// The largest weight: with it the turn of a class is bounded.
pub const WEIGHT_MAX: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("the weight of class {0} is 0, it would never be served: use 1 to {WEIGHT_MAX}")]
    Zero(Class),
    #[error("the weight of class {0} is {1}: use 1 to {WEIGHT_MAX}")]
    TooLarge(Class, u32),
}

impl Weights {
    /// In the order of [`Class::ALL`], most urgent first.
    pub fn new(weights: [u32; Class::COUNT]) -> Result<Weights, WeightError> {
        for class in Class::ALL {
            match weights[class.index()] {
                0 => return Err(WeightError::Zero(class)),
                1..=WEIGHT_MAX => {}
                weight => return Err(WeightError::TooLarge(class, weight)),
            }
        }
        Ok(Weights(weights))
    }

    /// Glitter's safeguard: urgency counts for nothing, every class is served alike.
    pub const fn equal() -> Weights {
        Weights([1; Class::COUNT])
    }

    pub const fn get(&self, class: Class) -> u32 {
        self.0[class.index()]
    }
}

impl Default for Weights {
    /// `Control` > `UrgentEviction` ≥ `Demand` > `Eviction(6…2)` > `Prefetch`.
    fn default() -> Weights {
        Weights([32, 16, 16, 8, 6, 4, 3, 2, 1])
    }
}

/// One item to serve now.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn<T> {
    pub class: Class,
    pub item: T,
    /// What the class may still send before the next class has its turn; never 0. An item that
    /// cannot be divided may send more.
    pub budget: Bytes,
}

/// The queue of this class is full; the item comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// The scheduler. The caller's loop is: [`next`](Wrr::next), send, [`charge`](Wrr::charge) what was
/// sent, and [`requeue`](Wrr::requeue) the item if it has more.
#[derive(Debug)]
pub struct Wrr<T> {
    queues: [VecDeque<T>; Class::COUNT],
    /// Which queues are not empty, as bits: finding the next one is what a port does most.
    backlog: u32,
    /// Bytes that a class may still send in this turn; below zero it is a debt.
    credit_bytes: [i64; Class::COUNT],
    weights: Weights,
    quantum: Bytes,
    /// The class whose turn it is.
    turn: usize,
    len: usize,
    class_len_max: usize,
}

impl<T> Wrr<T> {
    /// `quantum`: bytes for each unit of weight in a round (1 byte to 1 GiB, clamped).
    /// `class_len_max`: how many items may wait in one class.
    pub fn new(weights: Weights, quantum: Bytes, class_len_max: usize) -> Wrr<T> {
        Wrr {
            queues: std::array::from_fn(|_| VecDeque::new()),
            backlog: 0,
            credit_bytes: [0; Class::COUNT],
            weights,
            quantum: Bytes(quantum.0.clamp(1, 1 << 30)),
            turn: Class::COUNT - 1,
            len: 0,
            class_len_max,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn class_len(&self, class: Class) -> usize {
        self.queues[class.index()].len()
    }

    /// Takes effect from the next turn on; used for the safeguard.
    pub fn set_weights(&mut self, weights: Weights) {
        self.weights = weights;
    }

    /// Puts an item at the tail of its class.
    pub fn push(&mut self, class: Class, item: T) -> Result<(), Full<T>> {
        let queue = &mut self.queues[class.index()];
        if queue.len() >= self.class_len_max {
            return Err(Full(item));
        }
        queue.push_back(item);
        self.backlog |= 1 << class.index();
        self.len += 1;
        Ok(())
    }

    /// Puts an item that [`next`](Wrr::next) gave back to the head of its class. Never refused: the
    /// item had a place before, so a class holds at most its limit and the items that are out.
    pub fn requeue(&mut self, class: Class, item: T) {
        self.queues[class.index()].push_front(item);
        self.backlog |= 1 << class.index();
        self.len += 1;
    }

    /// Takes the next item to serve. A class keeps its turn until its budget is used up (see
    /// [`charge`](Wrr::charge)) or its queue is empty.
    #[allow(clippy::should_implement_trait)] // an iterator could not be charged in between
    pub fn next(&mut self) -> Option<Turn<T>> {
        if self.len == 0 {
            self.credit_bytes = [0; Class::COUNT];
            return None;
        }
        if !self.is_backlogged(self.turn) || self.credit_bytes[self.turn] <= 0 {
            self.pass_turn();
        }
        let index = self.turn;
        let item = self.queues[index].pop_front()?;
        if self.queues[index].is_empty() {
            self.backlog &= !(1 << index);
        }
        self.len -= 1;
        Some(Turn {
            class: Class::ALL[index],
            item,
            budget: Bytes(self.credit_bytes[index].unsigned_abs()),
        })
    }

    /// Says what the item that [`next`](Wrr::next) gave has sent; more than its budget is a debt.
    pub fn charge(&mut self, class: Class, sent: Bytes) {
        let sent = i64::try_from(sent.0).unwrap_or(i64::MAX);
        let credit = &mut self.credit_bytes[class.index()];
        *credit = credit.saturating_sub(sent).max(-i64::MAX);
    }

    fn turn_bytes(&self, index: usize) -> i64 {
        // At most 2^16 × 2^30.
        i64::from(self.weights.0[index]) * self.quantum.0 as i64
    }

    /// Moves the turn to the next class that has something to send and owes nothing.
    /// Precondition: some queue is not empty. Postcondition: the class at `turn` is backlogged and
    /// has credit.
    fn pass_turn(&mut self) {
        // Credit that was not used is not saved up.
        self.credit_bytes[self.turn] = self.credit_bytes[self.turn].min(0);
        if self.pass_within_a_round() {
            return;
        }
        self.skip_rounds_of_debt();
        assert!(
            self.pass_within_a_round(),
            "one round pays the debt of at least one backlogged class"
        );
    }

    fn pass_within_a_round(&mut self) -> bool {
        for _ in 0..self.backlog.count_ones() {
            self.turn = self.next_backlogged();
            self.credit_bytes[self.turn] += self.turn_bytes(self.turn);
            if self.credit_bytes[self.turn] > 0 {
                return true;
            }
        }
        false
    }

    /// The first class after the one at `turn`, which comes last itself.
    fn next_backlogged(&self) -> usize {
        let after = self.backlog >> (self.turn + 1) << (self.turn + 1);
        let first = if after == 0 { self.backlog } else { after };
        first.trailing_zeros() as usize
    }

    fn is_backlogged(&self, index: usize) -> bool {
        self.backlog & (1 << index) != 0
    }

    /// Where every backlogged class owes more than one round pays, all rounds but the last are
    /// paid at once, so that a huge item does not make the scheduler spin.
    fn skip_rounds_of_debt(&mut self) {
        let rounds = (0..Class::COUNT)
            .filter(|&i| self.is_backlogged(i))
            .map(|i| self.credit_bytes[i].min(0).unsigned_abs() / self.turn_bytes(i) as u64)
            .min()
            .unwrap_or(0) as i64;
        for i in 0..Class::COUNT {
            if rounds > 0 && self.is_backlogged(i) {
                let paid = self.turn_bytes(i).saturating_mul(rounds);
                self.credit_bytes[i] = self.credit_bytes[i].saturating_add(paid).min(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrr<T>(weights: Weights, quantum: u64) -> Wrr<T> {
        Wrr::new(weights, Bytes(quantum), usize::MAX)
    }

    /// Serves one item of `size` bytes and keeps its class backlogged.
    fn serve_backlogged(wrr: &mut Wrr<u64>) -> (Class, u64) {
        let turn = wrr.next().expect("backlogged");
        wrr.charge(turn.class, Bytes(turn.item));
        wrr.requeue(turn.class, turn.item);
        (turn.class, turn.item)
    }

    #[test]
    fn defaults_follow_the_order_of_urgency() {
        let weights = Weights::default();
        let all: Vec<u32> = Class::ALL.iter().map(|&c| weights.get(c)).collect();
        assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
        assert!(weights.get(Class::Control) > weights.get(Class::UrgentEviction));
        assert!(weights.get(Class::Demand) > weights.get(Class::Eviction(6)));
        assert!(weights.get(Class::Eviction(2)) > weights.get(Class::Prefetch));
    }

    #[test]
    fn bad_weights_name_the_class() {
        let mut weights = [1; Class::COUNT];
        weights[2] = 0;
        assert_eq!(
            Weights::new(weights).unwrap_err().to_string(),
            "the weight of class demand is 0, it would never be served: use 1 to 65536"
        );
        weights[2] = 70_000;
        assert_eq!(
            Weights::new(weights).unwrap_err().to_string(),
            "the weight of class demand is 70000: use 1 to 65536"
        );
    }

    #[test]
    fn a_requeued_item_stays_at_the_head_of_its_class() {
        let mut wrr = wrr(Weights::default(), 1);
        wrr.push(Class::Demand, 'a').unwrap();
        wrr.push(Class::Demand, 'b').unwrap();
        let turn = wrr.next().unwrap();
        assert_eq!((turn.item, turn.budget), ('a', Bytes(16)));
        wrr.charge(turn.class, Bytes(10));
        wrr.requeue(turn.class, turn.item);
        let turn = wrr.next().unwrap();
        assert_eq!((turn.item, turn.budget), ('a', Bytes(6)));
        wrr.charge(turn.class, Bytes(6));
        assert_eq!(wrr.next().unwrap().item, 'b');
        assert_eq!(wrr.next(), None);
    }

    #[test]
    fn a_full_class_refuses_and_leaves_the_others_alone() {
        let mut wrr = Wrr::new(Weights::default(), Bytes(1), 1);
        assert_eq!(wrr.push(Class::Prefetch, 1), Ok(()));
        assert_eq!(wrr.push(Class::Prefetch, 2), Err(Full(2)));
        assert_eq!(wrr.push(Class::Demand, 3), Ok(()));
        assert_eq!((wrr.len(), wrr.class_len(Class::Prefetch)), (2, 1));
    }

    #[test]
    fn a_huge_item_does_not_make_the_scheduler_spin() {
        let mut wrr = wrr(Weights::equal(), 1);
        for class in [Class::Demand, Class::Prefetch] {
            wrr.push(class, u64::MAX).unwrap();
        }
        for _ in 0..1000 {
            let (class, bytes) = serve_backlogged(&mut wrr);
            wrr.charge(class, Bytes(bytes));
        }
    }

    proptest! {
        #[test]
        fn shares_of_backlogged_classes_approach_the_weights(
            weights in proptest::array::uniform9(1u32..40),
            sizes in proptest::array::uniform9(1u64..6000),
            backlogged in proptest::array::uniform9(any::<bool>()),
        ) {
            let mut wrr = wrr(Weights::new(weights).unwrap(), 1500);
            let classes: Vec<Class> =
                Class::ALL.into_iter().filter(|c| backlogged[c.index()]).collect();
            prop_assume!(!classes.is_empty());
            for &class in &classes {
                wrr.push(class, sizes[class.index()]).unwrap();
            }
            let mut sent = [0u64; Class::COUNT];
            while sent.iter().sum::<u64>() < 100_000_000 {
                let (class, bytes) = serve_backlogged(&mut wrr);
                sent[class.index()] += bytes;
            }
            let weight_sum: u32 = classes.iter().map(|c| weights[c.index()]).sum();
            let total: u64 = sent.iter().sum();
            for class in classes {
                let share = sent[class.index()] as f64 / total as f64;
                let due = f64::from(weights[class.index()]) / f64::from(weight_sum);
                prop_assert!((share - due).abs() < 0.01, "{class}: {share} of {due}");
            }
        }

        #[test]
        fn no_class_starves(
            weights in proptest::array::uniform9(1u32..40),
            size in 1u64..9000,
            victim in 0usize..Class::COUNT,
        ) {
            let quantum = 1500;
            let mut wrr = wrr(Weights::new(weights).unwrap(), quantum);
            for class in Class::ALL {
                wrr.push(class, size).unwrap();
            }
            // A debt of one item takes size ÷ turn rounds to pay; in each round every other class
            // sends at most its turn and one item.
            let turn = u64::from(weights[victim]) * quantum;
            let rounds = size.div_ceil(turn) + 1;
            let others: u64 = (0..Class::COUNT)
                .filter(|&i| i != victim)
                .map(|i| u64::from(weights[i]) * quantum + size)
                .sum();
            let mut waited = 0;
            for _ in 0..5_000 {
                let (class, bytes) = serve_backlogged(&mut wrr);
                waited = if class.index() == victim { 0 } else { waited + bytes };
                prop_assert!(waited <= rounds * others, "{waited} bytes passed by");
            }
        }

        #[test]
        fn work_conserving_complete_and_in_order(
            pushes in proptest::collection::vec((0usize..Class::COUNT, 1u64..100_000), 1..200),
            serve_after in 1usize..5,
        ) {
            let mut wrr = wrr(Weights::default(), 4096);
            let mut next_of_class = [0usize; Class::COUNT];
            let mut pushed_of_class = [0usize; Class::COUNT];
            let mut served = 0;
            let mut serve = |wrr: &mut Wrr<(usize, u64)>| {
                let expected = !wrr.is_empty();
                let turn = wrr.next();
                assert_eq!(turn.is_some(), expected, "an item waited while the link was free");
                if let Some(Turn { class, item: (number, size), budget }) = turn {
                    assert!(budget > Bytes::ZERO);
                    assert_eq!(number, next_of_class[class.index()]);
                    next_of_class[class.index()] += 1;
                    wrr.charge(class, Bytes(size));
                    served += 1;
                }
            };
            for (n, &(index, size)) in pushes.iter().enumerate() {
                let number = pushed_of_class[index];
                pushed_of_class[index] += 1;
                wrr.push(Class::ALL[index], (number, size)).unwrap();
                if n % serve_after == 0 {
                    serve(&mut wrr);
                }
            }
            for _ in 0..pushes.len() {
                serve(&mut wrr);
            }
            prop_assert_eq!(served, pushes.len());
        }
    }
}
