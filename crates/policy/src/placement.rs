//! Which memory server holds a process's pages.
//!
//! The preferred server is a hash of the node and the process; when it refuses, the next one comes
//! from hashing the server that refused with the process, and so on. The order of servers is so
//! fixed for each process, without asking anybody: pages of one process stay together (which is what
//! makes prefetching by slot work) while processes spread over the pool.
//!
//! Invariant: the sequence names each server exactly once. The published chain of hashes can come
//! back to a server it has been to; here each link of the chain picks among those not yet visited.
//! Known limit: servers count alike, whatever their size; one that fills up early refuses early.
//!
//! From: COMEX, section 3.3.4 and figure 4.

use muninn_types::{ServerId, SplitMix64};

/// The order in which one process asks the servers of its pool, and who refused lately.
#[derive(Clone, Debug)]
pub struct Placement {
    process: u64,
    /// In the order of asking.
    servers: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    server: ServerId,
    refused: bool,
}

impl Placement {
    /// The sequence of a process on a node over the servers of its pool. The order in which
    /// `servers` are listed matters and must be the same whenever the same sequence is wanted.
    pub fn new(node: u64, process: u64, servers: &[ServerId]) -> Placement {
        let mut unvisited = servers.to_vec();
        let mut sequence = Vec::with_capacity(servers.len());
        let mut from = node;
        while !unvisited.is_empty() {
            let pick = hash(from, process) % unvisited.len() as u64;
            let server = unvisited.remove(pick as usize);
            sequence.push(Candidate {
                server,
                refused: false,
            });
            // Set apart from node numbers, so that the chain of node 3 does not follow server 3's.
            from = (1 << 32) | u64::from(server.0);
        }
        Placement {
            process,
            servers: sequence,
        }
    }

    pub fn process(&self) -> u64 {
        self.process
    }

    /// The whole sequence, preferred server first.
    pub fn sequence(&self) -> impl Iterator<Item = ServerId> {
        self.servers.iter().map(|c| c.server)
    }

    /// Whom to ask for the next grant: the first in the sequence that has not refused.
    pub fn poll_server(&self) -> Option<ServerId> {
        let asked = self.servers.iter().find(|c| !c.refused);
        asked.map(|c| c.server)
    }

    /// The server has no room (or cannot be reached): the next one is asked from now on.
    pub fn handle_refusal(&mut self, server: ServerId) {
        self.mark(server, true);
    }

    /// The server has room again, so that pages go back to where the others are.
    pub fn handle_room(&mut self, server: ServerId) {
        self.mark(server, false);
    }

    /// Everybody refused; the caller has waited and asks all of them again, from the first.
    pub fn handle_retry(&mut self) {
        for candidate in &mut self.servers {
            candidate.refused = false;
        }
    }

    /// A server joined: it comes last, so that nobody's preferred server changes.
    pub fn handle_join(&mut self, server: ServerId) {
        if !self.servers.iter().any(|c| c.server == server) {
            self.servers.push(Candidate {
                server,
                refused: false,
            });
        }
    }

    /// A server left; the order of the others stays.
    pub fn handle_leave(&mut self, server: ServerId) {
        self.servers.retain(|c| c.server != server);
    }

    fn mark(&mut self, server: ServerId, refused: bool) {
        if let Some(candidate) = self.servers.iter_mut().find(|c| c.server == server) {
            candidate.refused = refused;
        }
    }
}

/// Mixes both numbers well: process numbers of one node lie next to each other.
fn hash(from: u64, process: u64) -> u64 {
    let from = SplitMix64::new(from).next_u64();
    SplitMix64::new(from ^ process).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pool(servers: u32) -> Vec<ServerId> {
        (0..servers).map(ServerId).collect()
    }

    proptest! {
        #[test]
        fn each_server_once_and_always_the_same_order(node: u64, process: u64, servers in 0u32..40) {
            let placement = Placement::new(node, process, &pool(servers));
            let again = Placement::new(node, process, &pool(servers));
            prop_assert!(placement.sequence().eq(again.sequence()));
            let seen: BTreeSet<ServerId> = placement.sequence().collect();
            prop_assert_eq!(seen.len(), servers as usize);
            prop_assert_eq!(placement.sequence().count(), servers as usize);
        }

        #[test]
        fn refusals_walk_the_sequence_to_its_end(node: u64, process: u64, servers in 1u32..40) {
            let mut placement = Placement::new(node, process, &pool(servers));
            let sequence: Vec<ServerId> = placement.sequence().collect();
            for server in &sequence {
                prop_assert_eq!(placement.poll_server(), Some(*server));
                placement.handle_refusal(*server);
            }
            prop_assert_eq!(placement.poll_server(), None);
            placement.handle_room(sequence[0]);
            prop_assert_eq!(placement.poll_server(), Some(sequence[0]));
        }

        #[test]
        fn joining_and_leaving_keep_the_order_of_the_others(node: u64, process: u64, gone in 0u32..8) {
            let mut placement = Placement::new(node, process, &pool(8));
            let before: Vec<ServerId> = placement.sequence().collect();
            placement.handle_join(ServerId(99));
            placement.handle_join(ServerId(99));
            placement.handle_leave(ServerId(gone));
            let mut expected: Vec<ServerId> = before;
            expected.retain(|s| s.0 != gone);
            expected.push(ServerId(99));
            prop_assert!(placement.sequence().eq(expected));
        }
    }

    /// The paper's testbed: 12 memory nodes, 10 compute nodes; here with 100 processes on each.
    #[test]
    fn processes_spread_evenly_and_so_do_their_second_choices() {
        for choice in 0..2 {
            let mut load = [0u32; 12];
            for node in 0..10 {
                for process in 1_000..1_100 {
                    let placement = Placement::new(node, process, &pool(12));
                    load[placement.sequence().nth(choice).unwrap().0 as usize] += 1;
                }
            }
            // 1,000 over 12 is 83; four standard deviations (8.7 each) either way.
            assert!(
                load.iter().all(|n| (48..=118).contains(n)),
                "choice {choice}: {load:?}"
            );
        }
    }

    #[test]
    fn equal_process_numbers_on_different_nodes_go_different_ways() {
        let preferred = |node| Placement::new(node, 4_711, &pool(12)).poll_server();
        let used: BTreeSet<_> = (0..10).map(preferred).collect();
        assert!(used.len() >= 4, "{used:?}");
    }
}
