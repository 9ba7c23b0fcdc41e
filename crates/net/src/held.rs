//! A key in one process, handshakes in others.
//!
//! A program on far memory, and the runtime beside it that has no memory of its own, get by without the
//! key of their pool: their launcher has it. For each connection the runtime asks the launcher twice,
//! over a socket: once for the first message of a handshake, once for the last, with which it gets the
//! keys of that connection ([`muninn_proto::secure::Holder`]). All else, sockets to servers included,
//! is the runtime's.
//!
//! Only descendants of the holder are answered, and only for connections that open or continue a session:
//! a program may have memory, but may neither look at what others do there nor drain anything.
//!
//! Known limit: when the holder is killed, no new connection can be made.

use muninn_proto::auth::Key;
use muninn_proto::secure::{ChannelKeys, Holder, NoiseError, Shaking, UnixTime, begin, wipe};
use muninn_sys::epoll::wait_any;
use muninn_sys::socket::{Door, Link};
use muninn_sys::{clock, rand, reap};
use muninn_types::Nanos;
use muninn_wire::{Hello, Intent, Lock, MAX_BODY};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Handshakes that may be under way at one time, and how long one may take; the oldest makes room.
const SHAKING_MAX: usize = 256;
const SHAKING_TIME: Nanos = Nanos::secs(10);
/// Those who knock that are looked at before others are gone on with.
const VISITORS_A_TURN: usize = 16;
/// Between two looks at handshakes that nobody goes on with.
const LOOK: Duration = Duration::from_secs(5);
/// How long a holder may take to answer, and may sleep for want of anybody asking.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest message: what a handshake says is part of a frame's body.
const MESSAGE_MAX: usize = 1 + ChannelKeys::LEN + MAX_BODY;

/// How an answer begins.
const DONE: u8 = 0;
const WRONG_KEY: u8 = 1;
const REFUSED: u8 = 2;

/// A handshake that was begun for somebody.
struct Begun {
    link: Link,
    since: Nanos,
    shaking: Option<Box<dyn Shaking>>,
}

/// Answers for a key. Clones answer at the same doors.
#[derive(Clone, Debug)]
pub struct KeyHolder {
    doors: Arc<[Door]>,
}

impl KeyHolder {
    /// Under a name, and at a path if it can be had: whoever cannot reach one may reach the other.
    pub fn new(name: &str, path: Option<&Path>) -> std::io::Result<KeyHolder> {
        let mut doors = vec![Door::open(name.as_bytes())?];
        doors.extend(path.and_then(|path| Door::open_at(path).ok()));
        Ok(KeyHolder {
            doors: doors.into(),
        })
    }

    /// Answers, for ever. The key is asked for each time: it may be another by then.
    pub fn serve(&self, mut key: impl FnMut() -> Key) -> ! {
        let mut begun: Vec<Begun> = Vec::new();
        loop {
            let doors = self.doors.iter().map(AsFd::as_fd);
            let links = begun.iter().map(|one| one.link.as_fd());
            let fds: Vec<_> = doors.chain(links).collect();
            wait_any(&fds, LOOK);
            let now = clock::now();
            begun.retain_mut(|one| {
                now.saturating_sub(one.since) < SHAKING_TIME && one.attend(&mut key)
            });
            for door in self.doors.iter() {
                // A few at a time: whoever likes can stand there in crowds.
                for link in std::iter::from_fn(|| door.accept()).take(VISITORS_A_TURN) {
                    if !link.peer().is_some_and(reap::is_descendant) {
                        continue;
                    }
                    if begun.len() >= SHAKING_MAX {
                        begun.remove(0);
                    }
                    begun.push(Begun {
                        link,
                        since: now,
                        shaking: None,
                    });
                }
            }
        }
    }
}

