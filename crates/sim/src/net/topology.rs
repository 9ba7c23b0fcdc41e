//! The shape of the network: servers under leaves, every leaf joined to every spine.
//!
//! A *port* is an output queue and the link behind it. There are four tiers of them, in the order in
//! which a packet meets them: server to leaf, leaf to spine, spine to leaf, leaf to server; two
//! servers under one leaf use the first and the last only. A port is found by arithmetic.
//!
//! Source: Glitter, § IV-A (2 spines, 6 leaves, 96 servers, 25 Gb/s and 10 Gb/s, 3 µs).

use super::InputError;
use muninn_types::Nanos;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    pub spines: u32,
    pub leaves: u32,
    pub servers_per_leaf: u32,
    /// Between a leaf and a spine.
    pub fabric_gbps: f64,
    /// Between a server and its leaf.
    pub server_gbps: f64,
    /// Of each link.
    pub propagation: Nanos,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology {
            spines: 2,
            leaves: 6,
            servers_per_leaf: 16,
            fabric_gbps: 25.0,
            server_gbps: 10.0,
            propagation: Nanos::micros(3),
        }
    }
}

/// Where in the network a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    ServerToLeaf,
    LeafToSpine,
    SpineToLeaf,
    LeafToServer,
}

impl Tier {
    pub const ALL: [Tier; 4] = [
        Tier::ServerToLeaf,
        Tier::LeafToSpine,
        Tier::SpineToLeaf,
        Tier::LeafToServer,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Tier::ServerToLeaf => "server-to-leaf",
            Tier::LeafToSpine => "leaf-to-spine",
            Tier::SpineToLeaf => "spine-to-leaf",
            Tier::LeafToServer => "leaf-to-server",
        }
    }
}

impl Topology {
    /// More would not fit the memory that a run is allowed.
    const SERVERS_MAX: u32 = 4096;

    pub fn check(&self) -> Result<(), InputError> {
        let count = |field, value: u32, max| {
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(InputError::new(field, value, format!("use 1 to {max}")))
            }
        };
        count("spines", self.spines, 64)?;
        count("leaves", self.leaves, 256)?;
        count("servers-per-leaf", self.servers_per_leaf, 256)?;
        if self.servers() > Topology::SERVERS_MAX {
            let max = Topology::SERVERS_MAX;
            return Err(InputError::new(
                "leaves × servers-per-leaf",
                self.servers(),
                format!("use at most {max} servers"),
            ));
        }
        for (field, gbps) in [
            ("fabric-gbps", self.fabric_gbps),
            ("server-gbps", self.server_gbps),
        ] {
            if !(0.01..=10_000.0).contains(&gbps) {
                return Err(InputError::new(field, gbps, "use 0.01 to 10000"));
            }
        }
        if self.propagation > Nanos::millis(100) {
            let micros = self.propagation.0 / 1000;
            return Err(InputError::new(
                "propagation-us",
                micros,
                "use at most 100000",
            ));
        }
        Ok(())
    }

    pub fn servers(&self) -> u32 {
        self.leaves * self.servers_per_leaf
    }

    pub fn leaf_of(&self, server: u32) -> u32 {
        server / self.servers_per_leaf
    }

    pub fn ports(&self) -> u32 {
        2 * self.servers() + 2 * self.leaves * self.spines
    }

    pub fn tier_of(&self, port: u32) -> Tier {
        let servers = self.servers();
        let fabric = self.leaves * self.spines;
        match port {
            p if p < servers => Tier::ServerToLeaf,
            p if p < servers + fabric => Tier::LeafToSpine,
            p if p < servers + 2 * fabric => Tier::SpineToLeaf,
            _ => Tier::LeafToServer,
        }
    }

    pub fn gbps_of(&self, port: u32) -> f64 {
        match self.tier_of(port) {
            Tier::ServerToLeaf | Tier::LeafToServer => self.server_gbps,
            Tier::LeafToSpine | Tier::SpineToLeaf => self.fabric_gbps,
        }
    }
}

/// Where packets go next: the topology with its divisions done beforehand.
#[derive(Clone, Debug)]
pub struct Routes {
    topology: Topology,
    tier_of: Vec<Tier>,
    leaf_of: Vec<u16>,
    /// First ports of the tiers after the first.
    leaf_to_spine: u32,
    spine_to_leaf: u32,
    leaf_to_server: u32,
}

impl Routes {
    pub fn new(topology: Topology) -> Routes {
        let servers = topology.servers();
        let fabric = topology.leaves * topology.spines;
        Routes {
            tier_of: (0..topology.ports()).map(|p| topology.tier_of(p)).collect(),
            leaf_of: (0..servers).map(|s| topology.leaf_of(s) as u16).collect(),
            leaf_to_spine: servers,
            spine_to_leaf: servers + fabric,
            leaf_to_server: servers + 2 * fabric,
            topology,
        }
    }

    /// Time that a message too short to queue (an acknowledgement, a read request) needs.
    pub fn short_message(&self, from: u16, to: u16) -> Nanos {
        let same = self.leaf_of[usize::from(from)] == self.leaf_of[usize::from(to)];
        Nanos(self.topology.propagation.0 * if same { 2 } else { 4 })
    }

    /// The port after `port` on the way to a server, through this spine where one is needed; `None`
    /// at the end of the way.
    pub fn next_port(&self, port: u16, to: u16, spine: u16) -> Option<u16> {
        let leaf_to = self.leaf_of[usize::from(to)];
        let next = match self.tier_of[usize::from(port)] {
            Tier::ServerToLeaf => {
                let leaf = self.leaf_of[usize::from(port)];
                if leaf == leaf_to {
                    self.leaf_to_server + u32::from(to)
                } else {
                    self.leaf_to_spine + u32::from(leaf) * self.topology.spines + u32::from(spine)
                }
            }
            Tier::LeafToSpine => {
                self.spine_to_leaf + u32::from(spine) * self.topology.leaves + u32::from(leaf_to)
            }
            Tier::SpineToLeaf => self.leaf_to_server + u32::from(to),
            Tier::LeafToServer => return None,
        };
        Some(next as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_way_ends_at_its_server_through_the_tiers_in_order(
            spines in 1u32..5, leaves in 1u32..8, servers_per_leaf in 1u32..20, pick: u64,
        ) {
            let net = Topology { spines, leaves, servers_per_leaf, ..Topology::default() };
            net.check().unwrap();
            let from = (pick % u64::from(net.servers())) as u32;
            let to = (pick / 7 % u64::from(net.servers())) as u32;
            let spine = (pick / 3 % u64::from(spines)) as u32;
            let routes = Routes::new(net);
            let mut way = vec![from as u16];
            while let Some(port) = routes.next_port(way[way.len() - 1], to as u16, spine as u16) {
                prop_assert!(u32::from(port) < net.ports());
                way.push(port);
            }
            let links = if net.leaf_of(from) == net.leaf_of(to) { 2 } else { 4 };
            prop_assert_eq!(way.len(), links);
            let message = routes.short_message(from as u16, to as u16);
            prop_assert_eq!(message, Nanos::micros(3 * links as u64));
            prop_assert_eq!(u32::from(way[way.len() - 1]) + net.servers(), net.ports() + to);
            let tiers: Vec<usize> = way.iter().map(|&p| net.tier_of(p.into()) as usize).collect();
            prop_assert!(tiers.is_sorted());
        }
    }
}
