//! Clients that map their memory: loads and stores, with the mapping and after it is lost.

use super::client::Client;
use super::env::Env;
use super::shadow::{Part, pattern};
use muninn_proto::server::SegmentMemory;

impl Client {
    /// A read through the mapping.
    pub fn load(&mut self, server: usize, part: Part, env: &mut Env) {
        let session = self.sessions[server].as_ref();
        let Some((file, start)) = session
            .and_then(|s| s.held(part.key))
            .and_then(|held| held.mapped.as_ref())
        else {
            return;
        };
        env.summary.direct_accesses += 1;
        env.summary.bytes_checked += u64::from(part.len);
        let look = env.shadow.look(&[part]);
        let mut bytes = vec![0; part.len as usize];
        file.read(start + u64::from(part.offset), &mut bytes);
        // A mapping that was revoked raises a signal, which is loud enough. Until then it shows
        // what was stored, even when the server has ended the session already.
        let revoked = file.is_revoked();
        let seen = env.shadow.seen(&look, &[part], &bytes);
        if !revoked {
            env.check(seen);
        }
    }

    pub fn store(&mut self, server: usize, parts: &[Part], data: &[u8], env: &mut Env) {
        let mut at = 0;
        for part in parts {
            let session = self.sessions[server].as_ref();
            let held = session.and_then(|s| s.held(part.key));
            if let Some((file, start)) = held.and_then(|held| held.mapped.as_ref()) {
                let bytes = &data[at..at + part.len as usize];
                file.write(start + u64::from(part.offset), bytes);
                env.summary.direct_accesses += 1;
            }
            at += part.len as usize;
        }
        env.shadow.written(self.next_token, parts, data);
        self.next_token += 1;
    }

    /// Writes through a mapping that is no longer this client's.
    pub fn scribble(&mut self, env: &mut Env) {
        for file in &self.stale {
            env.summary.scribbles += 1;
            let at = 4096 * env.rng.below(16);
            file.write(at, &[pattern(self.index, 9); 4096]);
        }
    }
}
