//! Hello, challenge, proof, welcome: who is at the other end, proved in both directions.

use crate::auth::{self, Key, SessionSecret, Transcript};
use muninn_types::{Class, LaneId, LaneKind, SessionId, Tag};
use muninn_wire::{
    Challenge, DecodeError, ErrorCode, Header, Hello, Intent, Kind, NONCE_LEN, Refusal, Request,
    ShortText, Transport, Welcome,
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
    key: Key,
    purpose: Purpose,
    hello_body: Vec<u8>,
    server_nonce: Option<[u8; NONCE_LEN]>,
}

/// The connection is ready.
#[derive(Clone, Debug)]
pub struct Opened {
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
}

impl From<DecodeError> for HandshakeError {
    fn from(error: DecodeError) -> HandshakeError {
        match error {
            DecodeError::Version(theirs) => HandshakeError::Version(theirs),
            other => HandshakeError::NotMuninn(other),
        }
    }
}

impl Handshake {
    /// Starts; the frame is the first to send.
    pub fn start(
        key: Key,
        purpose: Purpose,
        nonce: [u8; NONCE_LEN],
        pid: u32,
    ) -> (Handshake, Vec<u8>) {
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
        let hello = Hello { nonce, pid, intent };
        let mut hello_body = Vec::new();
        hello.encode(&mut hello_body);
        let mut frame = Vec::new();
        Request::Hello(hello).encode(Class::Control, Tag(0), &mut frame);
        (
            Handshake {
                key,
                purpose,
                hello_body,
                server_nonce: None,
            },
            frame,
        )
    }

    /// A frame of the server.
    pub fn handle(&mut self, header: &Header, body: &[u8]) -> Result<Next, HandshakeError> {
        if let Some(code) = header.error() {
            let refusal = Refusal::decode(code, body)?;
            return Err(match refusal.code {
                ErrorCode::WrongKey if self.key.is_none() => {
                    HandshakeError::Refused(Refusal::new(ErrorCode::KeyRequired))
                }
                _ => HandshakeError::Refused(refusal),
            });
        }
        match (header.kind, self.server_nonce) {
            (Kind::HelloReply, None) => {
                let challenge = Challenge::decode(body)?;
                let transcript = Transcript {
                    hello: &self.hello_body,
                    server_nonce: &challenge.nonce,
                };
                if challenge.key_required && self.key.is_none() {
                    return Err(HandshakeError::Refused(Refusal::new(
                        ErrorCode::KeyRequired,
                    )));
                }
                if !auth::check_server_proof(&self.key, transcript, &challenge.proof) {
                    return Err(HandshakeError::ServerProof);
                }
                let proof = match &self.purpose {
                    Purpose::Attach { secret, .. } => auth::lane_proof(secret, transcript),
                    _ => auth::client_proof(&self.key, transcript),
                };
                self.server_nonce = Some(challenge.nonce);
                let mut frame = Vec::new();
                Request::Prove { proof }.encode(Class::Control, Tag(1), &mut frame);
                Ok(Next::Send(frame))
            }
            (Kind::ProveReply, Some(nonce)) => {
                let welcome = Welcome::decode(body)?;
                let transcript = Transcript {
                    hello: &self.hello_body,
                    server_nonce: &nonce,
                };
                let secret = matches!(self.purpose, Purpose::Open { .. })
                    .then(|| auth::session_secret(&self.key, transcript, welcome.session));
                Ok(Next::Done(Opened { welcome, secret }))
            }
            _ => Err(HandshakeError::OutOfTurn),
        }
    }
}
