//! Records: what follows a handshake on a network, in pieces that are encrypted and authenticated.
//!
//! A record is two bytes of length and that many of ciphertext, the last sixteen of them a tag. Records
//! are numbered by both sides, and the number is in the tag; so one that is changed, left out, repeated
//! or out of turn does not open, and the connection is closed. Keys are made anew after every
//! [`REKEY_AFTER`] records, so that no key is used for more than AES-GCM is good for.
//!
//! These are the transport messages of Noise, made here from the [keys](ChannelKeys) that the handshake
//! comes to, and not by the library that shakes hands: so that who shakes hands, and has the key of
//! the pool, need not be who sends pages.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::fmt;

/// The most bytes of plain text in one record.
pub const RECORD_MAX: usize = 16 << 10;
const TAG: usize = 16;
const HEAD: usize = 2;
const REKEY_AFTER: u64 = 1 << 20;
const KEY: usize = 32;

/// Bytes that are no record of this channel: somebody changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what arrived was not sent by the other side")]
pub struct Broken;

/// What a handshake comes to, as one side has it. Wiped when dropped.
pub struct ChannelKeys {
    /// For what is sent and what is received.
    pub(super) keys: [[u8; KEY]; 2],
    /// Records that were sent and received already.
    pub(super) counts: [u64; 2],
}

impl ChannelKeys {
    /// Bytes of one that is handed on.
    pub const LEN: usize = 2 * (KEY + 8);

    /// To be handed to whoever is to send the pages.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (side, piece) in bytes.chunks_exact_mut(KEY + 8).enumerate() {
            piece[..KEY].copy_from_slice(&self.keys[side]);
            piece[KEY..].copy_from_slice(&self.counts[side].to_le_bytes());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> ChannelKeys {
        let (mut keys, mut counts) = ([[0; KEY]; 2], [0; 2]);
        for (side, piece) in bytes.chunks_exact(KEY + 8).enumerate() {
            keys[side].copy_from_slice(&piece[..KEY]);
            let count = piece[KEY..].try_into().expect("the rest has eight bytes");
            counts[side] = u64::from_le_bytes(count);
        }
        ChannelKeys { keys, counts }
    }
}

impl fmt::Debug for ChannelKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelKeys(…)")
    }
}

impl Drop for ChannelKeys {
    fn drop(&mut self) {
        super::wipe(self.keys.as_flattened_mut());
    }
}

/// One direction.
struct Half {
    cipher: LessSafeKey,
    /// Of records so far: the number of the next.
    count: u64,
}

fn cipher(key: &[u8; KEY]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("the key has the right length"))
}

/// As Noise has it for AES-GCM.
fn nonce(count: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&count.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Half {
    fn seal(&mut self, text: &mut [u8]) -> [u8; TAG] {
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce(self.count), Aad::empty(), text);
        let tag = tag.expect("a record is shorter than the cipher allows");
        self.counted();
        tag.as_ref().try_into().expect("a tag has sixteen bytes")
    }

    /// The text of a record, in its place; how long it is.
    fn open(&mut self, record: &mut [u8]) -> Result<usize, Broken> {
        let opened = self
            .cipher
            .open_in_place(nonce(self.count), Aad::empty(), record);
        let len = opened.map_err(|_| Broken)?.len();
        self.counted();
        Ok(len)
    }

    fn counted(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(REKEY_AFTER) {
            // The number that is never reached is for this (Noise, section 11.3).
            let mut key = [0; KEY];
            let made =
                self.cipher
                    .seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut key);
            let _ = made.expect("a key is shorter than the cipher allows");
            self.cipher = cipher(&key);
            super::wipe(&mut key);
        }
    }
}

/// Both directions of a channel.
pub struct Records {
    out: Half,
    into: Half,
    /// A record of which not all has arrived.
    partial: Vec<u8>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({} out, {} in)", self.out.count, self.into.count)
    }
}

impl Records {
    pub fn new(channel: &ChannelKeys) -> Records {
        let [out, into] = [0, 1].map(|side| Half {
            cipher: cipher(&channel.keys[side]),
            count: channel.counts[side],
        });
        Records {
            out,
            into,
            partial: Vec::new(),
        }
    }

    /// A record without text, and without its length: a handshake's last word.
    pub(super) fn seal_nothing(&mut self) -> [u8; TAG] {
        self.out.seal(&mut [])
    }
    pub(super) fn open_nothing(&mut self, tag: &[u8]) -> Result<(), Broken> {
        let mut record: [u8; TAG] = tag.try_into().map_err(|_| Broken)?;
        self.into.open(&mut record).map(|_| ())
    }

    /// Appends a record with this text to `wire`.
    pub fn seal(&mut self, plain: &[u8], wire: &mut Vec<u8>) {
        assert!(plain.len() <= RECORD_MAX, "a record is too long");
        let len = plain.len() + TAG;
        wire.reserve(HEAD + len);
        wire.extend_from_slice(&(len as u16).to_le_bytes());
        let start = wire.len();
        wire.extend_from_slice(plain);
        let tag = self.out.seal(&mut wire[start..]);
        wire.extend_from_slice(&tag);
    }

