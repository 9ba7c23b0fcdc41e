//! What clients do, by chance: mostly reads and writes, and everything else often enough.

use super::client::{Client, Held};
use super::completion::{Op, What};
use super::env::{Env, Event, Phase};
use super::shadow::{ADD_WORDS, Frozen, Key, Part, WORDS, WORDS_BYTES, pattern};
use muninn_proto::client::{Control, Operation, Verb};
use muninn_types::{Class, GrantId};
use muninn_wire::Seg;

/// A read of everything goes in pieces of this size.
const PIECE: u32 = 16 << 10;

fn segs(parts: &[Part]) -> Vec<Seg> {
    let seg = |p: &Part| Seg::new(p.key.grant, p.offset, p.len);
    parts.iter().map(seg).collect()
}

impl Client {
    /// One decision, at one server.
    pub fn step(&mut self, env: &mut Env) {
        if !self.alive {
            return;
        }
        env.after(self.step_mean, Event::Step(self.index));
        if env.now < self.stalled_until {
            return;
        }
        if env.phase == Phase::Leave {
            return self.say_goodbye(env);
        }
        self.heartbeats(env);
        if env.phase != Phase::Work {
            return;
        }
        let server = env.rng.below(self.sessions.len() as u64) as usize;
        let wanted = self.tickets.iter().map(|ticket| ticket.server).next();
        let server = wanted.unwrap_or(server);
        if self.sessions[server].is_none() {
            return self.begin(server, env);
        }
        if self.sessions[server].as_ref().is_some_and(|s| s.is_open()) {
            for _ in 0..=env.rng.below(3) {
                self.act(server, env);
            }
            self.flush(server, env);
        }
    }

    fn act(&mut self, server: usize, env: &mut Env) {
        let Some(session) = &self.sessions[server] else {
            return;
        };
        if !session.is_open() {
            return;
        }
        let few = session.grants.len() < 2;
        match env.rng.below(100) {
            0..=9 => self.ask_grant(server, env),
            // Now and then: the pool may be full.
            10..=40 if few => self.ask_grant(server, env),
            _ if few && session.grants.is_empty() => {}
            10..=29 => self.read_some(server, env),
            30..=54 => self.write_some(server, env),
            55..=64 => self.add(server, env),
            65..=69 => self.swap(server, env),
            70..=75 => self.release(server, env),
            76..=79 => self.share(server, env),
            80..=86 => self.trespass(server, env),
            87..=88 if self.has_room(server, 0) => {
                self.post(server, 0, Class::Control, What::Status, env);
            }
            89..=93 => self.read_whole(server, env),
            94..=95 => self.move_home(server, env),
            96 if env.rng.chance(0.3) => self.goodbye(server, env),
            _ => self.adopt(server, env),
        }
    }

    /// Posts an operation; nothing happens if there is no room for it.
    pub fn post(&mut self, server: usize, lane: usize, class: Class, what: What, env: &mut Env) {
        self.post_with(server, lane, class, what, Vec::new(), env);
    }

