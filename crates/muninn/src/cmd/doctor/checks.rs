//! The checks: what was found, whether that is good, and if not what it costs and how to get it.
//!
//! What is *needed* is what Muninn has no other way for. The rest makes it faster or safer.

use super::machine::Machine;
use super::uffd;
use muninn_sys::limits::{Limit, Limited};
use muninn_sys::memory::{HugePages, ShmemThp};
use muninn_sys::proc::{self, ProcSource};
use muninn_types::Bytes;
use serde::Serialize;

/// The first kernel that has everything.
const KERNEL_MIN: (u32, u32) = (6, 8);
/// Descriptors below which a server or a large client soon runs out.
const OPEN_FILES_MIN: u64 = 4096;
const MAX_MAP_COUNT_MIN: u64 = 65_530;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    /// Without it Muninn cannot do its work here.
    pub needed: bool,
    pub found: String,
    /// What it costs to be without, and how to get it; empty where all is well.
    pub advice: String,
}

impl Check {
    pub(crate) fn new(name: &str, ok: bool, found: impl Into<String>, advice: &str) -> Check {
        Check {
            name: name.to_string(),
            ok,
            needed: false,
            found: found.into(),
            advice: if ok {
                String::new()
            } else {
                advice.to_string()
            },
        }
    }

    pub(crate) fn needed(mut self) -> Check {
        self.needed = true;
        self
    }
}

pub fn all(machine: &impl Machine) -> Vec<Check> {
    let source = machine.proc();
    let mut checks = vec![kernel(source)];
    checks.extend(uffd::ways(machine));
    checks.extend(uffd::features(machine));
    checks.push(tried(
        "pagemap-scan",
        machine.pagemap_scan(),
        "PAGEMAP_SCAN works",
        "which pages are resident is asked page by page, about 10 times slower: use Linux 6.7 or \
         newer",
    ));
    checks.push(
        tried(
            "memfd",
            machine.memfd(),
            "memory files can be made and mapped",
            "neither a server nor shared memory works without: allow memfd_create here",
        )
        .needed(),
    );
    checks.push(tried(
        "program-library",
        machine.program_library(),
        "can be put into programs",
        "'muninn run' does not work without; servers and clients do",
    ));
    checks.extend(huge_pages(source));
    checks.push(tried(
        "cpu-dma-latency",
        machine.keep_awake(),
        "CPUs can be kept awake",
        "a fault that wakes a sleeping CPU takes 54 µs instead of 9: run as root, or give the user \
         write access to /dev/cpu_dma_latency",
    ));
    checks.push(cpus(machine.cpus()));
    checks.push(open_files(machine.limit(Limited::OpenFiles)));
    checks.push(locked_memory(machine.limit(Limited::LockedMemory)));
    checks.extend(sysctls(source));
    checks.push(cgroup(source));
    checks.push(swap(source));
    checks.extend(network(machine));
    checks.push(io_uring(source));
    checks.push(memory(source));
    checks
}

pub(crate) fn tried(name: &str, result: Result<(), String>, good: &str, advice: &str) -> Check {
    match result {
        Ok(()) => Check::new(name, true, good, ""),
        Err(why) => Check::new(name, false, why, advice),
    }
}

