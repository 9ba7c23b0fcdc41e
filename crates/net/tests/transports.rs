//! Every transport gives the same answers and the same refusals: what stands on them may be tested
//! over the fake. And the faults of a script show as they should.

mod common;

use common::*;
use muninn_net::fake::FakeTransport;
use muninn_net::faulty::{Fault, FaultyTransport};
use muninn_net::{
    Answer, Buffer, Control, Lane, NetError, OpError, Operation, ShmSession, TcpSession, Transport,
    Verb,
};
use muninn_types::{Bytes, Class, GrantId, LaneKind};
use muninn_wire::{ErrorCode, GrantInfo, MAX_PAYLOAD, MAX_SEGS, Refusal, Seg};
use std::sync::Arc;
use std::time::Duration;

const POOL: Bytes = Bytes::mib(8);

fn grant(transport: &dyn Transport, bytes: u64) -> Result<GrantInfo, NetError> {
    match transport.call(Control::Grant { bytes }, PATIENCE)? {
        Answer::Granted(info) => Ok(info),
        other => panic!("{other:?}"),
    }
}

/// What was refused, in words that are the same for every server.
fn refusal<T: std::fmt::Debug>(result: Result<T, NetError>) -> (ErrorCode, u64, u64) {
    match result.expect_err("it was not refused") {
        NetError::Refused(_, refusal) => (refusal.code, refusal.a, refusal.b),
        other => panic!("not a refusal: {other}"),
    }
}

fn malformed<T: std::fmt::Debug>(result: Result<T, NetError>) -> String {
    match result.expect_err("it was not refused") {
        NetError::Operation(error) => error.to_string(),
        other => panic!("not malformed: {other}"),
    }
}