    fn post_with(
        &mut self,
        server: usize,
        lane: usize,
        class: Class,
        what: What,
        data: Vec<u8>,
        env: &mut Env,
    ) {
        let token = self.next_token;
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        let ids = |keys: &[Key]| keys.iter().map(|key| key.grant).collect::<Vec<GrantId>>();
        let verb = match &what {
            What::Read(parts, _) => Verb::Read(segs(parts)),
            What::Write(parts) => Verb::Write(segs(parts)),
            What::Add { key, word, add } => Verb::FetchAdd {
                grant: key.grant,
                offset: 8 * *word as u32,
                add: *add,
            },
            What::Swap {
                key,
                word,
                expect,
                new,
            } => Verb::CompareSwap {
                grant: key.grant,
                offset: 8 * (ADD_WORDS + word) as u32,
                expect: *expect,
                new: *new,
            },
            What::Grant { bytes } => Verb::Control(Control::Grant { bytes: *bytes }),
            What::Release(keys) => Verb::Control(Control::Release(ids(keys))),
            What::Share(keys) => Verb::Control(Control::Share(ids(keys))),
            What::Adopt(t) => Verb::Control(Control::Adopt { ticket: t.ticket }),
            What::Heartbeat => Verb::Control(Control::Heartbeat),
            What::Status => Verb::Control(Control::Status {
                after: Default::default(),
            }),
            What::Goodbye => Verb::Control(Control::Goodbye),
            What::Trespass(_) => return env.fail("a trespass is posted with its verb"),
        };
        let operation = Operation {
            verb,
            class,
            data,
            token,
        };
        self.next_token += 1;
        match session.lanes[lane].lane.post(operation) {
            Ok(tag) => {
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
            Err(_) => env.fail("the window was full though it had room"),
        }
    }

    pub fn has_room(&self, server: usize, lane: usize) -> bool {
        (self.sessions[server].as_ref()).is_some_and(|s| s.lanes[lane].lane.has_room())
    }

    pub fn data_lane(&self, env: &mut Env) -> usize {
        env.rng.below(self.lane_count as u64) as usize
    }

    /// A grant that is held and not about to be released.
    pub fn pick(&self, server: usize, env: &mut Env) -> Option<&Held> {
        let held = &self.sessions[server].as_ref()?.grants;
        let held: Vec<&Held> = held.iter().filter(|held| !held.releasing).collect();
        let at = env.rng.below(held.len() as u64) as usize;
        held.get(at).copied()
    }

    /// A part of a grant behind its words.
    fn part(&self, key: Key, env: &mut Env) -> Part {
        let bytes = env.shadow.get(key).bytes;
        let room = u64::from(bytes - WORDS_BYTES);
        let len = match env.rng.below(6) {
            0 => 1 + env.rng.below(16),
            1..=3 => 1 + env.rng.below(600),
            4 => 1 + env.rng.below(4096),
            _ => 1 + env.rng.below(12 << 10),
        };
        let len = len.min(room);
        Part {
            key,
            offset: WORDS_BYTES + env.rng.below(room - len + 1) as u32,
            len: len as u32,
        }
    }

    fn ask_grant(&mut self, server: usize, env: &mut Env) {
        if !self.has_room(server, 0) {
            return;
        }
        let bytes = match env.rng.below(10) {
            0 => 1 + env.rng.below(4096),
            1..=5 => 4096,
            6..=8 => 4096 * (1 + env.rng.below(4)),
            _ => 4096 * (1 + env.rng.below(16)),
        };
        self.post(server, 0, Class::Control, What::Grant { bytes }, env);
    }

    fn read_some(&mut self, server: usize, env: &mut Env) {
        let lane = self.data_lane(env);
        if !self.has_room(server, lane) {
            return;
        }
        let mut parts = Vec::new();
        for _ in 0..=env.rng.below(4) {
            if let Some(held) = self.pick(server, env) {
                let key = held.key;
                parts.push(self.part(key, env));
            }
        }
        if parts.is_empty() {
            return;
        }
        if self.shm {
            return parts.iter().for_each(|part| self.load(server, *part, env));
        }
        self.read(server, lane, Class::Demand, parts, env);
    }

    fn read(&mut self, server: usize, lane: usize, class: Class, parts: Vec<Part>, env: &mut Env) {
        let look = env.shadow.look(&parts);
        let data = vec![0xee; parts.iter().map(|p| p.len as usize).sum()];
        self.post_with(server, lane, class, What::Read(parts, look), data, env);
    }

    /// Reads a grant from its first byte to its last, words and all.
    fn read_whole(&mut self, server: usize, env: &mut Env) {
        if let Some(held) = self.pick(server, env) {
            let key = held.key;
            self.verify(server, key, env);
        }
    }

    /// False if it has to be tried again later.
    pub fn verify(&mut self, server: usize, key: Key, env: &mut Env) -> bool {
        let lane = self.data_lane(env);
        let grant = env.shadow.get(key);
        let (bytes, quiet) = (grant.bytes, grant.atomics == 0);
        if !quiet || !self.has_room(server, lane) {
            return false;
        }
        let mut parts = Vec::new();
        for offset in (0..bytes).step_by(PIECE as usize) {
            let len = PIECE.min(bytes - offset);
            parts.push(Part { key, offset, len });
        }
        if self.shm {
            parts.iter().for_each(|part| self.load(server, *part, env));
        } else {
            self.read(server, lane, Class::Prefetch, parts, env);
        }
        true
    }

    fn write_some(&mut self, server: usize, env: &mut Env) {
        let Some(held) = self.pick(server, env) else {
            return;
        };
        let key = held.key;
        let (lane, frozen) = (env.shadow.get(key).lane, env.shadow.get(key).frozen);
        if frozen != Frozen::No || lane >= self.lane_count || !self.has_room(server, lane) {
            return;
        }
        let mut parts = vec![self.part(key, env)];
        for _ in 0..env.rng.below(3) {
            if let Some(held) = self.pick(server, env) {
                let key = held.key;
                let grant = env.shadow.get(key);
                if grant.frozen == Frozen::No && grant.lane == lane {
                    parts.push(self.part(key, env));
                }
            }
        }
        let mut data = vec![0; parts.iter().map(|p| p.len as usize).sum()];
        env.rng.fill(&mut data);
        data.iter_mut().for_each(|b| *b = pattern(self.index, *b));
        env.shadow.writing(self.next_token, &parts, &data);
        if self.shm {
            return self.store(server, &parts, &data, env);
        }
        let class = Class::ALL[1 + env.rng.below(8) as usize];
        self.post_with(server, lane, class, What::Write(parts), data, env);
    }

    fn add(&mut self, server: usize, env: &mut Env) {
        for _ in 0..=env.rng.below(3) {
            let lane = self.data_lane(env);
            let word = env.rng.below(ADD_WORDS as u64) as usize;
            let add = 1 + env.rng.below(1 << 40);
            let Some(key) = self.atomic_target(server, lane, env) else {
                return;
            };
            let grant = env.shadow.get_mut(key);
            if !grant.can_add(word) {
                return;
            }
            grant.atomics += 1;
            grant.touched = true;
            self.post(
                server,
                lane,
                Class::Demand,
                What::Add { key, word, add },
                env,
            );
        }
    }

    fn atomic_target(&self, server: usize, lane: usize, env: &mut Env) -> Option<Key> {
        let key = self.pick(server, env)?.key;
        let grant = env.shadow.get(key);
        let free = grant.frozen == Frozen::No && grant.word_reads == 0 && !self.shm;
        (free && self.has_room(server, lane)).then_some(key)
    }

    fn swap(&mut self, server: usize, env: &mut Env) {
        let lane = self.data_lane(env);
        let word = env.rng.below((WORDS - ADD_WORDS) as u64) as usize;
        let Some(key) = self.atomic_target(server, lane, env) else {
            return;
        };
        let new = env.rng.next_u64();
        let wrong = env.rng.chance(0.1);
        let grant = env.shadow.get_mut(key);
        let model = &mut grant.swaps[word];
        if model.busy || model.unknown {
            return;
        }
        model.busy = true;
        let expect = model.value ^ u64::from(wrong);
        grant.atomics += 1;
        grant.touched = true;
        let what = What::Swap {
            key,
            word,
            expect,
            new,
        };
        self.post(server, lane, Class::Demand, what, env);
    }

    fn release(&mut self, server: usize, env: &mut Env) {
        if !self.has_room(server, 0) {
            return;
        }
        // Sometimes while requests for it are under way.
        let hasty = env.rng.chance(0.4);
        let Some(key) = self.pick(server, env).map(|held| held.key) else {
            return;
        };
        let grant = env.shadow.get(key);
        if !(hasty || grant.is_quiet()) || grant.frozen == Frozen::Asked {
            return;
        }
        self.release_these(server, vec![key], env);
    }

    pub fn release_these(&mut self, server: usize, keys: Vec<Key>, env: &mut Env) {
        if let Some(session) = &mut self.sessions[server] {
            let its = session.grants.iter_mut().filter(|h| keys.contains(&h.key));
            its.for_each(|held| held.releasing = true);
        }
        self.post(server, 0, Class::Control, What::Release(keys), env);
    }

    fn share(&mut self, server: usize, env: &mut Env) {
        if self.shm || !self.has_room(server, 0) {
            return;
        }
        let mut keys: Vec<Key> = Vec::new();
        for _ in 0..=env.rng.below(3) {
            if let Some(key) = self.pick(server, env).map(|held| held.key) {
                let grant = env.shadow.get(key);
                let settled = grant.atomics == 0 && !grant.writes_waited_for();
                if settled && grant.frozen != Frozen::Asked && !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        if keys.is_empty() {
            return;
        }
        for key in &keys {
            let grant = env.shadow.get_mut(*key);
            if grant.frozen == Frozen::No {
                grant.frozen = Frozen::Asked;
            }
        }
        self.post(server, 0, Class::Control, What::Share(keys), env);
    }

    fn adopt(&mut self, server: usize, env: &mut Env) {
        if !self.has_room(server, 0) {
            return;
        }
        let Some(session) = &self.sessions[server] else {
            return;
        };
        let mine = |t: &super::client::TicketModel| t.server == server;
        if let Some(at) = self.tickets.iter().position(mine) {
            let epoch = session.epoch;
            let ticket = self.tickets.swap_remove(at);
            if ticket.epoch == epoch {
                self.post(server, 0, Class::Control, What::Adopt(ticket), env);
            }
        }
    }

    fn move_home(&mut self, server: usize, env: &mut Env) {
        let lane = self.data_lane(env);
        if let Some(key) = self.pick(server, env).map(|held| held.key) {
            let grant = env.shadow.get_mut(key);
            if grant.is_quiet() {
                grant.lane = lane;
            }
        }
    }
}
