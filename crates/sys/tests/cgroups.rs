//! Cgroups: the fake in both versions, and the real one where we may.

mod common;

use common::fork;
use muninn_sys::cgroup::{CgroupError, FakeCgroups, Hierarchy, Version};
use muninn_testing::skip;
use muninn_types::Bytes;
use rustix::io::Errno;

fn fake(version: Version) -> (FakeCgroups, Hierarchy<FakeCgroups>) {
    let files = FakeCgroups::new(version, "/cg");
    let hierarchy = Hierarchy::find_in(&files.proc("/jobs/ours"), files.clone()).unwrap();
    (files, hierarchy)
}

#[test]
fn limits_are_set_in_both_versions() {
    for version in [Version::V1, Version::V2] {
        let (files, hierarchy) = fake(version);
        assert_eq!(hierarchy.version(), version);
        assert!(hierarchy.own().path().ends_with("jobs/ours"));
        let group = hierarchy.create("job").unwrap();
        assert_eq!(group.limit().unwrap(), None);
        group
            .set_limits(Some(Bytes::mib(64)), Some(Some(Bytes::ZERO)))
            .unwrap();
        assert_eq!(group.limit().unwrap(), Some(Bytes::mib(64)));
        // Up again, past the old limit of both together.
        group
            .set_limits(Some(Bytes::mib(128)), Some(Some(Bytes::mib(8))))
            .unwrap();
        let inner = hierarchy.create_below("job".as_ref(), "inner").unwrap();
        inner.set_limits(Some(Bytes::gib(1)), None).unwrap();
        assert_eq!(inner.effective_limit().unwrap(), Some(Bytes::mib(128)));
        inner.set_limits(None, Some(None)).unwrap();
        assert_eq!(inner.limit().unwrap(), None);
        group.add(77).unwrap();
        inner.add(77).unwrap();
        assert_eq!(group.members().unwrap(), [] as [i32; 0]);
        assert_eq!(inner.members().unwrap(), [77]);
        inner.remove().unwrap();
        assert_eq!(group.members().unwrap(), [77], "moved to the parent");
        drop(group);
        assert!(!files.exists("job"));
    }
}

#[test]
fn what_is_left_counts_no_pages_of_files() {
    for version in [Version::V1, Version::V2] {
        let (files, hierarchy) = fake(version);
        let group = hierarchy.create("job").unwrap();
        let inner = hierarchy.create_below("job".as_ref(), "inner").unwrap();
        assert_eq!(inner.left().unwrap(), None);
        let usage = match version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let stat = "anon 1\ninactive_file 1048576\nactive_file 2097152\n\
                    total_inactive_file 1048576\ntotal_active_file 2097152\n";
        for (name, used) in [("job", 60), ("job/inner", 10)] {
            files.set(name, usage, &Bytes::mib(used).0.to_string());
            files.set(name, "memory.stat", stat);
        }
        inner.set_limits(Some(Bytes::mib(100)), None).unwrap();
        assert_eq!(inner.left().unwrap(), Some(Bytes::mib(93)));
        group.set_limits(Some(Bytes::mib(64)), None).unwrap();
        assert_eq!(inner.left().unwrap(), Some(Bytes::mib(7)));
    }
}

#[test]
fn failures_are_told_with_what_to_do() {
    let (files, hierarchy) = fake(Version::V1);
    files.fail("forbidden", Errno::ACCESS);
    assert_eq!(
        hierarchy.create("forbidden").unwrap_err().to_string(),
        "cannot create /cg/forbidden: Permission denied (os error 13); changing cgroups needs \
         root or a delegated group"
    );
    for bad in ["", "a/b", "..", ".hidden", "a b"] {
        assert!(matches!(
            hierarchy.create(bad),
            Err(CgroupError::BadName(_))
        ));
    }
    let group = hierarchy.create("noswap").unwrap();
    files.fail("noswap/memory.memsw.limit_in_bytes", Errno::NOENT);
    group.set_limits(Some(Bytes::mib(1)), None).unwrap();
    assert_eq!(
        group.set_limits(Some(Bytes::mib(1)), Some(None)),
        Err(CgroupError::NoSwapLimit)
    );
    files.set("noswap", "memory.usage_in_bytes", "lots");
    assert!(matches!(group.usage(), Err(CgroupError::Unexpected { .. })));
    let nothing = muninn_sys::proc::FakeProc::new()
        .with("/proc/self/mountinfo", "")
        .with("/proc/self/cgroup", "");
    assert!(matches!(
        Hierarchy::find_in(&nothing, files),
        Err(CgroupError::NoController(_))
    ));
}

#[test]
fn the_real_kernel_holds_a_process_to_its_limit() {
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(error @ CgroupError::NoController(_)) => return skip(error),
        Err(error) => panic!("{error}"),
    };
    println!(
        "{:?} at {}, we are in {}",
        hierarchy.version(),
        hierarchy.root().display(),
        hierarchy.own().path().display()
    );
    hierarchy.own().usage().unwrap();
    let group = match hierarchy.create(&format!("muninn-sys-test-{}", std::process::id())) {
        Ok(group) => group,
        Err(
            error @ CgroupError::File {
                source: Errno::ACCESS | Errno::PERM | Errno::ROFS,
                ..
            },
        ) => return skip(error),
        Err(error) => panic!("{error}"),
    };
    group.set_limits(Some(Bytes::mib(32)), None).unwrap();
    assert_eq!(group.limit().unwrap(), Some(Bytes::mib(32)));
    assert_eq!(group.effective_limit().unwrap(), Some(Bytes::mib(32)));
    match group.set_limits(Some(Bytes::mib(32)), Some(Some(Bytes::ZERO))) {
        Ok(()) | Err(CgroupError::NoSwapLimit) => {}
        Err(error) => panic!("{error}"),
    }
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let (raw_reader, raw_writer) = (
        std::os::fd::AsRawFd::as_raw_fd(&reader),
        std::os::fd::AsRawFd::as_raw_fd(&writer),
    );
    let area = common::Area::new(2048);
    let child = fork(|| {
        let mut byte = 0u8;
        // SAFETY: system calls on descriptors of ours and a local byte; waits for the parent.
        unsafe {
            libc::close(raw_writer);
            libc::read(raw_reader, (&raw mut byte).cast(), 1);
        }
        area.fill(1);
        i32::from(area.read(0))
    });
    group.add(child.0).unwrap();
    assert_eq!(group.members().unwrap(), [child.0]);
    drop(writer);
    assert_eq!(child.exit_code(), Some(1));
    assert!(group.peak().unwrap() >= Bytes::mib(8), "8 MiB were touched");
    assert!(group.usage().unwrap() <= Bytes::mib(32));
    let path = group.path();
    group.remove().unwrap();
    assert!(!path.exists());
}
