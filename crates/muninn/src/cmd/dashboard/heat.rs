//! How long requests took at the servers, by class, and faults of the jobs here, by kind, column by column of time.

use crate::observe::{JobNow, ServerNow};
use muninn_types::{Class, Spread};
use muninn_wire::ServerTimes;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

/// Columns that are kept.
pub const COLUMNS_MAX: usize = 120;

/// Behind the classes of traffic: faults of programs.
const FAULTS: [&str; 3] = ["first touches", "faults, about to leave", "faults, far"];
const KINDS: usize = Class::COUNT + FAULTS.len();

/// Names of all that is told apart.
pub fn names() -> Vec<&'static str> {
    Class::ALL
        .iter()
        .map(|class| class.name())
        .chain(FAULTS)
        .collect()
}

/// What was answered between two pictures: for each class that had any, its number, then bucket and count by turns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    #[serde(skip)]
    pub seq: u64,
    pub unix_s: u64,
    pub classes: Vec<(usize, Vec<u64>)>,
}

#[derive(Debug, Default)]
pub struct Heat {
    columns: VecDeque<Column>,
    last: HashMap<String, ServerTimes>,
    last_jobs: HashMap<u32, [Spread; 3]>,
}

impl Heat {
    pub fn handle(&mut self, servers: &[ServerNow], jobs: &[JobNow], seq: u64, unix_s: u64) {
        let mut sums = [Spread::default(); KINDS];
        let mut last = HashMap::new();
        for server in servers {
            let before = self.last.remove(&server.address);
            // One that is silent for a while goes on from where it was.
            let Some(now) = server.times.as_deref() else {
                last.extend(before.map(|before| (server.address.clone(), before)));
                continue;
            };
            if let Some(before) = before {
                let pairs = now.classes.iter().zip(&before.classes);
                for (sum, (now, before)) in sums.iter_mut().zip(pairs) {
                    sum.add(&now.since(before));
                }
            }
            last.insert(server.address.clone(), now.clone());
        }
        self.last = last;
        let mut last = HashMap::with_capacity(jobs.len());
        for job in jobs {
            if let Some(before) = self.last_jobs.get(&job.launcher) {
                let pairs = job.times.iter().zip(before);
                for (sum, (now, before)) in sums[Class::COUNT..].iter_mut().zip(pairs) {
                    sum.add(&now.since(before));
                }
            }
            last.insert(job.launcher, job.times);
        }
        self.last_jobs = last;
        if self.columns.len() >= COLUMNS_MAX {
            self.columns.pop_front();
        }
        self.columns.push_back(Column {
            seq,
            unix_s,
            classes: sums.iter().enumerate().filter_map(sparse).collect(),
        });
    }

    pub fn since(&self, seq: u64) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(move |column| column.seq > seq)
    }
}

fn sparse((class, spread): (usize, &Spread)) -> Option<(usize, Vec<u64>)> {
    let full = spread.counts.iter().enumerate().filter(|(_, n)| **n > 0);
    let pairs: Vec<u64> = full.flat_map(|(bucket, n)| [bucket as u64, *n]).collect();
    (!pairs.is_empty()).then_some((class, pairs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::Nanos;

    fn server(address: &str, demands: u64) -> ServerNow {
        let mut times = ServerTimes::default();
        for _ in 0..demands {
            times.classes[Class::Demand.index()].note(Nanos(5000));
        }
        ServerNow {
            address: address.to_string(),
            times: Some(Box::new(times)),
            ..ServerNow::default()
        }
    }

    #[test]
    fn a_column_has_what_came_since_the_one_before() {
        let mut heat = Heat::default();
        heat.handle(&[server("a", 5), server("b", 1)], &[], 1, 100);
        heat.handle(&[server("a", 7), server("b", 2)], &[], 2, 101);
        let silent = ServerNow {
            address: "a".to_string(),
            ..ServerNow::default()
        };
        heat.handle(&[silent, server("b", 2)], &[], 3, 102);
        // `a` is back; `b` was started anew.
        heat.handle(&[server("a", 8), server("b", 0)], &[], 4, 103);
        let classes: Vec<_> = heat.since(0).map(|column| column.classes.clone()).collect();
        let demand = |n| vec![(2, vec![3, n])];
        assert_eq!(classes, [vec![], demand(3), vec![], demand(1)]);
        assert_eq!(heat.since(3).count(), 1);
        for seq in 5..1000 {
            heat.handle(&[server("a", 8)], &[], seq, seq);
        }
        assert_eq!(heat.since(0).count(), COLUMNS_MAX);
        let job = |faults: u64| {
            let mut job = JobNow::default();
            job.times[2].counts[4] = faults;
            job
        };
        heat.handle(&[], &[job(3)], 1000, 1000);
        heat.handle(&[], &[job(10)], 1001, 1001);
        let newest = heat.since(1000).next().unwrap();
        assert_eq!(newest.classes, [(Class::COUNT + 2, vec![4, 7])]);
        assert_eq!(names()[Class::COUNT + 2], "faults, far");
        heat.handle(&[server("a", 8)], &[], 1002, 1002);
        assert!(heat.last_jobs.is_empty());
        assert_eq!(heat.last.len(), 1, "those that are gone are forgotten");
    }
}
