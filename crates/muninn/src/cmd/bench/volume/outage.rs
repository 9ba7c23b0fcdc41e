//! Demand reads while a server dies, what it held is made anew, and another is emptied.

use super::rig::{Rig, Servers, failed};
use super::{Args, Measurement};
use crate::cmd::bench::percentile;
use crate::failure::Failure;
use muninn_plot::Chart;
use muninn_sys::clock;
use muninn_types::{Bytes, Nanos};
use std::process::{Child, Command, Stdio};

/// How long all is well at first, and after what happened.
const CALM: Nanos = Nanos::secs(2);
/// What may take longest.
const PATIENCE: Nanos = Nanos::secs(60);
/// One point of the chart.
const POINT: Nanos = Nanos::millis(20);

/// Reads with when they were done and what they took, in seconds and microseconds.
struct Record {
    began: Nanos,
    reads: Vec<(f64, f64)>,
}

impl Record {
    fn seconds(&self) -> f64 {
        (clock::now() - self.began).0 as f64 / 1e9
    }

    fn read(&mut self, rig: &mut Rig) -> Result<(), Failure> {
        rig.attend()?;
        let took = rig.demand()?.0 as f64 / 1e3;
        self.reads.push((self.seconds(), took));
        Ok(())
    }

    fn read_for(&mut self, rig: &mut Rig, span: Nanos) -> Result<(), Failure> {
        let ends = clock::now() + span;
        while clock::now() < ends {
            self.read(rig)?;
        }
        Ok(())
    }

    fn p99(&self, from: f64, to: f64) -> f64 {
        let within = self.reads.iter().filter(|(at, _)| (from..to).contains(at));
        let mut took: Vec<f64> = within.map(|(_, took)| *took).collect();
        percentile(&mut took, 0.99)
    }

    fn worst(&self, from: f64, to: f64) -> f64 {
        let within = self.reads.iter().filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, took)| *took).fold(0.0, f64::max)
    }

    /// The slowest read of each short while.
    fn points(&self) -> Vec<(f64, f64)> {
        let width = POINT.0 as f64 / 1e9;
        let slots = self
            .reads
            .chunk_by(|a, b| (a.0 / width) as u64 == (b.0 / width) as u64);
        let slowest = slots.map(|slot| {
            let took = slot.iter().map(|(_, took)| *took).fold(0.0, f64::max);
            (slot[0].0, took)
        });
        slowest.collect()
    }
}

struct Outage {
    record: Record,
    died: f64,
    repaired: f64,
    drain: f64,
    drained: f64,
}

fn drain(address: &str) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--config",
        "/dev/null",
        "drain",
        "--within",
        "60s",
        "--pool",
    ]);
    command.arg(address);
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(muninn_sys::child::die_with_parent(quiet).spawn()?)
}

fn play(args: &Args, layout: &str, servers: usize) -> Result<Outage, Failure> {
    let room = Bytes(args.memory.0 * 3 + Bytes::mib(64).0);
    let mut servers = Servers::start(servers, room)?;
    let addresses = servers.addresses(true)?;
    let mut rig = Rig::new(&addresses, layout, args.memory)?;
    let began = clock::now();
    let mut record = Record {
        began,
        reads: Vec::new(),
    };
    record.read_for(&mut rig, CALM)?;
    // The first that holds anything, and so does the one that is emptied.
    let held = |rig: &Rig| rig.volume.holders();
    let victim = *held(&rig)
        .first()
        .ok_or_else(|| failed("nobody holds anything"))?;
    let died = record.seconds();
    servers.servers[victim.0 as usize].kill();
    let ends = clock::now() + PATIENCE;
    while held(&rig).contains(&victim)
        || rig.volume.census().degraded > 0
        || rig.volume.census().leaving > 0
    {
        record.read(&mut rig)?;
        if clock::now() > ends {
            return Err(failed("what was lost was not made anew in time"));
        }
    }
    let repaired = record.seconds();
    record.read_for(&mut rig, CALM)?;
    let next = *held(&rig)
        .first()
        .ok_or_else(|| failed("nobody holds anything"))?;
    let drain_began = record.seconds();
    // Whoever may empty a server comes over its socket.
    let sockets = servers.addresses(false)?;
    let mut draining = drain(&sockets[next.0 as usize].to_string())?;
    let status = loop {
        record.read(&mut rig)?;
        if let Some(status) = draining.try_wait()? {
            break status;
        }
    };
    if !status.success() {
        return Err(failed("the server could not be emptied"));
    }
    let drained = record.seconds();
    record.read_for(&mut rig, CALM)?;
    Ok(Outage {
        record,
        died,
        repaired,
        drain: drain_began,
        drained,
    })
}

pub fn measure(args: &Args) -> Result<Vec<Measurement>, Failure> {
    let mirror = play(args, "mirror", 4)?;
    let parity = play(args, "parity:2+1", 5)?;
    if let Some(path) = &args.chart {
        let title = "Demand reads through a server's death, the repair and a drain";
        let mark = |outage: &Outage| {
            let when = [outage.died, outage.repaired, outage.drain, outage.drained];
            when.map(|at| (at, outage.record.p99(0.0, outage.died)))
                .to_vec()
        };
        let chart = Chart::new(title, "s", "slowest read of 20 ms, us")
            .y_log()
            .line("mirror", mirror.record.points())
            .line("parity:2+1", parity.record.points())
            .points("mirror: dies, repaired, drain, empty", mark(&mirror))
            .points("parity: dies, repaired, drain, empty", mark(&parity));
        chart.write(path).map_err(failed)?;
    }
    let mut all = Vec::new();
    let names = [
        [
            "outage.mirror.worst",
            "outage.mirror.p99-after-1s",
            "outage.mirror.p99-drain",
            "outage.mirror.repair",
        ],
        [
            "outage.parity:2+1.worst",
            "outage.parity:2+1.p99-after-1s",
            "outage.parity:2+1.p99-drain",
            "outage.parity:2+1.repair",
        ],
    ];
    for (outage, [worst, after, drain, repair]) in [mirror, parity].iter().zip(names) {
        let record = &outage.record;
        let calm = record.p99(0.0, outage.died);
        let ms = |us: f64| (us / 1e3, "ms");
        let baseline = (calm / 1e3, "p99 before");
        let end = outage.died + 1.0;
        all.push(Measurement::new(
            worst,
            ms(record.worst(outage.died, outage.drain)),
            baseline,
            "",
        ));
        all.push(Measurement::new(
            after,
            ms(record.p99(end, (end + 2.0).max(outage.repaired))),
            baseline,
            "<= 2",
        ));
        all.push(Measurement::new(
            drain,
            ms(record.p99(outage.drain, outage.drained)),
            baseline,
            "<= 2",
        ));
        // The lease has to run out before anything is made anew.
        let lease = 3.0;
        all.push(Measurement::new(
            repair,
            (outage.repaired - outage.died, "s"),
            (lease, "s of lease"),
            "",
        ));
    }
    Ok(all)
}
