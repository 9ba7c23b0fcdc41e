//! Does a job fit on a node? The `fit` function of Cluster Far Memory (§4.4.2).
//!
//! A job fits *locally* where its cores and all its memory are free. Else it fits *with far memory*
//! where its cores are free beside the reclaim cores, where every job of the node, the new one
//! included, can still have the local memory of its minimum ratio, and where the pool holds the rest.
//! The uniform policy is the special case of one minimum ratio for all jobs.
//!
//! Invariant: cores are never promised twice, Σ minimum memory ≤ the node's memory, Σ far ≤ the pool.
//! The reclaim cores of a node run jobs as long as the node uses no far memory (§4.3.3).
//!
//! Known limit: this is the published *eager* admission: it takes every job that fits, also where a
//! moment's wait would let the job run locally. See [`crate::admission`] for one that weighs.

use muninn_types::Bytes;

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub cores: u32,
    pub memory: Bytes,
    /// Local memory below which the job may not be shrunk.
    pub floor: Bytes,
}

/// What a node has and what it has promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub cores: u32,
    /// Cores that reclaim memory, and run no job, while the node uses far memory.
    pub reclaim_cores: u32,
    /// Whether the reclaim cores stay free of jobs also while the node uses no far memory.
    pub reclaim_always: bool,
    pub memory: Bytes,
    pub cores_used: u32,
    /// Σ memory of the jobs on the node; what exceeds `memory` is far.
    pub wanted: Bytes,
    /// Σ floor of the jobs on the node.
    pub floor: Bytes,
}

/// How a job fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// With all memory local.
    Local,
    /// With this much more far memory in use.
    Far(Bytes),
    No,
}

impl Node {
    pub fn new(cores: u32, reclaim_cores: u32, memory: Bytes) -> Node {
        Node {
            cores,
            reclaim_cores,
            reclaim_always: false,
            memory,
            cores_used: 0,
            wanted: Bytes::ZERO,
            floor: Bytes::ZERO,
        }
    }

    /// Memory of this node's jobs that is not local.
    #[inline]
    pub fn far(&self) -> Bytes {
        self.wanted.saturating_sub(self.memory)
    }

    #[inline]
    pub fn fits_local(&self, job: &Need) -> bool {
        let kept = if self.reclaim_always {
            self.reclaim_cores
        } else {
            0
        };
        self.cores_used + job.cores + kept <= self.cores
            && self.wanted.0 + job.memory.0 <= self.memory.0
    }

    /// Whether the job fits with far memory, `far_free` being what the pool still has.
    #[inline]
    pub fn fits_far(&self, job: &Need, far_free: Bytes) -> bool {
        let far = Bytes(self.wanted.0 + job.memory.0).saturating_sub(self.memory);
        self.cores_used + job.cores + self.reclaim_cores <= self.cores
            && self.floor.0 + job.floor.0 <= self.memory.0
            && far.0 <= far_free.0 + self.far().0
    }

    pub fn fit(&self, job: &Need, far_free: Bytes) -> Fit {
        if self.fits_local(job) {
            return Fit::Local;
        }
        if far_free == Bytes::ZERO || !self.fits_far(job, far_free) {
            return Fit::No;
        }
        let far = Bytes(self.wanted.0 + job.memory.0).saturating_sub(self.memory);
        Fit::Far(far - self.far())
    }

    #[inline]
    pub fn add(&mut self, job: &Need) {
        self.cores_used += job.cores;
        self.wanted += job.memory;
        self.floor += job.floor;
    }

    #[inline]
    pub fn remove(&mut self, job: &Need) {
        self.cores_used -= job.cores;
        self.wanted -= job.memory;
        self.floor -= job.floor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn need(cores: u32, memory_gib: u64, floor_percent: u64) -> Need {
        let memory = Bytes::gib(memory_gib);
        Need {
            cores,
            memory,
            floor: Bytes(memory.0 / 100 * floor_percent),
        }
    }

    #[test]
    fn uniform_at_three_quarters_trades_a_quarter_of_every_job() {
        // §4.4.2: with α = 0.75 a node of 12 takes jobs of up to 16 together, and no more.
        let mut node = Node::new(8, 1, Bytes::gib(12));
        for _ in 0..3 {
            let job = need(1, 4, 75);
            assert_eq!(node.fit(&job, Bytes::gib(99)), Fit::Local);
            node.add(&job);
        }
        let job = need(1, 4, 75);
        assert_eq!(node.fit(&job, Bytes::gib(99)), Fit::Far(Bytes::gib(4)));
        assert_eq!(node.fit(&job, Bytes::gib(3)), Fit::No);
        node.add(&job);
        assert_eq!(node.fit(&need(1, 1, 75), Bytes::gib(99)), Fit::No);
    }

    #[test]
    fn reclaim_cores_run_jobs_until_far_memory_is_used() {
        let mut node = Node::new(8, 1, Bytes::gib(10));
        node.add(&need(7, 5, 50));
        assert_eq!(node.fit(&need(1, 5, 50), Bytes::gib(9)), Fit::Local);
        assert_eq!(node.fit(&need(1, 6, 50), Bytes::gib(9)), Fit::No);
    }

    #[test]
    fn a_far_exempt_job_fits_where_the_others_can_shrink_for_it() {
        let mut node = Node::new(8, 1, Bytes::gib(10));
        node.add(&need(1, 10, 50));
        let exempt = need(1, 5, 100);
        assert_eq!(node.fit(&exempt, Bytes::gib(9)), Fit::Far(Bytes::gib(5)));
        node.add(&exempt);
        assert_eq!(node.fit(&need(1, 1, 100), Bytes::gib(9)), Fit::No);
    }

    proptest! {
        #[test]
        fn what_is_admitted_is_never_more_than_there_is(
            jobs in prop::collection::vec((1u32..9, 1u64..40, 40u64..=100), 1..60),
            pool in 0u64..100,
        ) {
            let mut node = Node::new(48, 3, Bytes::gib(192));
            let mut far_free = Bytes::gib(pool);
            let mut running = Vec::new();
            for (i, (cores, memory, floor)) in jobs.into_iter().enumerate() {
                let job = need(cores, memory, floor);
                let fit = node.fit(&job, far_free);
                if let Fit::Far(more) = fit {
                    prop_assert!(more <= far_free);
                    far_free -= more;
                }
                if fit != Fit::No {
                    node.add(&job);
                    running.push(job);
                }
                prop_assert!(node.cores_used <= node.cores);
                prop_assert!(node.floor <= node.memory);
                prop_assert_eq!(node.far() + far_free, Bytes::gib(pool));
                let reclaiming = if node.far() > Bytes::ZERO { 3 } else { 0 };
                prop_assert!(node.cores_used + reclaiming <= node.cores);
                if i % 3 == 2 && !running.is_empty() {
                    let before = node.far();
                    node.remove(&running.swap_remove(0));
                    far_free += before - node.far();
                }
            }
        }
    }
}
