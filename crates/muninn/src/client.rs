//! What all commands share that talk to servers: which servers, and with which key.

use crate::config::ClientTable;
use crate::failure::Failure;
use crate::key_file;
use crate::pool_list::{self, Entry};
use muninn_net::{Key, ServerUser, SessionOptions};
use muninn_sys::proc;
use muninn_sys::socket::Address;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// Servers, separated by commas: unix:PATH, HOST:PORT, or pool:FILE for a file that names them [default:
    /// the socket at which 'muninn serve' listens by default]
    #[arg(long, env = "MUNINN_POOL", value_name = "URL,…", value_delimiter = ',')]
    pub pool: Vec<Entry>,

    /// File with the key that the servers were started with
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,
}

/// Servers and the key for them.
#[derive(Debug)]
pub struct Client {
    pub pool: Vec<Address>,
    pub key: Key,
    /// Whose the servers may be: where none was named, the socket could be anyone's.
    server: ServerUser,
}

/// A server gets this long to answer a person who waits.
const PATIENCE: Duration = Duration::from_secs(5);

impl ClientArgs {
    /// As [`ClientArgs::resolve`], where servers are named or one listens at the default place.
    pub fn resolve_if_any(&self, file: &ClientTable) -> Result<Option<Client>, Failure> {
        let named = !self.pool.is_empty() || !file.pool.0.is_empty();
        let any = named || default_socket().exists();
        any.then(|| self.resolve(file)).transpose()
    }

    pub fn resolve(&self, file: &ClientTable) -> Result<Client, Failure> {
        let key_file = self.key_file.as_deref().or(file.key_file.as_deref());
        let named = [&self.pool, &file.pool.0]
            .into_iter()
            .find(|list| !list.is_empty());
        let pool = match named {
            Some(list) => {
                let servers = pool_list::read(list)?.into_iter();
                servers.map(|server| server.address).collect()
            }
            None => vec![trusted_default_socket()?],
        };
        let server = match named {
            Some(_) => ServerUser::Any,
            None => ServerUser::OwnOrRoot,
        };
        Ok(Client {
            pool,
            server,
            key: key_file::load(key_file)?,
        })
    }
}

impl Client {
    pub fn options(&self) -> SessionOptions {
        SessionOptions {
            key: self.key.clone(),
            server: self.server,
            deadline: PATIENCE,
            ..SessionOptions::default()
        }
    }
}

/// Where `muninn serve` listens, and clients connect, when nothing else is said.
pub fn default_socket() -> PathBuf {
    let is_dir = |path: &Path| path.is_dir();
    socket_path(|name| std::env::var_os(name), is_dir, proc::own_uid())
}

fn socket_path(
    variable: impl Fn(&str) -> Option<OsString>,
    is_dir: impl Fn(&Path) -> bool,
    uid: u32,
) -> PathBuf {
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime {
        Some(dir) if dir.is_absolute() && is_dir(&dir) => dir.join("muninn.sock"),
        _ if uid == 0 && is_dir(Path::new("/run")) => PathBuf::from("/run/muninn.sock"),
        _ => PathBuf::from(format!("/tmp/muninn-{uid}.sock")),
    }
}

/// The default socket, if it is of this user or root: in /tmp anyone could have made it, and would
/// then be given this client's memory.
fn trusted_default_socket() -> Result<Address, Failure> {
    let path = default_socket();
    if let Ok(metadata) = std::fs::symlink_metadata(&path)
        && ![0, proc::own_uid()].contains(&metadata.uid())
    {
        return Err(Failure::usage(format!(
            "the default socket {} belongs to user {}, who is not trusted here: name the pool with \
             --pool",
            path.display(),
            metadata.uid()
        )));
    }
    Address::unix(&path).map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_socket_is_in_the_most_private_place_there_is() {
        let with = |dir: Option<&str>, run: bool, uid| {
            let dir = dir.map(OsString::from);
            let path = socket_path(|_| dir.clone(), |d| run || d != Path::new("/run"), uid);
            path.display().to_string()
        };
        let own = Some("/run/user/7");
        assert_eq!(with(own, true, 7), "/run/user/7/muninn.sock");
        assert_eq!(with(Some("relative"), true, 7), "/tmp/muninn-7.sock");
        assert_eq!(with(None, true, 0), "/run/muninn.sock");
        assert_eq!(with(None, false, 0), "/tmp/muninn-0.sock");
        assert_eq!(with(None, true, 7), "/tmp/muninn-7.sock");
    }
}
