//! What a server needs beside its pool when it has many sessions, and how fast it starts.

use super::Measurement;
use crate::embedded::EmbeddedServer;
use crate::failure::Failure;
use muninn_net::{Answer, Control, SessionOptions, Transport, connect};
use muninn_sys::proc::{self, RealProc};
use muninn_sys::{clock, limits};
use muninn_types::LaneKind;
use muninn_wire::Seg;
use std::sync::Arc;
use std::time::Duration;

const SESSIONS: usize = 1000;
const GRANTS_PER_SESSION: usize = 10;
const READS: usize = 4000;

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the bench cannot go on: {error}"))
}

pub fn measure() -> Result<Vec<Measurement>, Failure> {
    limits::raise_open_files().map_err(failed)?;
    let args = [
        "--memory",
        "256MiB",
        "--listen",
        "127.0.0.1:0",
        "--max-sessions",
        "2000",
    ];
    let began = clock::now();
    let server = EmbeddedServer::start(args)?;
    let started_ms = (clock::now() - began).0 as f64 / 1e6;
    let address = server.addresses()[0].parse().map_err(failed)?;
    let options = SessionOptions {
        name: "scale".to_string(),
        ..SessionOptions::default()
    };

    let first = connect(&address, &options).map_err(failed)?;
    let alone_ns = read_ns(first.as_ref())?;
    let mut sessions: Vec<Arc<dyn Transport>> = vec![first];
    for _ in 1..SESSIONS {
        let session = connect(&address, &options).map_err(failed)?;
        for _ in 0..GRANTS_PER_SESSION {
            grant(session.as_ref())?;
        }
        sessions.push(session);
    }
    let crowded_ns = read_ns(sessions[0].as_ref())?;
    let status = proc::status(&RealProc, server.pid() as i32).map_err(failed)?;
    let beside = status.rss_anon.0 + status.rss_file.0;
    Ok(vec![
        Measurement::new(
            "server.memory.1000-sessions",
            (beside as f64 / f64::from(1 << 20), "MiB"),
            (64.0, "MiB allowed"),
            "<= 1",
        ),
        Measurement::new(
            "server.start",
            (started_ms, "ms"),
            (100.0, "ms allowed"),
            "<= 1",
        ),
        Measurement::new(
            "server.read.1000-sessions",
            (crowded_ns, "ns"),
            (alone_ns, "ns with one session"),
            "",
        ),
    ])
}

fn grant(session: &dyn Transport) -> Result<muninn_types::GrantId, Failure> {
    let ask = Control::Grant { bytes: 4096 };
    match session.call(ask, Duration::from_secs(10)).map_err(failed)? {
        Answer::Granted(info) => Ok(info.grant),
        other => Err(failed(format!("unexpected answer {other:?}"))),
    }
}

/// Median time of a page read.
fn read_ns(session: &dyn Transport) -> Result<f64, Failure> {
    let grant = grant(session)?;
    let mut lane = session.lane(LaneKind::Critical).map_err(failed)?;
    let mut page = vec![0; 4096];
    let mut times = Vec::with_capacity(READS);
    for _ in 0..READS {
        let start = clock::now();
        let seg = Seg::new(grant, 0, 4096);
        lane.read_v(muninn_types::Class::Demand, &[seg], &mut page)
            .map_err(failed)?;
        times.push((clock::now() - start).0 as f64);
    }
    Ok(super::median(&mut times))
}
