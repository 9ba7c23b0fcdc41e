//! Doctor on machines that are not this one.

use super::checks::{self, Check};
use super::machine::{Machine, Tried};
use super::{describe, verdict};
use crate::failure::Exit;
use muninn_sys::limits::{Limit, Limited};
use muninn_sys::proc::FakeProc;
use muninn_sys::socket::Marks;
use muninn_sys::uffd::{Features, Route};

/// A machine that has everything, for a test to take things away from.
struct Described {
    proc: FakeProc,
    features: Features,
    syscall: Tried<()>,
    device: Tried<()>,
    forks: Tried<()>,
    awake: Tried<()>,
    open_files: u64,
    marks: Tried<Marks>,
}

fn no(why: &str) -> Tried<()> {
    Err(why.to_string())
}

fn files(kernel: &str) -> FakeProc {
    let thp = "/sys/kernel/mm/transparent_hugepage";
    let hugetlb = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    FakeProc::new()
        .with("/proc/sys/kernel/osrelease", kernel)
        .with("/proc/sys/vm/unprivileged_userfaultfd", "0\n")
        .with("/proc/sys/vm/max_map_count", "262144\n")
        .with("/proc/sys/vm/overcommit_memory", "0\n")
        .with("/proc/sys/kernel/io_uring_disabled", "0\n")
        .with(
            "/proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 -2\n",
        )
        .with(
            "/proc/meminfo",
            "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n",
        )
        .with(
            "/sys/fs/cgroup/cgroup.controllers",
            "cpuset cpu io memory pids\n",
        )
        .with(&format!("{thp}/shmem_enabled"), "always [advise] never\n")
        .with(&format!("{hugetlb}/nr_hugepages"), "8\n")
        .with(&format!("{hugetlb}/free_hugepages"), "8\n")
}

fn good() -> Described {
    let all = Features::NAMED.iter();
    Described {
        proc: files("6.18.2-amd64\n"),
        features: all.fold(Features::NONE, |set, (feature, _)| set | *feature),
        syscall: Ok(()),
        device: Ok(()),
        forks: Ok(()),
        awake: Ok(()),
        open_files: 1 << 20,
        marks: Ok(Marks {
            dscp: Some(56),
            priority: Some(7),
        }),
    }
}

impl Machine for Described {
    type Proc = FakeProc;
    fn proc(&self) -> &FakeProc {
        &self.proc
    }
    fn open_uffd(&self, route: Route) -> Tried<()> {
        match route {
            Route::Syscall => self.syscall.clone(),
            _ => self.device.clone(),
        }
    }
    fn open_uffd_user_mode(&self) -> Tried<()> {
        Ok(())
    }
    fn uffd_features(&self) -> Tried<Features> {
        Ok(self.features)
    }
    fn open_uffd_with_forks(&self) -> Tried<()> {
        self.forks.clone()
    }
    fn pagemap_scan(&self) -> Tried<()> {
        Ok(())
    }
    fn memfd(&self) -> Tried<()> {
        Ok(())
    }
    fn program_library(&self) -> Tried<()> {
        Ok(())
    }
    fn keep_awake(&self) -> Tried<()> {
        self.awake.clone()
    }
    fn cpus(&self) -> usize {
        2
    }
    fn limit(&self, what: Limited) -> Limit {
        match what {
            Limited::OpenFiles => Limit {
                soft: Some(1024),
                hard: Some(self.open_files),
            },
            Limited::LockedMemory => Limit {
                soft: None,
                hard: None,
            },
        }
    }
    fn loopback(&self) -> Tried<Marks> {
        self.marks.clone()
    }
}

fn find(checks: &[Check], name: &str) -> Check {
    let found = checks.iter().find(|check| check.name == name);
    found.unwrap_or_else(|| panic!("no check {name}")).clone()
}

