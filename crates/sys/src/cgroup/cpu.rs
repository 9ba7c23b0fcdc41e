//! A group that gets a part of the time of the CPUs.
//!
//! The kernel lets its processes run for so much of each period, and holds them for the rest of it. Known
//! limit: a part that is used up early is a pause of up to a period, so what is measured inside is right in
//! sums of many periods and not in single waits.

use super::files::{CgroupFiles, RealCgroups};
use super::{CgroupError, Hierarchy, MemoryCgroup, Version};
use std::path::PathBuf;

/// Short, so that pauses are.
const PERIOD_US: u64 = 50_000;
/// The kernel takes no less than this of a period.
const QUOTA_MIN_US: u64 = 1000;

/// Removed when dropped; processes still in it move to its parent.
#[derive(Debug)]
pub struct CpuCgroup<F: CgroupFiles + Clone = RealCgroups> {
    group: MemoryCgroup<F>,
}

impl<F: CgroupFiles + Clone> CpuCgroup<F> {
    /// Makes a group in the hierarchy of [`Hierarchy::find_cpu`] that gets so much of the time of one CPU
    /// (above 1: of several).
    pub fn create(
        hierarchy: &Hierarchy<F>,
        name: &str,
        cpus: f64,
    ) -> Result<CpuCgroup<F>, CgroupError> {
        let group = hierarchy.create(name)?;
        let quota = ((cpus * PERIOD_US as f64) as u64).max(QUOTA_MIN_US);
        let set = |file: &str, text: &str| hierarchy.write(&group.path().join(file), text);
        match hierarchy.version {
            Version::V1 => {
                set("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                set("cpu.cfs_quota_us", &quota.to_string())?;
            }
            Version::V2 => set("cpu.max", &format!("{quota} {PERIOD_US}"))?,
        }
        Ok(CpuCgroup { group })
    }

    /// The directory of the group.
    pub fn path(&self) -> PathBuf {
        self.group.path()
    }

    /// The processes of the group.
    pub fn members(&self) -> Result<Vec<i32>, CgroupError> {
        self.group.members()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_group_runs_for_its_part_of_the_time() {
        let made = Hierarchy::find_cpu().and_then(|hierarchy| {
            let name = format!("muninn-test-{}", std::process::id());
            CpuCgroup::create(&hierarchy, &name, 0.1)
        });
        let group = match made {
            Ok(group) => group,
            Err(why) => return muninn_testing::skip(why),
        };
        let path = group.path();
        // It becomes busy inside of the group, and is asked what it had of the CPU.
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec timeout 1 sh -c 'while :; do :; done'",
            path.display()
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &enter])
            .stdin(Stdio::null())
            .process_group(0);
        let begun = Instant::now();
        let before = used(&path);
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(124), "ended by timeout");
        let (Some(before), Some(after)) = (before, used(&path)) else {
            return muninn_testing::skip("this kernel does not count periods of a CPU group");
        };
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(900));
        assert!(after > before, "it was never held back in {took:?}");
        drop(group);
        assert!(!path.exists());
    }

    /// Periods in which the group was held back.
    fn used(path: &std::path::Path) -> Option<u64> {
        let text = std::fs::read_to_string(path.join("cpu.stat")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "))?;
        line.trim().parse().ok()
    }
}
