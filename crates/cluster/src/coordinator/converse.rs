//! One connection: an agent that reports, or a person who asks.

use super::{PATIENCE, SHAKE_PATIENCE, State, lock};
use crate::channel::{Channel, ChannelError, Who};
use crate::message::{FromCoordinator, ToCoordinator};
use muninn_proto::auth::Key;
use muninn_sys::clock;
use muninn_sys::socket::Stream;
use std::sync::Mutex;

/// Until the other side has had enough, or says something that makes no sense.
pub(super) fn converse(
    stream: Stream,
    key: &Key,
    state: &Mutex<State>,
) -> Result<(), ChannelError> {
    let mut channel = Channel::accept(stream, key, SHAKE_PATIENCE)?;
    loop {
        let said: ToCoordinator = channel.receive(PATIENCE)?;
        let now = clock::now();
        let answer = match said {
            ToCoordinator::Node(node) => match speaks_for(channel.who(), &node.name) {
                Ok(()) => lock(state).report(*node, now),
                Err(why) => FromCoordinator::Refused { why },
            },
            ToCoordinator::Cluster => {
                let cluster = lock(state).cluster(now);
                FromCoordinator::Cluster(Box::new(cluster))
            }
            ToCoordinator::Explain { job } => {
                let text = lock(state).explain(job, now);
                FromCoordinator::Explained { text }
            }
        };
        channel.send(&answer, PATIENCE)?;
    }
}

pub(super) fn speaks_for(who: &Who, node: &str) -> Result<(), String> {
    if !who.is_node() {
        return Err("only servers of the pool may speak for a node".to_string());
    }
    match who {
        Who::Identity(identity) if identity.name != node => Err(format!(
            "the certificate is for '{}', so it does not speak for '{node}'",
            identity.name
        )),
        _ => Ok(()),
    }
}