/// The shared suite. `frozen`: whether a grant can be shared alone (mapped ones only together).
fn answers_as_a_server_does(transport: &dyn Transport) {
    let mut lane = transport.lane(LaneKind::Critical).unwrap();
    let lane = &mut *lane;
    let demand = Class::Demand;

    // Sizes.
    let max = transport.max_grant().0;
    assert_eq!(refusal(grant(transport, 0)), (ErrorCode::BadSize, 0, max));
    assert_eq!(
        refusal(grant(transport, max + 1)),
        (ErrorCode::BadSize, max + 1, max)
    );
    let one = grant(transport, 5000).unwrap();
    assert_eq!(one.bytes, 8192, "a power of two of pages");
    let two = grant(transport, 4096).unwrap();
    assert_ne!(one.grant, two.grant);
    let (a, b) = (one.grant, two.grant);
    let nobody = GrantId(u64::MAX);

    // Fresh memory, scatter and gather, in the order of the list.
    let mut bytes = vec![1; 8192];
    lane.read_v(demand, &[Seg::new(a, 0, 8192)], &mut bytes)
        .unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
    let data = pattern(1, 300);
    let scattered = [
        Seg::new(a, 8092, 100),
        Seg::new(b, 0, 100),
        Seg::new(a, 0, 100),
    ];
    lane.write_v(demand, &scattered, &data).unwrap();
    let mut back = vec![0; 300];
    lane.read_v(demand, &scattered, &mut back).unwrap();
    assert_eq!(back, data);
    lane.read_v(demand, &[Seg::new(a, 0, 100)], &mut back[..100])
        .unwrap();
    assert_eq!(back[..100], data[200..]);
    // Overlapping: the last one stays.
    let overlapping = [Seg::new(b, 200, 8), Seg::new(b, 204, 8)];
    lane.write_v(demand, &overlapping, b"AAAAAAAABBBBBBBB")
        .unwrap();
    lane.read_v(demand, &[Seg::new(b, 200, 12)], &mut back[..12])
        .unwrap();
    assert_eq!(&back[..12], b"AAAABBBBBBBB");
    // A buffer longer than the list is not touched beyond it.
    let mut long = [7; 32];
    lane.read_v(demand, &[Seg::new(b, 200, 12)], &mut long)
        .unwrap();
    assert_eq!(&long, b"AAAABBBBBBBB\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07");

    // Lists that are none.
    let nonsense = "the operation names no segments, too many, or more than 64 pages";
    let long_list = vec![Seg::new(a, 0, 1); MAX_SEGS + 1];
    let mut large = vec![0; MAX_PAYLOAD + 4096];
    for segs in [
        &[][..],
        &[Seg::new(a, 0, 0)],
        &[Seg::new(a, 0, 8), Seg::new(a, 8, 0)],
        &[Seg::new(a, 0, u32::MAX)],
        &[Seg::new(nobody, 0, MAX_PAYLOAD as u32 + 1)],
        &long_list,
    ] {
        assert_eq!(malformed(lane.read_v(demand, segs, &mut large)), nonsense);
        assert_eq!(malformed(lane.write_v(demand, segs, &large)), nonsense);
    }
    let short = "the operation's data is shorter than its segments";
    let nine = [Seg::new(a, 0, 9)];
    assert_eq!(malformed(lane.read_v(demand, &nine, &mut [0; 8])), short);
    assert_eq!(malformed(lane.write_v(demand, &nine, &[0; 8])), short);

    // Bounds.
    let out = |id: GrantId, size: u64| (ErrorCode::OutOfBounds, id.0, size);
    for (offset, len) in [
        (8192, 1),
        (8191, 2),
        (0, 8193),
        (u32::MAX, 1),
        (u32::MAX - 7, 16),
    ] {
        let seg = [Seg::new(a, offset, len)];
        assert_eq!(
            refusal(lane.read_v(demand, &seg, &mut large)),
            out(a, 8192),
            "{seg:?}"
        );
        assert_eq!(
            refusal(lane.write_v(demand, &seg, &large)),
            out(a, 8192),
            "{seg:?}"
        );
    }
    lane.read_v(demand, &[Seg::new(a, 8191, 1)], &mut large)
        .unwrap();
    let unknown = (ErrorCode::NoGrant, nobody.0, 0);
    let of_nobody = [Seg::new(nobody, 0, 1)];
    assert_eq!(
        refusal(lane.read_v(demand, &of_nobody, &mut large)),
        unknown
    );

    // All or nothing: what comes before a segment that is refused is not written.
    lane.write_v(demand, &[Seg::new(a, 0, 4)], b"kept").unwrap();
    for bad in [Seg::new(nobody, 0, 4), Seg::new(a, 8190, 4)] {
        let segs = [Seg::new(a, 0, 4), bad];
        refusal(lane.write_v(demand, &segs, b"lostlost"));
        let mut now = [0; 4];
        lane.read_v(demand, &[Seg::new(a, 0, 4)], &mut now).unwrap();
        assert_eq!(&now, b"kept", "a refused list was written in part");
    }

    // Words.
    assert_eq!(lane.fetch_add(b, 1024, 5).unwrap(), 0);
    assert_eq!(lane.fetch_add(b, 1024, u64::MAX).unwrap(), 5);
    assert_eq!(lane.compare_swap(b, 1024, 9, 1).unwrap(), 4);
    assert_eq!(lane.compare_swap(b, 1024, 4, 1).unwrap(), 4);
    assert_eq!(lane.fetch_add(b, 1024, 0).unwrap(), 1);
    assert_eq!(lane.fetch_add(b, 4088, 1).unwrap(), 0, "the last word");
    assert_eq!(refusal(lane.fetch_add(b, 4096, 1)), out(b, 4096));
    assert_eq!(refusal(lane.fetch_add(b, u32::MAX - 7, 1)), out(b, 4096));
    let crooked = (ErrorCode::Misaligned, 0, 0);
    assert_eq!(refusal(lane.fetch_add(b, 4092, 1)), crooked);
    assert_eq!(refusal(lane.compare_swap(b, 1, 0, 0)), crooked);
    assert_eq!(refusal(lane.fetch_add(nobody, 0, 1)), unknown);
    assert_eq!(refusal(lane.fetch_add(nobody, 1, 1)), unknown);

    // Release: all or, if one is not the session's, none.
    let call = |control| transport.call(control, PATIENCE);
    assert_eq!(malformed(call(Control::Release(vec![]))), nonsense);
    assert_eq!(malformed(call(Control::Release(vec![a, a]))), nonsense);
    assert_eq!(refusal(call(Control::Release(vec![a, nobody]))), unknown);
    let mut now = [0; 4];
    lane.read_v(demand, &[Seg::new(a, 0, 4)], &mut now)
        .expect("a release that was refused took a grant away");
    assert_eq!(&now, b"kept");
    assert_eq!(refusal(call(Control::Share(vec![a, nobody]))), unknown);
    lane.write_v(demand, &[Seg::new(a, 0, 4)], b"more")
        .expect("a share that was refused froze a grant");

    // Shared: readable, no longer writable.
    let Answer::Ticket(ticket) = call(Control::Share(vec![a, b])).unwrap() else {
        panic!("a share is answered with a ticket");
    };
    let frozen = (ErrorCode::Frozen, a.0, 0);
    lane.read_v(demand, &[Seg::new(a, 0, 4)], &mut now).unwrap();
    assert_eq!(&now, b"more");
    assert_eq!(
        refusal(lane.write_v(demand, &[Seg::new(a, 0, 4)], b"late")),
        frozen
    );
    assert_eq!(refusal(lane.fetch_add(a, 0, 1)), frozen);
    assert_eq!(
        refusal(lane.write_v(demand, &[Seg::new(a, 8190, 4)], b"late")),
        frozen,
        "both frozen and out of bounds"
    );
    let wrong = Control::Adopt { ticket: [1; 16] };
    assert_eq!(refusal(call(wrong)), (ErrorCode::NoTicket, 0, 0));
    let Answer::Adopted(adopted) = call(Control::Adopt { ticket }).unwrap() else {
        panic!("an adoption is answered with grants");
    };
    let ids: Vec<GrantId> = adopted.iter().map(|info| info.grant).collect();
    assert_eq!(ids, [a, b], "its own, adopted again");
    let again = Control::Adopt { ticket };
    assert_eq!(refusal(call(again)), (ErrorCode::NoTicket, 0, 0));
    lane.read_v(demand, &[Seg::new(a, 0, 4)], &mut now).unwrap();

    // Gone is gone, and the memory can be had again: all of it, and no more.
    call(Control::Release(vec![a, b])).unwrap();
    assert_eq!(
        refusal(lane.read_v(demand, &[Seg::new(a, 0, 4)], &mut now)),
        (ErrorCode::NoGrant, a.0, 0)
    );
    assert_eq!(
        refusal(call(Control::Release(vec![a]))),
        (ErrorCode::NoGrant, a.0, 0)
    );
    let mut all = Vec::new();
    for _ in 0..POOL.0 / max {
        all.push(grant(transport, max).unwrap().grant);
    }
    assert!(
        !all.contains(&a) && !all.contains(&b),
        "an id was used twice"
    );
    assert_eq!(
        refusal(grant(transport, 4096)),
        (ErrorCode::PoolFull, 4096, 0)
    );
    call(Control::Release(all)).unwrap();

    // Many at once: completions come one for one, and the window is bounded.
    let id = grant(transport, 4096).unwrap().grant;
    let post = |lane: &mut dyn Lane, token| {
        lane.post(Operation {
            verb: Verb::FetchAdd {
                grant: id,
                offset: 0,
                add: 1,
            },
            class: demand,
            data: Buffer::empty(),
            token,
        })
    };
    let (mut posted, mut done, mut refused_once) = (0, 0, false);
    while done < 200 {
        while posted < 200 {
            match post(lane, posted) {
                Ok(()) => posted += 1,
                Err(back) => {
                    assert_eq!(back.token, posted);
                    refused_once = true;
                    break;
                }
            }
        }
        assert_eq!(lane.under_way() as u64, posted - done);
        if let Some(completion) = lane.poll(PATIENCE) {
            assert_eq!(completion.operation.token, done, "out of order");
            assert_eq!(completion.result, Ok(Answer::Old(done)));
            done += 1;
        }
    }
    assert!(refused_once, "a lane takes any number of operations");
    assert_eq!(lane.under_way(), 0);
    assert!(lane.poll(Duration::ZERO).is_none());
    call(Control::Release(vec![id])).unwrap();
    assert!(matches!(
        call(Control::Heartbeat).unwrap(),
        Answer::Report(_)
    ));
    assert_eq!(transport.lost(), None);
    assert_eq!(transport.drain_left(), None);
}

