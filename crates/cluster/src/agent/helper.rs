//! The part of an agent that speaks to others, who may take their time: the coordinator, and the node's
//! own memory server.

use super::Settings;
use crate::channel::{Channel, ChannelError};
use crate::message::{FromCoordinator, NodeState, ToCoordinator};
use muninn_proto::auth::Key;
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Between two words with the coordinator and the server.
const PAUSE: Duration = Duration::from_secs(1);
/// The coordinator has so long to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The node's memory server, as its agent needs it.
pub trait MemoryServer: Send {
    /// How much may be granted from now on. More that is granted already is asked back.
    fn set_ceiling(&mut self, ceiling: Bytes) -> Result<(), String>;
    /// How it is; `None` when it does not answer.
    fn look(&mut self) -> Option<ServerNews>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerNews {
    pub granted: Bytes,
}

/// What is known of the world.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outside {
    pub(super) others: Bytes,
    pub(super) granted: Bytes,
    pub(super) pool: Vec<String>,
    pub(super) coordinated: bool,
    pub(super) complaint: String,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    outside: Outside,
    node: Option<NodeState>,
    ceiling: Option<Bytes>,
    over: bool,
}

pub(super) struct Helper {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Helper {
    /// `known` are servers that the agent before this one knew.
    pub(super) fn start(
        settings: &Settings,
        server: Option<Box<dyn MemoryServer>>,
        known: Vec<String>,
    ) -> Helper {
        let shared = Arc::<Shared>::default();
        let desk = shared.state.lock();
        desk.unwrap_or_else(PoisonError::into_inner).outside.pool = known;
        let worker = Worker {
            shared: Arc::clone(&shared),
            coordinator: settings.coordinator.clone(),
            key: settings.key.clone(),
            channel: None,
            server,
        };
        let thread = std::thread::Builder::new().name("muninn-helper".to_string());
        let thread = thread.spawn(move || worker.run()).ok();
        Helper { shared, thread }
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outside(&self) -> Outside {
        self.desk().outside.clone()
    }

    pub(super) fn tell(&self, node: NodeState) {
        self.desk().node = Some(node);
    }

    pub(super) fn set_ceiling(&self, ceiling: Bytes) {
        let mut desk = self.desk();
        let lower = desk.ceiling.is_none_or(|before| ceiling < before);
        desk.ceiling = Some(ceiling);
        // Less is for a job that waits for it.
        if lower {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.desk().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    coordinator: Option<Address>,
    key: Key,
    channel: Option<Channel>,
    server: Option<Box<dyn MemoryServer>>,
}

impl Worker {
    fn run(mut self) {
        let mut set = None;
        loop {
            let (node, ceiling) = {
                let desk = self.shared.state.lock();
                let desk = desk.unwrap_or_else(PoisonError::into_inner);
                let wait = |desk: &mut Desk| !desk.over && (desk.ceiling == set || set.is_none());
                let waited = self.shared.changed.wait_timeout_while(desk, PAUSE, wait);
                let (desk, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if desk.over {
                    return;
                }
                (desk.node.clone(), desk.ceiling)
            };
            let mut news = None;
            if let Some(server) = &mut self.server {
                if let Some(ceiling) = ceiling.filter(|_| ceiling != set) {
                    match server.set_ceiling(ceiling) {
                        Ok(()) => set = Some(ceiling),
                        Err(why) => eprintln!("muninn: {why}"),
                    }
                }
                news = server.look();
            } else {
                set = ceiling;
            }
            let answer = node.and_then(|node| self.report(node));
            let mut desk = self
                .shared
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            // A server that does not answer still has what it had.
            if let Some(news) = news {
                desk.outside.granted = news.granted;
            }
            match answer {
                Some(Ok((pool, whole, others))) => {
                    let known = std::mem::replace(&mut desk.outside.pool, pool);
                    if !whole {
                        // Who is not named yet has not left.
                        desk.outside.pool.extend(known);
                        desk.outside.pool.sort();
                        desk.outside.pool.dedup();
                    }
                    desk.outside.others = others;
                    desk.outside.coordinated = true;
                }
                Some(Err(why)) => {
                    desk.outside.coordinated = false;
                    desk.outside.complaint = why;
                }
                None => {}
            }
        }
    }

    /// `None`: there is no coordinator.
    fn report(&mut self, node: NodeState) -> Option<Result<Plan, String>> {
        let address = self.coordinator.as_ref()?;
        let said = exchange(&mut self.channel, address, &self.key, node);
        Some(match said {
            Ok(FromCoordinator::Plan {
                pool,
                whole,
                others,
            }) => Ok((pool, whole, others)),
            Ok(FromCoordinator::Refused { why }) => {
                self.channel = None;
                Err(why)
            }
            Ok(_) => {
                self.channel = None;
                Err("it said something else".to_string())
            }
            Err(error) => {
                self.channel = None;
                Err(error.to_string())
            }
        })
    }
}

/// The pool, whether that is all of it, and what others have of the node.
type Plan = (Vec<String>, bool, Bytes);

fn exchange(
    channel: &mut Option<Channel>,
    address: &Address,
    key: &Key,
    node: NodeState,
) -> Result<FromCoordinator, ChannelError> {
    let channel = match channel {
        Some(channel) => channel,
        None => channel.insert(Channel::connect(address, key, PATIENCE)?),
    };
    channel.send(&ToCoordinator::Node(Box::new(node)), PATIENCE)?;
    channel.receive(PATIENCE)
}
