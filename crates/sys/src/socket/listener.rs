//! A socket that accepts connections.
//!
//! A Unix socket leaves a file behind when its process is killed. Binding tries to connect to such
//! a file: if nobody answers, it is removed; if somebody does, the address is in use. Invariant:
//! only sockets are ever removed, and on drop only the one this listener made. Known limit: two
//! processes that find the same stale file at the same moment may both bind; one is then unreachable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Address, Stream};

/// Connections the kernel holds for us between two accepts.
const BACKLOG: i32 = 1024;

/// Why nobody can connect here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen at {0}: the address is in use; end the other server or choose another")]
    InUse(Address),
    #[error(
        "cannot listen at {0}: not permitted; ports below 1024 need root, and the directory of a \
         Unix socket must be writable"
    )]
    NotPermitted(Address),
    #[error("cannot listen at {0}: {1}; this host has no such address or directory")]
    BadAddress(Address, Errno),
    #[error("cannot listen at {0}: a file that is not a socket is in the way; it was left alone")]
    FileInTheWay(Address),
    #[error("cannot listen at {0}: {1}")]
    Other(Address, Errno),
}

/// Accepts connections.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
    /// Device and inode of the socket file we made.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens. A TCP port of 0 lets the kernel choose one: see [`Listener::address`].
    pub fn bind(address: &Address) -> Result<Listener, ListenError> {
        match address {
            Address::Tcp(_) => {
                let fd = open(address).and_then(|fd| {
                    rustix::net::sockopt::set_socket_reuseaddr(&fd, true)?;
                    Ok(fd)
                });
                let fd = fd.map_err(|errno| explain(address, errno))?;
                Listener::start(fd, address)
            }
            Address::Unix(path) => {
                let fd = open(address).map_err(|errno| explain(address, errno))?;
                clear_stale(path, address)?;
                let mut listener = Listener::start(fd, address)?;
                listener.made = identity(path);
                Ok(listener)
            }
        }
    }

    fn start(fd: OwnedFd, address: &Address) -> Result<Listener, ListenError> {
        let failed = |errno| explain(address, errno);
        match address {
            Address::Tcp(tcp) => rustix::net::bind(&fd, tcp),
            Address::Unix(path) => {
                SocketAddrUnix::new(path.as_path()).and_then(|unix| rustix::net::bind(&fd, &unix))
            }
        }
        .map_err(failed)?;
        rustix::net::listen(&fd, BACKLOG).map_err(failed)?;
        let address = match address {
            Address::Unix(_) => address.clone(),
            Address::Tcp(_) => {
                let name = rustix::net::getsockname(&fd).map_err(failed)?;
                let bound = std::net::SocketAddr::try_from(name).map_err(failed)?;
                Address::Tcp(bound)
            }
        };
        Ok(Listener {
            fd,
            address,
            made: None,
        })
    }

    /// A socket that another process listens at, too.
    pub fn adopt(fd: OwnedFd, address: &Address) -> Result<Listener, ListenError> {
        let listens = rustix::net::sockopt::socket_acceptconn(&fd);
        match listens.map_err(|errno| explain(address, errno))? {
            true => Ok(Listener {
                fd,
                address: address.clone(),
                made: None,
            }),
            false => Err(explain(address, Errno::NOTSOCK)),
        }
    }

    /// Whoever listened at it before has gone: its file is ours to remove, and it is our process that
    /// the kernel names to those who connect.
    pub fn make_own(&mut self) {
        // It was listened at already, so this changes nothing but who does.
        let _ = rustix::net::listen(&self.fd, BACKLOG);
        if let Address::Unix(path) = &self.address {
            self.made = identity(path);
        }
    }

    /// Leaves the socket file where it is: another process listens at it.
    pub fn leave_file(&mut self) {
        self.made = None;
    }

    /// A second descriptor of the same socket.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
    }

    /// Where it listens: with the port the kernel chose, if it was asked to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next connection, or `None` if nobody waits. The stream does not block.
    pub fn accept(&self) -> Result<Option<Stream>, Errno> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            return match rustix::net::accept_with(&self.fd, flags) {
                Ok(fd) => Ok(Some(Stream::from_accepted(fd, self.address.is_unix()))),
                // The peer was gone before we came.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(errno) => Err(errno),
            };
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (Address::Unix(path), Some(made)) = (&self.address, self.made)
            && identity(path) == Some(made)
        {
            // The file is only a name; if it cannot be removed, the next server clears it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn open(address: &Address) -> Result<OwnedFd, Errno> {
    let family = match address {
        Address::Tcp(tcp) if tcp.is_ipv6() => AddressFamily::INET6,
        Address::Tcp(_) => AddressFamily::INET,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

fn explain(address: &Address, errno: Errno) -> ListenError {
    let address = address.clone();
    match errno {
        Errno::ADDRINUSE => ListenError::InUse(address),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ListenError::NotPermitted(address),
        Errno::ADDRNOTAVAIL
        | Errno::NOENT
        | Errno::NOTDIR
        | Errno::INVAL
        | Errno::NAMETOOLONG
        | Errno::AFNOSUPPORT => ListenError::BadAddress(address, errno),
        _ => ListenError::Other(address, errno),
    }
}

/// Removes a socket file nobody listens at.
fn clear_stale(path: &PathBuf, address: &Address) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::FileInTheWay(address.clone()));
    }
    let probe = open(address).and_then(|fd| {
        let unix = SocketAddrUnix::new(path.as_path())?;
        rustix::net::connect(&fd, &unix)
    });
    match probe {
        Err(Errno::CONNREFUSED | Errno::NOENT) => {
            // Whether it is really gone, `bind` will tell.
            let _ = std::fs::remove_file(path);
            Ok(())
        }
        Err(Errno::ACCESS | Errno::PERM) => Err(ListenError::NotPermitted(address.clone())),
        // Accepted, or its queue is full: somebody is there.
        _ => Err(ListenError::InUse(address.clone())),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_a_bad_one_and_a_forbidden_one_are_told_apart() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let taken = first.address().clone();
        assert_eq!(
            Listener::bind(&taken).unwrap_err(),
            ListenError::InUse(taken)
        );
        let foreign: Address = "192.0.2.1:0".parse().unwrap();
        assert!(matches!(
            Listener::bind(&foreign),
            Err(ListenError::BadAddress(_, Errno::ADDRNOTAVAIL))
        ));
        let nowhere: Address = "/no/such/directory/socket".parse().unwrap();
        assert_eq!(
            Listener::bind(&nowhere).unwrap_err().to_string(),
            "cannot listen at unix:/no/such/directory/socket: No such file or directory \
             (os error 2); this host has no such address or directory"
        );
        let forbidden = explain(&nowhere, Errno::ACCESS);
        assert!(matches!(forbidden, ListenError::NotPermitted(_)));
    }

    #[test]
    fn stale_sockets_are_cleared_and_files_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = Address::unix(&path).unwrap();
        let mut first = Listener::bind(&address).unwrap();
        assert_eq!(
            Listener::bind(&address).unwrap_err(),
            ListenError::InUse(address.clone())
        );
        // As if killed: the file stays.
        first.made = None;
        drop(first);
        assert!(path.exists());
        let second = Listener::bind(&address).unwrap();
        assert!(second.accept().unwrap().is_none());
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(
            Listener::bind(&address).unwrap_err(),
            ListenError::FileInTheWay(address)
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