fn served() -> Local {
    Local::start(config(POOL))
}

#[test]
fn shared_memory_answers_as_a_server_does() {
    let local = served();
    answers_as_a_server_does(&ShmSession::open(&local.unix, &options()).unwrap());
    until("the memory to come back", || local.all_free());
}

#[test]
fn tcp_answers_as_a_server_does() {
    let local = served();
    answers_as_a_server_does(&TcpSession::open(&local.tcp, &options()).unwrap());
    // Messages may go over the Unix socket too.
    answers_as_a_server_does(&TcpSession::open(&local.unix, &options()).unwrap());
    until("the memory to come back", || local.all_free());
}

#[test]
fn the_fake_answers_as_a_server_does() {
    answers_as_a_server_does(&FakeTransport::new(POOL));
}

#[test]
fn a_faulty_transport_without_a_script_changes_nothing() {
    let local = served();
    let tcp = TcpSession::open(&local.tcp, &options()).unwrap();
    answers_as_a_server_does(&FaultyTransport::new(Arc::new(tcp)));
    let shm = ShmSession::open(&local.unix, &options()).unwrap();
    answers_as_a_server_does(&FaultyTransport::new(Arc::new(shm)));
    let fake = FakeTransport::new(POOL);
    answers_as_a_server_does(&FaultyTransport::new(Arc::new(fake)));
}

