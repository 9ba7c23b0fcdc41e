//! Who is connected to an agent, and what passes over the connections. Nothing here waits for anybody.
//!
//! Invariant: whoever says nothing, too much, or does not listen, costs a bounded amount of memory for a bounded
//! time; a user who is neither root nor ours has a bounded number of connections.

use crate::line::{LineError, Lines, encode};
use crate::message::{FromAgent, ToAgent};
use muninn_sys::epoll::{Epoll, Interest};
use muninn_sys::proc;
use muninn_sys::socket::{ByteStream, Listener, PeerCredentials, Stream, Transfer};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

/// Connections that have not said what they are, and those of one user who is neither root nor ours.
const STRANGERS_MAX: usize = 1024;
const STRANGERS_OF_USER_MAX: usize = 64;
/// They have so long to say it.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// A launcher says short things.
const SAID_MAX: usize = 16 << 10;
/// What may wait for one who does not read: two states of a node that is full.
const UNSENT_MAX: usize = 8 << 20;

struct Peer {
    stream: Stream,
    lines: Lines,
    unsent: Vec<u8>,
    who: PeerCredentials,
    since: Instant,
    job: bool,
}

pub(super) struct Peers {
    epoll: Epoll,
    all: HashMap<u64, Peer>,
    next: u64,
}

/// What came of listening to somebody.
pub(super) enum Heard {
    Something,
    Nothing,
    End,
}

impl Peers {
    /// Connections get numbers from `first` on.
    pub(super) fn new(epoll: Epoll, first: u64) -> Peers {
        Peers {
            epoll,
            all: HashMap::new(),
            next: first,
        }
    }

    pub(super) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    pub(super) fn accept(&mut self, listener: &Listener) {
        while let Ok(Some(stream)) = listener.accept() {
            let Ok(who) = stream.peer_credentials() else {
                continue;
            };
            let strangers = self.all.values().filter(|peer| !peer.job);
            let of_user = strangers.clone().filter(|peer| peer.who.uid == who.uid);
            let trusted = who.uid == 0 || who.uid == proc::own_uid();
            // Those who are here keep their place; who comes when it is full comes again.
            if strangers.clone().count() >= STRANGERS_MAX
                || (!trusted && of_user.count() >= STRANGERS_OF_USER_MAX)
            {
                continue;
            }
            let token = self.next;
            self.next += 1;
            if self.epoll.add(&stream, token, Interest::READ).is_ok() {
                let peer = Peer {
                    stream,
                    lines: Lines::up_to(SAID_MAX),
                    unsent: Vec::new(),
                    who,
                    since: Instant::now(),
                    job: false,
                };
                self.all.insert(token, peer);
            }
        }
    }

    pub(super) fn who(&self, token: u64) -> Option<PeerCredentials> {
        self.all.get(&token).map(|peer| peer.who)
    }

    /// It stands for a job from now on.
    pub(super) fn is_job(&mut self, token: u64) {
        if let Some(peer) = self.all.get_mut(&token) {
            peer.job = true;
        }
    }

    pub(super) fn read(&mut self, token: u64) -> Heard {
        let Some(peer) = self.all.get_mut(&token) else {
            return Heard::Nothing;
        };
        let mut bytes = [0u8; 4096];
        match peer.stream.read(&mut [IoSliceMut::new(&mut bytes)]) {
            Ok(Transfer::Bytes(n)) => {
                peer.lines.push(&bytes[..n]);
                Heard::Something
            }
            Ok(Transfer::WouldBlock) => Heard::Nothing,
            Ok(Transfer::Closed) | Err(_) => Heard::End,
        }
    }

    /// The next whole message, of somebody who is still here.
    pub(super) fn next_message(&mut self, token: u64) -> Result<Option<ToAgent>, LineError> {
        match self.all.get_mut(&token) {
            Some(peer) => peer.lines.take(),
            None => Ok(None),
        }
    }

    /// False: it does not listen, or is gone.
    pub(super) fn tell(&mut self, token: u64, message: &FromAgent) -> bool {
        let Some(peer) = self.all.get_mut(&token) else {
            return true;
        };
        let idle = peer.unsent.is_empty();
        peer.unsent.extend(encode(message));
        peer.unsent.len() <= UNSENT_MAX && (!idle || self.flush(token))
    }

    /// Sends what waits; the rest when the other side has read some of it. False: it is gone.
    pub(super) fn flush(&mut self, token: u64) -> bool {
        let Some(peer) = self.all.get_mut(&token) else {
            return true;
        };
        while !peer.unsent.is_empty() {
            match peer.stream.write(&[IoSlice::new(&peer.unsent)]) {
                Ok(Transfer::Bytes(n)) => drop(peer.unsent.drain(..n)),
                Ok(Transfer::WouldBlock) => break,
                Ok(Transfer::Closed) | Err(_) => return false,
            }
        }
        let wanted = match peer.unsent.is_empty() {
            true => Interest::READ,
            false => Interest::BOTH,
        };
        self.epoll.modify(&peer.stream, token, wanted).is_ok()
    }

    pub(super) fn remove(&mut self, token: u64) {
        if let Some(peer) = self.all.remove(&token) {
            let _ = self.epoll.remove(&peer.stream);
        }
    }

    /// Those who should have said what they are by now.
    pub(super) fn late(&self) -> Vec<u64> {
        let late = |peer: &Peer| !peer.job && peer.since.elapsed() > STRANGER_PATIENCE;
        let late = self.all.iter().filter(|(_, peer)| late(peer));
        late.map(|(token, _)| *token).collect()
    }
}
