//! The rack and its configurations.
//!
//! NOFAR(+X %): every machine with X % more memory. FAR(+X %): one machine gives way to a memory
//! server, and the whole rack, local and far, has X % more memory than NOFAR; while a machine uses
//! far memory some of its cores reclaim (§4.5.1).

use super::RackError;
use muninn_types::Bytes;
use std::fmt;
use std::str::FromStr;

/// More machines than this are not one rack.
pub const MACHINES_MAX: u32 = 4096;

/// The rack that configurations are variations of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rack {
    pub machines: u32,
    pub cores: u32,
    pub memory: Bytes,
    pub reclaim_cores: u32,
}

impl Rack {
    /// The simulated rack of the paper.
    pub const PUBLISHED: Rack = Rack {
        machines: 40,
        cores: 48,
        memory: Bytes::gib(192),
        reclaim_cores: 3,
    };
    /// Its testbed.
    pub const TESTBED: Rack = Rack {
        machines: 9,
        cores: 8,
        memory: Bytes::gib(32),
        reclaim_cores: 1,
    };

    pub fn check(&self) -> Result<(), RackError> {
        if self.machines == 0 {
            return Err(RackError::NoMachines);
        }
        if self.machines > MACHINES_MAX {
            return Err(RackError::TooManyMachines(self.machines, MACHINES_MAX));
        }
        if self.cores == 0 {
            return Err(RackError::NoCores);
        }
        if self.memory == Bytes::ZERO {
            return Err(RackError::NoMemory);
        }
        if self.reclaim_cores >= self.cores {
            return Err(RackError::NoCoresLeft {
                reclaim: self.reclaim_cores,
                cores: self.cores,
            });
        }
        Ok(())
    }

    /// All memory of the rack in NOFAR.
    pub fn total(&self) -> Bytes {
        Bytes(self.memory.0 * u64::from(self.machines))
    }

    /// The rack with all its resources in one machine: nothing is lost to fragments.
    pub fn pooled(&self) -> Shape {
        Shape {
            machines: 1,
            cores: self.cores * self.machines,
            reclaim_cores: 0,
            memory: self.total(),
            far: Bytes::ZERO,
        }
    }
}

/// What a configuration comes to on a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub machines: u32,
    pub cores: u32,
    pub reclaim_cores: u32,
    pub memory: Bytes,
    pub far: Bytes,
}

/// A configuration, by more memory in percent of NOFAR or by the far memory itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Config {
    NoFar { more_pct: f64 },
    Far { more_pct: f64 },
    FarSize(Bytes),
}

impl Config {
    pub const NOFAR: Config = Config::NoFar { more_pct: 0.0 };

    /// Those of figure 4.7: NOFAR and seven sizes of far memory, from 192 GB to 4032 GB.
    pub fn figure_4_7() -> Vec<Config> {
        let far = [0.0, 2.5, 7.5, 17.5, 25.0, 37.5, 50.0];
        let far = far.into_iter().map(|more_pct| Config::Far { more_pct });
        [Config::NOFAR].into_iter().chain(far).collect()
    }

    /// Those of figure 4.9: also more local memory.
    pub fn figure_4_9() -> Vec<Config> {
        let more = [25.0, 50.0].map(|more_pct| Config::NoFar { more_pct });
        Config::figure_4_7().into_iter().chain(more).collect()
    }

    pub fn is_far(self) -> bool {
        !matches!(self, Config::NoFar { .. })
    }

    pub fn shape(self, rack: &Rack) -> Result<Shape, RackError> {
        rack.check()?;
        let share = |pct: f64, of: Bytes| Bytes((of.0 as f64 * pct / 100.0).round() as u64);
        let far = match self {
            Config::NoFar { more_pct } => {
                return Ok(Shape {
                    machines: rack.machines,
                    cores: rack.cores,
                    reclaim_cores: 0,
                    memory: rack.memory + share(more_pct, rack.memory),
                    far: Bytes::ZERO,
                });
            }
            Config::Far { more_pct } => rack.memory + share(more_pct, rack.total()),
            Config::FarSize(far) => far,
        };
        if rack.machines < 2 {
            return Err(RackError::OneMachine);
        }
        if far == Bytes::ZERO {
            return Err(RackError::NoFar);
        }
        Ok(Shape {
            machines: rack.machines - 1,
            cores: rack.cores,
            reclaim_cores: rack.reclaim_cores,
            memory: rack.memory,
            far,
        })
    }

    /// Memory that was bought on top of NOFAR, in percent of it.
    pub fn more_pct(self, rack: &Rack) -> f64 {
        match self {
            Config::NoFar { more_pct } | Config::Far { more_pct } => more_pct,
            Config::FarSize(far) => {
                let more = far.0 as f64 - rack.memory.0 as f64;
                more / rack.total().0 as f64 * 100.0
            }
        }
    }

    /// `nofar`, `nofar+25`, `far+17.5`.
    pub fn name(self, rack: &Rack) -> String {
        let pct = (self.more_pct(rack) * 1000.0).round() / 1000.0;
        match self {
            Config::NoFar { .. } if pct == 0.0 => "nofar".to_string(),
            Config::NoFar { .. } => format!("nofar{pct:+}"),
            _ => format!("far{:+}", pct + 0.0),
        }
    }
}

impl FromStr for Config {
    type Err = RackError;
    fn from_str(text: &str) -> Result<Config, RackError> {
        let refused = || RackError::NotAConfig(text.to_string());
        let percent = |rest: &str| -> Result<f64, RackError> {
            let number = rest.strip_prefix('+').ok_or_else(refused)?;
            let number = number.strip_suffix('%').unwrap_or(number);
            let value: f64 = number.parse().map_err(|_| refused())?;
            let sane = (0.0..=10_000.0).contains(&value);
            sane.then_some(value).ok_or_else(refused)
        };
        if text == "nofar" {
            return Ok(Config::NOFAR);
        }
        if let Some(rest) = text.strip_prefix("nofar") {
            return percent(rest).map(|more_pct| Config::NoFar { more_pct });
        }
        let rest = text.strip_prefix("far").ok_or_else(refused)?;
        if let Some(size) = rest.strip_prefix('=') {
            return size.parse().map(Config::FarSize).map_err(|_| refused());
        }
        percent(rest).map(|more_pct| Config::Far { more_pct })
    }
}

/// In which order a job looks at the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A new random order for each job, as the paper says.
    Random,
    /// Always from the first machine on, as the published simulator does: its shuffled order is
    /// thrown away.
    Index,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Random => "random",
            Order::Index => "index",
        })
    }
}
