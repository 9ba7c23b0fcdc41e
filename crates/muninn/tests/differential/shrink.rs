//! The smallest list of steps that still fails: steps are taken away for as long as it does.
//!
//! Halves first, then smaller and smaller parts of the list; then the same with the steps of
//! threads and children that are left. What fails only sometimes is given three chances, so a list
//! that was found small may still fail only now and then.

use crate::plan::Plan;
use crate::run::{Outcome, PATIENCE, again, judge, plainly};
use std::time::{Duration, Instant};

const CHANCES: usize = 3;

/// Less than for the first run: there is much to try, and what does nothing for that long hangs.
const HANG: Duration = Duration::from_secs(12);

struct Search<'a> {
    plan: &'a Plan,
    kind: &'static str,
    until: Instant,
    tried: u32,
    skipped: Vec<String>,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// It fails as it did without these as well.
    fn still_fails(&mut self, more: &[String]) -> bool {
        let skipped = [&self.skipped[..], more].concat();
        (0..CHANCES).any(|_| {
            self.tried += 1;
            let plain = (self.kind == "reads something else")
                .then(|| plainly(&crate::common::place(), self.plan, &skipped, PATIENCE));
            let ran = again(self.plan, &skipped, HANG);
            !self.is_over() && judge(ran, plain).kind() == self.kind
        })
    }

    fn take_away(&mut self, mut left: Vec<String>) {
        let mut size = left.len().div_ceil(2);
        while size > 0 && !self.is_over() {
            let mut from = 0;
            while from < left.len() && !self.is_over() {
                let to = (from + size).min(left.len());
                let part = left[from..to].to_vec();
                if self.still_fails(&part) {
                    left.drain(from..to);
                    self.skipped.extend(part);
                } else {
                    from = to;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }
}

/// The list in words, and the command that plays it.
pub fn shrink(plan: &Plan, outcome: &Outcome, time: Duration) -> String {
    let mut search = Search {
        plan,
        kind: outcome.kind(),
        until: Instant::now() + time,
        tried: 0,
        skipped: Vec::new(),
    };
    let numbers = |search: &Search, inner: bool| -> Vec<String> {
        let left = plan
            .list(&search.skipped)
            .into_iter()
            .map(|(number, _)| number);
        left.filter(|number| number.contains('.') == inner)
            .collect()
    };
    let all = numbers(&search, false);
    search.take_away(all);
    let inner = numbers(&search, true);
    search.take_away(inner);
    let steps = plan.list(&search.skipped);
    let mut text = format!(
        "  {} steps still fail ({} runs, {}):\n  {}\n",
        steps.len(),
        search.tried,
        if search.is_over() {
            "the time was over"
        } else {
            "no step can be left out"
        },
        plan.command(&search.skipped),
    );
    for (number, words) in steps {
        let indent = 4 + 4 * number.matches('.').count();
        text += &format!("{:indent$}{number}: {words}\n", "");
    }
    text
}
