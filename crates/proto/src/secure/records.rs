//! Records: what follows a handshake on a network, in pieces that are encrypted and authenticated.
//!
//! A record is two bytes of length and that many of ciphertext, the last sixteen of them a tag. Records
//! are numbered by both sides, and the number is in the tag; so one that is changed, left out, repeated
//! or out of turn does not open, and the connection is closed. Keys are made anew after every
//! [`REKEY_AFTER`] records, so that no key is used for more than AES-GCM is good for.

use snow::TransportState;
use std::fmt;

/// The most bytes of plain text in one record.
pub const RECORD_MAX: usize = 16 << 10;
const TAG: usize = 16;
const HEAD: usize = 2;
const REKEY_AFTER: u64 = 1 << 20;

/// Bytes that are no record of this channel: somebody changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what arrived was not sent by the other side")]
pub struct Broken;

/// Both directions of a channel.
pub struct Records {
    state: Box<TransportState>,
    sent: u64,
    received: u64,
    /// A record of which not all has arrived.
    partial: Vec<u8>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({} out, {} in)", self.sent, self.received)
    }
}

impl Records {
    pub(super) fn new(state: TransportState) -> Records {
        Records {
            state: Box::new(state),
            sent: 0,
            received: 0,
            partial: Vec::new(),
        }
    }

    /// Appends a record with this text to `wire`.
    pub fn seal(&mut self, plain: &[u8], wire: &mut Vec<u8>) {
        assert!(plain.len() <= RECORD_MAX, "a record is too long");
        let len = plain.len() + TAG;
        let start = wire.len();
        wire.resize(start + HEAD + len, 0);
        let (head, body) = wire[start..].split_at_mut(HEAD);
        head.copy_from_slice(&(len as u16).to_le_bytes());
        let written = self.state.write_message(plain, body);
        // It fails when text or buffer are too long or short, which was seen to, or after 2^64 records.
        assert_eq!(written, Ok(len), "a record could not be made");
        self.sent += 1;
        if self.sent.is_multiple_of(REKEY_AFTER) {
            self.state.rekey_outgoing();
        }
    }

    /// Takes bytes that arrived, and appends the texts of all records that are whole now to `plain`.
    pub fn open(&mut self, mut wire: &[u8], plain: &mut Vec<u8>) -> Result<(), Broken> {
        if !self.partial.is_empty() {
            let missing = self.missing();
            let (now, rest) = wire.split_at(missing.min(wire.len()));
            self.partial.extend_from_slice(now);
            wire = rest;
            // The length may only just have become known.
            let missing = self.missing();
            if missing > 0 && !wire.is_empty() {
                let (now, rest) = wire.split_at(missing.min(wire.len()));
                self.partial.extend_from_slice(now);
                wire = rest;
            }
            if self.missing() > 0 {
                return Ok(());
            }
            let whole = std::mem::take(&mut self.partial);
            self.open_one(&whole[HEAD..], plain)?;
            self.partial = whole;
            self.partial.clear();
        }
        while let Some((head, rest)) = wire.split_first_chunk::<HEAD>() {
            let len = usize::from(u16::from_le_bytes(*head));
            if !(TAG..=RECORD_MAX + TAG).contains(&len) {
                return Err(Broken);
            }
            let Some((body, rest)) = rest.split_at_checked(len) else {
                break;
            };
            self.open_one(body, plain)?;
            wire = rest;
        }
        self.partial.extend_from_slice(wire);
        Ok(())
    }

    /// Bytes that the partial record lacks, as far as is known.
    fn missing(&self) -> usize {
        match self.partial.first_chunk::<HEAD>() {
            Some(head) => {
                let len = usize::from(u16::from_le_bytes(*head));
                // One that is too long is refused when it is whole: it takes no more than 64 KiB.
                (HEAD + len).saturating_sub(self.partial.len())
            }
            None => HEAD - self.partial.len(),
        }
    }

