//! Where a socket listens or connects: `host:port`, `tcp:host:port`, `unix:/path` or `/path`.
//!
//! A host name may have several addresses ([`Address::all`]). Those of the other family than the first one's
//! are left out: a machine that has an address of each kind is one machine, and two copies there would go
//! together. Known limit: one that has two of the same kind under one name counts twice.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest path of a Unix socket the kernel accepts, without its closing zero.
const UNIX_PATH_MAX: usize = 107;

/// A place to listen at or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "'{0}' is not an address: write HOST:PORT (such as 10.0.0.5:7000 or [::1]:7000) or unix:PATH"
    )]
    Syntax(String),
    #[error("the host of '{0}' is not known: {1}")]
    Unknown(String, String),
    #[error(
        "'{0}' is too long for a Unix socket: its path may have {UNIX_PATH_MAX} bytes at most; \
         choose a shorter directory"
    )]
    TooLong(String),
}

impl Address {
    pub fn unix(path: impl AsRef<Path>) -> Result<Address, AddressError> {
        let path = path.as_ref();
        let length = path.as_os_str().len();
        if length == 0 {
            return Err(AddressError::Syntax(path.display().to_string()));
        }
        if length > UNIX_PATH_MAX {
            return Err(AddressError::TooLong(path.display().to_string()));
        }
        Ok(Address::Unix(path.to_path_buf()))
    }

    /// All that a text stands for: a host name may have several addresses, each of them a place of its own.
    pub fn all(text: &str) -> Result<Vec<Address>, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Address::unix(path).map(|address| vec![address]);
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Address::unix(text).map(|address| vec![address]);
        }
        let host = text.strip_prefix("tcp:").unwrap_or(text);
        let host = host.strip_prefix("//").unwrap_or(host);
        let syntax = || AddressError::Syntax(text.to_string());
        if let Ok(address) = host.parse() {
            return Ok(vec![Address::Tcp(address)]);
        }
        let (name, port) = host.rsplit_once(':').ok_or_else(syntax)?;
        if name.is_empty() || name.contains(':') || port.parse::<u16>().is_err() {
            return Err(syntax());
        }
        let unknown = |why: String| AddressError::Unknown(text.to_string(), why);
        let found = host
            .to_socket_addrs()
            .map_err(|error| unknown(error.to_string()))?;
        let found = of_one_kind(found);
        match found.is_empty() {
            true => Err(unknown("no address".into())),
            false => Ok(found),
        }
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Address::Unix(_))
    }
}

/// Addresses of the kind that the first one has, each once.
fn of_one_kind(found: impl Iterator<Item = SocketAddr>) -> Vec<Address> {
    let mut kept: Vec<SocketAddr> = Vec::new();
    for address in found {
        let same_kind = kept
            .first()
            .is_none_or(|k| k.is_ipv6() == address.is_ipv6());
        if same_kind && !kept.contains(&address) {
            kept.push(address);
        }
    }
    kept.into_iter().map(Address::Tcp).collect()
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let mut all = Address::all(text)?;
        Ok(all.swap_remove(0))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print() {
        for text in ["10.0.0.5:7000", "[::1]:7000", "unix:/run/muninn.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "/run/m".parse::<Address>().unwrap(),
            Address::Unix("/run/m".into())
        );
        for text in ["tcp:127.0.0.1:1", "tcp://127.0.0.1:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), "127.0.0.1:1");
        }
        assert!(matches!(
            "localhost:99".parse::<Address>().unwrap(),
            Address::Tcp(found) if found.ip().is_loopback() && found.port() == 99
        ));
    }

    #[test]
    fn a_name_stands_for_all_its_addresses_of_one_kind() {
        let found = |list: &[&str]| {
            let list: Vec<SocketAddr> = list.iter().map(|text| text.parse().unwrap()).collect();
            let kept = of_one_kind(list.into_iter()).into_iter();
            kept.map(|address| address.to_string()).collect::<Vec<_>>()
        };
        let both = ["[::1]:7", "10.0.0.1:7", "[::2]:7", "[::1]:7"];
        assert_eq!(found(&both), ["[::1]:7", "[::2]:7"]);
        assert_eq!(found(&["10.0.0.1:7", "10.0.0.2:7"]).len(), 2);
        assert!(found(&[]).is_empty());
        assert_eq!(Address::all("localhost:99").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_address_says_what_to_write() {
        for bad in [
            "",
            "7000",
            ":7000",
            "host:",
            "host:70000",
            "::1:7000",
            "unix:",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?} was taken");
        }
        assert_eq!(
            "host:x".parse::<Address>().unwrap_err().to_string(),
            "'host:x' is not an address: write HOST:PORT (such as 10.0.0.5:7000 or [::1]:7000) \
             or unix:PATH"
        );
        let long = format!("/{}", "a".repeat(107));
        assert!(matches!(
            Address::unix(&long),
            Err(AddressError::TooLong(_))
        ));
        assert!(Address::unix(&long[..107]).is_ok());
    }
}
