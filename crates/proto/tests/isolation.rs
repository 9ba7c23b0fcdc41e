//! Whatever a client sends, in whatever order, it neither reads nor changes another's bytes.

mod common;

use common::{Client, Host, pool_config};
use muninn_proto::client::{Control, Verb};
use muninn_types::GrantId;
use muninn_wire::Seg;
use proptest::prelude::*;

const SECRET: u8 = 0x5a;
const OURS: u8 = 0x11;

/// Ids small enough to hit the other client's grants again and again.
fn id() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..12, 1 => any::<u64>()]
}

fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => 0u32..40_000,
        1 => (0u32..12).prop_map(|page| page * 4096),
        1 => (u32::MAX - 9000)..=u32::MAX,
    ]
}

fn segs() -> impl Strategy<Value = Vec<Seg>> {
    let seg = (id(), offset(), 1u32..9000);
    let seg = seg.prop_map(|(grant, offset, len)| Seg::new(GrantId(grant), offset, len));
    proptest::collection::vec(seg, 1..6)
}

fn verb() -> impl Strategy<Value = Verb> {
    let ids = || proptest::collection::btree_set(id(), 1..4);
    let list = |set: std::collections::BTreeSet<u64>| set.into_iter().map(GrantId).collect();
    prop_oneof![
        6 => segs().prop_map(Verb::Read),
        6 => segs().prop_map(Verb::Write),
        2 => (id(), offset()).prop_map(|(grant, offset)| Verb::FetchAdd {
            // Flips one bit, so that no sum looks like the other's bytes.
            grant: GrantId(grant), offset, add: 1 << 63,
        }),
        2 => (id(), offset(), any::<bool>()).prop_map(|(grant, offset, zero)| Verb::CompareSwap {
            grant: GrantId(grant),
            offset,
            expect: if zero { 0 } else { u64::from_le_bytes([SECRET; 8]) },
            new: 1,
        }),
        3 => (1u64..40_000).prop_map(|bytes| Verb::Control(Control::Grant { bytes })),
        2 => ids().prop_map(move |set| Verb::Control(Control::Release(list(set)))),
        1 => ids().prop_map(move |set| Verb::Control(Control::Share(list(set)))),
        1 => any::<[u8; 16]>().prop_map(|ticket| Verb::Control(Control::Adopt { ticket })),
        1 => Just(Verb::Control(Control::Drain { deadline_ms: 0 })),
    ]
}

fn fill(client: &mut Client, host: &mut Host, grant: GrantId, bytes: u32) {
    client
        .write(host, grant, 0, &vec![SECRET; bytes as usize])
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_message_reaches_another_clients_memory(
        verbs in proptest::collection::vec((verb(), any::<bool>()), 1..60),
        second_lane: bool,
    ) {
        let mut host = Host::new(pool_config(256, 64));
        let (mut other, mut ours) = (host.open("other"), host.open("ours"));
        let mut lane = if second_lane {
            ours.attach(&mut host, 3, 0).unwrap()
        } else {
            host.open("ours too")
        };
        // Theirs lie beside ours in the same segments, and some of them were ours before.
        let mut theirs = Vec::new();
        for bytes in [4096u32, 16384, 4096] {
            let before = ours.grant(&mut host, u64::from(bytes)).unwrap();
            ours.write(&mut host, before, 0, &vec![OURS; bytes as usize]).unwrap();
            ours.release(&mut host, &[before]).unwrap();
            host.pool.wipe_all().unwrap();
            let grant = other.grant(&mut host, u64::from(bytes)).unwrap();
            let fresh = other.read(&mut host, grant, 0, bytes).unwrap();
            prop_assert!(fresh.iter().all(|b| *b == 0), "a fresh grant is not zero");
            fill(&mut other, &mut host, grant, bytes);
            theirs.push((grant, bytes));
            ours.grant(&mut host, 4096).unwrap();
        }
        for (verb, wipe) in verbs {
            let len = match &verb {
                Verb::Read(segs) | Verb::Write(segs) => segs.iter().map(|s| s.len as usize).sum(),
                _ => 0,
            };
            if let Ok((_, data)) = lane.call(&mut host, verb.clone(), vec![OURS; len])
                && matches!(verb, Verb::Read(_))
            {
                prop_assert!(!data.contains(&SECRET), "{verb:?} read another's bytes");
            }
            let _ = ours.call(&mut host, verb, vec![OURS; len]);
            if wipe {
                host.pool.wipe_all().unwrap();
            }
        }
        for (grant, bytes) in theirs {
            let data = other.read(&mut host, grant, 0, bytes).unwrap();
            prop_assert!(data.iter().all(|b| *b == SECRET), "another's bytes were changed");
            other.write(&mut host, grant, 0, &[1]).expect("another's grant was frozen");
        }
    }
}

/// A request is looked up by its session and its grant and touches nothing else: with a thousand
/// others beside it, it gives the same answer from the same bytes and disturbs nobody.
#[test]
fn a_thousand_sessions_leave_a_request_as_it_was() {
    let answers = |others: usize| {
        let mut host = Host::new(pool_config(8192, 64));
        let mut first = host.open("first");
        let grant = first.grant(&mut host, 4096).unwrap();
        for i in 0..others {
            let mut client = host.open(&format!("c{i}"));
            client.grant(&mut host, 4096).unwrap();
        }
        host.out.spans.clear();
        first.write(&mut host, grant, 0, b"same").unwrap();
        let read = first.read(&mut host, grant, 0, 4).unwrap();
        // One span for one run of bytes, whatever else is in the segment.
        (read, host.out.fenced.len(), host.out.notices.len())
    };
    assert_eq!(answers(0), answers(1000));
}
