//! When is a trace over that runs on several servers at once? (Mako §5.2)
//!
//! Each server keeps four flags: it is tracing; references from others wait for it; references of
//! its own have not been acknowledged by another; and one of these has changed since it was last
//! asked. The compute node asks all of them, again and again. The trace is over when two rounds in
//! a row found every flag of every server false. One round would not do: a server that was asked
//! first may get work from one that is asked last and is idle again by then.
//!
//! Invariant: a server clears "ghosts" only after the receiver has set its "roots", so a reference
//! on its way is always seen by one of the two.

/// The flags of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flags {
    pub tracing: bool,
    pub roots: bool,
    pub ghosts: bool,
    pub changed: bool,
}

impl Flags {
    pub fn set_tracing(&mut self, value: bool) {
        self.changed |= self.tracing != value;
        self.tracing = value;
    }
    pub fn set_roots(&mut self, value: bool) {
        self.changed |= self.roots != value;
        self.roots = value;
    }
    pub fn set_ghosts(&mut self, value: bool) {
        self.changed |= self.ghosts != value;
        self.ghosts = value;
    }
    /// What a poll is told; changes count from now on.
    pub fn poll(&mut self) -> Flags {
        let told = *self;
        self.changed = false;
        told
    }
    pub const fn is_quiet(self) -> bool {
        !(self.tracing || self.roots || self.ghosts || self.changed)
    }

    pub const fn to_byte(self) -> u8 {
        self.tracing as u8
            | (self.roots as u8) << 1
            | (self.ghosts as u8) << 2
            | (self.changed as u8) << 3
    }
    pub const fn from_byte(byte: u8) -> Flags {
        Flags {
            tracing: byte & 1 != 0,
            roots: byte & 2 != 0,
            ghosts: byte & 4 != 0,
            changed: byte & 8 != 0,
        }
    }
}

/// Rounds that must find everything quiet.
pub const ROUNDS: u32 = 2;

/// The compute node's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Poller {
    quiet_rounds: u32,
    /// A server of this round was not quiet.
    noisy: bool,
}

impl Poller {
    /// A server's answer.
    pub fn heard(&mut self, flags: Flags) {
        self.noisy |= !flags.is_quiet();
    }
    /// All servers have answered; whether the trace is over.
    pub fn end_round(&mut self) -> bool {
        self.quiet_rounds = if self.noisy { 0 } else { self.quiet_rounds + 1 };
        self.noisy = false;
        self.quiet_rounds >= ROUNDS
    }
}

#[cfg(test)]
mod tests {
    //! The protocol, explored exhaustively: every order of tracing, sending, receiving and polling
    //! for two and three servers and a few references that travel between them.

    use super::*;
    use std::collections::BTreeSet;

    /// References a server still has to trace; each leads to the server named next in its chain.
    type Chain = Vec<u8>;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Server {
        flags: Flags,
        /// Being traced.
        stack: Vec<Chain>,
        /// Received, not looked at.
        inbox: Vec<Chain>,
        /// Found for others, not sent.
        ghosts: Vec<(u8, Chain)>,
        /// Sent, not acknowledged.
        sent: u8,
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        servers: Vec<Server>,
        /// On their way: from, to, what.
        messages: Vec<(u8, u8, Chain)>,
        /// Acknowledgements on their way.
        acks: Vec<u8>,
        poller: Poller,
        /// The next server to be asked.
        asking: u8,
        over: bool,
    }

    impl World {
        fn new(count: u8, start: &[(u8, Chain)]) -> World {
            let mut servers = vec![
                Server {
                    flags: Flags::default(),
                    stack: Vec::new(),
                    inbox: Vec::new(),
                    ghosts: Vec::new(),
                    sent: 0,
                };
                usize::from(count)
            ];
            for (server, chain) in start {
                let server = &mut servers[usize::from(*server)];
                server.inbox.push(chain.clone());
                server.flags.set_roots(true);
            }
            World {
                servers,
                messages: Vec::new(),
                acks: Vec::new(),
                poller: Poller::default(),
                asking: 0,
                over: false,
            }
        }

        fn work_left(&self) -> bool {
            !self.messages.is_empty()
                || self
                    .servers
                    .iter()
                    .any(|s| !(s.stack.is_empty() && s.inbox.is_empty() && s.ghosts.is_empty()))
        }

