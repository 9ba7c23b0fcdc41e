//! Packets on their way: output queues, links, and the count of every byte.
//!
//! Idea: store and forward. A packet that reaches a port waits in the queue of its class, is served
//! in weighted round-robin ([`muninn_policy::wrr`]), occupies the link for its length divided by the
//! rate, and is at the next port after the propagation time.
//!
//! Invariant: sent bytes = delivered bytes + bytes in queues and on links, checked in release builds
//! as well. The network loses nothing (a lossless fabric): the senders are closed loops, so what
//! waits is bounded by what they may have outstanding.
//!
//! Known limits: no pause frames, no congestion control; a port's memory is not limited.

use super::calendar::Calendar;
use super::topology::{Routes, Tier, Topology};
use muninn_policy::wrr::{Weights, Wrr};
use muninn_types::{Bytes, Class, Nanos};

/// A unit of weight in a round of a port: one page.
const QUANTUM: Bytes = Bytes::PAGE;
/// Packets that may wait in one class of one port; far above what closed loops can send.
const QUEUE_PACKETS_MAX: usize = 1 << 20;
/// The whole network is recounted each time so many packets were sent.
const RECOUNT_PACKETS: u64 = 1 << 22;

/// Names a packet's owner to the caller.
pub type Tag = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub bytes: u32,
    pub from: u16,
    pub to: u16,
    pub spine: u16,
    pub class: Class,
    pub tag: Tag,
}

/// Events of the network; the caller's event type holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The link of this port is free again.
    Free(u16),
    /// A packet reaches this port.
    At(u16, u32),
    /// A packet reaches its server.
    End(u32),
}

#[derive(Debug)]
struct Port {
    queue: Wrr<(u32, Nanos)>,
    /// Picoseconds for each byte, so that a rate of any size is exact enough.
    byte_ps: u64,
    busy_until: Nanos,
    /// Whether a [`Hop::Free`] is under way.
    waked: bool,
    queued_bytes: u64,
    carried_bytes: u64,
    carried_packets: u64,
    wait_ns: u64,
}

/// What a tier of the network has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierLoad {
    /// Mean over ports, and the most loaded port: share of time in which the link was busy.
    pub utilisation_mean: f64,
    pub utilisation_max: f64,
    pub wait_us_mean: f64,
}

#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    routes: Routes,
    ports: Vec<Port>,
    packets: Vec<Packet>,
    free: Vec<u32>,
    sent_bytes: u64,
    delivered_bytes: u64,
    on_links_bytes: u64,
    sent_packets: u64,
}

