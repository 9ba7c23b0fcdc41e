//! A client cannot read or write what is not its own: not by any message in any order, not through
//! memory it maps, not in what others had before, and not by breaking the files it was given.

mod common;

use common::*;
use muninn_net::{Pool, ShmSession, TcpSession};
use muninn_proto::auth::SessionSecret;
use muninn_proto::client::Purpose;
use muninn_sys::memory::Mapping;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, GrantId, LaneId, LaneKind, ServerId, SplitMix64, Tag};
use muninn_wire::{
    ErrorCode, GrantInfo, GrantList, Kind, MAX_PAYLOAD, Request, Seg, Transport as Wire,
};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use std::time::Instant;

/// Every byte of the victim is this, so that a single one is noticed anywhere.
const SECRET: u8 = 0xB7;
const VICTIM_BYTES: usize = 256 << 10;

fn attacks() -> u64 {
    let wanted = std::env::var("MUNINN_ATTACKS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(6000)
}

/// A number that tends to be on an edge.
fn edge(rng: &mut SplitMix64, size: u64) -> u32 {
    let edges = [
        0,
        1,
        7,
        8,
        4095,
        4096,
        4097,
        size - 8,
        size - 1,
        size,
        size + 1,
        MAX_PAYLOAD as u64,
        MAX_PAYLOAD as u64 + 1,
        1 << 31,
        u64::from(u32::MAX) - 4096,
        u64::from(u32::MAX) - 7,
        u64::from(u32::MAX),
    ];
    match rng.below(4) {
        0 => rng.next_u64() as u32,
        1 => rng.below(2 * size) as u32,
        _ => edges[rng.below(edges.len() as u64) as usize] as u32,
    }
}

/// One connection of an attacker, and what it may call its own.
struct Attacker {
    raw: Raw,
    own: Vec<GrantInfo>,
}

impl Attacker {
    fn new(address: &Address, transport: Wire) -> Attacker {
        let mut raw = Raw::open(address, transport);
        let own = [4096, 16384, 65536].map(|bytes| raw.grant(bytes)).into();
        Attacker { raw, own }
    }

    fn came_back(&mut self, address: &Address) -> bool {
        let mut raw = Raw::stranger(address);
        let purpose = Purpose::Attach {
            session: self.raw.session,
            secret: self.raw.secret.clone(),
            lane: LaneId(0),
            kind: LaneKind::Control,
        };
        let back = raw.shake(purpose).is_ok();
        self.raw.stream = raw.stream;
        back
    }

    fn id(&self, rng: &mut SplitMix64, victim: &[GrantId]) -> GrantId {
        match rng.below(8) {
            0..4 => match self.own.len() as u64 {
                0 => GrantId(0),
                n => self.own[rng.below(n) as usize].grant,
            },
            4 | 5 => victim[rng.below(victim.len() as u64) as usize],
            6 => GrantId(rng.below(64)),
            _ => GrantId(rng.next_u64()),
        }
    }

    /// A frame of any kind, well sealed, with a body that is often right in form.
    fn frame(&mut self, rng: &mut SplitMix64, victim: &[GrantId]) -> Vec<u8> {
        let kinds = [
            Kind::Read,
            Kind::Read,
            Kind::Read,
            Kind::Write,
            Kind::Write,
            Kind::CompareSwap,
            Kind::FetchAdd,
            Kind::Grant,
            Kind::Release,
            Kind::Share,
            Kind::Adopt,
            Kind::Status,
            Kind::Heartbeat,
            Kind::Drain,
        ];
        let kind = match rng.below(40) {
            0 => Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize],
            _ => kinds[rng.below(kinds.len() as u64) as usize],
        };
        let mut body = Vec::new();
        let mut payload_len = 0;
        match kind {
            Kind::Read | Kind::Write => {
                let count = match rng.below(8) {
                    0 => rng.below(70),
                    _ => 1 + rng.below(4),
                };
                for _ in 0..count {
                    let id = self.id(rng, victim);
                    let len = match rng.below(4) {
                        0 => edge(rng, 16384),
                        _ => 1 + rng.below(4096) as u32,
                    };
                    let seg = Seg::new(id, edge(rng, 16384), len);
                    body.extend_from_slice(&seg.encode());
                    payload_len = u32::wrapping_add(payload_len, len);
                }
                if kind == Kind::Read {
                    payload_len = 0;
                }
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                body.extend_from_slice(&self.id(rng, victim).0.to_le_bytes());
                body.extend_from_slice(&edge(rng, 16384).to_le_bytes());
                let words = if kind == Kind::FetchAdd { 1 } else { 2 };
                for _ in 0..words {
                    body.extend_from_slice(&rng.below(3).to_le_bytes());
                }
            }
            Kind::Release | Kind::Share => {
                for _ in 0..1 + rng.below(2) {
                    let id = match rng.below(6) {
                        // Mostly the victim's: its own would soon be gone.
                        0 => self.id(rng, victim),
                        _ => victim[rng.below(victim.len() as u64) as usize],
                    };
                    body.extend_from_slice(&id.0.to_le_bytes());
                }
            }
            Kind::Adopt => body.extend_from_slice(&pattern(rng.next_u64(), 16)),
            Kind::Grant => body.extend_from_slice(&u64::from(edge(rng, 16384)).to_le_bytes()),
            Kind::Status | Kind::Drain => body.extend_from_slice(&rng.next_u64().to_le_bytes()),
            Kind::Hello | Kind::Prove => body = pattern(rng.next_u64(), rng.below(80) as usize),
            _ => {}
        }
        let tag = self.raw.tag();
        let mut frame = sealed(kind, Class::Demand, tag, &body, payload_len);
        if payload_len as usize <= MAX_PAYLOAD {
            frame.resize(frame.len() + payload_len as usize, 0xEE);
        }
        frame
    }
}

