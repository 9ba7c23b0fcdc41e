//! A connection that carries lines, to or from the coordinator.
//!
//! Over a Unix socket the kernel says who the other side is. Over tcp both shake hands as clients and
//! servers of the pool do (Noise, `muninn_proto::secure`), with the pool's key or identities, and all
//! that follows is in records. The prologue is another than a memory server's, so nothing that was said
//! to the one means anything to the other. Without a key nobody is known and nothing is secret: allowed
//! on this machine only.
//!
//! Invariant: each exchange has an end in time, however slowly the other side sends.

use crate::line::{LineError, Lines, encode};
use muninn_proto::auth::Key;
use muninn_proto::secure::{
    ChannelKeys, Identity, NoiseError, RECORD_MAX, Records, Responder, Role, UnixTime, begin,
};
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{Address, ByteStream, ConnectError, PeerCredentials, Stream, Transfer};
use muninn_sys::{clock, rand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

const PROLOGUE: &[u8] = b"muninn cluster 1";
/// Messages of a handshake are shorter.
const SHAKE_MAX: usize = 8 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("it did not answer in time")]
    Late,
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Handshake(#[from] NoiseError),
    #[error("what it sent is damaged")]
    Broken,
    #[error("{0}")]
    Line(#[from] LineError),
}

/// Who is at the other end, as far as was proved.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    Local(PeerCredentials),
    Anybody,
    /// Has the key that all of the pool share.
    SharedKey,
    Identity(Identity),
}

impl Who {
    /// May speak for a node: only servers of the pool, and whoever runs this machine.
    pub fn is_node(&self) -> bool {
        match self {
            Who::Local(peer) => peer.uid == 0 || peer.uid == muninn_sys::proc::own_uid(),
            Who::Anybody | Who::SharedKey => true,
            Who::Identity(identity) => identity.role == Role::Server,
        }
    }
}

/// Keys that have expired by now prove nothing.
fn now() -> UnixTime {
    UnixTime(clock::unix())
}

#[derive(Debug)]
pub struct Channel {
    stream: Stream,
    records: Option<Records>,
    lines: Lines,
    who: Who,
}

impl Channel {
    pub fn connect(
        address: &Address,
        key: &Key,
        within: Duration,
    ) -> Result<Channel, ChannelError> {
        let ends = Instant::now() + within;
        let stream = Stream::connect(address, within)?;
        if stream.is_unix() {
            return Channel::local(stream);
        }
        let (mut shaking, first) = begin(key, PROLOGUE, rand::bytes(), now())?;
        send_frame(&stream, &first, ends)?;
        let answer = receive_frame(&stream, ends)?;
        let (last, keys) = shaking.answer(&answer)?;
        send_frame(&stream, &last, ends)?;
        let records = records(&keys);
        let who = if key.is_none() {
            Who::Anybody
        } else {
            Who::SharedKey
        };
        Ok(Channel {
            stream,
            records: Some(records),
            lines: Lines::default(),
            who,
        })
    }

    pub fn accept(stream: Stream, key: &Key, within: Duration) -> Result<Channel, ChannelError> {
        let ends = Instant::now() + within;
        if stream.is_unix() {
            return Channel::local(stream);
        }
        let first = receive_frame(&stream, ends)?;
        let (responder, answer) = Responder::start(key, PROLOGUE, &first, rand::bytes())?;
        send_frame(&stream, &answer, ends)?;
        let last = receive_frame(&stream, ends)?;
        let (records, proved) = responder.finish(&last, now())?;
        let who = match proved.map_err(NoiseError::from)? {
            Some(identity) => Who::Identity(identity),
            None if key.is_none() => Who::Anybody,
            None => Who::SharedKey,
        };
        Ok(Channel {
            stream,
            records: Some(records),
            lines: Lines::default(),
            who,
        })
    }

    fn local(stream: Stream) -> Result<Channel, ChannelError> {
        let peer = stream
            .peer_credentials()
            .map_err(|_| ChannelError::Closed)?;
        Ok(Channel {
            stream,
            records: None,
            lines: Lines::default(),
            who: Who::Local(peer),
        })
    }

    pub fn who(&self) -> &Who {
        &self.who
    }

    pub fn send(&mut self, message: &impl Serialize, within: Duration) -> Result<(), ChannelError> {
        let line = encode(message);
        let ends = Instant::now() + within;
        match &mut self.records {
            None => send_all(&self.stream, &line, ends),
            Some(records) => {
                let mut wire = Vec::with_capacity(line.len() + 64);
                for piece in line.chunks(RECORD_MAX) {
                    records.seal(piece, &mut wire);
                }
                send_all(&self.stream, &wire, ends)
            }
        }
    }

