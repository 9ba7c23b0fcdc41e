//! Somebody else holds the page: a pipe, a socket, a device. Its frame may not go round.

both! {
    vmsplice: ["vmsplice_then_write", "libc", "keep"];
    vmsplice_by_syscall: ["vmsplice_then_write", "syscall", "keep"];
    vmsplice_by_hand: ["vmsplice_then_write", "raw", "keep"];
    vmsplice_and_unmap: ["vmsplice_then_write", "libc", "unmap"];
    vmsplice_and_rewrite: ["vmsplice_then_write", "libc", "rewrite"];
    msg_zerocopy: ["msg_zerocopy"];
    uring_send_zc: ["uring_send_zc"], refused = Some("direct I/O");
    process_vm_writev: ["write_by_reference"];
    direct_read: ["direct_read"], refused = Some("direct I/O");
    /// See collision.rs.
    colliding_contents: ["colliding_contents"];
}
