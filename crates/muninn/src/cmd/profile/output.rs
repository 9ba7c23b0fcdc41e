//! A measured profile as TOML, chart, table and JSON.

use crate::cmd::run::report::Report;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_plot::Chart;
use muninn_policy::profile::catalogue::{self, Size};
use muninn_policy::profile::{Profile, level};
use muninn_types::{Bytes, format_duration};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// What the runs at one ratio took: the run of median time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    pub ratio: f64,
    pub seconds: f64,
    /// All runs, in the order of time.
    pub runs_s: Vec<f64>,
    pub cpu_s: f64,
    pub limit_bytes: u64,
    pub far_peak_bytes: u64,
    pub faults: u64,
    pub faults_remote: u64,
    pub evicted_written: u64,
}

impl Point {
    pub fn new(ratio: f64, reports: &[Report]) -> Point {
        let mut sorted: Vec<&Report> = reports.iter().collect();
        sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let median = sorted[(sorted.len() - 1) / 2];
        Point {
            ratio,
            seconds: median.seconds,
            runs_s: sorted.iter().map(|report| report.seconds).collect(),
            cpu_s: median.user_s + median.system_s,
            limit_bytes: median.limit_bytes,
            far_peak_bytes: median.far_peak_bytes,
            faults: median.counters.faults,
            faults_remote: median.counters.faults_remote,
            evicted_written: median.counters.evicted_written,
        }
    }

    pub fn cores_busy(&self) -> u32 {
        (self.cpu_s / self.seconds.max(1e-9))
            .round()
            .clamp(1.0, 4096.0) as u32
    }
}

/// Everything that was measured.
#[derive(Debug)]
pub struct Measured {
    pub name: String,
    pub command: Vec<String>,
    pub peak: Bytes,
    pub cores: u32,
    /// From all memory local downwards.
    pub points: Vec<Point>,
}

#[derive(Debug, Serialize)]
pub struct JsonReport<'a> {
    name: &'a str,
    command: &'a [String],
    peak_bytes: u64,
    cores: u32,
    points: &'a [Point],
    /// Run times in which noise that rises with memory is levelled.
    levelled_s: Vec<f64>,
    /// The smallest ratio with at most 20 % more run time.
    ratio_of_20pct: f64,
    toml: String,
    svg: String,
}

impl Measured {
    fn ratios(&self) -> Vec<f64> {
        self.points.iter().map(|point| point.ratio).collect()
    }

    fn levelled(&self) -> Vec<f64> {
        let seconds: Vec<f64> = self.points.iter().map(|point| point.seconds).collect();
        level(&seconds)
    }

    fn profile(&self) -> Result<Profile, Failure> {
        Profile::from_points(&self.ratios(), &self.levelled())
            .map_err(|error| Failure::failed(format!("the runs give no profile: {error}")))
    }

    /// The name, fit for a file.
    pub fn file_name(&self) -> String {
        let keep = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let name: String = self
            .name
            .chars()
            .map(|c| if keep(c) { c } else { '-' })
            .collect();
        name.trim_matches('.').to_string()
    }

    /// What `catalogue::parse` reads.
    pub fn toml(&self) -> Result<String, Failure> {
        let list = |values: &[f64]| {
            let texts: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
            format!("[{}]", texts.join(", "))
        };
        let rounded: Vec<f64> = self
            .levelled()
            .iter()
            .map(|seconds| (seconds * 1e6).round() / 1e6)
            .collect();
        let name = toml::Value::String(self.name.clone()).to_string();
        // A line of its own, whatever the command holds.
        let command = self.command.join(" ").replace(char::is_control, " ");
        let text = format!(
            "# Written by 'muninn profile -- {command}'.\n# Several such files can be put into one.\n\
             [[job]]\nname = {name}\nmemory = \"{}\"\ncores = {}\nratio = {}\nruntime_s = {}\n",
            self.peak,
            self.cores,
            list(&self.ratios()),
            list(&rounded),
        );
        catalogue::parse(&text, Size::Rack)
            .map_err(|error| Failure::failed(format!("the runs give no profile: {error}")))?;
        Ok(text)
    }

    fn chart(&self) -> Result<Chart, Failure> {
        let profile = self.profile()?;
        // The profile goes straight from point to point, and so does the line.
        let at = |ratio: f64| (100.0 * ratio, profile.seconds(ratio));
        let line = self.ratios().into_iter().map(at);
        let runs = self.points.iter().flat_map(|point| {
            let at = 100.0 * point.ratio;
            point.runs_s.iter().map(move |seconds| (at, *seconds))
        });
        let runs: Vec<(f64, f64)> = runs.collect();
        let slowest = runs.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let title = format!("{}: run time with less local memory", self.name);
        Ok(Chart::new(title, "local memory, % of the peak", "s")
            .line("profile", line.collect())
            .points("runs", runs)
            .y_range(0.0, slowest * 1.05))
    }

