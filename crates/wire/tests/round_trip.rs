//! What is encoded decodes to the same, and no bytes at all make the decoder panic.

use muninn_types::{
    Class, GrantId, LaneId, LaneKind, Nanos, SegmentId, ServiceId, SessionId, Spread, Tag,
};
use muninn_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn text(max: usize) -> impl Strategy<Value = ShortText> {
    "[a-zA-Z0-9 ._-]{0,64}".prop_map(move |t| ShortText::lossy(&t, max))
}

fn hello() -> impl Strategy<Value = Hello> {
    let intent = prop_oneof![
        (any::<bool>(), text(MAX_NAME)).prop_map(|(shm, name)| Intent::Open {
            transport: if shm { Transport::Shm } else { Transport::Tcp },
            name,
        }),
        (any::<u64>(), any::<u8>(), 0u8..3).prop_map(|(session, lane, kind)| Intent::Attach {
            session: SessionId(session),
            lane: LaneId(lane),
            kind: LaneKind::from_byte(kind).unwrap(),
        }),
        Just(Intent::Observe),
    ];
    let lock = (0u8..3).prop_map(|lock| Lock::from_byte(lock).unwrap());
    let noise = vec(any::<u8>(), 0..100);
    (any::<[u8; 16]>(), any::<u32>(), intent, lock, noise).prop_map(
        |(nonce, pid, intent, lock, noise)| Hello {
            nonce,
            pid,
            intent,
            lock,
            noise,
        },
    )
}

fn segs() -> impl Strategy<Value = Vec<Seg>> {
    vec((any::<u64>(), any::<u32>(), 1u32..=4096), 1..=MAX_SEGS).prop_map(|list| {
        list.into_iter()
            .map(|(g, offset, len)| Seg::new(GrantId(g), offset, len))
            .collect()
    })
}

/// Encodes, decodes the frame, and hands the decoded request to `same`.
fn through_the_wire(request: &Request<'_>) -> Result<(), TestCaseError> {
    let mut frame = Vec::new();
    request.encode(Class::Demand, Tag(9), &mut frame);
    let head: [u8; HEADER_LEN] = frame[..HEADER_LEN].try_into().unwrap();
    let header = Header::decode(&head).unwrap();
    prop_assert_eq!(header.body_len as usize, frame.len() - HEADER_LEN);
    prop_assert_eq!(header.tag, Tag(9));
    Header::verify(&head, &frame[HEADER_LEN..]).unwrap();
    prop_assert_eq!(
        &Request::decode(&header, &frame[HEADER_LEN..]).unwrap(),
        request
    );
    Ok(())
}