        /// Every next state. `rounds` is what the compute node waits for.
        fn next(&self, rounds_override: Option<u32>) -> Vec<World> {
            let mut all = Vec::new();
            let mut push = |mut world: World| {
                world.messages.sort();
                world.acks.sort_unstable();
                all.push(world);
            };
            for (at, server) in self.servers.iter().enumerate() {
                // Takes what was received.
                if !server.inbox.is_empty() {
                    let mut world = self.clone();
                    let server = &mut world.servers[at];
                    server.flags.set_tracing(true);
                    let received = std::mem::take(&mut server.inbox);
                    server.stack.extend(received);
                    server.flags.set_roots(false);
                    push(world);
                }
                // Traces one reference.
                if let Some(chain) = server.stack.last() {
                    let mut world = self.clone();
                    let mut chain = chain.clone();
                    let server = &mut world.servers[at];
                    server.stack.pop();
                    if !chain.is_empty() {
                        let to = chain.remove(0);
                        server.ghosts.push((to, chain));
                        server.flags.set_ghosts(true);
                    }
                    push(world);
                }
                // Sends a ghost buffer.
                if let Some((to, chain)) = server.ghosts.last().cloned() {
                    let mut world = self.clone();
                    let server = &mut world.servers[at];
                    server.ghosts.pop();
                    server.sent += 1;
                    world.messages.push((at as u8, to, chain));
                    push(world);
                }
                // Has nothing to do.
                if server.stack.is_empty() && server.inbox.is_empty() && server.flags.tracing {
                    let mut world = self.clone();
                    world.servers[at].flags.set_tracing(false);
                    push(world);
                }
                // Everything it sent was acknowledged.
                if server.sent == 0 && server.ghosts.is_empty() && server.flags.ghosts {
                    let mut world = self.clone();
                    world.servers[at].flags.set_ghosts(false);
                    push(world);
                }
            }
            for at in 0..self.messages.len() {
                let mut world = self.clone();
                let (from, to, chain) = world.messages.remove(at);
                let server = &mut world.servers[usize::from(to)];
                server.inbox.push(chain);
                server.inbox.sort();
                server.flags.set_roots(true);
                world.acks.push(from);
                push(world);
            }
            for at in 0..self.acks.len() {
                let mut world = self.clone();
                let to = world.acks.remove(at);
                world.servers[usize::from(to)].sent -= 1;
                push(world);
            }
            // The compute node asks the next server.
            let mut world = self.clone();
            let mut told = world.servers[usize::from(self.asking)].flags.poll();
            // The weaker protocol: one round, and no flag for changes.
            told.changed &= rounds_override.is_none();
            world.poller.heard(told);
            world.asking += 1;
            if usize::from(world.asking) == world.servers.len() {
                world.asking = 0;
                let over = world.poller.end_round();
                world.over = match rounds_override {
                    None => over,
                    Some(rounds) => world.poller.quiet_rounds >= rounds,
                };
            }
            push(world);
            all
        }
    }

    /// Explores everything; the states seen, and whether one ended with work left.
    fn explore(start: World, rounds_override: Option<u32>) -> (usize, bool, bool) {
        let mut seen = BTreeSet::new();
        let mut list = vec![start];
        let (mut too_early, mut ended) = (false, false);
        while let Some(world) = list.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            if world.over {
                ended = true;
                too_early |= world.work_left();
                continue;
            }
            list.extend(world.next(rounds_override));
        }
        (seen.len(), too_early, ended)
    }

    #[test]
    fn no_order_of_events_ends_a_trace_too_early() {
        let starts: [(u8, Vec<(u8, Chain)>); 4] = [
            (2, vec![(0, vec![1, 0, 1])]),
            (2, vec![(0, vec![1]), (1, vec![0, 1])]),
            (3, vec![(0, vec![1, 2])]),
            (3, vec![(2, vec![0, 1, 2])]),
        ];
        for (count, start) in starts {
            let (states, too_early, ended) = explore(World::new(count, &start), None);
            assert!(
                !too_early,
                "{start:?}: over with work left, in one of {states} states"
            );
            assert!(ended, "{start:?}: never over, in {states} states");
            assert!(
                states > 500,
                "{start:?}: only {states} states were looked at"
            );
        }
    }

    #[test]
    fn one_round_without_a_flag_for_changes_would_end_a_trace_too_early() {
        // The model can tell the difference, so the test above can fail.
        let start = World::new(2, &[(1, vec![0])]);
        let (_, too_early, _) = explore(start, Some(1));
        assert!(too_early);
    }

    #[test]
    fn flags_travel() {
        for byte in 0..16 {
            assert_eq!(Flags::from_byte(byte).to_byte(), byte);
        }
    }
}
