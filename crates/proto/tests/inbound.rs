//! A stream of bytes means the same in whatever pieces it arrives.

mod common;

use common::{Host, pool_config};
use muninn_proto::client::{Control, Lane, Operation, Verb};
use muninn_types::{Class, GrantId, SplitMix64};
use muninn_wire::Seg;
use proptest::prelude::*;

/// A conversation of one client, as bytes; fed to a server in pieces. What the server answered, and
/// what it kept.
fn converse(seed: u64, piece: &mut dyn FnMut() -> usize) -> (Vec<u8>, Vec<u8>) {
    let mut rng = SplitMix64::new(seed);
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grants = [
        client.grant(&mut host, 4096).unwrap(),
        client.grant(&mut host, 8192).unwrap(),
    ];
    for _ in 0..20 {
        let grant = match rng.below(8) {
            0 => GrantId(99), // refused: its payload must be skipped
            n => grants[n as usize % 2],
        };
        let len = 1 + rng.below(3000) as u32;
        let seg = |rng: &mut SplitMix64| Seg::new(grant, rng.below(1096) as u32, len);
        let segs: Vec<Seg> = (0..=rng.below(3)).map(|_| seg(&mut rng)).collect();
        let mut data = vec![0; segs.iter().map(|s| s.len as usize).sum()];
        rng.fill(&mut data);
        let verb = match rng.below(6) {
            0 => Verb::Read(segs),
            1 => Verb::Control(Control::Heartbeat),
            2 => Verb::FetchAdd {
                grant,
                offset: 8,
                add: 3,
            },
            _ => Verb::Write(segs),
        };
        client.post(verb, data);
    }
    let bytes = client.bytes();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (now, later) = rest.split_at(piece().clamp(1, rest.len()));
        host.feed(client.conn, now);
        rest = later;
    }
    let answers = host.take_sent(client.conn);
    client.lane.receive(&answers).unwrap();
    while client.lane.pop().is_some() {}
    assert_eq!(client.lane.under_way(), 0, "something went unanswered");
    let mut kept = client.read(&mut host, grants[0], 0, 4096).unwrap();
    kept.extend(client.read(&mut host, grants[1], 0, 8192).unwrap());
    (answers, kept)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn byte_by_byte_is_all_at_once(seed: u64, cuts: u64) {
        let whole = converse(seed, &mut || usize::MAX);
        prop_assert_eq!(&converse(seed, &mut || 1), &whole);
        let mut rng = SplitMix64::new(cuts);
        prop_assert_eq!(&converse(seed, &mut || rng.below(500) as usize), &whole);
    }

    /// The client's side of the same: answers in pieces complete the same requests.
    #[test]
    fn answers_in_pieces_are_the_same_answers(seed: u64, cuts: u64) {
        let mut rng = SplitMix64::new(seed);
        let mut host = Host::new(pool_config(64, 64));
        let mut client = host.open("a");
        let grant = client.grant(&mut host, 8192).unwrap();
        let mut content = vec![0; 8192];
        rng.fill(&mut content);
        client.write(&mut host, grant, 0, &content).unwrap();
        let mut lane: Lane<Vec<u8>> = Lane::new(16);
        for _ in 0..8 {
            let (offset, len) = (rng.below(4096) as u32, 1 + rng.below(4096) as u32);
            let verb = Verb::Read(vec![Seg::new(grant, offset, len)]);
            let operation = Operation {
                verb,
                class: Class::Demand,
                data: vec![0; len as usize],
                token: u64::from(offset),
            };
            lane.post(operation).unwrap();
        }
        client.lane = lane;
        let bytes = client.bytes();
        host.feed(client.conn, &bytes);
        let answers = host.take_sent(client.conn);
        let mut pieces = SplitMix64::new(cuts);
        let mut rest = &answers[..];
        while !rest.is_empty() {
            let n = (1 + pieces.below(300) as usize).min(rest.len());
            client.lane.receive(&rest[..n]).unwrap();
            rest = &rest[n..];
        }
        for _ in 0..8 {
            let done = client.lane.pop().unwrap();
            let at = done.operation.token as usize;
            let data = &done.operation.data;
            prop_assert_eq!(data, &content[at..at + data.len()]);
        }
    }
}

#[test]
fn a_server_that_answers_nonsense_is_cut_and_not_believed() {
    let mut rng = SplitMix64::new(1);
    for _ in 0..3000 {
        let mut host = Host::new(pool_config(64, 64));
        let mut client = host.open("a");
        let grant = client.grant(&mut host, 4096).unwrap();
        client.post(Verb::Read(vec![Seg::new(grant, 0, 100)]), vec![7; 100]);
        client.post(Verb::Control(Control::Heartbeat), Vec::new());
        let bytes = client.bytes();
        host.feed(client.conn, &bytes);
        let mut answers = host.take_sent(client.conn);
        let at = rng.below(answers.len() as u64) as usize;
        answers[at] ^= 1 << rng.below(8);
        // A payload is not covered by a check; everything else is noticed or waited for.
        let before = client.lane.under_way();
        let told = client.lane.receive(&answers);
        assert!(told.is_err() || client.lane.under_way() <= before);
        client.come_back(&mut host);
        client.exchange(&mut host);
        assert_eq!(client.lane.under_way(), 0);
    }
}