proptest! {
    #[test]
    fn hellos(hello in hello()) {
        through_the_wire(&Request::Hello(hello))?;
    }

    #[test]
    fn fixed_requests(a: u64, b: u64, c: u64, offset: u32, ticket: [u8; 16], proof: [u8; 32]) {
        let grant = GrantId(a);
        for request in [
            Request::Prove { proof, noise: &ticket },
            Request::Heartbeat,
            Request::Goodbye,
            Request::Grant { bytes: a },
            Request::Adopt { ticket },
            Request::Revoke { ticket },
            Request::Status { after: SessionId(a) },
            Request::Drain { deadline_ms: b },
            Request::TakeOver,
            Request::Agent(&proof),
            Request::CompareSwap { grant, offset, expect: b, new: c },
            Request::FetchAdd { grant, offset, add: b },
            Request::Close { service: ServiceId(a) },
            Request::Open(Opening::Guest(ServiceId(b))),
            Request::Call(Call {
                service: ServiceId(a),
                wic: offset,
                deadline_us: offset,
                idempotent: a & 1 == 1,
                args: &proof,
            }),
        ] {
            through_the_wire(&request)?;
        }
    }

    #[test]
    fn services(name in "[a-z]{1,64}", a: u64, locks in 0..=MAX_LOCKS, version: u32) {
        let name = ShortText::lossy(&name, MAX_NAME);
        through_the_wire(&Request::Open(Opening::Named { name: name.clone(), bytes: a, locks }))?;
        through_the_wire(&Request::Resolve { name: name.clone(), version })?;
        through_the_wire(&Request::Note { text: name })?;
        let info = ServiceInfo { service: ServiceId(a), bytes: 1 << 30, shift: 12, locks, base: 1 << 20 };
        let mut body = Vec::new();
        info.encode(&mut body);
        prop_assert_eq!(ServiceInfo::decode(&body).unwrap(), info);
        body.clear();
        let called = Called { accesses: version, took_ns: locks, reply: b"done" };
        called.encode(&mut body);
        prop_assert_eq!(Called::decode(&body).unwrap(), called);
    }

    #[test]
    fn pushed_functions(hash: [u8; 32], a: u32, c: u64, yes: bool, name in "[a-z]{1,128}", bytes in vec(any::<u8>(), 0..=MODULE_PART)) {
        let owner = ShortText::lossy(&name, MAX_NAME);
        let name = ShortText::lossy(&name, MAX_WIC_NAME);
        let len = MAX_MODULE as u32;
        for request in [
            WicsRequest::Part { hash, len, offset: a % (len - bytes.len() as u32), bytes: bytes.clone() },
            WicsRequest::State { hash },
            WicsRequest::List { after: a },
            WicsRequest::Remove { hash },
            WicsRequest::Find { owner: owner.clone(), name: name.clone(), version: a },
            WicsRequest::Fetch { hash, offset: a },
        ] {
            through_the_wire(&Request::Wics(request))?;
        }
        let info = PushedInfo {
            number: a | FIRST_PUSHED, hash, module_len: a % len, version: a, idempotent: yes, common: !yes,
            owner: owner.clone(), name, calls: c,
        };
        for reply in [
            WicsReply::State(ModuleState::Missing),
            WicsReply::State(ModuleState::Receiving(a)),
            WicsReply::State(ModuleState::Translating),
            WicsReply::State(ModuleState::Ready(a)),
            WicsReply::State(ModuleState::Refused(owner)),
            WicsReply::List(vec![info.clone(); WicsReply::LIST_MAX]),
            WicsReply::Found(info),
            WicsReply::Part(bytes),
        ] {
            let mut body = Vec::new();
            reply.encode(&mut body);
            prop_assert!(body.len() <= MAX_BODY);
            prop_assert_eq!(WicsReply::decode(&body).unwrap(), reply);
        }
    }

    /// A part says how long the whole is; nobody makes room for more than a module may have.
    #[test]
    fn lengths_of_modules_are_bounded(len: u32, offset: u32, bytes in vec(any::<u8>(), 0..64)) {
        let fits = u64::from(offset) + bytes.len() as u64 <= u64::from(len) && len > 0 && len as usize <= MAX_MODULE;
        let part = WicsRequest::Part { hash: [1; 32], len, offset, bytes };
        let mut body = Vec::new();
        part.encode(&mut body);
        prop_assert_eq!(WicsRequest::decode(&body).is_ok(), fits);
    }

    #[test]
    fn lists(segs in segs(), mut ids in vec(any::<u64>(), 1..=MAX_GRANTS)) {
        let mut body = Vec::new();
        Seg::encode_list(&segs, &mut body);
        let decoded = Segs::decode(&body).unwrap();
        prop_assert!(decoded.iter().eq(segs.iter().copied()));
        through_the_wire(&Request::Read(decoded))?;
        through_the_wire(&Request::Write(decoded))?;

        ids.sort_unstable();
        ids.dedup();
        let body: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        through_the_wire(&Request::Release(GrantList::decode(&body).unwrap()))?;
        through_the_wire(&Request::Share(GrantList::decode(&body).unwrap()))?;
    }

    #[test]
    fn replies(nonce: [u8; 16], proof: [u8; 32], locked: bool, a: u64, b: u64, n: u32, name in text(64)) {
        let mut body = Vec::new();
        let lock = if locked { Lock::Shared } else { Lock::Open };
        let challenge = Challenge { nonce, lock, noise: proof.to_vec() };
        challenge.encode(&mut body);
        prop_assert_eq!(Challenge::decode(&body).unwrap(), challenge);

        body.clear();
        let welcome = Welcome { session: SessionId(a), lease_ms: n, max_grant_bytes: b, server: name.clone(), secret: proof };
        welcome.encode(&mut body);
        prop_assert_eq!(Welcome::decode(&body).unwrap(), welcome);

        body.clear();
        let info = GrantInfo {
            grant: GrantId(a), bytes: b, segment: SegmentId(n), incarnation: n,
            segment_bytes: b, segment_offset: a, descriptor: locked,
        };
        info.encode(&mut body);
        prop_assert_eq!(GrantInfo::decode(&body).unwrap(), info);
        info.encode(&mut body);
        prop_assert_eq!(decode_adopted(&body).unwrap(), vec![info, info]);

        for notice in [Notice::Drain { left_ms: a }, Notice::DrainCancelled, Notice::Stopping] {
            body.clear();
            notice.encode(&mut body);
            prop_assert_eq!(Notice::decode(&body).unwrap(), notice);
        }

        for version in [VERSION_MIN, VERSION] {
            body.clear();
            let asked_bytes = if version >= VERSION_ASKS { b } else { 0 };
            let report =
                DrainReport { draining: locked, left_ms: a, held_bytes: b, holders: n, asked_bytes };
            report.encode(version, &mut body);
            prop_assert_eq!(DrainReport::decode(version, &body).unwrap(), report);
        }

        for &code in ErrorCode::ALL {
            body.clear();
            let refusal = Refusal::with(code, a, b).remark(name.as_str());
            refusal.encode(&mut body);
            prop_assert_eq!(Refusal::decode(ErrorCode::from_number(code as u16), &body).unwrap(), refusal);
        }
    }

    #[test]
    fn statuses(name in text(64), n: u64, count in 0usize..40) {
        let session = SessionStatus { id: SessionId(n), name: name.clone(), requests: n, ..Default::default() };
        let mut page = StatusPage { sessions: vec![session; count], next: Some(SessionId(n | 1)), ..Default::default() };
        page.server.name = name.clone();
        let service = ServiceStatus {
        name: ShortText::new(&"s".repeat(MAX_NAME)).unwrap(),
        ..ServiceStatus::default()
    };
    page.server.services = vec![service; StatusPage::MAX_SERVICES];
    page.server.refusals = vec![(name, n)];
        page.server.traffic[3].bytes_in = n;
        let mut times = Box::<ServerTimes>::default();
        times.classes[2].note(Nanos(n));
        times.lag.note(Nanos(n / 3));
        for times in [None, Some(times)] {
            page.server.times = times;
            let mut payload = Vec::new();
            page.encode(VERSION, &mut payload);
            prop_assert_eq!(&StatusPage::decode(VERSION, &payload).unwrap(), &page);
            payload.clear();
            page.encode(VERSION_TIMES - 1, &mut payload);
            let old = StatusPage::decode(VERSION_TIMES - 1, &payload).unwrap();
            prop_assert_eq!(old.server.times, None);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(mut head: [u8; 32], kind in 0u8..40, body in vec(any::<u8>(), 0..=MAX_BODY), tamed: bool) {
        if tamed {
            // Most random headers fail at the magic; these get as far as the bodies.
            head[..3].copy_from_slice(&[b'M', b'N', VERSION]);
            head[3] = kind;
            head[4] %= 9;
            head[5..8].fill(0);
            head[16..32].fill(0);
        }
        if let Ok(header) = Header::decode(&head) {
            let _ = Header::verify(&head, &body);
            let _ = Request::decode(&header, &body);
        }
        let _ = (Hello::decode(&body), Challenge::decode(&body), Welcome::decode(&body));
        let _ = (GrantInfo::decode(&body), decode_adopted(&body), decode_old_value(&body));
        let _ = (Notice::decode(&body), DrainReport::decode(3, &body), DrainReport::decode(4, &body), StatusPage::decode(4, &body), StatusPage::decode(5, &body));
        let _ = (ServiceInfo::decode(&body), Called::decode(&body), WicsReply::decode(&body));
        let _ = (Segs::decode(&body), GrantList::decode(&body), Refusal::decode(ErrorCode::Internal, &body));
    }
}

#[test]
fn a_full_status_page_fits_a_payload() {
    let session = SessionStatus {
        name: ShortText::new(&"n".repeat(MAX_NAME)).unwrap(),
        note: ShortText::new(&"n".repeat(255)).unwrap(),
        ..SessionStatus::default()
    };
    let sessions = vec![session; StatusPage::MAX_SESSIONS];
    let mut page = StatusPage {
        sessions,
        ..StatusPage::default()
    };
    page.server.refusals = vec![(ShortText::new(&"r".repeat(64)).unwrap(), 1); 100];
    let full = Spread {
        counts: [u64::MAX; Spread::BUCKETS],
        sum_ns: u64::MAX,
    };
    page.server.times = Some(Box::new(ServerTimes {
        classes: [full; Class::COUNT],
        lag: full,
    }));
    page.server.services = vec![
        ServiceStatus {
            name: ShortText::new(&"s".repeat(64)).unwrap(),
            ..ServiceStatus::default()
        };
        StatusPage::MAX_SERVICES
    ];
    let mut payload = Vec::new();
    page.encode(VERSION, &mut payload);
    assert!(payload.len() <= MAX_PAYLOAD, "{} bytes", payload.len());
}
