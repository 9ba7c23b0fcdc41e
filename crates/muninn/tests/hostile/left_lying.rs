//! Files that somebody else has put where the command looks.

use crate::common::{Ended, Place, Running, place};
use rustix::fs::inotify;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};

/// A user that no machine has, in whose name files are made.
const STRANGER: u32 = 61_234;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        muninn_testing::skip("files of another user can only be made by root");
    }
    root
}

/// A server that looks for its configuration itself.
fn serve(place: &Place) -> Ended {
    let mut command = place.command(&["serve", "--socket", "m.sock"]);
    command.env_remove("MUNINN_CONFIG");
    Running::start(command).end()
}

#[test]
fn a_configuration_of_another_user_is_passed_over() {
    if !is_root() {
        return;
    }
    let place = place();
    let text = "[serve]\nmemory = \"4MiB\"\nlease = \"never\"\n";
    let file = place.write("muninn.toml", text);
    // One's own is read, and its mistake is found.
    let own = serve(&place);
    assert!(own.err.contains("muninn.toml, line 3"), "{}", own.err);
    chown(&file, Some(STRANGER), None).unwrap();
    let passed = serve(&place);
    assert_eq!(passed.code, Some(2));
    let warning = "muninn: passing over the configuration file muninn.toml: it belongs to another \
                   user (uid 61234); name it with --config if it is to be used\n";
    assert!(passed.err.starts_with(warning), "{}", passed.err);
    assert!(passed.err.contains("how much memory"), "{}", passed.err);
    // Named, it is used.
    let named = place.run(&["serve", "--socket", "m.sock", "--config", "muninn.toml"]);
    assert!(named.err.contains("muninn.toml, line 3"), "{}", named.err);
    // A link of theirs to a file of ours is no better.
    std::fs::rename(&file, place.path("other.toml")).unwrap();
    chown(place.path("other.toml"), Some(0), None).unwrap();
    symlink("other.toml", &file).unwrap();
    std::os::unix::fs::lchown(&file, Some(STRANGER), None).unwrap();
    let linked = serve(&place);
    assert!(linked.err.starts_with(warning), "{}", linked.err);
}

#[test]
fn a_configuration_that_all_may_write_is_passed_over() {
    let place = place();
    let file = place.write(
        "muninn.toml",
        "[serve]\nmemory = \"4MiB\"\nlease = \"never\"\n",
    );
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let passed = serve(&place);
    assert!(
        passed.err.contains("others may write to it (mode 0666)"),
        "{}",
        passed.err
    );
    // A pipe in its place keeps nobody waiting.
    std::fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, mode).unwrap();
    let piped = serve(&place);
    assert!(piped.err.contains("it is not a file"), "{}", piped.err);
}

#[test]
fn status_of_root_follows_no_links_of_others() {
    if !is_root() {
        return;
    }
    let place = place();
    // A folder for jobs as another user would have it.
    let folder = place.path(&format!("muninn-{STRANGER}"));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .unwrap();
    chown(&folder, Some(STRANGER), None).unwrap();
    let secret = place.write("secret", &"x".repeat(1 << 20));
    let links = ["job-1-a", "job-2-b"].map(|name| folder.join(name));
    symlink(&secret, &links[0]).unwrap();
    std::fs::hard_link(&secret, &links[1]).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let pipe = folder.join("job-3-c");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    chown(&pipe, Some(STRANGER), None).unwrap();
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let watch = inotify::init(flags).unwrap();
    for path in [&secret, &pipe] {
        inotify::add_watch(&watch, path, inotify::WatchFlags::OPEN).unwrap();
    }
    let shown = place.run(&["status", "--jobs"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let mut bytes = [0; 512];
    let opened = rustix::io::read(&watch, &mut bytes);
    assert_eq!(opened, Err(rustix::io::Errno::AGAIN), "it was opened");
}
