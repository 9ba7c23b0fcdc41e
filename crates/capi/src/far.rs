//! The far side of an arena: a place for each chunk, and the fingerprint of what was put there.
//!
//! Chunks lie at servers as they lie in the arena, up to 4 MiB to a grant that is asked for when the first of its
//! chunks leaves: small servers have smaller ones. Invariant: what is given back is what was put there last, by a fingerprint that never left this
//! process, or an error.

use crate::arena::CHUNK_LEN;
use muninn_net::{Grant, Pool};
use muninn_sys::rand;
use muninn_types::Bytes;
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of a grant, at most and at least.
const GRANT_MAX: usize = 4 << 20;
const GRANT_MIN: usize = 128 << 10;
/// Bytes of a secret: what the hash makes use of.
const SECRET_LEN: usize = 192;

#[derive(Debug)]
pub(crate) struct Far {
    pool: Pool,
    grants: Vec<Option<Grant>>,
    /// Known from the first grant on.
    chunks_in_grant: usize,
    spare: Option<Grant>,
    prints: Vec<u128>,
    secret: Box<[u8; SECRET_LEN]>,
}

impl Far {
    pub(crate) fn new(pool: Pool, chunks: usize) -> Far {
        Far {
            pool,
            grants: Vec::new(),
            chunks_in_grant: 0,
            spare: None,
            prints: vec![0; chunks],
            secret: Box::new(rand::bytes()),
        }
    }

    fn print(&self, contents: &[u8]) -> u128 {
        xxh3_128_with_secret(contents, &self.secret[..])
    }

    /// The first grant that is to be had says how large all are.
    fn begin(&mut self) -> Result<(), String> {
        let mut bytes = GRANT_MAX;
        let grant = loop {
            match self.pool.grant(Bytes(bytes as u64)) {
                Ok(grant) => break grant,
                Err(error) if bytes == GRANT_MIN => return Err(error.to_string()),
                Err(_) => bytes /= 2,
            }
        };
        self.chunks_in_grant = bytes / CHUNK_LEN;
        self.grants = vec![None; self.prints.len().div_ceil(self.chunks_in_grant)];
        // Whichever chunk comes first, it is as good as any other.
        self.spare = Some(grant);
        Ok(())
    }

    fn grant(&mut self, chunk: usize) -> Result<Grant, String> {
        if self.chunks_in_grant == 0 {
            self.begin()?;
        }
        let at = chunk / self.chunks_in_grant;
        if let Some(grant) = self.grants[at] {
            return Ok(grant);
        }
        let bytes = Bytes((self.chunks_in_grant * CHUNK_LEN) as u64);
        let grant = match self.spare.take() {
            Some(grant) => grant,
            None => self.pool.grant(bytes).map_err(|error| error.to_string())?,
        };
        Ok(*self.grants[at].insert(grant))
    }

    fn offset(&self, chunk: usize) -> u64 {
        (chunk % self.chunks_in_grant * CHUNK_LEN) as u64
    }

    pub(crate) fn put(&mut self, chunk: usize, contents: &[u8]) -> Result<(), String> {
        let grant = self.grant(chunk)?;
        self.pool
            .write(&grant, self.offset(chunk), contents)
            .map_err(|error| error.to_string())?;
        self.prints[chunk] = self.print(contents);
        Ok(())
    }

    /// Of a chunk that was put there.
    pub(crate) fn get(&self, chunk: usize, into: &mut [u8]) -> Result<(), String> {
        let at = chunk.checked_div(self.chunks_in_grant);
        let grant = at
            .and_then(|at| self.grants[at])
            .ok_or("it was never put there")?;
        self.pool
            .read(&grant, self.offset(chunk), into)
            .map_err(|error| error.to_string())?;
        match self.print(into) == self.prints[chunk] {
            true => Ok(()),
            false => Err("the server gave back something else than what was put there".to_string()),
        }
    }
}
