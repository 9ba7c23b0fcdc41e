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

    pub fn links_between(&self, from: u32, to: u32) -> u32 {
        if self.leaf_of(from) == self.leaf_of(to) {
            2
        } else {
            4
        }
    }

    /// Time that a message too short to queue (an acknowledgement, a read request) needs.
    pub fn short_message(&self, from: u32, to: u32) -> Nanos {
        Nanos(self.propagation.0 * u64::from(self.links_between(from, to)))
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

    /// The port after `port` on the way to a server, through this spine where one is needed; `None`
    /// at the end of the way.
    pub fn next_port(&self, port: u32, to: u32, spine: u32) -> Option<u32> {
        let servers = self.servers();
        let fabric = self.leaves * self.spines;
        let leaf_to = self.leaf_of(to);
        match self.tier_of(port) {
            Tier::ServerToLeaf if self.leaf_of(port) == leaf_to => Some(servers + 2 * fabric + to),
            Tier::ServerToLeaf => Some(servers + self.leaf_of(port) * self.spines + spine),
            Tier::LeafToSpine => Some(servers + fabric + spine * self.leaves + leaf_to),
            Tier::SpineToLeaf => Some(servers + 2 * fabric + to),
            Tier::LeafToServer => None,
        }
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
            let mut way = vec![from];
            while let Some(port) = net.next_port(way[way.len() - 1], to, spine) {
                prop_assert!(port < net.ports());
                way.push(port);
            }
            prop_assert_eq!(way.len() as u32, net.links_between(from, to));
            prop_assert_eq!(way[way.len() - 1] + net.servers(), net.ports() + to);
            let tiers: Vec<usize> = way.iter().map(|&p| net.tier_of(p) as usize).collect();
            prop_assert!(tiers.is_sorted());
        }
    }
}
