//! Hello, challenge, proof, welcome: who is at the other end, proved in both directions.

use crate::auth::{self, Key, SessionSecret, Transcript};
use crate::secure::{ENTROPY_LEN, IdentityError, Initiator, NoiseError, Records, UnixTime};
use muninn_types::{Class, LaneId, LaneKind, SessionId, Tag};
use muninn_wire::{
    Challenge, DecodeError, ErrorCode, Header, Hello, Intent, Kind, Lock, NONCE_LEN, PROOF_LEN,
    Refusal, Request, ShortText, Transport, VERSION, VERSION_MIN, Welcome,
};

/// What a connection is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    Open {
        transport: Transport,
        name: ShortText,
    },
    Attach {
        session: SessionId,
        secret: SessionSecret,
        lane: LaneId,
        kind: LaneKind,
    },
    Observe,
}

#[derive(Debug)]
pub struct Handshake {
    version: u8,
    key: Key,
    purpose: Purpose,
    /// What the hello says in the open.
    open: Vec<u8>,
    noise: Option<Initiator>,
    proved: bool,
}

/// The connection is ready.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Of the protocol.
    pub version: u8,
    pub welcome: Welcome,
    /// Proved by the further lanes of a session that was opened.
    pub secret: Option<SessionSecret>,
}

#[derive(Debug)]
pub enum Next {
    Send(Vec<u8>),
    Done(Opened),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("the server does not know this client's key: use the key file it was started with")]
    ServerProof,
    #[error("the server is not to be believed: {0}")]
    Server(IdentityError),
    #[error(
        "the server speaks protocol version {0}, this client {ours}: use the same release of \
         muninn on both sides",
        ours = muninn_wire::VERSION
    )]
    Version(u8),
    #[error("what answers there is not a muninn server ({0})")]
    NotMuninn(DecodeError),
    #[error("the server broke off the handshake")]
    OutOfTurn,
    #[error("{0}")]
    Holder(String),
}

impl From<DecodeError> for HandshakeError {
    fn from(error: DecodeError) -> HandshakeError {
        match error {
            DecodeError::Version(theirs) => HandshakeError::Version(theirs),
            other => HandshakeError::NotMuninn(other),
        }
    }
}

fn failed(error: NoiseError) -> HandshakeError {
    match error {
        NoiseError::WrongKey => HandshakeError::ServerProof,
        NoiseError::Identity(error) => HandshakeError::Server(error),
        NoiseError::Holder(why) => HandshakeError::Holder(why),
    }
}

impl Handshake {
    /// Starts, with random bytes, at a time before all others; the frame is the first to send.
    pub fn start(
        key: Key,
        purpose: Purpose,
        entropy: [u8; ENTROPY_LEN],
        pid: u32,
    ) -> Result<(Handshake, Vec<u8>), HandshakeError> {
        Handshake::start_at(VERSION, UnixTime(0), key, purpose, entropy, pid)
    }

    /// The same in a version of the protocol that may be older, at a time of day: a server whose key has expired
    /// by then is not believed.
    pub fn start_at(
        version: u8,
        now: UnixTime,
        key: Key,
        purpose: Purpose,
        entropy: [u8; ENTROPY_LEN],
        pid: u32,
    ) -> Result<(Handshake, Vec<u8>), HandshakeError> {
        let (nonce, seed) = entropy
            .split_first_chunk::<NONCE_LEN>()
            .expect("it is longer");
        let seed: [u8; 32] = seed.try_into().expect("the rest has 32 bytes");
        let intent = match &purpose {
            Purpose::Open { transport, name } => Intent::Open {
                transport: *transport,
                name: name.clone(),
            },
            Purpose::Attach {
                session,
                lane,
                kind,
                ..
            } => Intent::Attach {
                session: *session,
                lane: *lane,
                kind: *kind,
            },
            Purpose::Observe => Intent::Observe,
        };
        let mut hello = Hello {
            nonce: *nonce,
            pid,
            intent,
            lock: key.lock(),
            noise: Vec::new(),
        };
        let mut open = Vec::new();
        hello.encode(&mut open);
        auth::bind_version(version, &mut open);
        let mut noise = None;
        if key.lock() != Lock::Open {
            let (initiator, first) = Initiator::start(&key, &open, seed, now).map_err(failed)?;
            (noise, hello.noise) = (Some(initiator), first);
        }
        let mut frame = Vec::new();
        Request::Hello(hello).encode_in(version, Class::Control, Tag(0), &mut frame);
        let handshake = Handshake {
            version,
            key,
            purpose,
            open,
            noise,
            proved: false,
        };
        Ok((handshake, frame))
    }

    /// After the proof was sent: what follows on a network is in these records, in both directions.
    /// None where there is no key.
    pub fn channel(&mut self) -> Option<Records> {
        let mut noise = self.noise.take_if(|_| self.proved)?;
        noise.channel().ok()
    }

    /// The latest version that both speak, if a server has refused that of the hello and there is one. It is
    /// said in the open, so somebody in between can have an older one spoken: versions that were found to be
    /// weak are to be given up, by [`VERSION_MIN`].
    pub fn version_instead(&self, error: &HandshakeError) -> Option<u8> {
        let HandshakeError::Refused(refusal) = error else {
            return None;
        };
        let theirs = u8::try_from(refusal.a).ok()?;
        let known = (VERSION_MIN..self.version).contains(&theirs) && !self.proved;
        (refusal.code == ErrorCode::WrongVersion && known).then_some(theirs)
    }

    /// A frame of the server.
    pub fn handle(&mut self, header: &Header, body: &[u8]) -> Result<Next, HandshakeError> {
        if let Some(code) = header.error() {
            let refusal = Refusal::decode(code, body)?;
            return Err(match refusal.code {
                ErrorCode::WrongKey if self.key.is_none() => {
                    HandshakeError::Refused(Refusal::new(ErrorCode::KeyRequired))
                }
                ErrorCode::WrongKey if !self.proved && refusal.remark.as_str().is_empty() => {
                    HandshakeError::ServerProof
                }
                _ => HandshakeError::Refused(refusal),
            });
        }
        match (header.kind, self.proved) {
            (Kind::HelloReply, false) => {
                let challenge = Challenge::decode(body)?;
                if challenge.lock != self.key.lock() {
                    return Err(match self.key.is_none() {
                        true => HandshakeError::Refused(Refusal::new(ErrorCode::KeyRequired)),
                        false => HandshakeError::ServerProof,
                    });
                }
                let mut noise = Vec::new();
                if challenge.lock != Lock::Open {
                    let initiator = self.noise.as_mut().ok_or(HandshakeError::ServerProof)?;
                    noise = initiator.answer(&challenge.noise).map_err(failed)?;
                }
                let transcript = Transcript {
                    hello: &self.open,
                    server_nonce: &challenge.nonce,
                };
                let proof = match &self.purpose {
                    Purpose::Attach { secret, .. } => auth::lane_proof(secret, transcript),
                    _ => [0; PROOF_LEN],
                };
                self.proved = true;
                let mut frame = Vec::new();
                let noise = &noise[..];
                Request::Prove { proof, noise }.encode(Class::Control, Tag(1), &mut frame);
                Ok(Next::Send(frame))
            }
            (Kind::ProveReply, true) => {
                let welcome = Welcome::decode(body)?;
                let secret = matches!(self.purpose, Purpose::Open { .. })
                    .then(|| SessionSecret::of(welcome.secret));
                let version = self.version;
                Ok(Next::Done(Opened {
                    version,
                    welcome,
                    secret,
                }))
            }
            _ => Err(HandshakeError::OutOfTurn),
        }
    }
}
