//! Making the group, its rules and its members; and taking them back. All of it may be done twice.

use super::{Done, GROUP, RULES, RULES_PLACES};
use crate::failure::{Failure, Outcome};
use muninn_sys::group::{self, Group};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::Command;

/// What members may open.
pub(super) const DEVICES: [&str; 2] = ["/dev/userfaultfd", "/dev/cpu_dma_latency"];
const MODE_SHARED: u32 = 0o660;
const MODE_OF_ROOT: u32 = 0o600;

pub(super) fn install(users: &[String]) -> Result<Done, Failure> {
    let mut done = Done::default();
    // First, so that nothing was done where a name is misspelt.
    for user in users {
        if group::user(user).is_none() {
            return Err(Failure::usage(format!(
                "there is no user '{user}' on this machine: check the name given with --user"
            )));
        }
    }
    let group = match group::find(GROUP) {
        Some(group) => group,
        None => {
            command("groupadd", &["--system", GROUP])?;
            done.done.push(format!("made the group '{GROUP}'"));
            group::find(GROUP).ok_or_else(|| {
                Failure::failed(format!(
                    "groupadd made no group '{GROUP}': look into /etc/group"
                ))
            })?
        }
    };
    write_rules(&mut done)?;
    for device in DEVICES {
        share(device, &group, &mut done);
    }
    for user in users {
        if group.members.contains(user) {
            continue;
        }
        command("usermod", &["--append", "--groups", GROUP, user])?;
        done.done.push(format!(
            "added {user} to the group '{GROUP}', from the next login on"
        ));
    }
    Ok(done)
}

pub(super) fn remove(keep_group: bool) -> Result<Done, Failure> {
    let mut done = Done::default();
    let own = Path::new(RULES_PLACES[0]);
    match std::fs::read_to_string(own) {
        Ok(text) if text == RULES => {
            std::fs::remove_file(own)?;
            done.done.push(format!("removed {}", own.display()));
            reload_rules();
        }
        Ok(_) => done.left.push(format!(
            "{} was changed by somebody: remove it by hand if it is not needed",
            own.display()
        )),
        Err(_) => {}
    }
    let Some(group) = group::find(GROUP) else {
        return Ok(done);
    };
    for device in DEVICES {
        let path = Path::new(device);
        if path
            .symlink_metadata()
            .is_ok_and(|about| about.gid() == group.id)
        {
            hand_to(path, 0, MODE_OF_ROOT)?;
            done.done.push(format!("{device} is root's alone again"));
        }
    }
    if keep_group {
        return Ok(done);
    }
    match command("groupdel", &[GROUP]) {
        Ok(()) => done.done.push(format!("removed the group '{GROUP}'")),
        Err(failure) => done.left.push(failure.message),
    }
    Ok(done)
}

fn write_rules(done: &mut Done) -> Outcome {
    if RULES_PLACES.iter().any(|place| Path::new(place).exists()) {
        return Ok(());
    }
    let path = Path::new(RULES_PLACES[0]);
    let folder = path.parent().expect("it is in a folder");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, RULES))
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    done.done.push(format!("wrote {}", path.display()));
    reload_rules();
    Ok(())
}

/// Those that are here already; a rule is for those that come.
fn share(device: &str, group: &Group, done: &mut Done) {
    let path = Path::new(device);
    let Ok(about) = path.symlink_metadata() else {
        // The other one makes things faster; containers have neither or the first.
        if device == DEVICES[0] {
            done.left.push(format!("there is no {device} here"));
        }
        return;
    };
    if about.gid() == group.id && about.mode() & 0o777 == MODE_SHARED {
        return;
    }
    match hand_to(path, group.id, MODE_SHARED) {
        Ok(()) => done
            .done
            .push(format!("{device} may be opened by members of '{GROUP}'")),
        Err(error) => done.left.push(format!("{device}: {error}")),
    }
}

fn hand_to(path: &Path, gid: u32, mode: u32) -> std::io::Result<()> {
    lchown(path, Some(0), Some(gid))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Where no udev runs there is nobody to be told.
fn reload_rules() {
    if Path::new("/run/udev/control").exists() {
        let _ = command("udevadm", &["control", "--reload"]);
    }
}

fn command(name: &str, args: &[&str]) -> Outcome {
    let ended = Command::new(name).args(args).output().map_err(|error| {
        Failure::failed(format!(
            "cannot run {name}: {error}; it is in the package 'passwd' or 'shadow-utils' of most systems"
        ))
    })?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(Failure::failed(format!(
        "{name} {}: {}",
        args.join(" "),
        said.trim()
    )))
}