fn kernel(source: &impl ProcSource) -> Check {
    let release = proc::read_text(source, "/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let ok = (number(), number()) >= KERNEL_MIN;
    let advice = "Linux 6.8 is the first with all that is used: what is missing is below; newer is \
                  better";
    Check::new("kernel", ok, format!("Linux {release}"), advice)
}

fn huge_pages(source: &impl ProcSource) -> Vec<Check> {
    let huge = HugePages::probe(source);
    let pool = huge.hugetlb_2m;
    let shmem = match huge.shmem {
        ShmemThp::Always => "always",
        ShmemThp::WithinSize => "within_size",
        ShmemThp::Advise => "advise",
        ShmemThp::Never => "never",
    };
    vec![
        Check::new(
            "hugetlb",
            pool.total > 0,
            format!("{} of {} pages of 2MiB are free", pool.free, pool.total),
            "only 'serve --huge-pages required' uses them: 'sysctl vm.nr_hugepages=N' reserves N",
        ),
        Check::new(
            "shmem-huge-pages",
            huge.shmem != ShmemThp::Never,
            shmem,
            "a server's pool is of 4 KiB pages, so large transfers take a little longer: 'echo \
             advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled'",
        ),
    ]
}

fn cpus(count: usize) -> Check {
    let advice = "programs, fault handlers and servers take turns on one CPU: allow this user more \
                  (taskset, cgroup)";
    Check::new("cpus", count > 1, format!("{count} may be used"), advice)
}

fn bound(limit: Option<u64>, show: impl Fn(u64) -> String) -> String {
    limit.map_or("no limit".to_string(), show)
}

fn open_files(limit: Limit) -> Check {
    let ok = limit.hard.is_none_or(|hard| hard >= OPEN_FILES_MIN);
    let number = |n: u64| n.to_string();
    let found = format!(
        "{}, can be raised to {}",
        bound(limit.soft, number),
        bound(limit.hard, number)
    );
    let advice = "a server takes one for each connection and segment, so few clients fit: raise \
                  the hard limit (ulimit -Hn, or LimitNOFILE= of the service) to 65536";
    Check::new("open-files", ok, found, advice)
}

fn locked_memory(limit: Limit) -> Check {
    let size = |n: u64| Bytes(n).to_string();
    // Root may lock what it likes; for others the limit must hold a pool.
    let ok = limit.soft.is_none_or(|soft| soft >= Bytes::gib(1).0) || proc::own_uid() == 0;
    let advice = "'serve --prealloc' cannot lock its memory, which may then be swapped: raise it \
                  (ulimit -l, or LimitMEMLOCK= of the service)";
    Check::new("locked-memory", ok, bound(limit.soft, size), advice)
}

fn sysctls(source: &impl ProcSource) -> Vec<Check> {
    let check = |name: &str, good: fn(u64) -> bool, advice: &str| match proc::sysctl(source, name) {
        Ok(value) => Check::new(name, good(value), value.to_string(), advice),
        Err(error) => Check::new(name, false, error.to_string(), "mount /proc"),
    };
    vec![
        check(
            "vm.max_map_count",
            |count| count >= MAX_MAP_COUNT_MIN,
            "programs with many mappings reach it sooner under Muninn, which splits some: \
             'sysctl vm.max_map_count=262144'",
        ),
        check(
            "vm.overcommit_memory",
            |mode| mode != 2,
            "the kernel counts a pool as used before it is: 'sysctl vm.overcommit_memory=0'",
        ),
    ]
}

fn cgroup(source: &impl ProcSource) -> Check {
    let v2 = proc::read_text(source, "/sys/fs/cgroup/cgroup.controllers").ok();
    let v1 = proc::read_text(source, "/proc/cgroups").unwrap_or_default();
    let in_v1 = v1
        .lines()
        .any(|line| line.starts_with("memory\t") && line.ends_with("\t1"));
    let in_v2 = v2
        .as_ref()
        .is_some_and(|list| list.split_whitespace().any(|name| name == "memory"));
    let found = match (&v2, in_v2, in_v1) {
        (Some(_), true, _) => "version 2, with the memory controller",
        (Some(_), false, _) => "version 2, without the memory controller",
        (None, _, true) => "version 1, with the memory controller",
        (None, _, false) => "no memory controller",
    };
    let advice = "the memory of a job cannot be bounded by the kernel: boot with \
                  cgroup_enable=memory, or let systemd delegate the controller";
    Check::new("cgroup-memory", in_v2 || in_v1, found, advice)
}

fn swap(source: &impl ProcSource) -> Check {
    let swaps = proc::read_text(source, "/proc/swaps").unwrap_or_default();
    let devices: Vec<&str> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let found = match &devices[..] {
        [] => "none".to_string(),
        list => list.join(", "),
    };
    // Neither is better: where memory is short the kernel's swap and Muninn work side by side.
    Check::new("swap", true, found, "")
}

fn network(machine: &impl Machine) -> Vec<Check> {
    let (reached, marks) = match machine.loopback() {
        Ok(marks) => (Ok(()), marks),
        Err(why) => (Err(why), Default::default()),
    };
    let marked = |name: &str, set: Option<u8>, wanted: u8, advice: &str| {
        let found = set.map_or("cannot be set".to_string(), |value| value.to_string());
        Check::new(name, set == Some(wanted), found, advice)
    };
    let loopback = tried(
        "tcp-loopback",
        reached,
        "connected to ourselves",
        "servers on this machine can only be reached through Unix sockets: bring up the loopback \
         device ('ip link set lo up')",
    );
    vec![
        loopback,
        marked(
            "dscp",
            marks.dscp,
            7 << 3,
            "switches cannot tell urgent pages from others: allow IP_TOS",
        ),
        marked(
            "so-priority",
            marks.priority,
            7,
            "the most urgent class shares priority 6 with the next: run with CAP_NET_ADMIN",
        ),
    ]
}

/// Not used yet; it is here to be seen when a server's loops are measured over it.
fn io_uring(source: &impl ProcSource) -> Check {
    let found = match proc::sysctl(source, "kernel.io_uring_disabled") {
        Ok(0) => "permitted",
        Ok(1) => "permitted to a group only",
        Ok(_) => "switched off",
        Err(_) => "not in this kernel",
    };
    Check::new("io-uring", true, found, "")
}

fn memory(source: &impl ProcSource) -> Check {
    match proc::meminfo(source) {
        Ok(machine) => Check::new(
            "memory",
            true,
            format!(
                "{}, of which {} are available",
                machine.total.rounded(),
                machine.available.rounded()
            ),
            "",
        ),
        Err(error) => Check::new("memory", false, error.to_string(), "mount /proc"),
    }
}
