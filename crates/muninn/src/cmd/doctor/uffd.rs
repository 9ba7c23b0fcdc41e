//! The checks of userfaultfd: the ways to it, and each of its features that the pager uses.

use super::checks::{Check, tried};
use super::machine::Machine;
use muninn_sys::proc;
use muninn_sys::uffd::{Features, Route};

/// Both ways to a descriptor, and the setting that opens the first to everyone.
pub fn ways(machine: &impl Machine) -> Vec<Check> {
    let syscall = machine.open_uffd(Route::Syscall);
    let device = machine.open_uffd(Route::Device);
    let any = syscall.is_ok() || device.is_ok();
    let one_is_enough = if any {
        "nothing is lost, as the other way works"
    } else {
        "see 'userfaultfd'"
    };
    let all = match (any, machine.open_uffd_user_mode()) {
        (true, _) => Check::new("userfaultfd", true, "permitted", ""),
        (false, user_mode) => Check::new(
            "userfaultfd",
            false,
            match user_mode {
                Ok(()) => "permitted for faults of user code only",
                Err(_) => "not permitted",
            },
            "unmodified programs cannot use far memory, as system calls touch their pages, too: \
             'sudo muninn setup --user NAME' gives the user access to /dev/userfaultfd; or run as \
             root or with CAP_SYS_PTRACE, or set vm.unprivileged_userfaultfd=1",
        ),
    };
    let setting = match proc::sysctl(machine.proc(), "vm.unprivileged_userfaultfd") {
        Ok(value) => Check::new(
            "vm.unprivileged_userfaultfd",
            value == 1 || any,
            value.to_string(),
            "'sysctl vm.unprivileged_userfaultfd=1' lets every user have it",
        ),
        Err(error) => Check::new("vm.unprivileged_userfaultfd", any, error.to_string(), ""),
    };
    vec![
        all.needed(),
        tried(
            "userfaultfd-syscall",
            syscall,
            "opened by system call",
            one_is_enough,
        ),
        tried(
            "userfaultfd-device",
            device,
            "opened by /dev/userfaultfd",
            one_is_enough,
        ),
        setting,
    ]
}

/// Features of userfaultfd: whether the pager must have them, and what it costs to be without.
const FEATURES: [(Features, bool, &str); 12] = [
    (
        Features::EVENT_FORK,
        false,
        "children of a program that forks cannot use far memory: use Linux 4.11 or newer",
    ),
    (
        Features::EVENT_REMAP,
        true,
        "a program that moves its memory would lose pages: use Linux 4.11 or newer",
    ),
    (
        Features::EVENT_REMOVE,
        true,
        "pages that a program discards would come back: use Linux 4.11 or newer",
    ),
    (
        Features::EVENT_UNMAP,
        true,
        "memory that a program gives back would never be freed: use Linux 4.11 or newer",
    ),
    (
        Features::MOVE,
        false,
        "pages are copied out while the program stands still, at two to four times the cost, and \
         not while it does direct I/O: use Linux 6.8 or newer",
    ),
    (
        Features::PAGEFAULT_FLAG_WP,
        false,
        "without MOVE no page can leave: use Linux 5.7 or newer",
    ),
    (
        Features::WP_ASYNC,
        false,
        "noticing a write costs a fault of 5 µs instead of 0.8: use Linux 6.7 or newer",
    ),
    (
        Features::WP_UNPOPULATED,
        false,
        "absent pages must be filled before they can be watched: use Linux 6.4 or newer",
    ),
    (
        Features::SIGBUS,
        false,
        "the managed heap takes 5 µs for a fault instead of 3.5: use Linux 4.14 or newer",
    ),
    (
        Features::THREAD_ID,
        false,
        "a fault cannot be served on the CPU of its thread, 9 µs instead of 5: use Linux 4.14 or \
         newer",
    ),
    (
        Features::POISON,
        false,
        "a page that is lost ends the program without naming the page: use Linux 6.6 or newer",
    ),
    (
        Features::MISSING_SHMEM,
        false,
        "memory shared between processes stays local: use Linux 4.11 or newer",
    ),
];

pub fn features(machine: &impl Machine) -> Vec<Check> {
    let supported = machine.uffd_features();
    let forks = machine.open_uffd_with_forks();
    let check = |&(feature, needed, advice): &(Features, bool, &str)| {
        let name = format!("userfaultfd-{feature}");
        let check = match &supported {
            Err(why) => Check::new(&name, false, why.clone(), "see 'userfaultfd'"),
            Ok(found) if !found.contains(feature) => {
                Check::new(&name, false, "not in this kernel", advice)
            }
            Ok(_) if feature == Features::EVENT_FORK => tried(
                &name,
                forks.clone(),
                "in this kernel, permitted",
                "children of a program that forks cannot use far memory: run as root or with \
                 CAP_SYS_PTRACE",
            ),
            Ok(_) => Check::new(&name, true, "in this kernel", ""),
        };
        // One of the two ways out.
        let moves = supported.as_ref().is_ok_and(|s| s.contains(Features::MOVE));
        let only_way = feature == Features::PAGEFAULT_FLAG_WP && !moves;
        if needed || only_way {
            check.needed()
        } else {
            check
        }
    };
    FEATURES.iter().map(check).collect()
}