    pub fn write(&self, out: &Path, plot: &Path) -> Result<(), Failure> {
        let text = self.toml()?;
        std::fs::write(out, text).map_err(|error| {
            Failure::failed(format!(
                "cannot write the profile {}: {error}; name another file with --out",
                out.display()
            ))
        })?;
        self.chart()?.write(plot).map_err(Failure::failed)
    }

    pub fn report(&self, out: &Path, plot: &Path) -> Result<JsonReport<'_>, Failure> {
        Ok(JsonReport {
            name: &self.name,
            command: &self.command,
            peak_bytes: self.peak.0,
            cores: self.cores,
            points: &self.points,
            levelled_s: self.levelled(),
            ratio_of_20pct: self
                .profile()?
                .ratio_at_slowdown(catalogue::SLOWDOWN_ADMITTED),
            toml: out.display().to_string(),
            svg: plot.display().to_string(),
        })
    }

    pub fn describe(&self, out: &Path, plot: &Path) -> Result<String, Failure> {
        let mut table = Table::new([
            "local",
            "limit",
            "time",
            "slower",
            "far",
            "faults",
            "far faults",
        ]);
        let full = self.points[0].seconds;
        for point in &self.points {
            table.row([
                format!("{:.0}%", point.ratio * 100.0),
                match point.ratio {
                    1.0 => "-".to_string(),
                    _ => Bytes(point.limit_bytes).rounded(),
                },
                format_duration(Duration::from_secs_f64(point.seconds)),
                format!("{:.2}x", point.seconds / full),
                Bytes(point.far_peak_bytes).rounded(),
                point.faults.to_string(),
                point.faults_remote.to_string(),
            ]);
        }
        let ratio = self
            .profile()?
            .ratio_at_slowdown(catalogue::SLOWDOWN_ADMITTED);
        Ok(format!(
            "{table}\n\n{}: peak {}, {}; at most 20 % slower with {:.0} % of it local\nwrote {} and \
             {}",
            self.name,
            self.peak.rounded(),
            match self.cores {
                1 => "1 core".to_string(),
                n => format!("{n} cores"),
            },
            ratio * 100.0,
            out.display(),
            plot.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let point = |ratio: f64, seconds: f64| Point {
            ratio,
            seconds,
            runs_s: vec![seconds],
            cpu_s: 1.9 * seconds,
            limit_bytes: (ratio * 1e9) as u64,
            far_peak_bytes: 0,
            faults: 1,
            faults_remote: 1,
            evicted_written: 1,
        };
        Measured {
            name: "a \"job\"/1".to_string(),
            command: vec!["sort".to_string(), "a\nb".to_string()],
            peak: Bytes(1_000_001),
            cores: 2,
            // Faster at 80 % than with all memory, by noise.
            points: vec![point(1.0, 10.0), point(0.8, 9.0), point(0.5, 12.0)],
        }
    }

    #[test]
    fn the_profile_is_what_the_simulator_reads() {
        let text = measured().toml().unwrap();
        let kinds = catalogue::parse(&text, Size::Rack).unwrap();
        assert_eq!(kinds[0].name, "a \"job\"/1");
        assert_eq!((kinds[0].memory, kinds[0].cores), (Bytes(1_000_001), 2));
        assert_eq!(kinds[0].profile.lowest(), 0.5);
        assert!(text.contains("ratio = [1.0, 0.8, 0.5]\nruntime_s = [9.5, 9.5, 12.0]\n"));
        assert!(text.starts_with("# Written by 'muninn profile -- sort a b'.\n"));
        assert_eq!(measured().file_name(), "a--job--1");
        assert_eq!(measured().points[0].cores_busy(), 2);
    }

    #[test]
    fn everything_is_written_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let (out, plot) = (dir.path().join("p.toml"), dir.path().join("p.svg"));
        measured().write(&out, &plot).unwrap();
        assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
        let told = measured().describe(&out, &plot).unwrap();
        assert!(told.contains("\n  50%"), "{told}");
        assert!(told.contains("peak 977KiB, 2 cores; at most 20 % slower with "));
        let report = measured();
        let json = serde_json::to_value(report.report(&out, &plot).unwrap()).unwrap();
        assert_eq!(json["points"][2]["seconds"], 12.0);
        assert_eq!(json["levelled_s"][0], 9.5);
    }

    #[test]
    fn the_median_run_counts() {
        let report = |seconds: f64, faults: u64| Report {
            seconds,
            counters: muninn_job::Snapshot {
                faults,
                ..Default::default()
            },
            ..Report::default()
        };
        let point = Point::new(0.5, &[report(3.0, 3), report(1.0, 1), report(2.0, 2)]);
        assert_eq!((point.seconds, point.faults), (2.0, 2));
        assert_eq!(point.runs_s, [1.0, 2.0, 3.0]);
    }
}