#[test]
fn a_machine_that_has_everything_gets_no_advice() {
    let checks = checks::all(&good());
    for check in &checks {
        assert!(check.ok && check.advice.is_empty(), "{check:?}");
    }
    assert!(verdict(&checks).is_ok());
    assert!(describe(&checks).ends_with("All that Muninn can make use of is here."));
    assert_eq!(find(&checks, "swap").found, "/dev/zram0");
    assert_eq!(
        find(&checks, "memory").found,
        "4.00GiB, of which 2.00GiB are available"
    );
}

#[test]
fn a_kernel_without_move_is_slow_and_one_without_protection_too_is_not_enough() {
    let old = Described {
        proc: files("6.7.1\n"),
        features: good().features.without(Features::MOVE),
        ..good()
    };
    let checks = checks::all(&old);
    let missing = find(&checks, "userfaultfd-MOVE");
    assert!(!missing.ok && !missing.needed);
    assert_eq!(missing.found, "not in this kernel");
    assert!(missing.advice.contains("at two to four times the cost"));
    assert!(!find(&checks, "kernel").ok);
    assert!(verdict(&checks).is_ok());

    let older = Described {
        features: old.features.without(Features::PAGEFAULT_FLAG_WP),
        ..old
    };
    let failure = verdict(&checks::all(&older)).unwrap_err();
    assert_eq!(failure.exit, Exit::CheckFailed);
    assert_eq!(
        failure.to_string(),
        "what Muninn needs is missing here: userfaultfd-PAGEFAULT_FLAG_WP; how to get it is said \
         above"
    );
}

#[test]
fn what_is_only_slower_does_not_fail() {
    let slower = Described {
        features: good()
            .features
            .without(Features::WP_ASYNC | Features::THREAD_ID),
        awake: no("may not open /dev/cpu_dma_latency"),
        device: no("Permission denied"),
        forks: no("events about forks need CAP_SYS_PTRACE"),
        open_files: 1024,
        marks: Ok(Marks {
            dscp: Some(56),
            priority: Some(6),
        }),
        ..good()
    };
    let checks = checks::all(&slower);
    assert!(verdict(&checks).is_ok());
    for name in [
        "userfaultfd-WP_ASYNC",
        "userfaultfd-THREAD_ID",
        "userfaultfd-EVENT_FORK",
        "userfaultfd-device",
        "cpu-dma-latency",
        "open-files",
        "so-priority",
    ] {
        let check = find(&checks, name);
        assert!(
            !check.ok && !check.needed && !check.advice.is_empty(),
            "{check:?}"
        );
    }
    assert!(find(&checks, "userfaultfd").ok);
}

#[test]
fn a_user_without_permission_is_told_all_ways_to_it() {
    let refused = Described {
        syscall: no("Operation not permitted"),
        device: no("Permission denied"),
        ..good()
    };
    let checks = checks::all(&refused);
    let check = find(&checks, "userfaultfd");
    assert!(!check.ok && check.needed);
    assert_eq!(check.found, "permitted for faults of user code only");
    for way in [
        "root",
        "CAP_SYS_PTRACE",
        "/dev/userfaultfd",
        "vm.unprivileged_userfaultfd=1",
    ] {
        assert!(
            check.advice.contains(way),
            "{way} is not in: {}",
            check.advice
        );
    }
    assert!(!find(&checks, "vm.unprivileged_userfaultfd").ok);
    assert!(verdict(&checks).is_err());
}

#[test]
fn unreadable_files_are_findings_and_not_failures() {
    let bare = Described {
        proc: FakeProc::new(),
        marks: Err("no loopback".to_string()),
        ..good()
    };
    let checks = checks::all(&bare);
    assert!(!find(&checks, "tcp-loopback").ok && !find(&checks, "dscp").ok);
    assert!(!find(&checks, "memory").ok);
    assert_eq!(find(&checks, "cgroup-memory").found, "no memory controller");
    assert_eq!(find(&checks, "io-uring").found, "not in this kernel");
    assert!(verdict(&checks).is_ok());
}