    pub fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, ChannelError> {
        let ends = Instant::now() + within;
        let mut plain = Vec::new();
        loop {
            if let Some(message) = self.lines.take()? {
                return Ok(message);
            }
            let mut bytes = [0u8; 16 << 10];
            let n = receive_some(&self.stream, &mut bytes, ends)?;
            match &mut self.records {
                None => self.lines.push(&bytes[..n]),
                Some(records) => {
                    plain.clear();
                    let opened = records.open(&bytes[..n], &mut plain);
                    opened.map_err(|_| ChannelError::Broken)?;
                    self.lines.push(&plain);
                }
            }
        }
    }
}

fn records(keys: &ChannelKeys) -> Records {
    Records::new(keys)
}

fn wait(stream: &Stream, interest: Interest, ends: Instant) -> Result<(), ChannelError> {
    let left = ends.saturating_duration_since(Instant::now());
    match stream.wait(interest, Some(left)) {
        Ok(true) if !left.is_zero() => Ok(()),
        _ => Err(ChannelError::Late),
    }
}

fn send_all(stream: &Stream, mut bytes: &[u8], ends: Instant) -> Result<(), ChannelError> {
    while !bytes.is_empty() {
        match stream.write(&[IoSlice::new(bytes)]) {
            Ok(Transfer::Bytes(n)) => bytes = &bytes[n..],
            Ok(Transfer::WouldBlock) => wait(stream, Interest::WRITE, ends)?,
            Ok(Transfer::Closed) | Err(_) => return Err(ChannelError::Closed),
        }
    }
    Ok(())
}

fn receive_some(stream: &Stream, into: &mut [u8], ends: Instant) -> Result<usize, ChannelError> {
    loop {
        match stream.read(&mut [IoSliceMut::new(into)]) {
            Ok(Transfer::Bytes(n)) => return Ok(n),
            Ok(Transfer::WouldBlock) => wait(stream, Interest::READ, ends)?,
            Ok(Transfer::Closed) | Err(_) => return Err(ChannelError::Closed),
        }
    }
}

fn send_frame(stream: &Stream, message: &[u8], ends: Instant) -> Result<(), ChannelError> {
    let head = (message.len() as u16).to_le_bytes();
    send_all(stream, &[&head, message].concat(), ends)
}

fn receive_frame(stream: &Stream, ends: Instant) -> Result<Vec<u8>, ChannelError> {
    let exactly = |len: usize| {
        let (mut bytes, mut got) = (vec![0; len], 0);
        while got < len {
            got += receive_some(stream, &mut bytes[got..], ends)?;
        }
        Ok::<_, ChannelError>(bytes)
    };
    let head = exactly(2)?;
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    if len > SHAKE_MAX {
        return Err(ChannelError::Broken);
    }
    exactly(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_sys::socket::Listener;

    const SOON: Duration = Duration::from_secs(20);

    fn talk(
        server: &Key,
        client: &Key,
    ) -> (Result<Who, ChannelError>, Result<String, ChannelError>) {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().clone();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                let ends = Instant::now() + SOON;
                let stream = loop {
                    match listener.accept().unwrap() {
                        Some(stream) => break stream,
                        None => assert!(Instant::now() < ends),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                let mut channel = Channel::accept(stream, server, SOON)?;
                let text: String = channel.receive(SOON)?;
                channel.send(&text, SOON)?;
                Ok(channel.who().clone())
            });
            let said = (|| {
                let mut channel = Channel::connect(&address, client, SOON)?;
                channel.send(&"x".repeat(300_000), SOON)?;
                channel.receive::<String>(SOON)
            })();
            (served.join().unwrap(), said)
        })
    }

    #[test]
    fn who_has_the_key_is_heard_and_nobody_else() {
        let key = Key::from_file_contents(b"a key of some length").unwrap();
        let other = Key::from_file_contents(b"another of some length").unwrap();
        let (who, said) = talk(&key, &key);
        assert_eq!(who.unwrap(), Who::SharedKey);
        assert_eq!(said.unwrap().len(), 300_000);
        for (server, client) in [(&key, &other), (&key, &Key::none()), (&Key::none(), &key)] {
            let (who, said) = talk(server, client);
            assert!(who.is_err() && said.is_err());
        }
        assert_eq!(talk(&Key::none(), &Key::none()).0.unwrap(), Who::Anybody);
    }

    #[test]
    fn who_sends_nothing_is_not_waited_for() {
        let (ours, _theirs) = Stream::pair().unwrap();
        let mut channel = Channel::local(ours).unwrap();
        let late = channel.receive::<u64>(Duration::from_millis(30));
        assert!(matches!(late, Err(ChannelError::Late)));
    }
}
