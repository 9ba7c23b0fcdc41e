//! Sealed pages: what leaves the client says nothing to the one who keeps it, and cannot be exchanged.
//!
//! A page is encrypted and authenticated before it is sent. How it was sealed (which key, which count,
//! which tag) stays here, with the page's fingerprint. So a server can neither read a page, nor change it,
//! nor give an older one or another's in its place: none of these opens.
//!
//! Invariant: no nonce is used twice with a key. Each engine has a key of its own, made when it begins,
//! and a count of what it sealed with it, which is the nonce. A child of a fork begins with a new key;
//! those of its ancestors it has for reading only.
//!
//! AES-256-GCM where the processor has instructions for it, ChaCha20-Poly1305 elsewhere. A family of
//! processes is on one machine, so all of it chooses the same.
//!
//! Known limit: whoever may read the program's memory may read the keys. They are kept out of swap where
//! the limit of locked memory allows, and are overwritten when their engine is dropped; while they are made or
//! handed to a child there are copies on a stack and in a memory file.

use crate::hash::Hasher;
use crate::vault::Page;
use muninn_pager_core::{CHUNK_PAGES, TAG_LEN};
pub use muninn_pager_core::{KeyNo, Print, Seal};
use muninn_sys::memory::program;
use muninn_sys::rand;
use muninn_sys::uffd::PageRange;
use muninn_types::{PAGE_SIZE, PageNo};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

pub const SECRET_LEN: usize = 32;

/// Invariant: see above; a count is a version of a page, and never used twice with a key.
fn nonce(seal: &Seal) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&seal.count.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// The bytes of a key, on their way to a child.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    pub fn new(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(bytes)
    }
    pub fn bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

