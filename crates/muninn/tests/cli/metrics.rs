//! What Prometheus is told, by servers, jobs and nodes; and that the boards in the tree ask for nothing else.

use crate::common::{Running, far_memory_possible, place};
use muninn_types::Bytes;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// What is answered at `path` where this address of metrics is.
fn get(url: &str, path: &str) -> String {
    let at = url.strip_prefix("http://").unwrap();
    let mut http = TcpStream::connect(at.strip_suffix("/metrics").unwrap()).unwrap();
    write!(http, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).unwrap();
    answer
}

/// The text behind the head, whose families are named as Prometheus wants them and each explained once; their kinds.
fn families(answer: &str) -> BTreeMap<String, String> {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    let mut kinds = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let before = kinds.insert(name.to_string(), kind.to_string());
        assert_eq!(before, None, "{name} is there twice");
        assert_eq!(
            name.ends_with("_total"),
            kind == "counter",
            "{name} is a {kind}"
        );
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        for unit in ["_ms", "_us", "_ns", "_mib", "_kib"] {
            assert!(!name.contains(unit), "{name} is in no base unit");
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(kind_of(&kinds, name).is_some(), "{name} has no type");
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    kinds
}

/// A sample's family is its name, or for a histogram what is before the last word of it.
fn kind_of<'a>(kinds: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let parts = ["_bucket", "_sum", "_count"];
    let histogram = parts.iter().find_map(|part| name.strip_suffix(part));
    let found = histogram.and_then(|name| kinds.get(name).filter(|kind| *kind == "histogram"));
    found.or_else(|| kinds.get(name)).map(String::as_str)
}

/// The board asks for what there is, and only rates of what grows.
fn board_asks_for(name: &str, kinds: &BTreeMap<String, String>) {
    let path = format!("{}/../../docs/grafana/{name}", env!("CARGO_MANIFEST_DIR"));
    let board: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    assert!(panels.len() >= 6);
    let mut asked_for = std::collections::BTreeSet::new();
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
    {
        let asked = target["expr"].as_str().unwrap();
        let words = asked.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("muninn_")).collect();
        assert!(!names.is_empty(), "{asked}");
        for name in names {
            let kind = kind_of(kinds, name);
            assert!(kind.is_some(), "{asked}: nobody tells {name}");
            let grows = kind != Some("gauge");
            let rated = [format!("rate({name}["), format!("increase({name}[")];
            let is_rated = rated.iter().any(|rate| asked.contains(rate));
            assert_eq!(grows, is_rated, "{asked}: {name} is a {kind:?}");
            asked_for.insert(name.to_string());
        }
    }
    assert!(asked_for.len() >= 8, "{asked_for:?}");
}

#[test]
fn servers_tell_what_they_have_and_how_long_requests_took() {
    let place = place();
    let served = place.serve(&["--memory", "256MiB", "--metrics", "127.0.0.1:0"]);
    let client = served.client("counted");
    let grant = client.grant(Bytes::mib(1)).unwrap();
    let mut page = vec![7; 4096];
    for _ in 0..20 {
        client.write(&grant, 0, &page).unwrap();
        client.read(&grant, 0, &mut page).unwrap();
    }
    let url = served.listening["metrics"].as_str().unwrap();
    let answer = get(url, "/metrics");
    let kinds = families(&answer);
    board_asks_for("muninn-servers.json", &kinds);
    assert!(
        answer.contains("\nmuninn_granted_bytes 1048576\n"),
        "{answer}"
    );
    // As many times as requests, each of them counted in the last bucket.
    let number = |start: &str| -> u64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no {start} in {answer}"))
            .trim()
            .parse()
            .unwrap()
    };
    let asked = number("muninn_requests_total{class=\"demand\"}");
    assert!(asked >= 20, "{asked}");
    for end in [
        "muninn_request_seconds_count{class=\"demand\"}",
        "muninn_request_seconds_bucket{class=\"demand\",le=\"+Inf\"}",
    ] {
        assert_eq!(number(end), asked);
    }
    assert!(number("muninn_loop_lag_seconds_count") > 0);
    // The same by the protocol.
    let status = place.run(&["status", "--json", "--pool", &served.tcp()]);
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    let traffic = status["servers"][0]["traffic"].as_array().unwrap();
    let demand = traffic
        .iter()
        .find(|class| class["class"] == "demand")
        .unwrap();
    assert!(demand["half_below_us"].as_u64() >= Some(1), "{demand}");

    let health = get(url, "/healthz");
    assert!(
        health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nok\n"),
        "{health}"
    );
    let drain = place.run(&["drain", "--no-wait", "--pool", "unix:./m.sock"]);
    assert_eq!(drain.code, Some(0), "{drain:?}");
    let health = get(url, "/healthz");
    assert!(
        health.starts_with("HTTP/1.1 503") && health.ends_with("draining\n"),
        "{health}"
    );
}

#[test]
fn jobs_and_nodes_tell_what_they_do() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    // What is said on standard error is read line by line.
    let script = "exec \"$0\" run --local 32MiB --metrics 127.0.0.1:0 -- python3 -c \"$1\" 2>&1";
    let program = "\nimport sys\nm = bytearray(96 << 20)\nfor n in range(0, len(m), 4096): m[n] = 1\n\
                   for n in range(0, len(m), 4096): m[n] = 2\nprint('ready', flush=True)\nsys.stdin.read()\n";
    let mut command = place.command_of(
        "sh".as_ref(),
        &["-c", script, crate::common::BINARY, program],
    );
    let (stdin, _open) = std::io::pipe().unwrap();
    command.stdin(stdin);
    let running = Running::start(command);
    let line = running.line().unwrap();
    let url = line
        .strip_prefix("muninn: metrics at ")
        .unwrap_or_else(|| panic!("{line}"));
    assert_eq!(running.line().as_deref(), Some("ready"));
    let answer = get(url, "/metrics");
    let mut kinds = families(&answer);
    let far = answer
        .lines()
        .filter(|line| line.starts_with("muninn_job_fault_seconds_count{job=\"python3"))
        .find(|line| line.contains("kind=\"far\""))
        .unwrap_or_else(|| panic!("{answer}"));
    let times: u64 = far.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(times > 0, "{far}");
    assert!(get(url, "/healthz").ends_with("ok\n"));

    let agent = [
        "agent",
        "--memory",
        "64MiB",
        "--no-server",
        "--folder",
        "agent",
        "--socket",
        "agent.sock",
        "--metrics",
        "127.0.0.1:0",
        "--json",
    ];
    let agent = Running::start(place.command(&agent));
    let said = agent.json();
    let node = get(said["metrics"].as_str().unwrap(), "/metrics");
    assert!(node.contains("\nmuninn_node_up 1\n"), "{node}");
    assert!(
        node.contains("\nmuninn_node_memory_bytes 67108864\n"),
        "{node}"
    );
    kinds.extend(families(&node));
    board_asks_for("muninn-jobs.json", &kinds);

    // Beyond this machine nobody is told without a token.
    let open = [
        "run",
        "--local",
        "32MiB",
        "--metrics",
        "0.0.0.0:0",
        "--",
        "true",
    ];
    let ended = place.run(&open);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.err.contains("--metrics-token-file PATH"),
        "{}",
        ended.err
    );
}
