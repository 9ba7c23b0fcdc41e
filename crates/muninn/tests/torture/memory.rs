//! Calls about memory, of one thread while others touch it.

use std::time::Duration;

/// Much goes out and comes back again: on two CPUs that many others use, too, that takes most of a minute.
const LONG: Duration = Duration::from_secs(180);

both! {
    purge_while_touching: ["purge_while_touching"];
    advise_free: ["advise_free"];
    many_mappings: ["many_mappings"], local = "32MiB";
    populate: ["fill_at_once", "64", "populate"];
    lock_all: ["fill_at_once", "48", "locked"];
    lock_all_later: ["fill_at_once", "48", "lock-later"];
    huge_pages: ["fill_at_once", "64", "huge"];
    addresses_taken: ["addresses_taken"];
    exec_again: ["exec_again", "10"];
    exec_elsewhere: ["exec_elsewhere"], far = 100_000;
    exec_otherwise: ["exec_otherwise"], far = 50_000, patience = LONG;
    guards: ["guards", "madvise"], patience = LONG;
    guards_by_call: ["guards", "call"], patience = LONG;
    guards_in_ranges: ["guards", "ranges"], patience = LONG;
    limit_addresses: ["limit_addresses"], patience = LONG;
    addresses_change_hands: ["addresses_change_hands"];
}