#[test]
fn no_message_reaches_another_clients_bytes() {
    for (seed, transport) in [(1, Wire::Tcp), (2, Wire::Tcp), (3, Wire::Shm)] {
        let local = Local::start(config(Bytes::mib(64)));
        let address = if seed == 1 { &local.tcp } else { &local.unix };
        // Interleaved with the attacker's own, so that neighbours in the pool are the victim's.
        let mut rng = SplitMix64::new(seed);
        let mut attacker = Attacker::new(address, transport);
        let victim = TcpSession::open(&local.tcp, &options()).unwrap();
        let victim = Pool::new(vec![std::sync::Arc::new(victim)], options()).unwrap();
        let mapped = Pool::connect(&local.unix.to_string(), options()).unwrap();
        let kept = [
            victim.grant(Bytes::kib(4)).unwrap(),
            victim.grant(Bytes::kib(VICTIM_BYTES as u64 >> 10)).unwrap(),
            victim.grant(Bytes::kib(16)).unwrap(),
        ];
        let kept_mapped = mapped.grant(Bytes::kib(64)).unwrap();
        for grant in &kept {
            let bytes = vec![SECRET; grant.bytes.0 as usize];
            victim.write(grant, 0, &bytes).unwrap();
        }
        mapped.write(&kept_mapped, 0, &[SECRET; 65536]).unwrap();
        let mut ids: Vec<GrantId> = kept.iter().map(|grant| grant.id).collect();
        ids.push(kept_mapped.id);

        let (mut refused, mut read) = (0, 0);
        for round in 0..attacks() {
            let frame = attacker.frame(&mut rng, &ids);
            let sent = attacker.raw.try_send(&frame);
            let reply = if sent { attacker.raw.recv() } else { None };
            let Some(reply) = reply else {
                // Thrown out: comes back, as somebody new if its session is over.
                if !attacker.came_back(address) {
                    attacker = Attacker::new(address, transport);
                }
                continue;
            };
            assert!(
                !reply.payload.contains(&SECRET) || reply.header.kind == Kind::StatusReply,
                "seed {seed}, round {round}: the victim's bytes, in {:?}",
                reply.header
            );
            refused += u64::from(reply.code().is_some());
            read += reply.payload.len();
            if reply.header.kind == Kind::GrantReply && reply.code().is_none() {
                let info = GrantInfo::decode(&reply.body).unwrap();
                assert!(!ids.contains(&info.grant), "the victim's grant, again");
                attacker.own.push(info);
                if attacker.own.len() > 16 {
                    let list: Vec<GrantId> = attacker.own.drain(3..).map(|i| i.grant).collect();
                    let body = common::list(&list);
                    let release = Request::Release(GrantList::decode(&body).unwrap());
                    attacker.raw.ask(&release, &[]);
                }
            }
        }
        println!("seed {seed}: {refused} refused, {read} bytes of its own read");
        assert!(refused > attacks() / 4, "the attack was no attack");
        if transport == Wire::Tcp {
            assert!(read > 1 << 16, "the attacker could not read its own");
        }
        for grant in &kept {
            let mut back = vec![0; grant.bytes.0 as usize];
            victim.read(grant, 0, &mut back).unwrap();
            assert!(back.iter().all(|b| *b == SECRET), "the victim was written");
            victim
                .write(grant, 0, &back)
                .expect("the victim was frozen");
        }
        let mut back = vec![0; 65536];
        mapped.read(&kept_mapped, 0, &mut back).unwrap();
        assert!(back.iter().all(|b| *b == SECRET), "the victim was written");
        assert!(local.server.is_healthy());
        drop((victim, mapped, attacker));
        until("all memory to come back", || local.all_free());
    }
}

