//! The file that names the servers which jobs of the node use. Launchers watch it.

use std::path::{Path, PathBuf};

const NAME: &str = "pool.toml";

pub(super) struct PoolFile {
    path: PathBuf,
    /// As it was written last by us.
    written: Option<Vec<String>>,
}

impl PoolFile {
    pub(super) fn new(folder: &Path) -> PoolFile {
        PoolFile {
            path: folder.join(NAME),
            written: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the agent before this one wrote.
    pub(super) fn read(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let address = |line: &str| {
            let quoted = line.strip_prefix("address = ")?;
            serde_json::from_str(quoted).ok()
        };
        text.lines().filter_map(address).collect()
    }

    /// Without an answer of the coordinator (`silent`) the pool stays as it was, also as the agent before this
    /// one left it: nothing is moved away because somebody is silent.
    pub(super) fn write(&mut self, pool: Vec<String>, silent: bool) -> std::io::Result<()> {
        let there = self.written.is_some() || self.path.exists();
        if self.written.as_ref() == Some(&pool) || (there && (silent || pool.is_empty())) {
            return Ok(());
        }
        let line = |server: &String| format!("[[server]]\naddress = {}\n", quoted(server));
        let text: String = pool.iter().map(line).collect();
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, &self.path)?;
        self.written = Some(pool);
        Ok(())
    }
}

/// As TOML wants it.
fn quoted(text: &str) -> String {
    // JSON's strings are TOML's basic strings, as long as nothing is escaped but quotes and backslashes.
    serde_json::to_string(text).unwrap_or_default()
}