#[test]
fn scripted_faults_show_as_they_should() {
    let local = served();
    let tcp = TcpSession::open(&local.tcp, &options()).unwrap();
    for inner in [
        Arc::new(tcp) as Arc<dyn Transport>,
        Arc::new(FakeTransport::new(POOL)),
    ] {
        let faulty = FaultyTransport::new(inner);
        let id = grant(&faulty, 4096).unwrap().grant;
        let mut lane = faulty.lane(LaneKind::Critical).unwrap();
        let seg = [Seg::new(id, 0, 8)];
        let mut now = [0; 8];
        lane.write_v(Class::Demand, &seg, b"original").unwrap();

        // Refused and not done.
        let refuse = || Fault::Refuse(Refusal::new(ErrorCode::TryAgain));
        faulty.push([refuse()]);
        let refused = lane.write_v(Class::Demand, &seg, b"changed!");
        assert_eq!(refusal(refused).0, ErrorCode::TryAgain);
        lane.read_v(Class::Demand, &seg, &mut now).unwrap();
        assert_eq!(&now, b"original");

        // One wrong bit, in a read only, and only this time.
        faulty.push([Fault::Corrupt, Fault::Corrupt]);
        lane.write_v(Class::Demand, &seg, b"original").unwrap();
        lane.read_v(Class::Demand, &seg, &mut now).unwrap();
        let wrong: u32 = now
            .iter()
            .zip(b"original")
            .map(|(x, y)| (x ^ y).count_ones())
            .sum();
        assert_eq!(wrong, 1);
        lane.read_v(Class::Demand, &seg, &mut now).unwrap();
        assert_eq!(&now, b"original");

        // Late, but right.
        faulty.push([Fault::Delay(3)]);
        let op = |verb, token| Operation {
            verb,
            class: Class::Demand,
            data: Buffer::new(8),
            token,
        };
        lane.post(op(Verb::Read(seg.to_vec()), 1)).unwrap();
        for look in 0..3 {
            assert!(lane.poll(PATIENCE).is_none(), "look {look}");
        }
        let mut done = lane.poll(PATIENCE).expect("late, not lost");
        assert_eq!(done.operation.data.as_mut(), b"original");

        // With others under way, the fault still meets the operation it was meant for.
        faulty.push([
            Fault::Pass,
            Fault::Pass,
            Fault::Corrupt,
            refuse(),
            Fault::Pass,
        ]);
        for token in 0..5 {
            lane.post(op(Verb::Read(seg.to_vec()), token)).unwrap();
        }
        let mut seen = Vec::new();
        while lane.under_way() > 0 {
            if let Some(mut done) = lane.poll(PATIENCE) {
                let right = done.operation.data.as_mut() == b"original";
                seen.push((done.operation.token, done.result.is_ok(), right));
            }
        }
        seen.sort_unstable();
        let expected = [
            (0, true, true),
            (1, true, true),
            (2, true, false),
            (3, false, false),
            (4, true, true),
        ];
        assert_eq!(seen, expected);

        // Lost once, lost for good, whatever is asked.
        faulty.push([Fault::Lose]);
        let lost = |error: NetError| {
            assert!(matches!(error, NetError::Lost(..)), "{error}");
            assert!(error.to_string().contains("a scripted fault"), "{error}");
        };
        lost(lane.read_v(Class::Demand, &seg, &mut now).unwrap_err());
        lost(lane.read_v(Class::Demand, &seg, &mut now).unwrap_err());
        lost(grant(&faulty, 4096).unwrap_err());
        assert_eq!(faulty.lost().as_deref(), Some("a scripted fault"));
    }
}

