//! Clients that take more than their share: of memory, and of sessions.

use crate::common::*;
use muninn_server::ServerConfig;
use muninn_types::{Bytes, ServiceId};
use muninn_wire::{ErrorCode, Opening, Request, ServiceInfo, ShortText, Transport};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Real memory of the memory files that a server has open.
fn files_kib(pid: u32) -> u64 {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_segment = |path: &std::path::Path| {
        let target = std::fs::read_link(path);
        target.is_ok_and(|target| target.to_string_lossy().contains("memfd:muninn"))
    };
    let paths = fds.flatten().map(|fd| fd.path()).filter(|p| is_segment(p));
    let kib = paths.filter_map(|path| Some(std::fs::metadata(path).ok()?.blocks() / 2));
    kib.sum()
}

fn named(name: &str, bytes: u64) -> Request<'static> {
    Request::Open(Opening::Named {
        name: ShortText::lossy(name, 64),
        bytes,
        locks: 1,
    })
}

/// Services that were opened, filled and closed are gone, with their memory.
#[test]
fn closed_services_hold_no_memory() {
    let remote = Remote::start("child", Bytes::mib(64), Duration::from_secs(30), 1);
    let pid = remote.process.pid();
    let mut raw = Raw::open(&remote.unix, Transport::Shm);
    for round in 0..20 {
        let ends = std::time::Instant::now() + PATIENCE;
        let reply = loop {
            let reply = raw.ask(&named(&format!("hoard-{round}"), 24 << 20), &[]);
            match reply.code() {
                None => break reply,
                Some(ErrorCode::TryAgain) if std::time::Instant::now() < ends => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some(code) => panic!("round {round}: {code:?}"),
            }
        };
        for fd in raw.fds.drain(..) {
            let size = rustix::fs::fstat(&fd).unwrap().st_size as u64;
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&fd, flags, 0, size).unwrap();
        }
        let service: ServiceId = ServiceInfo::decode(&reply.body).unwrap().service;
        assert_eq!(raw.ask(&Request::Close { service }, &[]).code(), None);
    }
    let held = files_kib(pid);
    println!("{held} KiB are held after 480 MiB");
    assert!(
        held <= 64 << 10,
        "{held} KiB are held for services that are closed"
    );
}

/// Mapped memory is counted as what nobody else can have: whole segments.
#[test]
fn a_quota_counts_segments_that_one_page_pins() {
    let mut config = config(Bytes::mib(32));
    config.segment = Some(Bytes::mib(2));
    config.quotas.insert("*".to_string(), Bytes::mib(8));
    let local = Local::start(config);
    let mut hoarders = Vec::new();
    let mut refused = None;
    for _ in 0..16 {
        let mut raw = Raw::open(&local.unix, Transport::Shm);
        let reply = raw.ask(&Request::Grant { bytes: 4096 }, &[]);
        refused = reply.refusal();
        if refused.is_some() {
            break;
        }
        hoarders.push(raw);
    }
    assert_eq!(hoarders.len(), 4, "2 MiB each, of 8");
    let refused = refused.unwrap();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(
        refused.to_string().contains("segments of 2MiB"),
        "{refused}"
    );
    // The same session has the rest of its segment.
    assert_eq!(
        hoarders[0]
            .ask(&Request::Grant { bytes: 1 << 20 }, &[])
            .code(),
        None
    );
    // What it gives back it may have again, at once or in a moment.
    let reply = hoarders[3].ask(&Request::Goodbye, &[]);
    assert_eq!(reply.code(), None);
    let mut next = Raw::open(&local.unix, Transport::Shm);
    next.grant(4096);
}

#[test]
fn one_source_cannot_have_all_sessions() {
    let config = ServerConfig {
        max_sessions: 40,
        max_sessions_of_source: Some(20),
        ..config(Bytes::mib(16))
    };
    let local = Local::start(config);
    let mut taken = Vec::new();
    let refusal = loop {
        assert!(taken.len() < 40, "all of them");
        let mut raw = Raw::stranger(&local.tcp);
        let name = ShortText::lossy(&format!("client {}", taken.len()), 64);
        let transport = Transport::Tcp;
        match raw.shake(muninn_proto::client::Purpose::Open { transport, name }) {
            Ok(()) => taken.push(raw),
            Err(why) => break why,
        }
    };
    assert_eq!(taken.len(), 20, "{refusal}");
    // Somebody else is not kept out.
    Raw::open(&local.unix, Transport::Shm).grant(4096);
    assert_eq!(local.refused("too-many-sessions"), 1);
    drop(taken.pop());
    until("the place to be free again", || {
        let mut raw = Raw::stranger(&local.tcp);
        let name = ShortText::lossy("late", 64);
        let transport = Transport::Tcp;
        raw.shake(muninn_proto::client::Purpose::Open { transport, name })
            .is_ok()
    });
}
