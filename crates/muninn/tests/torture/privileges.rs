//! Programs that become somebody else, or are somewhere else.

use crate::both::{Case, Way, cannot_run, not_root, plainly, program};

both! {
    dropped_before: ["fork_far", "48", "dropped-before"] unless not_root;
    dropped_after: ["fork_far", "48", "dropped-after"] unless not_root;
    /// The child is the first to be short of memory, and has its files from the launcher.
    dropped_then_child: ["drop_then_child"] unless not_root, refused = Some("is not to be looked at");
    chroot_before: ["chroot_self", "before"] unless not_root;
    chroot_after: ["chroot_self", "after"] unless not_root;
    errors_described: ["errors_described"] unless not_root;
}

/// Starts the program through another one, if that can be done here without Muninn.
fn through(wrapper: &[&str], way: Way) {
    if cannot_run() {
        return;
    }
    let trial = plainly(&[wrapper, &["/bin/true"]].concat());
    if trial.code != 0 {
        println!("skipped: {wrapper:?} ends with {} here", trial.code);
        return;
    }
    let program = program("page_much");
    Case::new(&[wrapper, &[program.as_str()]].concat()).same(way);
}

macro_rules! through {
    ($($name:ident: $wrapper:expr;)+) => {
        $(mod $name {
            use super::*;
            #[test]
            fn shm() {
                through(&$wrapper, Way::Shm);
            }
            #[test]
            fn tcp() {
                through(&$wrapper, Way::Tcp);
            }
            #[test]
            fn no_move() {
                through(&$wrapper, Way::NoMove);
            }
        })+
    };
}

through! {
    setpriv: ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    setpriv_uid_only: ["/usr/bin/setpriv", "--reuid=65534", "--clear-groups"];
    unshare_user: ["/usr/bin/unshare", "-r"];
    unshare_user_and_mounts: ["/usr/bin/unshare", "-U", "-r", "-m"];
    nsenter: ["/bin/sh", "-c", "exec nsenter -m -t $$ \"$0\""];
    chroot: ["/usr/sbin/chroot", "/"];
    pid_1_of_a_namespace: ["/usr/bin/unshare", "-fp", "--mount-proc"];
    pid_1_that_sees_the_others: ["/usr/bin/unshare", "-fp"];
}
