//! Forks of every kind: the child's memory is right.

use crate::both::not_root;
use std::time::Duration;

/// Three hundred with sessions of their own at one server take most of a minute on two CPUs that others use, too.
const LONG: Duration = Duration::from_secs(180);

both! {
    seccomp_without_unshare: ["seccomp_then_fork", "unshare"];
    seccomp_without_a_start: ["seccomp_then_fork", "start"];
    raw_clone_parent_first: ["raw_fork", "clone", "parent"];
    raw_clone_child_first: ["raw_fork", "clone", "child"];
    raw_clone3_parent_first: ["raw_fork", "clone3", "parent"];
    raw_clone3_child_first: ["raw_fork", "clone3", "child"];
    vfork: ["spawn", "vfork"];
    posix_spawn: ["spawn", "spawn"];
    while_threads_fault: ["fork_while_faulting"];
    wipe_on_fork: ["wipe_on_fork"];
    dont_fork: ["dont_fork"];
    advised_after_it: ["advise_after_fork"];
    much_far_memory: ["fork_far", "256", "same"], local = "32MiB";
    much_far_memory_of_another_user: ["fork_far", "256", "dropped-before"] unless not_root, local = "32MiB";
    daemon: ["daemon_at_once"];
    three_hundred: ["fork_many", "300", "8", "check"];
    children_that_exit_at_once: ["fork_many", "300", "8", "exit"];
    children_that_exec_at_once: ["fork_many", "300", "8", "exec"];
    children_that_are_killed_at_once: ["fork_many", "300", "8", "kill"];
    nested: ["nested_forks"];
    from_threads: ["forks_from_threads"];
    without_descriptor_0: ["fork_without_descriptors", "0"];
    without_descriptors_0_1_2: ["fork_without_descriptors", "012"];
    without_any_descriptor: ["fork_without_descriptors", "all"];
    shared_by_children: ["share_after_fork", "48", "4"];
    three_hundred_at_once: ["many_processes", "300", "fork"], local = "64MiB", far = 0, patience = LONG;
    three_hundred_programs_at_once: ["many_processes", "300", "exec"], local = "64MiB", far = 0;
}