#[test]
fn nobody_joins_another_clients_session() {
    let local = Local::start(config(Bytes::mib(8)));
    let victim = Raw::open(&local.tcp, Wire::Tcp);
    let attacker = Raw::open(&local.tcp, Wire::Tcp);
    for secret in [SessionSecret::none(), attacker.secret.clone()] {
        for address in local.both() {
            let mut raw = Raw::stranger(address);
            let purpose = Purpose::Attach {
                session: victim.session,
                secret: secret.clone(),
                lane: LaneId(1),
                kind: LaneKind::Critical,
            };
            raw.shake(purpose).unwrap_err();
        }
    }
    assert_eq!(local.refused("wrong-key"), 4);
    // The right secret is for the right session only.
    victim.attach(&local.tcp, 1, LaneKind::Critical);
}

/// The attacker's own memory files, whole.
fn map_all(raw: &mut Raw, infos: &[GrantInfo]) -> Vec<(Mapping, std::os::fd::OwnedFd)> {
    let mut maps = Vec::new();
    for info in infos.iter().filter(|info| info.descriptor) {
        let fd = raw.fds.pop_front().expect("a descriptor for each segment");
        let size = rustix::fs::fstat(&fd).unwrap().st_size as u64;
        assert_eq!(size, info.segment_bytes, "the file is its segment");
        let map = Mapping::options().shared();
        maps.push((map.file(&fd, 0, Bytes(size)).unwrap(), fd));
    }
    assert!(raw.fds.is_empty(), "descriptors that were not announced");
    maps
}

fn contains(map: &Mapping, byte: u8) -> bool {
    let mut page = [0; 4096];
    (0..map.len() as u64).step_by(4096).any(|at| {
        // Cut off already: nothing to see there.
        map.read_at(at, &mut page).is_ok() && page.contains(&byte)
    })
}

