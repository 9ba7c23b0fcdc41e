//! Where a controller is mounted and which group we are in, from the texts of `/proc`.
//!
//! Invariant: pure functions of text. Known limit: of several mounts of the same controller the
//! first counts.

use std::path::{Path, PathBuf};

use super::Version;

/// A mount of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) version: Version,
    pub(super) root: PathBuf,
    /// The group that is seen at the root of the mount: `/` outside of containers.
    pub(super) shows: String,
}

/// Version 1 where it has the controller, else version 2 if `has_it` says it does.
pub(super) fn mount_of(
    controller: &str,
    mountinfo: &str,
    has_it: impl Fn(&Path) -> bool,
) -> Option<Mount> {
    let mounts = || mountinfo.lines().filter_map(parse_mount);
    mounts()
        .find(|(mount, options)| {
            mount.version == Version::V1 && options.split(',').any(|option| option == controller)
        })
        .or_else(|| mounts().find(|(mount, _)| mount.version == Version::V2 && has_it(&mount.root)))
        .map(|(mount, _)| mount)
}

/// A line such as `31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`.
fn parse_mount(line: &str) -> Option<(Mount, &str)> {
    let (fields, filesystem) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let shows = unescape(fields.next()?);
    let root = PathBuf::from(unescape(fields.next()?));
    let mut filesystem = filesystem.split(' ');
    let version = match filesystem.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = filesystem.nth(1).unwrap_or("");
    let shows = shows.trim_end_matches('/').to_string();
    Some((
        Mount {
            version,
            root,
            shows,
        },
        options,
    ))
}

/// Spaces and their kind are written as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Our group: the line `4:memory:/path` of version 1, `0::/path` of version 2.
pub(super) fn own_group<'a>(
    controller: &str,
    cgroup: &'a str,
    version: Version,
) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match version {
            Version::V1 => controllers.split(',').any(|name| name == controller),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 25 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn the_version_with_the_controller_is_found() {
        let mount = mount_of("memory", HYBRID, |_| true).unwrap();
        assert_eq!(mount.version, Version::V1);
        assert_eq!(mount.root, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(
            own_group("memory", "4:memory:/a/b\n0::/c\n", Version::V1),
            Some("/a/b")
        );
        assert_eq!(
            own_group("memory", "4:memory:/a/b\n0::/c:d\n", Version::V2),
            Some("/c:d")
        );
        let mount = mount_of("cpu", HYBRID, |_| true).unwrap();
        assert_eq!(mount.root, Path::new("/sys/fs/cgroup/cpu"));
        let v2 = "40 25 0:29 /docker/x /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n";
        let mount = mount_of("memory", v2, |_| true).unwrap();
        assert_eq!(mount.root, Path::new("/sys/fs/my groups"));
        assert_eq!(
            (mount.version, mount.shows.as_str()),
            (Version::V2, "/docker/x")
        );
        assert_eq!(mount_of("memory", v2, |_| false), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_fail(text: String) {
            mount_of("memory", &text, |_| true);
            own_group("memory", &text, Version::V1);
        }
    }
}
