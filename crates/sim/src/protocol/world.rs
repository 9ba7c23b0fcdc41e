//! The loop: takes events in the order of time, breaks things, and asks for an account at the end.

use super::client::Client;
use super::completion::What;
use super::env::{Chaos, Env, Event, Phase, ServerFacts};
use super::network::{Arrival, Way};
use super::server::Server;
use super::shadow::Key;
use super::{Failure, Options, Summary};
use muninn_types::{ConnId, Nanos};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Clients and their children: as many as there are patterns of bytes.
const CLIENTS_MAX: usize = 6;
/// Everything under way must end within this time once nothing breaks any more.
const SETTLE_MAX: Nanos = Nanos::secs(2);

#[derive(Debug)]
struct World {
    env: Env,
    servers: Vec<Server>,
    clients: Vec<Client>,
    deadline: Nanos,
    unverified: Vec<(usize, usize, Key)>,
}

pub fn run(seed: u64, options: &Options, telling: bool) -> Result<Summary, Failure> {
    let mut world = World::new(seed, options, telling);
    // A panic in the code under test is a finding like any other.
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        format!("panicked: {}", text.unwrap_or_default())
    };
    let what = match ended {
        Ok(()) => world.env.failure().cloned(),
        Err(panic) => Some(panicked(panic)),
    };
    match what {
        None => Ok(world.env.summary),
        Some(what) => Err(Failure {
            seed,
            what,
            events: world.env.told(),
        }),
    }
}

impl World {
    fn new(seed: u64, options: &Options, telling: bool) -> World {
        let mut env = Env::new(seed, options, telling);
        let servers = 1 + env.rng.below(options.servers_max) as usize;
        let servers: Vec<Server> = (0..servers).map(|i| Server::new(i, &mut env)).collect();
        for server in &servers {
            let facts = ServerFacts {
                epoch: 0,
                accepting: true,
                quota: server.quota(),
            };
            env.servers.push(facts);
        }
        let clients = 1 + env.rng.below(options.clients_max) as usize;
        let mut world = World {
            env,
            servers,
            clients: Vec::new(),
            deadline: options.span,
            unverified: Vec::new(),
        };
        for _ in 0..clients {
            world.add_client();
        }
        world.plan_chaos();
        world
    }

    fn add_client(&mut self) -> usize {
        let index = self.clients.len();
        let name = format!("client-{index}");
        let client = Client::new(index, &name, self.servers.len(), &mut self.env);
        self.clients.push(client);
        self.env.after(Nanos::micros(1), Event::Step(index));
        index
    }

    fn plan_chaos(&mut self) {
        let env = &mut self.env;
        let span = env.options.span.0;
        let plan = [
            (Chaos::Cut, 30),
            (Chaos::Stall, 3),
            (Chaos::Kill, 2),
            (Chaos::Restart, 2),
            (Chaos::Drain, 3),
            (Chaos::Abandon, 20),
        ];
        for (chaos, most) in plan {
            for _ in 0..env.rng.below(most) {
                let at = Nanos(env.rng.below(span));
                env.at(at, Event::Chaos(chaos));
            }
        }
    }

