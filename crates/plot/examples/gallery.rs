//! Writes one chart of each kind into the folder given, to look at.

use muninn_plot::{Bars, Chart, PlotError};
use std::path::PathBuf;

fn main() -> Result<(), PlotError> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_string()));
    let curve = |scale: f64| {
        (1..=10)
            .map(|i| (f64::from(i) * 10.0, scale / f64::from(i)))
            .collect()
    };
    let mut chart = Chart::new(
        "Run time by local memory",
        "local memory, % of peak",
        "run time, s",
    );
    for (i, name) in [
        "fifo",
        "random",
        "segmented-fifo",
        "s3-fifo",
        "sieve",
        "clock",
        "lru",
        "arc",
        "optimum",
    ]
    .iter()
    .enumerate()
    {
        chart = chart.line(*name, curve(10.0 + 2.0 * i as f64));
    }
    chart.write(folder.join("lines.svg"))?;

    let steps = (0..=50)
        .map(|i| (f64::from(i * i), f64::from(i) / 50.0))
        .collect();
    let more = (0..=50)
        .map(|i| (f64::from(i * i * i) / 20.0, f64::from(i) / 50.0))
        .collect();
    Chart::new("Distribution of slowdowns", "slowdown, µs", "share of jobs")
        .step("uniform", steps)
        .step("memory-time & <friends>", more)
        .x_log()
        .write(folder.join("steps.svg"))?;

    Bars::new("Makespan improvement", "%")
        .group(
            "m2c 0.8",
            &[
                ("FAR(+0 %)", -6.0),
                ("FAR(+17.5 %)", -5.5),
                ("FAR(+37.5 %)", -5.0),
            ],
        )
        .group(
            "m2c 1.2",
            &[
                ("FAR(+0 %)", 3.0),
                ("FAR(+17.5 %)", 12.0),
                ("FAR(+37.5 %)", f64::NAN),
            ],
        )
        .group(
            "m2c 1.6",
            &[
                ("FAR(+0 %)", 11.0),
                ("FAR(+17.5 %)", 30.0),
                ("FAR(+37.5 %)", 47.0),
            ],
        )
        .write(folder.join("bars.svg"))?;
    Chart::new("Nothing measured", "x", "y")
        .line("empty", vec![])
        .write(folder.join("empty.svg"))
}
