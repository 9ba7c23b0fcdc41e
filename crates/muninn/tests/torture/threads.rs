//! Who is in the process: a program that looks finds nobody but itself, and what it does to all of its
//! threads, children or group it does to its own.

both! {
    count: ["thread_count"];
    tsync_filter: ["tsync_filter"];
    wait_sees_no_stranger: ["wait_sees_no_stranger"];
    signal_own_group: ["signal_own_group"];
    stopped_and_continued: ["stopped_and_continued"];
    late_atfork_allocator: ["late_atfork_allocator"];
}