/// Shows nothing of it.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites what nobody will read again.
pub fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a byte of ours. Volatile, or it would be left out.
        unsafe { std::ptr::from_mut(byte).write_volatile(0) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// A key at work, in a page of its own, so that it can be locked and kept out of dumps.
#[repr(align(4096))]
struct Key {
    secret: [u8; SECRET_LEN],
    /// Set for the life of the key; not to be dropped, but overwritten.
    cipher: MaybeUninit<LessSafeKey>,
}

impl Key {
    fn new(secret: &[u8; SECRET_LEN]) -> Box<Key> {
        let cipher = UnboundKey::new(algorithm(), secret).expect("the secret has the right length");
        let key = Box::new(Key {
            secret: *secret,
            cipher: MaybeUninit::new(LessSafeKey::new(cipher)),
        });
        // Few are allowed much, and some nothing.
        let _ = program::lock(key.pages());
        key
    }

    fn pages(&self) -> PageRange {
        let first = PageNo::of_addr(std::ptr::from_ref(self).addr() as u64);
        PageRange::new(first, (size_of::<Key>() / PAGE_SIZE) as u64)
    }

    fn cipher(&self) -> &LessSafeKey {
        // SAFETY: set when the key was made.
        unsafe { self.cipher.assume_init_ref() }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let whole: *mut u8 = std::ptr::from_mut(self).cast();
        for at in 0..size_of::<Key>() {
            // SAFETY: inside of this value, of which nothing is used any more.
            unsafe { whole.add(at).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
        let _ = program::unlock(self.pages());
    }
}

/// The fastest that this processor is made for.
fn algorithm() -> &'static Algorithm {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    let has_aes = false;
    match has_aes {
        true => &AES_256_GCM,
        false => &CHACHA20_POLY1305,
    }
}

/// What seals and opens the pages of an engine.
pub struct Sealer {
    /// By number.
    keys: Vec<Option<Box<Key>>>,
    /// The one to seal with, which nobody else does.
    own: KeyNo,
    /// Pages that were sealed with it.
    count: u64,
    /// Sealed pages of a chunk on their way out: what they are made of may still go back.
    out: Box<[Page; CHUNK_PAGES]>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("own", &self.own)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Sealer {
    /// With a new key, and with those of ancestors for reading. `None` when there are so many of these
    /// that no number is left.
    pub fn new(inherited: &[(KeyNo, Secret)]) -> Option<Sealer> {
        let len = inherited.iter().map(|(no, _)| usize::from(no.0) + 1).max();
        let mut keys = Vec::with_capacity(len.unwrap_or(0) + 1);
        keys.resize_with(len.unwrap_or(0), || None);
        for (no, secret) in inherited {
            keys[usize::from(no.0)] = Some(Key::new(secret.bytes()));
        }
        let free = keys.iter().position(Option::is_none).unwrap_or(keys.len());
        let own = KeyNo(u16::try_from(free).ok()?);
        let fresh = Secret::new(rand::bytes());
        let key = Some(Key::new(fresh.bytes()));
        match keys.get_mut(free) {
            Some(place) => *place = key,
            None => keys.push(key),
        }
        let out = vec![[0; PAGE_SIZE]; CHUNK_PAGES].into_boxed_slice();
        Some(Sealer {
            keys,
            own,
            count: 0,
            out: out.try_into().expect("it has this length"),
        })
    }

    fn key(&self, no: KeyNo) -> Option<&Key> {
        self.keys.get(usize::from(no.0))?.as_deref()
    }

    /// The secrets of these keys, for a child.
    pub fn secrets(&self, wanted: impl IntoIterator<Item = KeyNo>) -> Vec<(KeyNo, Secret)> {
        let wanted = wanted.into_iter();
        let secret = |no| Some((no, Secret::new(self.key(no)?.secret)));
        wanted.filter_map(secret).collect()
    }

    /// Seals a copy of a page, which stays at its place until another is sealed there.
    pub fn seal(&mut self, place: usize, page: &Page) -> (*mut Page, Seal) {
        let count = self.count;
        self.count = count.checked_add(1).expect("no program lives that long");
        let mut seal = Seal {
            key: self.own,
            count,
            tag: [0; TAG_LEN],
        };
        let out = &mut self.out[place];
        out.copy_from_slice(page);
        let key = self.keys[usize::from(self.own.0)].as_ref();
        let cipher = key.expect("it has a key of its own").cipher();
        let tag = cipher
            .seal_in_place_separate_tag(nonce(&seal), Aad::empty(), out)
            .expect("a page is not too long");
        seal.tag.copy_from_slice(tag.as_ref());
        (out, seal)
    }

    /// Opens a page where it is. False if it is not what was sealed; what is there then means nothing.
    #[must_use]
    pub fn open(&self, page: &mut Page, seal: &Seal) -> bool {
        let Some(key) = self.key(seal.key) else {
            return false;
        };
        let (nonce, tag) = (nonce(seal), seal.tag.into());
        let opened =
            key.cipher()
                .open_in_place_separate_tag(nonce, Aad::empty(), tag, &mut page[..], 0..);
        opened.is_ok()
    }
}

/// Whether a page that came in is the one that was sent. It is opened on the way.
#[must_use]
pub fn is_right(sealer: Option<&Sealer>, hasher: &Hasher, page: &mut Page, print: &Print) -> bool {
    let opened = match (&print.seal, sealer) {
        (Some(seal), Some(sealer)) => sealer.open(page, seal),
        (None, None) => true,
        // Where pages are sealed, all are.
        _ => false,
    };
    opened && hasher.hash(page) == print.hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::SplitMix64;
    use std::collections::HashSet;
    use std::mem::ManuallyDrop;

    fn sealer() -> Sealer {
        Sealer::new(&[]).unwrap()
    }

    fn some_page(n: u8) -> Page {
        std::array::from_fn(|at| (at as u8).wrapping_mul(31) ^ n)
    }

    /// Seals a page; the sealed bytes, and how.
    fn sealed(sealer: &mut Sealer, page: &Page) -> (Page, Seal) {
        let (out, seal) = sealer.seal(3, page);
        // SAFETY: the sealer's own, which was just filled.
        (unsafe { *out }, seal)
    }

    #[test]
    fn a_page_comes_back() {
        let mut sealer = sealer();
        let page = some_page(1);
        let (mut out, seal) = sealed(&mut sealer, &page);
        let same = out.iter().zip(&page).filter(|(a, b)| a == b).count();
        assert!(same < 64, "{same} bytes are as before");
        assert!(sealer.open(&mut out, &seal));
        assert_eq!(out, page);
    }

    /// The seal by itself refuses: the fingerprint of each lie here is made to be right, as if whoever lies had the
    /// fingerprints' secret and could write down what he likes. Without a seal he has his way.
    #[test]
    fn a_lie_is_refused_even_if_its_fingerprint_is_right() {
        let (mut own, mut other) = (sealer(), sealer());
        let hasher = Hasher::new(std::array::from_fn(|at| at as u8));
        let (page, between) = (some_page(1), some_page(2));
        // One page three times, of which the last has the contents of the first.
        let (first, was) = sealed(&mut own, &page);
        let (second, _) = sealed(&mut own, &between);
        let (third, seal) = sealed(&mut own, &page);
        let (foreign, _) = sealed(&mut other, &page);
        let mut flipped = third;
        flipped[4095] ^= 1;
        let mut swapped = third;
        swapped.reverse();
        let lies = [
            first,
            second,
            foreign,
            flipped,
            swapped,
            [0; PAGE_SIZE],
            page,
        ];
        for (n, lie) in lies.into_iter().enumerate() {
            // What it would come to if the tag were not looked at: the stream of the cipher is what it is.
            let opened: Page = std::array::from_fn(|at| lie[at] ^ third[at] ^ page[at]);
            for contents in [opened, lie, page] {
                let hash = hasher.hash(&contents);
                let print = Print {
                    hash,
                    seal: Some(seal),
                };
                assert!(
                    !is_right(Some(&own), &hasher, &mut lie.clone(), &print),
                    "lie {n}"
                );
            }
            let bare = Print {
                hash: hasher.hash(&lie),
                seal: None,
            };
            assert!(is_right(None, &hasher, &mut lie.clone(), &bare), "lie {n}");
            // Nor is a page taken that came without a seal where pages have one.
            assert!(
                !is_right(Some(&own), &hasher, &mut lie.clone(), &bare),
                "lie {n}"
            );
        }
        let hash = hasher.hash(&page);
        for (text, seal) in [(third, seal), (first, was)] {
            let print = Print {
                hash,
                seal: Some(seal),
            };
            assert!(is_right(Some(&own), &hasher, &mut text.clone(), &print));
        }
    }

    #[test]
    fn a_key_is_in_no_dump() {
        let sealer = sealer();
        let at = std::ptr::from_ref(sealer.key(sealer.own).unwrap()).addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let flags = maps.lines().find(|line| {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(first), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) {
                inside = (first..end).contains(&at);
            }
            inside && line.starts_with("VmFlags:")
        });
        assert!(flags.unwrap().contains(" dd"), "{flags:?}");
    }

    #[test]
    fn one_page_is_never_sealed_twice_alike() {
        let mut sealer = sealer();
        let page = some_page(1);
        let (first, one) = sealed(&mut sealer, &page);
        let (second, other) = sealed(&mut sealer, &page);
        assert_ne!(first, second);
        assert_ne!(one, other);
    }

    #[test]
    fn what_was_not_sealed_so_does_not_open() {
        let mut parent = sealer();
        let page = some_page(1);
        let (out, seal) = sealed(&mut parent, &page);
        let (older, _) = sealed(&mut parent, &page);
        let secrets = parent.secrets([seal.key]);
        let sealer = Sealer::new(&secrets).unwrap();
        let opens = |mut page: Page, seal: Seal| sealer.open(&mut page, &seal);
        assert!(opens(out, seal));
        assert!(!opens(older, seal), "another version");
        assert!(!opens(page, seal), "not sealed at all");
        let mut flipped = out;
        flipped[4095] ^= 0x80;
        assert!(!opens(flipped, seal), "a bit");
        let tag = seal.tag.map(|byte| byte ^ 1);
        assert!(!opens(out, Seal { tag, ..seal }), "another tag");
        let count = seal.count + 1;
        assert!(!opens(out, Seal { count, ..seal }), "another count");
        let key = sealer.own;
        assert_ne!(key, seal.key);
        assert!(!opens(out, Seal { key, ..seal }), "another key");
        let key = KeyNo(7);
        assert!(!opens(out, Seal { key, ..seal }), "a key that is not known");
    }

    #[test]
    fn a_seal_reads_back_equal() {
        let (_, seal) = sealed(&mut sealer(), &some_page(9));
        assert_eq!(Seal::from_bytes(&seal.to_bytes()), Some(seal));
        assert_eq!(Seal::from_bytes(&seal.to_bytes()[1..]), None);
    }

    #[test]
    fn a_child_reads_what_its_ancestors_sealed() {
        let page = some_page(2);
        let mut family = vec![sealer()];
        let mut seals = Vec::new();
        for _ in 0..5 {
            let parent = family.last_mut().unwrap();
            seals.push(sealed(parent, &page));
            let keys = (0..parent.keys.len() as u16).map(KeyNo);
            let secrets = parent.secrets(keys);
            family.push(Sealer::new(&secrets).unwrap());
        }
        let child = family.last().unwrap();
        for (mut out, seal) in seals {
            assert!(child.open(&mut out, &seal));
            assert_eq!(out, page);
        }
    }

    #[test]
    fn where_pages_are_sealed_all_are() {
        let (mut sealer, hasher) = (sealer(), Hasher::random());
        let page = some_page(4);
        let (out, seal) = sealed(&mut sealer, &page);
        let hash = hasher.hash(&page);
        let right = |sealer: Option<&Sealer>, mut page: Page, seal: Option<Seal>| {
            is_right(sealer, &hasher, &mut page, &Print { hash, seal })
        };
        assert!(right(Some(&sealer), out, Some(seal)));
        assert!(right(None, page, None));
        assert!(!right(Some(&sealer), page, None));
        assert!(!right(None, page, Some(seal)));
    }

    /// A number whose key nobody needs is used again, so a line of forks does not run out of them.
    #[test]
    fn numbers_are_used_again() {
        let mut sealer = sealer();
        for _ in 0..1000 {
            let secrets = sealer.secrets([sealer.own]);
            sealer = Sealer::new(&secrets).unwrap();
            assert!(sealer.own.0 < 2, "{sealer:?}");
        }
    }

    #[test]
    fn no_nonce_is_used_twice_in_a_family() {
        let mut dice = SplitMix64::new(5);
        let mut family = vec![sealer()];
        let mut used = HashSet::new();
        let page = some_page(0);
        for _ in 0..60_000 {
            let who = dice.below(family.len() as u64) as usize;
            if dice.below(100) == 0 {
                // A fork; sometimes the parent ends, sometimes somebody else does.
                let parent = &family[who];
                let keys = (0..parent.keys.len() as u16).map(KeyNo);
                let child = Sealer::new(&parent.secrets(keys)).unwrap();
                family.push(child);
                if family.len() > 12 {
                    let gone = dice.below(family.len() as u64) as usize;
                    family.swap_remove(gone);
                }
                continue;
            }
            let (_, seal) = family[who].seal(0, &page);
            let secret = family[who].key(seal.key).unwrap().secret;
            assert!(used.insert((secret, seal.count)), "{seal:?}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_key() {
        let mut key = ManuallyDrop::new(Key::new(&[7; SECRET_LEN]));
        let bytes: *const u8 = std::ptr::from_ref::<Key>(&key).cast();
        // SAFETY: it is not used as a key afterwards, and its memory stays.
        unsafe { std::ptr::drop_in_place::<Key>(&raw mut **key) };
        for at in 0..size_of::<Key>() {
            // SAFETY: inside of the key's memory, every byte of which was just written.
            assert_eq!(unsafe { bytes.add(at).read_volatile() }, 0);
        }
    }

    /// What it takes: `cargo test -p muninn-pager cost -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_a_page() {
        let mut sealer = sealer();
        let page = some_page(1);
        let rounds = 200_000;
        let start = std::time::Instant::now();
        for n in 0..rounds {
            std::hint::black_box(sealer.seal(n % CHUNK_PAGES, &page));
        }
        let sealing = start.elapsed() / rounds as u32;
        let (out, seal) = sealed(&mut sealer, &page);
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            let mut out = out;
            assert!(sealer.open(std::hint::black_box(&mut out), &seal));
        }
        let opening = start.elapsed() / rounds as u32;
        println!(
            "{:?}: sealed in {sealing:?}, opened in {opening:?}",
            algorithm()
        );
    }
}