impl Fabric {
    /// `bandwidth`: all links have this share of their rate.
    pub fn new(topology: Topology, bandwidth: f64, weights: Weights) -> Fabric {
        let port = |index: u32| Port {
            queue: Wrr::new(weights, QUANTUM, QUEUE_PACKETS_MAX),
            byte_ps: (8000.0 / (topology.gbps_of(index) * bandwidth)).round() as u64,
            busy_until: Nanos::ZERO,
            waked: false,
            queued_bytes: 0,
            carried_bytes: 0,
            carried_packets: 0,
            wait_ns: 0,
        };
        Fabric {
            routes: Routes::new(topology),
            topology,
            ports: (0..topology.ports()).map(port).collect(),
            packets: Vec::new(),
            free: Vec::new(),
            sent_bytes: 0,
            delivered_bytes: 0,
            on_links_bytes: 0,
            sent_packets: 0,
        }
    }

    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// A server gives a packet to its network card.
    pub fn send<E: Copy + From<Hop>>(&mut self, events: &mut Calendar<E>, packet: Packet) {
        self.sent_bytes += u64::from(packet.bytes);
        self.sent_packets += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.packets[index as usize] = packet;
                index
            }
            None => {
                self.packets.push(packet);
                (self.packets.len() - 1) as u32
            }
        };
        self.enqueue(events, packet.from, index);
        if self.sent_packets.is_multiple_of(RECOUNT_PACKETS) {
            self.check_conservation();
        }
    }

    /// Goes on with a packet; gives it back when it is delivered.
    pub fn handle<E: Copy + From<Hop>>(
        &mut self,
        events: &mut Calendar<E>,
        hop: Hop,
    ) -> Option<Packet> {
        match hop {
            Hop::Free(port) => {
                self.ports[usize::from(port)].waked = false;
                self.serve(events, port);
                None
            }
            Hop::At(port, index) => {
                self.on_links_bytes -= u64::from(self.packets[index as usize].bytes);
                self.enqueue(events, port, index);
                None
            }
            Hop::End(index) => {
                let packet = self.packets[index as usize];
                self.on_links_bytes -= u64::from(packet.bytes);
                self.delivered_bytes += u64::from(packet.bytes);
                self.free.push(index);
                Some(packet)
            }
        }
    }

    /// Sent = delivered + waiting + on links.
    pub fn check_conservation(&self) {
        let waiting: u64 = self.ports.iter().map(|port| port.queued_bytes).sum();
        assert_eq!(
            self.sent_bytes,
            self.delivered_bytes + waiting + self.on_links_bytes,
            "the network lost or made bytes"
        );
    }

    pub fn delivered(&self) -> Bytes {
        Bytes(self.delivered_bytes)
    }

    pub fn load(&self, tier: Tier, elapsed: Nanos) -> TierLoad {
        let ports = (0..self.topology.ports())
            .filter(|&index| self.topology.tier_of(index) == tier)
            .map(|index| &self.ports[index as usize]);
        let (mut count, mut busy_sum, mut busy_max) = (0u64, 0.0, 0.0f64);
        let (mut wait_ns, mut packets) = (0u64, 0u64);
        for port in ports {
            let busy_ns = port.carried_bytes as f64 * port.byte_ps as f64 / 1000.0;
            let busy = busy_ns / elapsed.0.max(1) as f64;
            count += 1;
            busy_sum += busy;
            busy_max = busy_max.max(busy);
            wait_ns += port.wait_ns;
            packets += port.carried_packets;
        }
        TierLoad {
            utilisation_mean: busy_sum / count.max(1) as f64,
            utilisation_max: busy_max,
            wait_us_mean: wait_ns as f64 / 1000.0 / packets.max(1) as f64,
        }
    }

    fn enqueue<E: Copy + From<Hop>>(&mut self, events: &mut Calendar<E>, at: u16, index: u32) {
        let now = events.now();
        let port = &mut self.ports[usize::from(at)];
        if !port.waked && port.busy_until <= now {
            // A free link with nobody waiting: there is no order to decide. (A link that somebody
            // waits for always has a `Free` under way.)
            self.transmit(events, at, index);
            return;
        }
        let packet = &self.packets[index as usize];
        port.queued_bytes += u64::from(packet.bytes);
        port.queue
            .push(packet.class, (index, now))
            .expect("closed loops stay far below the bound of a queue");
        if !port.waked {
            port.waked = true;
            events.add(port.busy_until, E::from(Hop::Free(at)));
        }
    }

    /// The link is free and somebody waits: the scheduler says who is next.
    fn serve<E: Copy + From<Hop>>(&mut self, events: &mut Calendar<E>, at: u16) {
        let port = &mut self.ports[usize::from(at)];
        let turn = port
            .queue
            .next()
            .expect("a port wakes for a waiting packet");
        let (index, since) = turn.item;
        let bytes = Bytes(u64::from(self.packets[index as usize].bytes));
        port.queue.charge(turn.class, bytes);
        port.wait_ns += (events.now() - since).0;
        port.queued_bytes -= bytes.0;
        self.transmit(events, at, index);
        // The link's end is an event only when somebody waits for it.
        let port = &mut self.ports[usize::from(at)];
        if !port.queue.is_empty() {
            port.waked = true;
            events.add(port.busy_until, E::from(Hop::Free(at)));
        }
    }

    fn transmit<E: Copy + From<Hop>>(&mut self, events: &mut Calendar<E>, at: u16, index: u32) {
        let packet = &self.packets[index as usize];
        let bytes = u64::from(packet.bytes);
        let port = &mut self.ports[usize::from(at)];
        port.carried_bytes += bytes;
        port.carried_packets += 1;
        port.busy_until = events.now() + Nanos(bytes * port.byte_ps / 1000);
        self.on_links_bytes += bytes;
        let arrival = port.busy_until + self.topology.propagation;
        let hop = match self.routes.next_port(at, packet.to, packet.spine) {
            Some(next) => Hop::At(next, index),
            None => Hop::End(index),
        };
        events.add(arrival, E::from(hop));
    }
}
