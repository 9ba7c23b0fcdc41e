//! Keeping idle processors awake while far memory is in use.
//!
//! A fault that wakes a sleeping processor costs 54 µs instead of 9 µs. The kernel keeps all
//! processors out of deep sleep as long as somebody holds `/dev/cpu_dma_latency` open with a bound
//! written to it. Invariant: the wish ends with the guard, also when the process is killed. Known
//! limit: it is for all processors of the machine, costs power, and needs root or a udev rule.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const DEVICE: &str = "/dev/cpu_dma_latency";

/// The bound could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmQosError {
    #[error(
        "may not open /dev/cpu_dma_latency: idle processors will sleep and faults take several \
         times as long; run as root or give the user write access to it"
    )]
    NotPermitted,
    #[error(
        "there is no /dev/cpu_dma_latency: this kernel (or container) cannot keep processors awake"
    )]
    NotHere,
    #[error("cannot set the latency bound in /dev/cpu_dma_latency: {0}")]
    Other(Errno),
}

/// Something that can bound the time a processor may need to wake up.
pub trait WakeLatency {
    type Guard;
    /// Holds the bound until the guard is dropped.
    fn hold(&self, latency_us_max: u32) -> Result<Self::Guard, PmQosError>;
}

/// The machine itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuDmaLatency;

/// Holds the bound while it lives.
#[derive(Debug)]
pub struct LatencyGuard {
    _device: OwnedFd,
}

impl WakeLatency for CpuDmaLatency {
    type Guard = LatencyGuard;

    fn hold(&self, latency_us_max: u32) -> Result<LatencyGuard, PmQosError> {
        let device = rustix::fs::open(DEVICE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| match errno {
                Errno::ACCESS | Errno::PERM => PmQosError::NotPermitted,
                Errno::NOENT | Errno::NODEV | Errno::NXIO => PmQosError::NotHere,
                other => PmQosError::Other(other),
            })?;
        rustix::io::write(&device, &latency_us_max.to_ne_bytes()).map_err(PmQosError::Other)?;
        Ok(LatencyGuard { _device: device })
    }
}

/// Keeps processors fully awake (bound 0) while the guard lives.
pub fn keep_awake() -> Result<LatencyGuard, PmQosError> {
    CpuDmaLatency.hold(0)
}

/// Remembers which bounds are held; can be told to refuse.
#[derive(Clone, Debug, Default)]
pub struct FakeWakeLatency {
    held: Arc<Mutex<Vec<u32>>>,
    refusal: Option<PmQosError>,
}

/// A bound of a [`FakeWakeLatency`].
#[derive(Debug)]
pub struct FakeLatencyGuard {
    held: Arc<Mutex<Vec<u32>>>,
    bound: u32,
}

impl FakeWakeLatency {
    pub fn refusing(refusal: PmQosError) -> FakeWakeLatency {
        FakeWakeLatency {
            refusal: Some(refusal),
            ..FakeWakeLatency::default()
        }
    }

    /// The bound in force: the smallest that is held.
    pub fn bound(&self) -> Option<u32> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().copied().min()
    }
}

impl WakeLatency for FakeWakeLatency {
    type Guard = FakeLatencyGuard;

    fn hold(&self, latency_us_max: u32) -> Result<FakeLatencyGuard, PmQosError> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(latency_us_max);
        drop(held);
        Ok(FakeLatencyGuard {
            held: Arc::clone(&self.held),
            bound: latency_us_max,
        })
    }
}

impl Drop for FakeLatencyGuard {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = held.iter().position(|&bound| bound == self.bound) {
            held.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_or_refused_with_advice() {
        use std::io::ErrorKind;
        // What is right follows from whether anybody can write there at all.
        let opened = std::fs::OpenOptions::new().write(true).open(DEVICE);
        match (opened.map_err(|error| error.kind()), keep_awake()) {
            (Ok(_), held) => drop(held.unwrap()),
            (Err(ErrorKind::NotFound), refused) => {
                assert_eq!(refused.unwrap_err(), PmQosError::NotHere);
            }
            (Err(ErrorKind::PermissionDenied), refused) => {
                let error = refused.unwrap_err();
                assert_eq!(error, PmQosError::NotPermitted);
                assert!(error.to_string().contains("run as root or give the user"));
            }
            (Err(other), refused) => panic!("{other} here, and there {refused:?}"),
        }
    }

    #[test]
    fn the_fake_follows_the_guards() {
        let fake = FakeWakeLatency::default();
        let first = fake.hold(100).unwrap();
        let second = fake.hold(0).unwrap();
        assert_eq!(fake.bound(), Some(0));
        drop(second);
        assert_eq!(fake.bound(), Some(100));
        drop(first);
        assert_eq!(fake.bound(), None);
        let refused = FakeWakeLatency::refusing(PmQosError::NotHere).hold(0);
        assert_eq!(refused.unwrap_err(), PmQosError::NotHere);
    }
}
