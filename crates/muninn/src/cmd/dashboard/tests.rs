//! What browsers are told, picture by picture.

use super::board::{Board, Done};
use crate::observe::{JobNow, Picture, ServerNow, Totals};
use serde_json::Value;
use std::time::{Duration, Instant};

fn job(launcher: u32, faults: u64) -> JobNow {
    JobNow {
        name: format!("job-{launcher}"),
        launcher,
        launcher_alive: true,
        layout: "single".to_string(),
        limit_bytes: 1 << 20,
        totals: Totals {
            faults,
            ..Totals::default()
        },
        ..JobNow::default()
    }
}

fn server(address: String, granted: u64, taken: Instant) -> ServerNow {
    ServerNow {
        name: address.clone(),
        address,
        taken: Some(taken),
        pool_bytes: 1 << 30,
        granted_bytes: granted,
        holders: (0..40).map(|n| (format!("client-{n}"), 1 << 20)).collect(),
        ..ServerNow::default()
    }
}

struct Seen {
    board: Board,
    start: Instant,
    second: u64,
    mark: String,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            board: Board::new(7, Duration::from_secs(1)),
            start: Instant::now(),
            second: 0,
            mark: String::new(),
        }
    }

    fn picture(&mut self, servers: &[(&str, u64)], jobs: &[(u32, u64)]) {
        self.second += 1;
        let taken = self.start + Duration::from_secs(self.second);
        let servers = servers.iter();
        let picture = Picture {
            taken,
            servers: servers
                .map(|(address, granted)| server(address.to_string(), *granted, taken))
                .collect(),
            jobs: jobs
                .iter()
                .map(|(pid, faults)| job(*pid, *faults))
                .collect(),
        };
        self.board.handle_picture(picture, self.second);
    }

    fn update(&mut self) -> Value {
        let update = serde_json::to_value(self.board.since(&self.mark, true)).unwrap();
        self.mark = update["mark"].as_str().unwrap().to_string();
        update
    }
}

fn pids(update: &Value) -> Vec<u64> {
    let jobs = update["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["pid"].as_u64().unwrap()).collect()
}

#[test]
fn only_what_changed_is_told() {
    let mut seen = Seen::new();
    seen.picture(&[("a", 1), ("b", 1)], &[(1, 0), (2, 0)]);
    let first = seen.update();
    assert_eq!(
        (&first["full"], pids(&first)),
        (&Value::Bool(true), vec![1, 2])
    );
    let holders = first["servers"][0]["holders"].as_array().unwrap();
    assert_eq!(
        (holders.len(), &first["servers"][0]["others"]),
        (24, &(16u64 << 20).into())
    );
    seen.picture(&[("a", 1), ("b", 2)], &[(1, 0), (2, 1234)]);
    let second = seen.update();
    assert_eq!(
        (&second["full"], pids(&second)),
        (&Value::Bool(false), vec![2])
    );
    assert_eq!(second["jobs"][0]["faults"], 1230.0, "three digits");
    assert_eq!(second["servers"][0]["address"], "b");
    // Nothing new, nothing told; what went is named once.
    seen.picture(&[("a", 1), ("b", 2)], &[(1, 0), (2, 2468)]);
    assert_eq!(pids(&seen.update()), [] as [u64; 0], "it goes on as before");
    seen.picture(&[("b", 2)], &[(2, 3702)]);
    let gone = seen.update();
    assert_eq!(
        (&gone["gone_servers"][0], &gone["gone_jobs"][0]),
        (&"a".into(), &1.into())
    );
    // One that is back by the same name is not gone.
    seen.picture(&[("a", 1), ("b", 2)], &[(1, 0), (2, 4936)]);
    let back = seen.update();
    assert_eq!(
        (back["gone_jobs"].as_array().unwrap().len(), pids(&back)),
        (0, vec![1])
    );
    seen.board.note_done(Done {
        id: 3,
        ok: true,
        text: "done".to_string(),
    });
    assert_eq!(seen.update()["done"][0]["id"], 3);
    assert_eq!(seen.update()["done"].as_array().unwrap().len(), 0);
}

#[test]
fn marks_of_others_and_nonsense_get_everything() {
    let mut seen = Seen::new();
    seen.picture(&[], &[(1, 0)]);
    for mark in [
        "",
        "x",
        "0.0",
        "0000000000000007.99",
        "0000000000000008.1",
        "0000000000000007.-1",
    ] {
        let update = serde_json::to_value(seen.board.since(mark, false)).unwrap();
        assert_eq!(update["full"], true, "{mark}");
        assert_eq!(update["may_act"], false);
    }
    // Who slept while thousands of jobs came and went is told all there is, not what went.
    seen.update();
    for n in 0..10u32 {
        let jobs: Vec<(u32, u64)> = (0..1000).map(|k| (10 + n * 1000 + k, 0)).collect();
        seen.picture(&[], &jobs);
    }
    let update = seen.update();
    assert_eq!(
        (&update["full"], pids(&update).len()),
        (&Value::Bool(true), 1000)
    );
}

/// What a picture of a large rack costs; the figures are for who runs this with `--nocapture`.
#[test]
fn a_large_rack_is_compared_quickly() {
    let mut seen = Seen::new();
    let addresses: Vec<String> = (0..100).map(|n| format!("10.0.0.{n}:7000")).collect();
    let mut times = Vec::new();
    for second in 0..20 {
        let servers: Vec<(&str, u64)> = addresses.iter().map(|a| (a.as_str(), second)).collect();
        let jobs: Vec<(u32, u64)> = (0..1000)
            .map(|n| (n, second * second * u64::from(n)))
            .collect();
        let began = Instant::now();
        seen.picture(&servers, &jobs);
        let text = serde_json::to_string(&seen.board.since(&seen.mark, true)).unwrap();
        times.push(began.elapsed());
        let update = seen.update();
        assert!(update["servers"].as_array().unwrap().len() == 100 && text.len() < 600_000);
    }
    times.sort();
    println!(
        "100 servers and 1000 jobs, compared and written: {:?}",
        times[10]
    );
    // The fastest: machines are busy, and this is not an optimised build everywhere.
    assert!(times[0] < Duration::from_millis(100), "{times:?}");
}
