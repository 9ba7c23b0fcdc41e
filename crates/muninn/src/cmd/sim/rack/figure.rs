//! What each figure of the paper needs: `--figure NAME`. Flags given beside it win.

use muninn_policy::admission::Admission;
use muninn_policy::rebalance::Policy;
use muninn_sim::rack::{Config, Range};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    #[value(name = "4.6")]
    Slowdown,
    #[value(name = "4.7")]
    Improvement,
    #[value(name = "4.8")]
    Packability,
    #[value(name = "4.9")]
    Memory,
    #[value(name = "table-4.2")]
    Testbed,
    Policies,
    Admission,
}

/// What is run where no flag says otherwise.
#[derive(Debug)]
pub struct Preset {
    pub ranges: Vec<Range>,
    pub configs: Vec<Config>,
    pub policies: Vec<Policy>,
    pub admissions: Vec<Admission>,
    pub workloads: u32,
    pub trials: u32,
}

impl Default for Preset {
    /// A look at everything, in seconds.
    fn default() -> Preset {
        Preset {
            ranges: Range::FIGURE_4_7.to_vec(),
            configs: Config::figure_4_9(),
            policies: vec![Policy::MemoryTime],
            admissions: vec![Admission::Eager],
            workloads: 8,
            trials: 1,
        }
    }
}

fn far(more_pct: &[f64]) -> Vec<Config> {
    let far = more_pct.iter().map(|&more_pct| Config::Far { more_pct });
    far.collect()
}

fn around(values: &[f64]) -> Vec<Range> {
    let range = |value: &f64| Range {
        from: value - Range::HALF_WIDTH,
        to: value + Range::HALF_WIDTH,
    };
    values.iter().map(range).collect()
}

impl Figure {
    pub fn on_testbed(self) -> bool {
        matches!(self, Figure::Slowdown | Figure::Testbed | Figure::Policies)
    }

    pub fn preset(self) -> Preset {
        let base = Preset::default();
        let testbed = far(&[0.0, 100.0 / 9.0, 100.0 / 3.0]);
        match self {
            Figure::Slowdown => Preset {
                ranges: around(&[1.2, 1.6]),
                configs: testbed,
                workloads: 20,
                trials: 5,
                ..base
            },
            Figure::Improvement => Preset {
                configs: Config::figure_4_7(),
                workloads: 260,
                trials: 15,
                ..base
            },
            Figure::Packability => Preset {
                ranges: vec![Range {
                    from: 1.15,
                    to: 1.65,
                }],
                configs: far(&[17.5]),
                workloads: 260,
                trials: 3,
                ..base
            },
            Figure::Memory => Preset {
                ranges: around(&[0.8, 1.0, 1.2, 1.4, 1.6, 1.77]),
                workloads: 20,
                ..base
            },
            Figure::Testbed => Preset {
                ranges: around(&[1.0, 1.2, 1.4, 1.6]),
                configs: testbed,
                workloads: 20,
                trials: 5,
                ..base
            },
            Figure::Policies => Preset {
                ranges: vec![Range { from: 1.4, to: 1.8 }],
                configs: far(&[100.0 / 3.0]),
                policies: Policy::ALL.to_vec(),
                workloads: 1000,
                ..base
            },
            Figure::Admission => Preset {
                ranges: around(&[0.8, 1.0, 1.2, 1.4, 1.6, 1.8]),
                configs: [vec![Config::NOFAR], far(&[0.0, 11.0, 33.0])].concat(),
                admissions: Admission::ALL.to_vec(),
                workloads: 20,
                trials: 3,
                ..base
            },
        }
    }
}