#[test]
fn a_lost_fake_fails_and_a_corrupted_one_lies() {
    let fake = FakeTransport::new(POOL);
    let id = grant(&fake, 4096).unwrap().grant;
    let mut lane = fake.lane(LaneKind::Bulk).unwrap();
    let seg = [Seg::new(id, 0, 4)];
    lane.write_v(Class::Prefetch, &seg, b"data").unwrap();
    fake.corrupt(id, 1);
    let mut now = [0; 4];
    lane.read_v(Class::Prefetch, &seg, &mut now).unwrap();
    assert_eq!(&now, b"d!ta");
    fake.lose("the machine burns");
    let error = lane.read_v(Class::Prefetch, &seg, &mut now).unwrap_err();
    assert!(matches!(error, NetError::Lost(..)) && error.to_string().contains("burns"));
    assert!(grant(&fake, 4096).is_err());
}

#[test]
fn lanes_that_come_and_go_can_be_had_again() {
    let local = served();
    for transport in [
        Box::new(TcpSession::open(&local.tcp, &options()).unwrap()) as Box<dyn Transport>,
        Box::new(ShmSession::open(&local.unix, &options()).unwrap()),
    ] {
        let id = grant(&*transport, 4096).unwrap().grant;
        // Far more than a session may have at a time; each must do its addition exactly once.
        for round in 0..200 {
            let mut lane = transport.lane(LaneKind::Critical).unwrap();
            assert_eq!(lane.fetch_add(id, 0, 1).unwrap(), round);
        }
    }
}

#[test]
fn more_lanes_than_a_session_may_have_are_refused_at_once() {
    let local = served();
    let session = TcpSession::open(&local.tcp, &options()).unwrap();
    let id = grant(&session, 4096).unwrap().grant;
    let mut lanes = Vec::new();
    let refused = loop {
        assert!(lanes.len() < 1000, "lanes without end");
        match session.lane(LaneKind::Critical) {
            Ok(mut lane) => {
                lane.fetch_add(id, 0, 1).unwrap();
                lanes.push(lane);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(lanes.len(), 15);
    assert!(refused.is_refusal(ErrorCode::TooManyLanes), "{refused}");
    assert_eq!(
        refused.to_string(),
        format!(
            "the server at {} refused: the session has 16 connections, as many as it may",
            local.tcp
        )
    );
    drop(lanes.pop());
    let mut lane = session.lane(LaneKind::Bulk).unwrap();
    assert_eq!(lane.fetch_add(id, 0, 1).unwrap(), 15);
}

#[test]
fn an_operation_that_is_none_completes_with_the_reason() {
    let local = served();
    let session = TcpSession::open(&local.tcp, &options()).unwrap();
    let mut lane = session.lane(LaneKind::Critical).unwrap();
    let op = Operation {
        verb: Verb::Read(Vec::new()),
        class: Class::Demand,
        data: Buffer::empty(),
        token: 3,
    };
    lane.post(op).unwrap();
    let done = lane.poll(PATIENCE).unwrap();
    assert_eq!(done.operation.token, 3);
    assert!(matches!(done.result, Err(OpError::BadSegments(_))));
}