    fn open_one(&mut self, body: &[u8], plain: &mut Vec<u8>) -> Result<(), Broken> {
        if !(TAG..=RECORD_MAX + TAG).contains(&body.len()) {
            return Err(Broken);
        }
        let start = plain.len();
        // The cipher wants room for the tag as well.
        plain.resize(start + body.len(), 0);
        let read = self.state.read_message(body, &mut plain[start..]);
        // Nothing that was not vouched for is left where somebody might look at it.
        plain.truncate(start + *read.as_ref().unwrap_or(&0));
        if read.is_err() {
            return Err(Broken);
        }
        self.received += 1;
        if self.received.is_multiple_of(REKEY_AFTER) {
            self.state.rekey_incoming();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::noise::{Initiator, Responder};
    use super::*;
    use crate::auth::Key;
    use proptest::prelude::*;

    fn channel() -> (Records, Records) {
        let key = Key::from_file_contents(b"a key of sufficient length").unwrap();
        let (mut client, first) = Initiator::start(&key, b"hello", [1; 32]).unwrap();
        let (server, second) = Responder::start(&key, b"hello", &first, [2; 32]).unwrap();
        let last = client.answer(&second).unwrap();
        let (server, identity) = server.finish(&last).unwrap();
        assert_eq!(identity, Ok(None));
        (client.channel().unwrap(), server)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn texts_arrive_whatever_the_pieces(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..6),
            cuts in prop::collection::vec(1usize..3000, 1..40),
        ) {
            let (mut client, mut server) = channel();
            let mut wire = Vec::new();
            for text in &texts {
                client.seal(text, &mut wire);
            }
            let (mut plain, mut rest) = (Vec::new(), &wire[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                server.open(now, &mut plain).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(plain, texts.concat());
        }

        #[test]
        fn nothing_changed_left_out_repeated_or_swapped_is_opened(
            at in any::<prop::sample::Index>(), bit in 0u8..8, way in 0u8..4,
        ) {
            let (mut client, mut server) = channel();
            let mut records: Vec<Vec<u8>> = Vec::new();
            for text in [&b"first"[..], b"second", b"third"] {
                let mut wire = Vec::new();
                client.seal(text, &mut wire);
                records.push(wire);
            }
            match way {
                0 => {
                    let mut wire = records.concat();
                    let at = at.index(wire.len());
                    wire[at] ^= 1 << bit;
                    records = vec![wire];
                }
                1 => drop(records.remove(0)),
                2 => records.insert(1, records[0].clone()),
                _ => records.swap(0, 1),
            }
            let (mut plain, mut wire) = (Vec::new(), records.concat());
            // More to come, so that a record whose length grew is whole some time.
            wire.resize(wire.len() + (70 << 10), 0);
            prop_assert_eq!(server.open(&wire, &mut plain), Err(Broken));
            prop_assert!(b"firstsecondthird".starts_with(&plain[..plain.len().min(5)]));
        }
    }

    #[test]
    fn keys_are_made_anew_on_both_sides() {
        let (mut client, mut server) = channel();
        client.sent = REKEY_AFTER - 1;
        server.received = REKEY_AFTER - 1;
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        for text in [b"before", b"after!"] {
            client.seal(text, &mut wire);
        }
        server.open(&wire, &mut plain).unwrap();
        assert_eq!(plain, b"beforeafter!");
    }

    #[test]
    fn what_is_said_in_the_open_is_bound_to_the_channel() {
        let key = Key::from_file_contents(b"a key of sufficient length").unwrap();
        let other = Key::from_file_contents(b"another key, long enough").unwrap();
        let (_, first) = Initiator::start(&key, b"hello", [1; 32]).unwrap();
        assert!(Responder::start(&key, b"hellO", &first, [2; 32]).is_err());
        assert!(Responder::start(&other, b"hello", &first, [2; 32]).is_err());
        assert!(Responder::start(&key, b"hello", &first, [2; 32]).is_ok());
    }
}