impl Begun {
    /// Answers what was asked, if anything was; whether there is more to come.
    fn attend(&mut self, key: &mut impl FnMut() -> Key) -> bool {
        let mut asked = [0; MESSAGE_MAX];
        let len = match self.link.receive(&mut asked, Duration::ZERO) {
            Ok(None) => return true,
            Ok(Some((0, _))) | Err(_) => return false,
            Ok(Some((len, _))) => len,
        };
        let asked = &asked[..len];
        let (answered, goes_on) = match self.shaking.take() {
            None => match self.first(asked, key()) {
                Ok(first) => (Ok(first), true),
                Err(error) => (Err(error), false),
            },
            Some(mut shaking) => {
                let last = shaking.answer(asked).map(|(last, keys)| {
                    let mut bytes = keys.to_bytes();
                    let both = [&bytes[..], &last].concat();
                    wipe(&mut bytes);
                    both
                });
                (last, false)
            }
        };
        let mut answer = match answered {
            Ok(bytes) => [&[DONE], &bytes[..]].concat(),
            Err(NoiseError::WrongKey) => vec![WRONG_KEY],
            Err(error) => [&[REFUSED], error.to_string().as_bytes()].concat(),
        };
        // One that is gone, or does not read, is nobody's to wait for.
        let sent = self.link.send_now(&answer, &[]);
        wipe(&mut answer);
        goes_on && sent.is_ok()
    }

    fn first(&mut self, open: &[u8], key: Key) -> Result<Vec<u8>, NoiseError> {
        let refused = |why: &str| NoiseError::Holder(why.to_string());
        let hello = Hello::decode(open).map_err(|_| refused("that is no hello"))?;
        if hello.lock != key.lock() || key.lock() == Lock::Open {
            return Err(refused(
                "the key file holds another kind of key than when the program was started",
            ));
        }
        if hello.intent == Intent::Observe {
            return Err(refused("a program may have memory, and nothing else"));
        }
        let (shaking, first) = begin(&key, open, rand::bytes(), UnixTime(clock::unix()))?;
        self.shaking = Some(shaking);
        Ok(first)
    }
}

/// Where a holder is found.
#[derive(Clone, Debug)]
pub struct HolderAddress {
    pub name: String,
    /// Where nobody else can knock.
    pub path: PathBuf,
}

impl HolderAddress {
    /// The key of this kind that is held there.
    pub fn key(self, lock: Lock) -> Key {
        Key::held(lock, Arc::new(self))
    }
}

impl Holder for HolderAddress {
    fn begin(&self, open: &[u8]) -> Result<(Box<dyn Shaking>, Vec<u8>), NoiseError> {
        // By its path first: other users of the machine see the name, and may crowd there.
        let link = Link::connect_at(&self.path).or_else(|_| Link::connect(self.name.as_bytes()));
        let link = link.map_err(|_| gone())?;
        let first = ask(&link, open)?;
        Ok((Box::new(Asked(link)), first))
    }
}

struct Asked(Link);

impl Shaking for Asked {
    fn answer(&mut self, message: &[u8]) -> Result<(Vec<u8>, ChannelKeys), NoiseError> {
        let mut bytes = ask(&self.0, message)?;
        let (keys, last) = bytes
            .split_first_chunk::<{ ChannelKeys::LEN }>()
            .ok_or_else(gone)?;
        let answer = (last.to_vec(), ChannelKeys::from_bytes(keys));
        wipe(&mut bytes);
        Ok(answer)
    }
}

fn gone() -> NoiseError {
    NoiseError::Holder(
        "the launcher, which has the key, does not answer: no new connection can be made"
            .to_string(),
    )
}

fn ask(link: &Link, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
    link.send(message, &[]).map_err(|_| gone())?;
    let mut bytes = [0; MESSAGE_MAX];
    let received = link.receive(&mut bytes, PATIENCE).map_err(|_| gone())?;
    let (len, _) = received.ok_or_else(gone)?;
    let (how, rest) = bytes[..len].split_first().ok_or_else(gone)?;
    let answer = match *how {
        DONE => Ok(rest.to_vec()),
        WRONG_KEY => Err(NoiseError::WrongKey),
        _ => Err(NoiseError::Holder(
            String::from_utf8_lossy(rest).into_owned(),
        )),
    };
    wipe(&mut bytes);
    answer
}
