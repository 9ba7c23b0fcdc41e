//! Telling the service manager how we are: `sd_notify`, in the words of systemd's manual.
//!
//! Known limit: nobody answers, so whether it was heard is not known. Where no manager asked to be told,
//! nothing is done.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where the manager listens: a path, or a name in no file system that begins with `@`.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says it to the manager that started us, if one did and wants to be told.
pub fn notify(words: &str) -> io::Result<()> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(place) => notify_at(place, words),
        None => Ok(()),
    }
}

fn notify_at(place: OsString, words: &str) -> io::Result<()> {
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&place)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not listen must not make us wait.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(words.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_it_at_a_path_and_at_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("muninn-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (manager, place) in managers {
            notify_at(place, "READY=1").unwrap();
            let mut heard = [0; 32];
            let len = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..len], b"READY=1");
        }
        assert!(notify_at(dir.path().join("none").into(), "READY=1").is_err());
    }
}
