//! Clients that ask for what they must not get: others' grants, bytes past the end, frozen memory.

use super::client::Client;
use super::completion::{Op, What};
use super::env::Env;
use super::shadow::{Frozen, Key, pattern};
use muninn_proto::client::{Control, Operation, Verb};
use muninn_types::{Class, GrantId};
use muninn_wire::{ErrorCode, Seg};

impl Client {
    /// Asks for what it must not get.
    pub fn trespass(&mut self, server: usize, env: &mut Env) {
        let lane = self.data_lane(env);
        if !self.has_room(server, lane) {
            return;
        }
        let Some(session) = &self.sessions[server] else {
            return;
        };
        let epoch = session.epoch;
        let others = env.shadow.grants.keys().copied();
        // What is being adopted, or may be while the request is under way, is not another's.
        let adopting = |op: &Op| match &op.what {
            What::Adopt(ticket) => ticket.grants.clone(),
            _ => Vec::new(),
        };
        let mut soon: Vec<Key> = self.ops.values().flat_map(adopting).collect();
        soon.extend(self.tickets.iter().flat_map(|ticket| &ticket.grants));
        let foreign = |k: &Key| session.held(*k).is_none() && !soon.contains(k);
        let others: Vec<Key> = others
            .filter(|k| k.server == server && k.epoch == epoch && foreign(k))
            .collect();
        let other = others
            .get(env.rng.below(others.len() as u64) as usize)
            .map_or(GrantId(env.rng.next_u64() | 1 << 40), |key| key.grant);
        let own = self.pick(server, env).map(|held| held.key);
        let len = 1 + env.rng.below(4096) as u32;
        let foreign = &[ErrorCode::NoGrant];
        let (verb, codes): (Verb, &'static [ErrorCode]) = match (env.rng.below(8), own) {
            (0, _) => (Verb::Read(vec![Seg::new(other, 0, len)]), foreign),
            (1, _) => (Verb::Write(vec![Seg::new(other, 0, len)]), foreign),
            (2, _) => (
                Verb::FetchAdd {
                    grant: other,
                    offset: 0,
                    add: 1,
                },
                foreign,
            ),
            (3, _) => (Verb::Control(Control::Release(vec![other])), foreign),
            (4, _) => (
                Verb::Control(Control::Share(vec![other])),
                &[ErrorCode::NoGrant, ErrorCode::TryAgain],
            ),
            (5, Some(key)) => {
                let offset = env.shadow.get(key).bytes - len + 1;
                let read = Seg::new(key.grant, offset, len);
                (
                    Verb::Read(vec![read]),
                    &[ErrorCode::OutOfBounds, ErrorCode::NoGrant],
                )
            }
            (6, Some(key)) => (
                Verb::FetchAdd {
                    grant: key.grant,
                    offset: 4,
                    add: 1,
                },
                &[ErrorCode::Misaligned, ErrorCode::NoGrant],
            ),
            (7, Some(key)) if env.shadow.get(key).frozen == Frozen::Yes => (
                Verb::Write(vec![Seg::new(key.grant, 0, len)]),
                &[ErrorCode::Frozen, ErrorCode::NoGrant],
            ),
            _ => return,
        };
        let codes = match verb {
            Verb::Control(_) => codes,
            _ if self.shm => &[ErrorCode::WrongTransport],
            _ => codes,
        };
        let (index, token) = (self.index, self.next_token);
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        self.next_token += 1;
        let operation = Operation {
            verb,
            class: Class::Demand,
            data: vec![pattern(index, 3); 4096],
            token,
        };
        let tag = match session.lanes[lane].lane.post(operation) {
            Ok(tag) => tag,
            Err(_) => return env.fail("the window was full though it had room"),
        };
        let what = What::Trespass(codes);
        self.ops.insert(
            token,
            Op {
                server,
                lane,
                tag,
                what,
            },
        );
    }
}
