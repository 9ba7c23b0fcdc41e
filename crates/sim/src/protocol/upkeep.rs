//! What a client does beside its work: heartbeats, moving out of a server that drains, giving up,
//! leaving.

use super::client::{Client, Held};
use super::completion::{Op, What};
use super::env::Env;
use super::shadow::{Frozen, Key};
use muninn_types::{Class, Nanos, Tag};

impl Client {
    /// At the end: some release first what they hold, some leave that to the server.
    pub fn say_goodbye(&mut self, env: &mut Env) {
        for server in 0..self.sessions.len() {
            let open = self.sessions[server].as_ref().filter(|s| s.is_open());
            let Some(session) = open else {
                continue;
            };
            if env.rng.chance(0.5) {
                let held = session.grants.iter().filter(|held| !held.releasing);
                let keys: Vec<Key> = held.map(|held| held.key).collect();
                for keys in keys.chunks(8) {
                    if self.has_room(server, 0) {
                        self.release_these(server, keys.to_vec(), env);
                    }
                }
            }
            self.goodbye(server, env);
            self.flush(server, env);
        }
    }

    pub fn goodbye(&mut self, server: usize, env: &mut Env) {
        if self.has_room(server, 0) {
            self.post(server, 0, Class::Control, What::Goodbye, env);
            if let Some(session) = &mut self.sessions[server] {
                session.leaving = true;
            }
        }
    }

    pub fn heartbeats(&mut self, env: &mut Env) {
        for server in 0..self.sessions.len() {
            let room = self.has_room(server, 0);
            let Some(session) = &mut self.sessions[server] else {
                continue;
            };
            if !session.is_open() {
                continue;
            }
            if env.now >= session.heartbeat_due && room {
                session.heartbeat_due = env.now + Nanos(env.options.lease.0 / 4);
                self.post(server, 0, Class::Control, What::Heartbeat, env);
            }
            self.move_out(server, env);
            self.flush(server, env);
        }
    }

    /// A server that drains gets back what can be given back.
    fn move_out(&mut self, server: usize, env: &mut Env) {
        if !self.has_room(server, 0) {
            return;
        }
        let Some(session) = self.sessions[server].as_ref().filter(|s| s.draining) else {
            return;
        };
        let quiet = |held: &&Held| {
            let grant = env.shadow.get(held.key);
            !held.releasing && grant.is_quiet() && grant.frozen != Frozen::Asked
        };
        let keys: Vec<Key> = session.grants.iter().filter(quiet).map(|h| h.key).collect();
        if !keys.is_empty() {
            let keys = keys.into_iter().take(8).collect();
            self.release_these(server, keys, env);
        }
    }

    /// Gives up waiting for a read, a write or an addition.
    pub fn abandon(&mut self, env: &mut Env) {
        let idle = |op: &Op| matches!(op.what, What::Read(..) | What::Write(_) | What::Add { .. });
        let tokens: Vec<u64> = (self.ops.iter())
            .filter(|(_, op)| idle(op) && op.tag != Tag(0))
            .map(|(token, _)| *token)
            .collect();
        let Some(token) = tokens.get(env.rng.below(tokens.len() as u64) as usize) else {
            return;
        };
        let Some(op) = self.ops.remove(token) else {
            return;
        };
        env.summary.abandoned += 1;
        env.tell(|| format!("client {} abandons {}", self.index, op.what));
        if let Some(session) = &mut self.sessions[op.server] {
            session.lanes[op.lane].lane.abandon(op.tag);
        }
        match op.what {
            What::Read(parts, _) => env.shadow.looked_away(&parts),
            What::Write(parts) => env.shadow.give_up_write(*token, &parts),
            What::Add { key, word, add } => env.shadow.added(key, word, add, None),
            _ => {}
        }
    }
}