    fn run(&mut self) {
        while self.env.failure().is_none()
            && let Some(event) = self.env.next()
        {
            self.handle(event);
            if self.advance() {
                break;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let env = &mut self.env;
        match event {
            Event::Arrival(conn, way) => self.arrival(conn, way),
            Event::Flush(server, conn) => self.servers[server].flush(conn, env),
            Event::Tick(server, epoch) if env.servers[server].epoch == epoch => {
                self.servers[server].tick(env);
            }
            Event::Wipe(server, epoch) if env.servers[server].epoch == epoch => {
                self.servers[server].wipe(env);
            }
            Event::Tick(..) | Event::Wipe(..) => {}
            Event::Step(client) => self.step(client),
            Event::Connect {
                client,
                server,
                generation,
                lane,
            } => self.clients[client].connect(server, generation, lane, env),
            Event::Chaos(chaos) => self.chaos(chaos),
            Event::Up(server) => env.servers[server].accepting = true,
            Event::DrainEnds(server, epoch) if env.servers[server].epoch == epoch => {
                self.servers[server].drain(None, env);
            }
            Event::DrainEnds(..) => {}
        }
    }

    fn arrival(&mut self, conn: ConnId, way: Way) {
        let env = &mut self.env;
        let Some(end) = env.net.end(conn) else {
            return;
        };
        let (client, server) = (&mut self.clients[end.client], &mut self.servers[end.server]);
        if way == Way::Down && client.alive && env.now < client.stalled_until {
            return env.at(client.stalled_until, Event::Arrival(conn, way));
        }
        if way == Way::Up && !server.takes(conn) {
            return env.after(Nanos::micros(300), Event::Arrival(conn, way));
        }
        let (mut bytes, mut files) = (Vec::new(), Vec::new());
        match (
            env.net.take(conn, way, env.now, &mut bytes, &mut files),
            way,
        ) {
            (Arrival::Nothing, _) => {}
            (_, Way::Up) if end.epoch != env.servers[end.server].epoch => {
                // Meant for a life of the server that is over.
                server.closed(conn, env);
            }
            (Arrival::Bytes, Way::Up) => server.receive(conn, &bytes, client.shm, env),
            (Arrival::Closed, Way::Up) => server.closed(conn, env),
            (Arrival::Bytes, Way::Down) => client.receive(end, conn, &bytes, files, env),
            (Arrival::Closed, Way::Down) => client.closed(end, conn, env),
        }
    }

    fn step(&mut self, index: usize) {
        let env = &mut self.env;
        self.clients[index].step(env);
        if env.phase == Phase::Verify {
            let (clients, unverified) = (&mut self.clients, &mut self.unverified);
            unverified.retain(|(client, server, key)| {
                let client = &mut clients[*client];
                let session = client.sessions[*server].as_ref();
                let held = session.and_then(|session| session.held(*key));
                if held.is_none_or(|held| held.releasing) {
                    return false;
                }
                let posted = client.verify(*server, *key, env);
                client.flush(*server, env);
                !posted
            });
        }
        // A fork: the child takes over what its parent has shared.
        for ticket in std::mem::take(&mut self.clients[index].offspring) {
            if self.clients.len() < CLIENTS_MAX && self.env.phase == Phase::Work {
                let child = self.add_client();
                let child = &mut self.clients[child];
                if !child.shm {
                    child.tickets.push(ticket);
                }
            }
        }
    }

    fn chaos(&mut self, chaos: Chaos) {
        let env = &mut self.env;
        if env.phase != Phase::Work {
            return;
        }
        let client = env.rng.below(self.clients.len() as u64) as usize;
        let index = env.rng.below(self.servers.len() as u64) as usize;
        match chaos {
            Chaos::Cut => {
                // Half of the time where most is under way, to hit frames in the middle.
                let whole = env.net.whole();
                let busiest = whole
                    .iter()
                    .max_by_key(|conn| env.net.queued(**conn, Way::Up));
                let any = whole.get(env.rng.below(whole.len() as u64) as usize);
                let chosen = if env.rng.chance(0.5) { busiest } else { any };
                if let Some(conn) = chosen {
                    env.cut(*conn);
                }
                self.clients.iter_mut().for_each(|c| c.scribble(env));
            }
            Chaos::Stall => {
                let lease = env.options.lease.0;
                let long = if env.rng.chance(0.5) {
                    lease / 3
                } else {
                    3 * lease
                };
                self.clients[client].stalled_until = env.now + Nanos(env.rng.below(long));
                env.summary.stalls += 1;
                env.tell(|| format!("client {client} stalls"));
            }
            Chaos::Kill => {
                if self.clients[client].alive {
                    self.clients[client].kill(env);
                }
            }
            Chaos::Restart => {
                let facts = &mut env.servers[index];
                facts.epoch += 1;
                facts.accepting = false;
                env.summary.restarts += 1;
                env.tell(|| format!("server {index} is restarted"));
                if env.rng.chance(0.3) {
                    self.servers[index].say_stopping(env);
                }
                self.servers[index].restart(env);
                let down = Nanos(env.rng.below(20_000_000));
                env.after(down, Event::Up(index));
            }
            Chaos::Drain => {
                let ends = env.now + Nanos::millis(20);
                self.servers[index].drain(Some(ends), env);
                let epoch = env.servers[index].epoch;
                env.at(ends, Event::DrainEnds(index, epoch));
            }
            Chaos::Abandon => self.clients[client].abandon(env),
        }
    }

    /// Whether nothing is under way any more, and every lane stands.
    fn settled(&self) -> bool {
        self.clients
            .iter()
            .filter(|client| client.alive)
            .all(|client| {
                let waiting = |what: &What| !matches!(what, What::Heartbeat);
                let still = !client.ops.values().any(|op| waiting(&op.what));
                let sessions = client.sessions.iter().flatten();
                still && sessions.into_iter().all(|session| session.is_settled())
            })
    }

    /// Goes on to the next phase when it is time. True at the end.
    fn advance(&mut self) -> bool {
        let late = self.env.now >= self.deadline;
        let phase = self.env.phase;
        let still = !late && matches!(phase, Phase::Settle | Phase::Verify) && self.settled();
        let env = &mut self.env;
        match phase {
            Phase::Work if late => {
                env.phase = Phase::Settle;
                env.tell(|| "nothing breaks from now on".to_string());
                self.deadline = env.now + SETTLE_MAX;
                for client in &mut self.clients {
                    client.stalled_until = env.now;
                }
            }
            Phase::Settle | Phase::Verify if late => {
                let ops = self
                    .clients
                    .iter()
                    .filter(|c| c.alive)
                    .flat_map(|c| c.ops.values());
                let ops: Vec<String> = ops.take(5).map(|op| op.what.to_string()).collect();
                let what = format!("hung in {:?}: {}", env.phase, ops.join("; "));
                env.fail(what);
            }
            Phase::Settle if still => {
                env.phase = Phase::Verify;
                for (c, client) in self.clients.iter().enumerate().filter(|(_, c)| c.alive) {
                    for (s, session) in client.sessions.iter().enumerate() {
                        let held = session.iter().flat_map(|session| &session.grants);
                        self.unverified.extend(held.map(|held| (c, s, held.key)));
                    }
                }
            }
            Phase::Verify if still && self.unverified.is_empty() => self.leave(),
            Phase::Leave if late => {
                self.servers
                    .iter()
                    .for_each(|server| server.check_empty(env));
                return true;
            }
            _ => {}
        }
        false
    }

    fn leave(&mut self) {
        let env = &mut self.env;
        env.phase = Phase::Leave;
        self.deadline = env.now + Nanos(15 * env.options.lease.0);
        for client in self.clients.iter_mut().filter(|client| client.alive) {
            if env.rng.chance(0.5) {
                client.say_goodbye(env);
            } else {
                client.kill(env);
            }
        }
    }
}
