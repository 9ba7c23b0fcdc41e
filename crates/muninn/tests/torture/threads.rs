//! Who is in the process: a program that looks finds nobody but itself, and what it does to all of its
//! threads, children or group it does to its own.

use std::time::Duration;

both! {
    count: ["thread_count"];
    tsync_filter: ["tsync_filter"];
    wait_sees_no_stranger: ["wait_sees_no_stranger"];
    signal_own_group: ["signal_own_group"];
    stopped_and_continued: ["stopped_and_continued"];
    late_atfork_allocator: ["late_atfork_allocator"];
    /// The kernel does not wait for far memory in a thread that ends.
    end_far: ["threads_end_far", "created"];
    end_far_on_own_stacks: ["threads_end_far", "stacks"];
    end_far_of_c11: ["threads_end_far", "thrd"];
    robust_far: ["robust_far"];
    cleared_far: ["cleared_far", "clone"];
    cleared_far_by_address: ["cleared_far", "address"];
    cleared_far_by_clone3: ["cleared_far", "three"];
    /// The kernel writes to some of them, and does not wait there either.
    futexes: ["futex_far"];
    /// A process that is asked for by its number is asked for by a corpse then.
    first_thread_ends: ["first_thread_ends"], patience = Duration::from_secs(180);
    traced: ["traced"];
    adopts_orphans: ["adopts_orphans"];
    cancelled_in_call: ["cancelled_in_call"];
    at_speed: ["threads_at_speed"];
}
