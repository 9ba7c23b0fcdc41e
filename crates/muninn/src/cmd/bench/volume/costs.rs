//! What copies and parity cost while nothing goes wrong, and while a server is gone.

use super::rig::{BATCH, Rig, Servers};
use super::{Args, Measurement};
use crate::cmd::bench::median;
use crate::failure::Failure;
use muninn_policy::stripe::Stripes;
use muninn_sys::clock;
use muninn_types::{Bytes, PAGE_SIZE};
use muninn_volume::code::{Recipe, Vector};
use std::hint::black_box;

/// Reads and batches in a round.
const READS: usize = 400;
const BATCHES: usize = 48;
/// Bytes that are encoded in a round.
const ENCODED: usize = 32 << 20;

/// What each server gives: enough for one copy of everything of every layout.
fn room(args: &Args) -> Bytes {
    Bytes(args.memory.0 * 5 + Bytes::mib(64).0)
}

/// Parity of data that lies in the cache, beside copying it.
pub fn code(args: &Args) -> Result<Vec<Measurement>, Failure> {
    let mut all = Vec::new();
    let pieces = [
        ("code.xor.4+1.4KiB", 1, 4 << 10),
        ("code.xor.4+1.64KiB", 1, 64 << 10),
        ("code.gf.4+2.4KiB", 2, 4 << 10),
        ("code.gf.4+2.64KiB", 2, 64 << 10),
    ];
    for (name, parity, len) in pieces {
        let stripes = Stripes::new(4, parity).expect("a supported layout");
        let recipes: Vec<Recipe> = stripes
            .parity_pieces()
            .iter()
            .map(|piece| Recipe::new(stripes, stripes.data_pieces(), piece))
            .collect();
        let data: Vec<Vec<u8>> = (0..4).map(|at| vec![at as u8 + 3; len]).collect();
        let mut out = vec![0; len];
        let rows = ENCODED / (4 * len);
        let (mut encode, mut copy) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let began = clock::now();
            for _ in 0..rows {
                for recipe in &recipes {
                    recipe.make(Vector::detect(), black_box(&mut out), |at| &data[at]);
                }
            }
            encode.push(gigabytes(began));
            let began = clock::now();
            for _ in 0..rows {
                for piece in &data {
                    black_box(&mut out).copy_from_slice(black_box(piece));
                }
            }
            copy.push(gigabytes(began));
        }
        all.push(Measurement::new(
            name,
            (median(&mut encode), "GB/s"),
            (median(&mut copy), "memcpy"),
            "",
        ));
    }
    Ok(all)
}

fn gigabytes(began: muninn_types::Nanos) -> f64 {
    ENCODED as f64 / (clock::now() - began).0 as f64
}

struct Names {
    read: &'static str,
    evict: &'static str,
    read_target: &'static str,
    evict_target: &'static str,
}

fn transport(
    args: &Args,
    tcp: bool,
    layouts: &[(&str, Names)],
) -> Result<Vec<Measurement>, Failure> {
    let servers = Servers::start(6, room(args))?;
    let addresses = servers.addresses(tcp)?;
    let mut rigs = vec![Rig::new(&addresses, "single", args.memory)?];
    for (layout, _) in layouts {
        rigs.push(Rig::new(&addresses, layout, args.memory)?);
    }
    let mut reads = vec![Vec::new(); rigs.len()];
    let mut evictions = vec![Vec::new(); rigs.len()];
    for _ in 0..args.rounds {
        for (at, rig) in rigs.iter_mut().enumerate() {
            rig.attend()?;
            let mut took = Vec::with_capacity(READS);
            for _ in 0..READS {
                took.push(rig.demand()?.0 as f64 / 1e3);
            }
            reads[at].push(median(&mut took));
            let mut all = 0;
            for _ in 0..BATCHES {
                all += rig.evict()?.0;
            }
            let bytes = BATCHES * BATCH * PAGE_SIZE;
            evictions[at].push(bytes as f64 / all as f64 * 1e3);
        }
    }
    let mut all = Vec::new();
    let single_read = median(&mut reads[0]);
    let single_evict = median(&mut evictions[0]);
    for (at, (_, names)) in layouts.iter().enumerate() {
        all.push(Measurement::new(
            names.read,
            (median(&mut reads[at + 1]), "us"),
            (single_read, "single"),
            names.read_target,
        ));
        all.push(Measurement::new(
            names.evict,
            (median(&mut evictions[at + 1]), "MB/s"),
            (single_evict, "single"),
            names.evict_target,
        ));
    }
    Ok(all)
}

pub fn shm(args: &Args) -> Result<Vec<Measurement>, Failure> {
    let mirror = Names {
        read: "shm.read.mirror",
        evict: "shm.evict.mirror",
        read_target: "<= 1.05",
        evict_target: "",
    };
    let parity = Names {
        read: "shm.read.parity:4+1",
        evict: "shm.evict.parity:4+1",
        read_target: "",
        evict_target: ">= 0.7",
    };
    let two = Names {
        read: "shm.read.parity:4+2",
        evict: "shm.evict.parity:4+2",
        read_target: "",
        evict_target: "",
    };
    let layouts = [
        ("mirror", mirror),
        ("parity:4+1", parity),
        ("parity:4+2", two),
    ];
    transport(args, false, &layouts)
}

pub fn tcp(args: &Args) -> Result<Vec<Measurement>, Failure> {
    let mirror = Names {
        read: "tcp.read.mirror",
        evict: "tcp.evict.mirror",
        read_target: "<= 1.05",
        evict_target: ">= 0.48",
    };
    let parity = Names {
        read: "tcp.read.parity:4+1",
        evict: "tcp.evict.parity:4+1",
        read_target: "",
        evict_target: ">= 0.7",
    };
    let two = Names {
        read: "tcp.read.parity:4+2",
        evict: "tcp.evict.parity:4+2",
        read_target: "",
        evict_target: "",
    };
    let layouts = [
        ("mirror", mirror),
        ("parity:4+1", parity),
        ("parity:4+2", two),
    ];
    transport(args, true, &layouts)
}

/// Reads of pages whose server is gone, with nobody to take its place.
pub fn degraded(args: &Args) -> Result<Vec<Measurement>, Failure> {
    let mut servers = Servers::start(5, room(args))?;
    let addresses = servers.addresses(true)?;
    let mut rig = Rig::new(&addresses, "parity:4+1", args.memory)?;
    let rounds = args.rounds as usize * READS;
    let mut healthy = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        healthy.push(rig.demand()?.0 as f64 / 1e3);
    }
    servers.servers[2].kill();
    // Until its session is lost, which is when its lease has run out.
    while rig.volume.census().degraded == 0 {
        rig.demand()?;
        rig.attend()?;
    }
    let mut gone = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        gone.push(rig.demand()?.0 as f64 / 1e3);
    }
    // One page in five was at the server that is gone, or at none of those that are read.
    gone.sort_by(f64::total_cmp);
    let slow = &mut gone[rounds * 9 / 10..].to_vec();
    Ok(vec![Measurement::new(
        "degraded.read.parity:4+1",
        (median(slow), "us"),
        (median(&mut healthy), "healthy"),
        "<= 4",
    )])
}