#[test]
fn a_client_maps_nothing_but_its_own_segments() {
    let local = Local::start(config(Bytes::mib(64)));
    let pools: Vec<Pool> = [&local.unix, &local.tcp, &local.unix]
        .iter()
        .map(|address| Pool::connect(&address.to_string(), options()).unwrap())
        .collect();
    let mut attacker = Raw::open(&local.unix, Wire::Shm);
    let mut infos = Vec::new();
    for round in 0..6 {
        // Turn by turn, so that segments would be shared if they could be.
        infos.push(attacker.grant(4096 << round));
        for pool in &pools {
            let grant = pool.grant(Bytes::kib(64)).unwrap();
            pool.write(&grant, 0, &[SECRET; 65536]).unwrap();
        }
    }
    let maps = map_all(&mut attacker, &infos);
    assert!(!maps.is_empty());
    for (map, fd) in &maps {
        assert!(!contains(map, SECRET), "another client's bytes are mapped");
        let path = std::fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(fd)
        ));
        println!("mapped {} from {path:?}", Bytes(map.len() as u64));
    }
    // Over tcp there is no shared memory, whatever is said.
    let mut remote = Raw::stranger(&local.tcp);
    let name = muninn_wire::ShortText::lossy("remote", 64);
    let transport = Wire::Shm;
    let refused = remote.shake(Purpose::Open { transport, name }).unwrap_err();
    assert!(
        refused.contains("through the server's Unix socket"),
        "{refused}"
    );
    // Nor data messages where memory is mapped: the file may be cut short under the server.
    let reply = attacker.read(&[Seg::new(infos[0].grant, 0, 8)]);
    assert_eq!(reply.code(), Some(ErrorCode::WrongTransport));
}

/// Takes all of a pool, byte for byte, and looks for anything that is not zero.
fn scan_all(address: &Address, pool_bytes: u64) {
    let pool = Pool::connect(&address.to_string(), options()).unwrap();
    let max = pool.transport(ServerId(0)).unwrap().max_grant();
    let mut taken = 0;
    let mut bytes = vec![0; MAX_PAYLOAD];
    while taken < pool_bytes {
        let grant = pool.grant(max).unwrap();
        for at in (0..grant.bytes.0).step_by(MAX_PAYLOAD) {
            bytes.fill(1);
            pool.read(&grant, at, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == 0), "old bytes in a fresh grant");
        }
        taken += grant.bytes.0;
    }
    assert_eq!(taken, pool_bytes);
}

#[test]
fn a_freed_grant_never_shows_old_bytes() {
    const POOL: Bytes = Bytes::mib(16);
    let local = Local::start(config(POOL));
    for round in 0..8 {
        let [from, to] = match round % 4 {
            0 => [&local.unix, &local.tcp],
            1 => [&local.tcp, &local.unix],
            2 => [&local.unix, &local.unix],
            _ => [&local.tcp, &local.tcp],
        };
        let pool = Pool::connect(&from.to_string(), options()).unwrap();
        let mut rng = SplitMix64::new(round);
        let mut grants = Vec::new();
        // Of all sizes, some given back and taken again, until nothing is left.
        loop {
            let bytes = Bytes::pages(1 << rng.below(10));
            match pool.grant(bytes) {
                Ok(grant) => {
                    let full = vec![SECRET; grant.bytes.0 as usize];
                    pool.write(&grant, 0, &full).unwrap();
                    grants.push(grant);
                }
                Err(error) => {
                    assert!(Pool::is_full(&error), "{error}");
                    break;
                }
            }
            if rng.below(4) == 0 {
                let at = rng.below(grants.len() as u64) as usize;
                pool.release(&[grants.swap_remove(at)]).unwrap();
            }
        }
        if round % 2 == 0 {
            pool.release(&grants).unwrap();
        }
        drop(pool);
        scan_all(to, POOL.0);
    }
}

