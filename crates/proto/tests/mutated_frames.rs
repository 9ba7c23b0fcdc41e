//! Mutated frames against a server: no panic, no growth, every refusal counted.
//!
//! A bounded run on the stable toolchain of what `fuzz/fuzz_targets/server_frames.rs` does without
//! end. Most mutants have their check made good again, so that they get past the first door.

mod common;

use common::{Client, Host, pool_config};
use muninn_proto::client::{Control, Verb};
use muninn_proto::server::Peer;
use muninn_types::{Bytes, GrantId, Nanos, SplitMix64};
use muninn_wire::{HEADER_LEN, Header, Seg, seal_frame};

const FRAMES: usize = 200_000;

/// The check over a frame's own bytes, right again after they were changed.
fn seal_again(frame: &mut Vec<u8>) {
    let Some(head) = frame.first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::decode(head) {
        let body = (header.body_len as usize).min(frame.len() - HEADER_LEN);
        let payload = frame.split_off(HEADER_LEN + body);
        seal_frame(frame, header, header.payload_len);
        frame.extend(payload);
    }
}

fn mutate(frame: &mut Vec<u8>, rng: &mut SplitMix64) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(frame.len() as u64) as usize;
        match rng.below(8) {
            0 => frame[at] ^= 1 << rng.below(8),
            1 => frame[at] = rng.next_u64() as u8,
            2 => frame[at] = [0, 1, 2, 0x7f, 0x80, 0xff][rng.below(6) as usize],
            3 => frame.truncate(at.max(1)),
            4 => frame.insert(at, rng.next_u64() as u8),
            // Another message with this body.
            5 if frame.len() > 3 => frame[3] = 1 + rng.below(20) as u8,
            _ => {}
        }
    }
    if rng.chance(0.85) {
        seal_again(frame);
    }
}

/// A frame of a client that has a grant, about that or about any other.
fn frames(client: &mut Client, own: GrantId, rng: &mut SplitMix64) -> Vec<u8> {
    let grant = match rng.chance(0.5) {
        true => own,
        false => GrantId(1 + rng.below(20)),
    };
    let seg = Seg::new(grant, rng.below(9000) as u32, 1 + rng.below(500) as u32);
    let verb = match rng.below(13) {
        0..=2 => Verb::Write(vec![seg]),
        3 | 4 => Verb::Read(vec![seg, seg]),
        5 => Verb::Control(Control::Grant {
            bytes: 1 + rng.below(20_000),
        }),
        6 => Verb::Control(Control::Release(vec![grant])),
        7 => Verb::Control(Control::Share(vec![grant])),
        8 => Verb::Control(Control::Adopt { ticket: [7; 16] }),
        9 => Verb::Control(Control::Revoke { ticket: [7; 16] }),
        10 => Verb::FetchAdd {
            grant,
            offset: 8 * rng.below(600) as u32,
            add: 1,
        },
        11 => Verb::Control(Control::Status {
            after: Default::default(),
        }),
        _ => Verb::Control(Control::Goodbye),
    };
    client.post(verb, vec![1; 1000]);
    let bytes = client.bytes();
    client.lane.fail("only its bytes are wanted");
    while client.lane.pop().is_some() {}
    bytes
}

#[test]
fn mutated_frames_neither_break_nor_grow_a_server() {
    let mut rng = SplitMix64::new(20_261_115);
    let mut host = Host::new(pool_config(512, 64));
    let mut witness = host.open("witness");
    let kept = witness.grant(&mut host, 4096).unwrap();
    witness.write(&mut host, kept, 0, &[0x5a; 4096]).unwrap();
    let mut clients: Vec<(Client, GrantId)> = Vec::new();
    for n in 0..FRAMES {
        if clients.len() < 4 {
            let mut attacker = host.open("attacker");
            let grant = attacker.grant(&mut host, 8192).unwrap_or_default();
            clients.push((attacker, grant));
        }
        let pick = rng.below(clients.len() as u64) as usize;
        let (attacker, grant) = &mut clients[pick];
        let mut frame = frames(attacker, *grant, &mut rng);
        let own = attacker.conn;
        mutate(&mut frame, &mut rng);
        // Now and then at the door, where nothing is known of the sender.
        let conn = if rng.chance(0.02) {
            host.accept(Peer::LOOPBACK, 0)
        } else {
            own
        };
        host.feed(conn, &frame);
        host.take_sent(conn);
        if conn != own {
            host.close(conn);
        }
        if !host.is_open(own) {
            host.close(own);
            clients.swap_remove(pick);
        }
        if n % 64 == 0 {
            host.pool.wipe_all().unwrap();
            host.now += Nanos::millis(500);
            witness.control(&mut host, Control::Heartbeat).unwrap();
            host.tick();
            // Closed connections leave sessions behind for a lease, and not for longer.
            assert!(host.shards[0].session_count() < 1400, "sessions grow");
            assert!(host.shards[0].connection_count() < 300, "connections grow");
            assert!(host.pool.stats().granted <= Bytes::kib(512));
        }
    }
    assert_eq!(
        witness.read(&mut host, kept, 0, 4096).unwrap(),
        [0x5a; 4096]
    );
    for (client, _) in clients {
        host.close(client.conn);
    }
    host.close(witness.conn);
    for _ in 0..2 {
        host.now += common::LEASE + Nanos(1);
        host.tick();
    }
    host.pool.wipe_all().unwrap();
    let stats = host.pool.stats();
    assert_eq!(
        (stats.granted, stats.wiping, stats.extents),
        (Bytes::ZERO, Bytes::ZERO, 0)
    );
    assert_eq!(host.pool.free_bytes(), Bytes::kib(512), "memory was lost");
    assert_eq!(host.shards[0].session_count(), 0);
    assert_eq!(host.shards[0].connection_count(), 0);
    let refusals = host.shared.registry.refusals();
    let reasons: Vec<&str> = refusals.iter().map(|(reason, _)| *reason).collect();
    for reason in [
        "bad-check",
        "bad-magic",
        "unknown-message",
        "no-grant",
        "out-of-bounds",
    ] {
        assert!(
            reasons.contains(&reason),
            "no mutant was a {reason}: {reasons:?}"
        );
    }
}
