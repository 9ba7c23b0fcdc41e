//! `setup --check`: what is there for this user.

use super::apply::DEVICES;
use super::{GROUP, RULES_PLACES};
use crate::cmd::doctor::checks::{Check, tried};
use crate::cmd::doctor::{describe, verdict};
use crate::cmd::run::{forks_are_told, library, userfaultfd};
use crate::failure::Outcome;
use crate::ui;
use muninn_sys::uffd::OpenError;
use muninn_sys::{group, proc};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Debug, Serialize)]
struct Report {
    /// Programs of this user can be run.
    ok: bool,
    checks: Vec<Check>,
}

pub(super) fn check(json: bool) -> Outcome {
    let checks = checks();
    let verdict = verdict(&checks);
    if json {
        let ok = verdict.is_ok();
        ui::print_json(&Report { ok, checks });
    } else {
        ui::print_out(&describe(&checks));
    }
    verdict
}

fn checks() -> Vec<Check> {
    let permitted = userfaultfd();
    let forks = match &permitted {
        Ok(()) => forks_are_told(),
        Err(error) => Err(*error),
    };
    // The long form of an error says what to do, which is said once here, below it.
    let short = |error: OpenError| match error {
        OpenError::NotPermitted { .. } => "not permitted".to_string(),
        OpenError::ForkNotPermitted => "not told of, without CAP_SYS_PTRACE".to_string(),
        other => other.to_string(),
    };
    vec![
        group_check(),
        member_check(),
        device_check(),
        rules_check(),
        tried(
            "far-memory",
            permitted.map_err(short),
            "this user's programs can have it",
            "see above; or run as root, with CAP_SYS_PTRACE, or set vm.unprivileged_userfaultfd=1",
        )
        .needed(),
        tried(
            "forks",
            forks.map_err(short),
            "a program that forks keeps its limit",
            "when a program forks, all of its memory comes near, above its limit, and leaves again: as root, or \
             with CAP_SYS_PTRACE, it stays far",
        ),
        tried(
            "program-library",
            library::find(false)
                .map(drop)
                .map_err(|error| error.to_string()),
            "can be put into programs",
            "'muninn run' needs a place for it",
        )
        .needed(),
    ]
}

fn group_check() -> Check {
    let found = match group::find(GROUP) {
        Some(group) if group.members.is_empty() => (true, format!("'{GROUP}', without members")),
        Some(group) => (true, format!("'{GROUP}': {}", group.members.join(", "))),
        None => (proc::own_uid() == 0, format!("there is no group '{GROUP}'")),
    };
    Check::new(
        "group",
        found.0,
        found.1,
        "'sudo muninn setup --user NAME' makes it",
    )
}

fn member_check() -> Check {
    let name = "member";
    if proc::own_uid() == 0 {
        return Check::new(name, true, "root needs no group", "");
    }
    let Some(found) = group::find(GROUP) else {
        return Check::new(name, false, "there is no group", "see 'group'");
    };
    if group::is_own(found.id) {
        return Check::new(name, true, "this process is in the group", "");
    }
    let user = group::own_name();
    let listed = user
        .as_ref()
        .is_some_and(|user| found.members.contains(user));
    let user = user.unwrap_or_else(|| "NAME".to_string());
    match listed {
        true => Check::new(
            name,
            false,
            format!("{user} is in it, this session is not yet"),
            "log in again",
        ),
        false => Check::new(
            name,
            false,
            format!("{user} is not in the group"),
            &format!("'sudo muninn setup --user {user}', then log in again"),
        ),
    }
}

fn device_check() -> Check {
    let device = DEVICES[0];
    match Path::new(device).metadata() {
        Ok(about) => {
            let open = std::fs::File::options().read(true).write(true).open(device);
            let (owner, mode) = (group::name_of(about.gid()), about.mode() & 0o777);
            let owner = owner.unwrap_or_else(|| about.gid().to_string());
            let found = format!("{device} (group {owner}, mode {mode:04o})");
            // There may be another way to far memory; whether there is one is looked at below.
            Check::new(
                "device",
                open.is_ok(),
                found,
                "'sudo muninn setup' gives it to the group",
            )
        }
        Err(error) => Check::new(
            "device",
            false,
            format!("{device}: {error}"),
            "use Linux 6.1 or newer",
        ),
    }
}

fn rules_check() -> Check {
    let found = RULES_PLACES.iter().find(|place| Path::new(place).exists());
    let text = found.map_or(
        "no rule makes the device the group's when the machine starts",
        |place| place,
    );
    Check::new(
        "udev-rule",
        found.is_some() || proc::own_uid() == 0,
        text,
        "'sudo muninn setup' writes one",
    )
}
