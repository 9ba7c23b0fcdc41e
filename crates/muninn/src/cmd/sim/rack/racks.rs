//! `sim rack --racks`: what a stream of jobs gains from several racks, and what their coordinators cost.

use crate::failure::{Failure, Outcome};
use crate::ui::{self, Table};
use muninn_cluster::replay::{self, Kind, Load, Replay};
use muninn_plot::Chart;
use muninn_sim::rack::racks::{Racks, StreamRow};
use muninn_sim::rack::study::Source;
use muninn_sim::rack::{Config, Plan, RackError, Range};
use muninn_types::{Bytes, Nanos};
use serde::Serialize;
use std::path::Path;

/// Where no far memory is named.
const FAR: Config = Config::Far { more_pct: 33.0 };
/// One coordinator for all racks is asked for no more nodes than this: a hundred times more than one rack has.
const NODES_MAX: u32 = 12_000;

#[derive(Serialize)]
struct Report {
    seed: u64,
    machines: u32,
    streams: Vec<StreamRow>,
    coordinators: Vec<Cost>,
}

/// A coordinator, for one rack or for all.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    racks: u32,
    nodes: u32,
    queue: u32,
    #[serde(flatten)]
    replay: Replay,
}

pub fn run(counts: &[u32], plan: &Plan<'_>, json: bool, folder: Option<&Path>) -> Outcome {
    let (ranges, jobs) = match &plan.source {
        Source::Drawn { ranges, jobs, .. } => (ranges.clone(), *jobs),
        Source::Given(_) => (Range::FIGURE_4_7.to_vec(), 150 * plan.rack.machines),
    };
    let config = plan.configs.iter().find(|config| config.is_far());
    let config = match plan.configs.len() {
        1 => config.copied().unwrap_or(FAR),
        _ => FAR,
    };
    let racks = |racks: u32| Racks {
        racks,
        rack: plan.rack,
        kinds: plan.kinds,
        config,
        setup: plan.setups[0],
        ranges: ranges.clone(),
        jobs,
        seed: plan.seed,
        threads: plan.threads,
    };
    let all: Vec<Racks<'_>> = counts.iter().map(|count| racks(*count)).collect();
    let bar = ui::progress(all.iter().map(Racks::steps).sum(), "simulating racks");
    let mut report = Report {
        seed: plan.seed,
        machines: plan.rack.machines,
        streams: Vec::new(),
        coordinators: Vec::new(),
    };
    for racks in &all {
        let rows = racks.run(&|| bar.inc(1)).map_err(Failure::usage)?;
        report.streams.extend(rows);
    }
    bar.set_message("replaying decisions");
    for racks in all
        .iter()
        .filter(|racks| racks.racks * plan.rack.machines <= NODES_MAX)
    {
        report
            .coordinators
            .push(cost(racks).map_err(Failure::usage)?);
    }
    bar.finish_and_clear();
    match json {
        true => ui::print_json(&report),
        false => ui::print_out(&report.describe()),
    }
    if let Some(folder) = folder {
        report.plot(folder)?;
    }
    Ok(())
}

/// All racks under one coordinator: the live book, asked in simulated time.
fn cost(racks: &Racks<'_>) -> Result<Cost, RackError> {
    let shape = racks.config.shape(&racks.rack)?;
    let nodes = racks.racks * shape.machines;
    let kind = |kind: &muninn_policy::profile::catalogue::JobKind| Kind {
        name: kind.name.clone(),
        cores: kind.cores,
        memory: kind.memory,
        floor: kind.floor(),
        run_s: kind.profile.full_s(),
        slowdown: kind.profile.slowdown(kind.min_ratio),
    };
    let queue = racks.racks * racks.jobs;
    let replay = replay::run(&Load {
        nodes,
        cores: shape.cores - shape.reclaim_cores,
        memory: shape.memory,
        far: Bytes(shape.far.0 / u64::from(shape.machines)),
        jobs: queue,
        within: Nanos::secs(10),
        kinds: racks.kinds.iter().map(kind).collect(),
        admission: racks.setup.admission,
        seed: racks.seed,
    });
    Ok(Cost {
        racks: racks.racks,
        nodes,
        queue,
        replay,
    })
}

impl Report {
    fn describe(&self) -> String {
        let mut streams = Table::new([
            "racks",
            "jobs",
            "memory",
            "stream",
            "makespan, s",
            "a rack, s",
            "improvement",
            "slowdown",
        ]);
        for row in &self.streams {
            streams.row([
                row.racks.to_string(),
                row.jobs.to_string(),
                row.config.clone(),
                format!("{:?}", row.stream).to_lowercase(),
                format!("{:.0}", row.makespan_s),
                format!("{:.0}", row.rack_makespan_s),
                format!("{:+.1}%", row.improvement_pct),
                format!("{:.3}", row.slowdown_mean),
            ]);
        }
        let mut costs = Table::new([
            "racks",
            "nodes",
            "jobs",
            "decisions",
            "mean, us",
            "p99, us",
            "most, us",
            "of a CPU",
        ]);
        for cost in &self.coordinators {
            costs.row([
                cost.racks.to_string(),
                cost.nodes.to_string(),
                cost.queue.to_string(),
                cost.replay.decisions.to_string(),
                format!("{:.1}", cost.replay.decision_us_mean),
                format!("{:.1}", cost.replay.decision_us_p99),
                format!("{:.0}", cost.replay.decision_us_max),
                format!("{:.3}%", cost.replay.cpu_pct),
            ]);
        }
        format!("{streams}\n\nOne coordinator for all of these racks:\n\n{costs}")
    }

    fn plot(&self, folder: &Path) -> Outcome {
        let mut chart =
            Chart::new("A stream of jobs over racks", "racks", "improvement [%]").x_log();
        let mut names: Vec<(String, String)> = Vec::new();
        for row in &self.streams {
            let stream = format!("{:?}", row.stream).to_lowercase();
            if !names.contains(&(row.config.clone(), stream.clone())) {
                names.push((row.config.clone(), stream));
            }
        }
        for (config, stream) in names {
            let of = self.streams.iter().filter(|row| {
                row.config == config && format!("{:?}", row.stream).to_lowercase() == stream
            });
            let points = of
                .map(|row| (f64::from(row.racks), row.improvement_pct))
                .collect();
            chart = chart.line(format!("{config}, {stream}"), points);
        }
        let written = chart.write(folder.join("racks.svg"));
        written.map_err(Failure::failed)?;
        let mut chart = Chart::new("What a decision costs", "nodes of one coordinator", "us")
            .x_log()
            .y_log();
        let line = |of: fn(&Replay) -> f64| {
            let costs = self.coordinators.iter();
            costs
                .map(|cost| (f64::from(cost.nodes), of(&cost.replay)))
                .collect()
        };
        chart = chart.line("mean", line(|replay| replay.decision_us_mean));
        chart = chart.line("99th of 100", line(|replay| replay.decision_us_p99));
        chart
            .write(folder.join("decisions.svg"))
            .map_err(Failure::failed)
    }
}
