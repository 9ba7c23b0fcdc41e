//! The part of the demo about functions: one of them at three places, with its latency at each.

use crate::embedded::EmbeddedServer;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_sys::clock;
use muninn_types::Bytes;
use muninn_wic::apps::list::{Ring, traverse};
use muninn_wic::{Place, Service, ServiceOptions};
use serde::Serialize;

/// Nodes of the list that each call follows.
const NODES: u32 = 8;
const CALLS: u32 = 500;

#[derive(Debug, Serialize)]
pub struct AtPlace {
    place: &'static str,
    median_us: f64,
    accesses: u32,
    wrong_replies: u32,
}

#[derive(Debug, Serialize)]
pub struct Functions {
    places: Vec<AtPlace>,
    /// Where Muninn put it, when it was left to choose.
    chosen: Vec<String>,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the demo cannot go on: {error}"))
}

/// `server` listens at a Unix socket and, after it, at a tcp address.
pub fn show(server: &EmbeddedServer) -> Result<Functions, Failure> {
    let [unix, tcp] = server.addresses() else {
        return Err(failed("the server does not listen where it should"));
    };
    let nic = EmbeddedServer::start_nic(["--server", unix, "--listen", "127.0.0.1:0"])?;
    let options = ServiceOptions::new(tcp, "demo-list", Bytes::mib(4)).nic(&nic.addresses()[0]);
    let list = Service::open(options.uses(traverse)).map_err(failed)?;
    let ring = Ring::new(list.range().0, 50_000, 1);
    ring.build(&list).map_err(failed)?;
    let mut places = Vec::new();
    for (place, name) in [
        (Place::Client, "client, over tcp"),
        (Place::Server, "server"),
        (Place::Nic, "nic, beside it"),
        (Place::Auto, "left to muninn"),
    ] {
        list.set_place(place);
        let (mut times, mut wrong) = (Vec::new(), 0);
        // The choice needs some calls to learn from.
        let calls = if place == Place::Auto {
            4 * CALLS
        } else {
            CALLS
        };
        for call in 0..calls {
            let start = call * 97 % ring.count();
            let begin = clock::now();
            let found = list.run(traverse, (ring.address(start).0, NODES));
            times.push((clock::now() - begin).0);
            wrong += u32::from(found.map_err(failed)? != ring.walk(start, NODES));
        }
        // What it came to in the end.
        let mut last = times.split_off(times.len() - CALLS as usize / 2);
        last.sort_unstable();
        places.push(AtPlace {
            place: name,
            median_us: last[last.len() / 2] as f64 / 1e3,
            accesses: NODES,
            wrong_replies: wrong,
        });
    }
    let chosen = list.explain();
    drop(list);
    Ok(Functions { places, chosen })
}

impl Functions {
    pub fn wrong_replies(&self) -> u64 {
        self.places
            .iter()
            .map(|at| u64::from(at.wrong_replies))
            .sum()
    }

    pub fn describe(&self) -> String {
        let mut table = Table::new(["one function, run at", "median", "wrong"]);
        for at in &self.places {
            table.row([
                at.place.to_string(),
                format!("{:.1} us", at.median_us),
                at.wrong_replies.to_string(),
            ]);
        }
        let chosen = self.chosen.join("\n");
        format!("It follows {NODES} links of a list in huginn's memory.\n\n{table}\n\n{chosen}\n")
    }
}
