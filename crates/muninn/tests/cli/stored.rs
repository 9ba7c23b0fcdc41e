//! A server that the service manager starts anew: what it had is kept in between as descriptors.
//!
//! The test plays systemd, over NOTIFY_SOCKET and LISTEN_FDS, as its manual says.

use crate::common::{PATIENCE, Place, Served, options, place};
use muninn_net::Pool;
use muninn_types::Bytes;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

/// Descriptors with their names; a name without one is forgotten.
type Heard = (String, Option<OwnedFd>);

/// Hears what a service says, until the test ends.
fn manager(place: &Place) -> Receiver<Heard> {
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        loop {
            let (mut bytes, mut space) = ([0; 512], [MaybeUninit::uninit(); 64]);
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut list = [IoSliceMut::new(&mut bytes)];
            let got = recvmsg(&socket, &mut list, &mut control, RecvFlags::CMSG_CLOEXEC);
            let Ok(message) = got else { return };
            let fds = control.drain().filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let mut fds: Vec<OwnedFd> = fds.flatten().collect();
            let words = std::str::from_utf8(&bytes[..message.bytes]).unwrap();
            let name = words.lines().find_map(|line| line.strip_prefix("FDNAME="));
            // A barrier is passed when its descriptor is closed.
            let Some(name) = name else { continue };
            assert_eq!(words.contains("FDSTORE=1"), fds.len() == 1, "{words}");
            if tell.send((name.to_string(), fds.pop())).is_err() {
                return;
            }
        }
    });
    heard
}

const ARGS: [&str; 10] = [
    "serve",
    "--socket",
    "m.sock",
    "--listen",
    "127.0.0.1:0",
    "--json",
    "--memory",
    "16MiB",
    "--segment=4MiB",
    "--fdstore",
];

/// Starts a server as a manager does that kept these for it.
fn start(place: &Place, kept: &[(String, OwnedFd)]) -> Served {
    let script = "export LISTEN_PID=$$; exec \"$0\" \"$@\"";
    let binary = env!("CARGO_BIN_EXE_muninn");
    let mut command: Command = place.command_of(
        Path::new("sh"),
        &[&["-c", script, binary][..], &ARGS].concat(),
    );
    let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    command
        .env("NOTIFY_SOCKET", place.path("notify"))
        .env("FDSTORE", "64")
        .env("LISTEN_FDS", kept.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    let fds: Vec<i32> = kept.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    let pass = move || {
        // First out of each other's way.
        let away = |fd: &i32| {
            // SAFETY: a system call on a number, between fork and exec.
            unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 600) }
        };
        let mut high = [0; 64];
        for (at, fd) in fds.iter().enumerate() {
            high[at] = away(fd);
        }
        for (at, fd) in high[..fds.len()].iter().enumerate() {
            // SAFETY: as above.
            if unsafe { libc::dup2(*fd, 3 + at as i32) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: nothing but system calls and an array on the stack is used between fork and exec.
    unsafe { command.pre_exec(pass) };
    Served::start(command)
}

fn page(seed: u8) -> Vec<u8> {
    (0..4096u32).map(|i| (i * 11) as u8 ^ seed).collect()
}

#[test]
fn a_server_that_is_started_anew_has_what_it_had() {
    let place = place();
    let heard = manager(&place);
    let served = start(&place, &[]);
    assert!(served.listening["took_over_bytes"].is_null());
    let (tcp, unix) = (served.tcp(), served.unix());
    let far = served.client("far");
    let socket = format!("unix:{}", place.path("m.sock").display());
    let near = Pool::connect(&socket, options("near")).unwrap();
    let clients = [&far, &near];
    let grants = clients.map(|client| client.grant(Bytes::mib(1)).unwrap());
    for (seed, (client, grant)) in (0..).zip(clients.iter().zip(&grants)) {
        client.write(grant, 4096, &page(seed)).unwrap();
    }
    let mut served = Some(served);
    for round in 0..2 {
        let ended = served.take().unwrap().stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(
            ended.out, "{\"event\":\"left\",\"held_bytes\":2097152}\n",
            "{ended:?}"
        );
        let mut kept: Vec<(String, OwnedFd)> = Vec::new();
        while let Ok((name, Some(fd))) = heard.try_recv() {
            kept.push((name, fd));
        }
        // State, two listeners, four segments.
        assert_eq!(kept.len(), 7, "{kept:?}");
        // In an order of the manager's own.
        kept.rotate_left(3);
        let next = start(&place, &kept);
        assert_eq!(next.listening["took_over_bytes"], 2 << 20);
        assert_eq!((next.tcp(), next.unix()), (tcp.clone(), unix.clone()));
        let forgotten = (0..7).map(|_| heard.recv_timeout(PATIENCE).unwrap());
        let mut forgotten: Vec<String> = forgotten
            .map(|(name, fd)| {
                assert!(fd.is_none());
                name
            })
            .collect();
        forgotten.sort();
        assert_eq!(
            forgotten,
            (0..7).map(|at| format!("muninn-{at}")).collect::<Vec<_>>()
        );
        for (seed, (client, grant)) in (0..).zip(clients.iter().zip(&grants)) {
            let mut back = vec![0; 4096];
            client.read(grant, 4096, &mut back).unwrap();
            assert!(back == page(seed), "round {round}: other bytes for {seed}");
            let more = client.grant(Bytes::kib(64)).unwrap();
            client.write(&more, 0, &page(77)).unwrap();
            client.read(grant, 4096, &mut back).unwrap();
            assert!(back == page(seed), "two grants in one place");
            client.release(&[more]).unwrap();
        }
        served = Some(next);
    }
    drop((far, near));
    let ended = served.take().unwrap().stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// What is not all there is not believed: the server starts empty, and the manager forgets it.
#[test]
fn a_part_of_what_was_left_is_worth_nothing() {
    let place = place();
    let heard = manager(&place);
    let served = start(&place, &[]);
    let client = served.client("loses");
    client.grant(Bytes::mib(1)).unwrap();
    served.stop();
    let mut kept: Vec<(String, OwnedFd)> = Vec::new();
    while let Ok((name, Some(fd))) = heard.try_recv() {
        kept.push((name, fd));
    }
    // The listeners are missing.
    kept.retain(|(name, _)| name != "muninn-1" && name != "muninn-2");
    // One of somebody else's does not matter.
    kept.push((
        "other".to_string(),
        std::fs::File::open("/dev/null").unwrap().into(),
    ));
    let next = start(&place, &kept);
    assert!(next.listening["took_over_bytes"].is_null());
    for _ in 0..5 {
        let (name, fd) = heard.recv_timeout(PATIENCE).unwrap();
        assert!(name.starts_with("muninn-") && fd.is_none(), "{name}");
    }
    drop(kept);
    let ended = next.stop();
    assert!(
        ended.err.contains("only a part of what was left"),
        "{ended:?}"
    );
}