#[test]
fn a_stale_mapping_sees_nothing_of_the_next_owner() {
    const POOL: Bytes = Bytes::mib(4);
    let local = Local::start(config(POOL));
    for goodbye in [false, true] {
        let mut rogue = Raw::open(&local.unix, Wire::Shm);
        let infos = [rogue.grant(2 << 20), rogue.grant(2 << 20)];
        let maps = map_all(&mut rogue, &infos);
        assert_eq!(maps.len(), 2);
        for (map, _) in &maps {
            map.write_at(0, &vec![SECRET; map.len()]).unwrap();
        }
        let list = list(&infos.map(|info| info.grant));
        if goodbye {
            rogue.ask(&Request::Goodbye, &[]);
        } else {
            rogue.ask(&Request::Release(GrantList::decode(&list).unwrap()), &[]);
        }
        // The rogue keeps its mappings and descriptors. The next owners get all of the memory.
        let next = Pool::connect(&local.unix.to_string(), options()).unwrap();
        let mapped = next.grant(Bytes::mib(2)).unwrap();
        let over_tcp = Pool::connect(&local.tcp.to_string(), options()).unwrap();
        let remote = over_tcp.grant(Bytes::mib(2)).unwrap();
        for (pool, grant) in [(&next, &mapped), (&over_tcp, &remote)] {
            let mut bytes = vec![1; 2 << 20];
            pool.read(grant, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == 0), "old bytes in a fresh grant");
            pool.write(grant, 0, &vec![0x5C; 2 << 20]).unwrap();
        }
        let attacked = Instant::now();
        for (map, fd) in &maps {
            assert!(!contains(map, 0x5C), "the next owner's bytes");
            // Whatever it does to its old file is its own affair.
            let _ = map.write_at(4096, &[SECRET; 4096]);
            let _ = ftruncate(fd, 0);
            let _ = ftruncate(fd, 2 << 20);
            let _ = fallocate(fd, FallocateFlags::empty(), 0, 2 << 20);
            let again = Mapping::options().shared().file(fd, 0, Bytes::mib(2));
            if let Ok(again) = again {
                let _ = again.write_at(0, &[SECRET; 4096]);
                assert!(!contains(&again, 0x5C), "the next owner's bytes");
            }
        }
        println!("attacked for {:?}", attacked.elapsed());
        for (pool, grant) in [(&next, &mapped), (&over_tcp, &remote)] {
            let mut bytes = vec![0; 2 << 20];
            pool.read(grant, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == 0x5C), "written by the rogue");
        }
        drop((next, over_tcp, rogue));
        until("all memory to come back", || local.all_free());
        assert!(local.server.is_healthy());
    }
}

#[test]
fn breaking_its_own_file_hurts_nobody_but_the_client() {
    const POOL: Bytes = Bytes::mib(16);
    let local = Local::start(config(POOL));
    let other = Pool::connect(&local.unix.to_string(), options()).unwrap();
    let kept = other.grant(Bytes::mib(1)).unwrap();
    let data = pattern(5, 1 << 20);
    other.write(&kept, 0, &data).unwrap();
    for way in 0..6 {
        let mut rogue = Raw::open(&local.unix, Wire::Shm);
        let infos = [rogue.grant(1 << 20), rogue.grant(4096)];
        let maps = map_all(&mut rogue, &infos);
        for (map, fd) in &maps {
            map.write_at(0, &vec![SECRET; map.len()]).unwrap();
            match way {
                0 => ftruncate(fd, 0).unwrap(),
                1 => {
                    ftruncate(fd, 4097).unwrap();
                    // It cannot grow it again: that would take memory from the pool's owner.
                    assert!(ftruncate(fd, 1 << 40).is_err(), "a file can be made larger");
                }
                2 => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(fd, flags, 0, 1 << 20).unwrap();
                }
                3 => {
                    for seals in [
                        SealFlags::WRITE,
                        SealFlags::FUTURE_WRITE,
                        SealFlags::SHRINK,
                        SealFlags::SEAL,
                    ] {
                        assert!(fcntl_add_seals(fd, seals).is_err(), "{seals:?} can be set");
                    }
                }
                4 => {
                    let flags = FallocateFlags::KEEP_SIZE;
                    let beyond = fallocate(fd, flags, 1 << 30, 1 << 30);
                    assert!(beyond.is_err(), "memory beyond the end can be had");
                }
                _ => {
                    let locked = map.lock();
                    println!("locked: {}", locked.is_ok());
                }
            }
        }
        // By a release, by a goodbye, or by just going away.
        let list = list(&infos.map(|info| info.grant));
        match way % 3 {
            0 => {
                rogue.ask(&Request::Release(GrantList::decode(&list).unwrap()), &[]);
            }
            1 => {
                rogue.ask(&Request::Goodbye, &[]);
            }
            _ => {}
        }
        drop(rogue);
        until("the rogue's memory to come back", || {
            local.server.pool().extents == 1 && local.server.pool().wiping == Bytes::ZERO
        });
        assert!(local.server.is_healthy(), "way {way} broke the server");
        for (map, _) in &maps {
            assert!(
                !contains(map, SECRET),
                "way {way}: a mapping outlived its grant"
            );
        }
        drop(maps);
        let mut back = vec![0; 1 << 20];
        other.read(&kept, 0, &mut back).unwrap();
        assert!(back == data, "way {way}: another client's bytes changed");
    }
    drop(other);
    until("all memory to come back", || local.all_free());
    scan_all(&local.unix, POOL.0);
    scan_all(&local.tcp, POOL.0);
}

