//! A program whose pages go over tcp, by a client's identity: neither its environment nor its arguments
//! show the key, and its contents are right.

use crate::common::{far_memory_possible, place};

/// Fills three times what it may hold, reads it back, and looks for a secret in what others can see.
const PROGRAM: &str = r#"
import sys
secret = sys.argv[1]
pages = [bytes([n & 255]) * 4096 for n in range(12288)]
for turn in range(2):
    for n, page in enumerate(pages):
        assert page[0] == n & 255 and page[4095] == n & 255, n
own = open("/proc/self/environ", "rb").read() + open("/proc/self/maps", "rb").read()
assert secret.encode() not in own, "the key can be seen"
print("right")
"#;

#[test]
fn a_program_runs_by_a_clients_identity() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let keygen = |args: &[&str]| {
        let ended = place.run(&[&["keygen"], args].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    };
    keygen(&["operator", "ops.key"]);
    keygen(&["server", "rack.key", "rack-1", "--operator", "ops.key"]);
    keygen(&["client", "batch.key", "batch", "--operator", "ops.key"]);
    let served = place.serve(&["--memory", "256MiB", "--key-file", "rack.key"]);
    let at = served.tcp();
    let text = std::fs::read_to_string(place.path("batch.key")).unwrap();
    let secret = text.lines().find_map(|line| line.strip_prefix("secret "));
    let ended = place.run(&[
        "run",
        "--local",
        "24MiB",
        "--pool",
        &at,
        "--key-file",
        "batch.key",
        "--",
        "python3",
        "-c",
        PROGRAM,
        &secret.unwrap()[..40],
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.out, "right\n");
    let status = place.run(&["status", "--pool", &at, "--key-file", "ops.key", "--json"]);
    assert_eq!(status.code, Some(0), "{}", status.err);
    assert_eq!(served.stop().code, Some(0));
}
