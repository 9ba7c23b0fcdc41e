//! The figures of WICKit's evaluation, on this machine: latency by nodes and place (3.2), latency under
//! load (3.3 to 3.5), and what each part of a backend brings (3.9, 3.10, 3.12 on).

use super::load::{App, AppName};
use super::stage::{Over, Spot, Stage};
use super::targets::{base_case, big_list, executor_rate};
use super::{Case, Run};
use crate::failure::Failure;
use crate::ui::Progress;
use muninn_plot::Chart;
use muninn_wic::Tuning;
use muninn_wic::local::Style;
use std::time::Duration;

/// Parts of [`measure`], for the progress bar.
pub const PARTS: u64 = 6 + 3 * PLACES.len() as u64 + 8 + 3;

pub struct Drawn {
    pub runs: Vec<Run>,
    pub figures: Vec<(&'static str, Chart)>,
}

const PLACES: [Spot; 5] = Spot::ALL;

pub fn measure(bar: &Progress) -> Result<Drawn, Failure> {
    let mut drawn = Drawn {
        runs: Vec::new(),
        figures: Vec::new(),
    };
    by_nodes(&mut drawn, bar)?;
    for (app, name, title) in [
        (
            AppName::List,
            "list-under-load.svg",
            "4-node traversal under load",
        ),
        (AppName::Log, "log-under-load.svg", "Shared log under load"),
        (
            AppName::Kv,
            "kv-under-load.svg",
            "Key-value store under load",
        ),
    ] {
        under_load(&mut drawn, bar, app, (name, title))?;
    }
    client_parts(&mut drawn, bar)?;
    windows(&mut drawn, bar)?;
    Ok(drawn)
}

fn quick(case: Case) -> Case {
    Case {
        warm_up: Duration::from_millis(100),
        time: Duration::from_millis(200),
        ..case
    }
}

/// Measures several cases on one stage, with the application filled once for each service.
fn on_one_stage(spot: Spot, cases: &[Case]) -> Result<Vec<Run>, Failure> {
    let Some(first) = cases.first() else {
        return Ok(Vec::new());
    };
    let stage = Stage::usual(first.memory, spot, first.window)?;
    let service = first.open(&stage)?;
    let mut app = App::fill(first.app, &service, first.nodes, first.place.place())?;
    let mut runs = Vec::new();
    for case in cases {
        app = app.with_nodes(case.nodes);
        runs.push(case.measure_on(&service, &app)?);
    }
    Ok(runs)
}

/// Figure 3.2: one call at a time.
fn by_nodes(drawn: &mut Drawn, bar: &Progress) -> Result<(), Failure> {
    let mut chart = Chart::new("Unloaded latency of a traversal", "nodes", "us, median").y_log();
    for (over, label) in [(Over::Tcp, ""), (Over::Shm, ", mapped")] {
        let places: &[Spot] = match over {
            Over::Tcp => &PLACES,
            Over::Shm => &[Spot::Client],
        };
        for place in places {
            let cases: Vec<Case> = [1, 2, 4, 8, 16]
                .map(|nodes| {
                    quick(Case {
                        place: *place,
                        over,
                        nodes,
                        in_flight: 1,
                        ..base_case()
                    })
                })
                .into();
            let runs = on_one_stage(*place, &cases)?;
            let points = runs
                .iter()
                .map(|run| (f64::from(run.nodes.unwrap_or(0)), run.latency_us.p50));
            chart = chart.line(format!("{}{label}", place.name()), points.collect());
            drawn.runs.extend(runs);
            bar.inc(1);
        }
    }
    drawn.figures.push(("latency-by-nodes.svg", chart));
    Ok(())
}

/// Figures 3.3 to 3.5: calls arrive at random times, more and more of them, until a place is full.
fn under_load(
    drawn: &mut Drawn,
    bar: &Progress,
    app: AppName,
    (name, title): (&'static str, &str),
) -> Result<(), Failure> {
    let mut chart = Chart::new(title, "calls/s", "us, median").y_log().x_log();
    for place in PLACES {
        let base = quick(Case {
            app,
            place,
            memory: app.bytes(),
            ..base_case()
        });
        let stage = Stage::usual(base.memory, place, base.window)?;
        let service = base.open(&stage)?;
        let filled = App::fill(app, &service, base.nodes, place.place())?;
        let mut points = Vec::new();
        let mut rate = 4_000.0;
        loop {
            let case = Case {
                rate: Some(rate),
                ..base
            };
            let run = case.measure_on(&service, &filled)?;
            let full = run.throughput_per_s < 0.9 * rate || run.latency_us.p50 > 5_000.0;
            points.push((run.throughput_per_s, run.latency_us.p50));
            drawn.runs.push(run);
            if full || rate > 4e6 {
                break;
            }
            rate *= 2.0;
        }
        chart = chart.line(place.name(), points);
        bar.inc(1);
    }
    drawn.figures.push((name, chart));
    Ok(())
}

/// Figures 3.9 and 3.10, and batching: what multiplexing, queues and batches bring at the client.
fn client_parts(drawn: &mut Drawn, bar: &Progress) -> Result<(), Failure> {
    let base = base_case().tuning;
    let variants: [(&str, Tuning); 8] = [
        ("all of it", base),
        (
            "no multiplexing",
            Tuning {
                multiplex: 1,
                ..base
            },
        ),
        ("1 queue", Tuning { queues: 1, ..base }),
        ("4 queues", Tuning { queues: 4, ..base }),
        ("14 queues", Tuning { queues: 14, ..base }),
        ("batch 1", Tuning { batch: 1, ..base }),
        ("batch 4", Tuning { batch: 4, ..base }),
        ("batch 16", Tuning { batch: 16, ..base }),
    ];
    let mut chart = Chart::new("Traversals at the client, by backend", "nodes", "calls/s");
    for (label, tuning) in variants {
        let mut points = Vec::new();
        let cases: Vec<Case> = [1, 4, 8]
            .map(|nodes| {
                quick(Case {
                    place: Spot::Client,
                    nodes,
                    tuning,
                    ..base_case()
                })
            })
            .into();
        for run in on_one_stage(Spot::Client, &cases)? {
            points.push((f64::from(run.nodes.unwrap_or(0)), run.throughput_per_s));
            drawn.runs.push(run);
        }
        chart = chart.line(label, points);
        bar.inc(1);
    }
    drawn.figures.push(("client-backend.svg", chart.y_log()));
    Ok(())
}

/// What a window brings at the server, on a list far larger than the cache.
fn windows(drawn: &mut Drawn, bar: &Progress) -> Result<(), Failure> {
    let (chunks, ring) = big_list()?;
    let mut chart = Chart::new(
        "Traversals of a list larger than the cache, by window",
        "window",
        "calls/s",
    );
    for nodes in [1, 4, 16] {
        let mut points = vec![(0.0, executor_rate(&chunks, &ring, (Style::Sync, 1), nodes))];
        for window in [1, 2, 4, 8, 16, 32] {
            let rate = executor_rate(&chunks, &ring, (Style::Prefetch, window), nodes);
            points.push((window as f64, rate));
        }
        chart = chart.line(format!("{nodes} nodes (0: sync)"), points);
        bar.inc(1);
    }
    drawn.figures.push(("windows.svg", chart));
    Ok(())
}