#[test]
fn what_a_client_shares_is_all_that_another_sees() {
    let local = Local::start(config(Bytes::mib(16)));
    let parent = ShmSession::open(&local.unix, &options()).unwrap();
    let parent = Pool::new(vec![std::sync::Arc::new(parent)], options()).unwrap();
    let shared = parent.grant(Bytes::kib(64)).unwrap();
    parent.write(&shared, 0, &[0x11; 65536]).unwrap();
    let ticket = parent.share(&[shared]).unwrap();
    // What the parent gets from now on lies elsewhere.
    let later = parent.grant(Bytes::kib(64)).unwrap();
    parent.write(&later, 0, &[SECRET; 65536]).unwrap();

    let mut child = Raw::open(&local.unix, Wire::Shm);
    let adopt = Request::Adopt {
        ticket: ticket.ticket,
    };
    let reply = child.ask(&adopt, &[]);
    assert_eq!(reply.code(), None);
    let infos = muninn_wire::decode_adopted(&reply.payload).unwrap();
    let maps = map_all(&mut child, &infos);
    assert_eq!(maps.len(), 1);
    assert!(contains(&maps[0].0, 0x11));
    assert!(
        !contains(&maps[0].0, SECRET),
        "more is seen than was shared"
    );
    // A ticket is for one kind of session, and for one time.
    let mut remote = Raw::open(&local.tcp, Wire::Tcp);
    assert_eq!(remote.ask(&adopt, &[]).code(), Some(ErrorCode::NoTicket));
    // The parent goes, gives all back, and others come: the child still sees only what was shared.
    parent.release(&[shared, later]).unwrap();
    drop(parent);
    let next = Pool::connect(&local.unix.to_string(), options()).unwrap();
    for _ in 0..6 {
        let grant = next.grant(Bytes::mib(2)).unwrap();
        next.write(&grant, 0, &vec![SECRET; 2 << 20]).unwrap();
    }
    assert!(contains(&maps[0].0, 0x11), "taken away while still held");
    assert!(!contains(&maps[0].0, SECRET), "the next owner's bytes");
}

#[test]
fn repeated_tags_give_the_same_answer_and_nothing_else() {
    // A tag that was used before is answered as before: by then the grant may be another's.
    let local = Local::start(config(Bytes::mib(4)));
    let mut a = Raw::open(&local.tcp, Wire::Tcp);
    let first = a.grant(4096);
    let add = |grant: GrantId, tag| {
        let mut frame = Vec::new();
        let request = Request::FetchAdd {
            grant,
            offset: 0,
            add: 1,
        };
        request.encode(Class::Demand, tag, &mut frame);
        frame
    };
    for _ in 0..3 {
        a.send(&add(first.grant, Tag(77)));
        let reply = a.recv().unwrap();
        assert_eq!(muninn_wire::decode_old_value(&reply.body).unwrap(), 0);
    }
    a.send(&add(first.grant, Tag(78)));
    let reply = a.recv().unwrap();
    assert_eq!(muninn_wire::decode_old_value(&reply.body).unwrap(), 1);
    // Another session with the same tags gets its own answers.
    let mut b = Raw::open(&local.tcp, Wire::Tcp);
    b.send(&add(first.grant, Tag(77)));
    assert_eq!(b.recv().unwrap().code(), Some(ErrorCode::NoGrant));
}
