//! Crowds: one source asks for many of everything, and others still get theirs.

use crate::common::*;
use muninn_proto::server::{CallerOf, Service};
use muninn_server::{CALLS_MAX, CallFactory, CallHost, MemfdBacking, OnEnd, ServerConfig};
use muninn_types::{Bytes, Class, LaneKind, Nanos, ServiceId};
use muninn_wire::{Call, ErrorCode, Refusal, Request, Transport};
use std::sync::Arc;
use std::time::Duration;

/// A server of a hundred descriptors; one client has six sessions with all their lanes.
#[test]
fn one_source_cannot_have_all_descriptors() {
    let long = Duration::from_secs(30);
    let mut remote = Remote::start_as("child", Bytes::mib(16), long, 1, "few");
    let mut taken = Vec::new();
    'all: for _ in 0..6 {
        let mut raw = Raw::stranger(&remote.tcp);
        let name = muninn_wire::ShortText::lossy("mallory", 64);
        let transport = Transport::Tcp;
        if raw
            .shake(muninn_proto::client::Purpose::Open { transport, name })
            .is_err()
        {
            break;
        }
        taken.push(raw);
        for lane in 1..16 {
            let first = taken.len() - usize::from(lane);
            match taken[first].try_attach(&remote.tcp, lane, LaneKind::Bulk) {
                Some(raw) => taken.push(raw),
                None => break 'all,
            }
        }
    }
    println!("{} connections of one source", taken.len());
    assert!(taken.len() >= 20 && taken.len() <= FEW_DESCRIPTORS as usize / 2);
    assert!(remote.refused("too-many-connections") > 0);
    let mut good = Raw::open(&remote.unix, Transport::Tcp);
    good.grant(4096);
    // What it gives back it may have again.
    drop(taken);
    until("the places to be free again", || {
        let mut raw = Raw::stranger(&remote.tcp);
        let purpose = muninn_proto::client::Purpose::Observe;
        raw.shake(purpose).is_ok()
    });
}

/// Takes every call and ends none.
#[derive(Debug)]
struct Endless;

struct EndlessHost(usize);

impl CallFactory for Endless {
    fn find(&self, _: &str, _: &str, _: u32) -> Result<u32, Option<u32>> {
        Ok(1)
    }
    fn host(&self, _: usize) -> Box<dyn CallHost> {
        Box::new(EndlessHost(0))
    }
}

impl CallHost for EndlessHost {
    fn submit(
        &mut self,
        _: &CallerOf,
        _: Option<&Arc<Service<MemfdBacking>>>,
        _: &[u8],
        _: Nanos,
    ) -> Result<(), Refusal> {
        self.0 += 1;
        Ok(())
    }
    fn run(&mut self, _: Nanos, _: &mut OnEnd<'_>) -> bool {
        false
    }
    fn under_way(&self) -> usize {
        self.0
    }
}

fn calls(raw: &mut Raw, count: usize) {
    let mut frames = Vec::new();
    for _ in 0..count {
        let call = Call {
            service: ServiceId(1),
            wic: 1,
            deadline_us: 0,
            idempotent: true,
            args: &[],
        };
        let tag = raw.tag();
        Request::Call(call).encode(Class::Demand, tag, &mut frames);
    }
    raw.send(&frames);
}

#[test]
fn one_source_cannot_have_all_calls() {
    let local = Local::start(ServerConfig {
        calls: Some(Arc::new(Endless)),
        ..config(Bytes::mib(16))
    });
    let mut mallory = Raw::open(&local.tcp, Transport::Tcp);
    calls(&mut mallory, CALLS_MAX + 10);
    let refused = mallory.recv().expect("an answer");
    assert_eq!(refused.code(), Some(ErrorCode::TooManyCalls));
    until("all of them to be answered", || {
        while mallory.recv_now().is_some() {}
        local.refused("too-many-calls") == CALLS_MAX as u64 / 2 + 10
    });
    // Another's are taken: nothing is answered, as they never end.
    let mut good = Raw::open(&local.unix, Transport::Tcp);
    calls(&mut good, 100);
    good.grant(4096);
    assert_eq!(local.refused("too-many-calls"), CALLS_MAX as u64 / 2 + 10);
}