    /// Takes bytes that arrived, and appends the texts of all records that are whole now to `plain`.
    pub fn open(&mut self, mut wire: &[u8], plain: &mut Vec<u8>) -> Result<(), Broken> {
        if !self.partial.is_empty() {
            let missing = self.missing();
            let (now, rest) = wire.split_at(missing.min(wire.len()));
            self.partial.extend_from_slice(now);
            wire = rest;
            self.check_length()?;
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
        self.check_length()
    }

    /// A record that is too long is refused before it is waited for.
    fn check_length(&self) -> Result<(), Broken> {
        let head = self.partial.first_chunk::<HEAD>();
        let len = head.map_or(TAG, |head| usize::from(u16::from_le_bytes(*head)));
        match (TAG..=RECORD_MAX + TAG).contains(&len) {
            true => Ok(()),
            false => Err(Broken),
        }
    }

    /// Bytes that it holds beside what it is.
    pub fn held(&self) -> usize {
        self.partial.capacity()
    }

    /// Bytes that the partial record lacks, as far as is known.
    fn missing(&self) -> usize {
        match self.partial.first_chunk::<HEAD>() {
            Some(head) => {
                let len = usize::from(u16::from_le_bytes(*head));
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
        plain.extend_from_slice(body);
        let opened = self.into.open(&mut plain[start..]);
        // Nothing that was not vouched for is left where somebody might look at it.
        plain.truncate(start + opened.unwrap_or(0));
        opened.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::noise::{self, Initiator, Responder};
    use super::*;
    use crate::auth::Key;
    use proptest::prelude::*;

    fn channel() -> (Records, Records) {
        let key = Key::from_file_contents(b"a key of sufficient length").unwrap();
        let (mut client, first) =
            Initiator::start(&key, b"hello", [1; 32], Default::default()).unwrap();
        let (server, second) = Responder::start(&key, b"hello", &first, [2; 32]).unwrap();
        let last = client.answer(&second).unwrap();
        let (server, identity) = server.finish(&last, Default::default()).unwrap();
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
        client.out.count = REKEY_AFTER - 1;
        server.into.count = REKEY_AFTER - 1;
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        for text in [b"before", b"after!"] {
            client.seal(text, &mut wire);
        }
        server.open(&wire, &mut plain).unwrap();
        assert_eq!(plain, b"beforeafter!");
    }

    /// What is made here is what the library makes that shakes hands.
    #[test]
    fn records_are_the_messages_of_noise() {
        let key = Key::from_file_contents(b"a key of sufficient length").unwrap();
        let [mut one, mut two] =
            [true, false].map(|first| noise::state(&key, b"", [1; 32], first).unwrap());
        let (mut message, mut text) = ([0; 256], [0; 256]);
        let len = one.write_message(&[], &mut message).unwrap();
        two.read_message(&message[..len], &mut text).unwrap();
        let len = two.write_message(&[], &mut message).unwrap();
        one.read_message(&message[..len], &mut text).unwrap();
        let (to, from) = one.dangerously_get_raw_split();
        let keys = ChannelKeys {
            keys: [to, from],
            counts: [0, 0],
        };
        let handed_on = ChannelKeys::from_bytes(&keys.to_bytes());
        let mut ours = Records::new(&handed_on);
        let mut theirs = two.into_transport_mode().unwrap();
        for round in 0..3u8 {
            let text = vec![round; usize::from(round) * 1000];
            let (mut wire, mut plain) = (Vec::new(), vec![0; 4096]);
            ours.seal(&text, &mut wire);
            let len = theirs.read_message(&wire[HEAD..], &mut plain).unwrap();
            assert_eq!(plain[..len], text);
            let mut message = vec![0; 4096];
            let len = theirs.write_message(&text, &mut message).unwrap();
            let mut wire = (len as u16).to_le_bytes().to_vec();
            wire.extend_from_slice(&message[..len]);
            let mut plain = Vec::new();
            ours.open(&wire, &mut plain).unwrap();
            assert_eq!(plain, text);
        }
        // And when keys are made anew.
        theirs.set_receiving_nonce(REKEY_AFTER - 1);
        ours.out.count = REKEY_AFTER - 1;
        for text in [b"before", b"after!"] {
            let (mut wire, mut plain) = (Vec::new(), [0; 64]);
            ours.seal(text, &mut wire);
            let len = theirs.read_message(&wire[HEAD..], &mut plain).unwrap();
            assert_eq!(&plain[..len], text);
            theirs.rekey_incoming();
        }
    }

    #[test]
    fn what_is_said_in_the_open_is_bound_to_the_channel() {
        let key = Key::from_file_contents(b"a key of sufficient length").unwrap();
        let other = Key::from_file_contents(b"another key, long enough").unwrap();
        let (_, first) = Initiator::start(&key, b"hello", [1; 32], Default::default()).unwrap();
        assert!(Responder::start(&key, b"hellO", &first, [2; 32]).is_err());
        assert!(Responder::start(&other, b"hello", &first, [2; 32]).is_err());
        assert!(Responder::start(&key, b"hello", &first, [2; 32]).is_ok());
    }
}
