//! Those who mean it ill: without a token, from other sites, with garbage, in crowds.

use crate::board::{Board, job};
use crate::common::{Running, far_memory_possible, place};
use muninn_types::Bytes;
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}

#[test]
fn nothing_is_to_be_had_without_the_token() {
    let place = place();
    let served = place.serve(&["--memory", "16MiB", "--name", "the-raven"]);
    let board = Board::start(&place, &["--pool", &served.tcp()]);
    assert_eq!(board.token().len(), 64);
    let wrong = "Authorization: Bearer 0123456789012345678901234567890123456789012345678901234567890123\r\n";
    for (first, body) in [
        ("GET /api/state", ""),
        ("GET /api/life?pid=1", ""),
        ("GET /api/nothing", ""),
        ("POST /api/drain", "{\"address\":\"x\",\"begin\":true}"),
        (
            "POST /api/limit",
            "{\"pid\":1,\"job\":\"x\",\"size\":\"1GiB\"}",
        ),
    ] {
        for lines in ["", wrong, "Cookie: token=x\r\n"] {
            let lines = format!("Content-Type: application/json\r\n{lines}");
            let answer = board.ask(first, &lines, body);
            assert_eq!(status(&answer), "401", "{first}: {answer}");
            assert!(!answer.contains("the-raven"), "{answer}");
        }
    }
    // What is to be had tells nothing of anybody.
    for path in [
        "/",
        "/dashboard.js",
        "/dashboard.css",
        "/format.js",
        "/charts.js",
        "/icon.svg",
        "/healthz",
    ] {
        let answer = board.ask(&format!("GET {path}"), "", "");
        assert_eq!(status(&answer), "200", "{path}");
        assert!(
            !answer.contains("the-raven") && !answer.contains(board.token()),
            "{path}"
        );
    }
    for path in [
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/api",
        "/dashboard.js/",
    ] {
        let answer = board.ask(&format!("GET {path}"), "", "");
        assert_eq!(status(&answer), "404", "{path}: {answer}");
    }
    until("the server is there", || {
        board.state()["servers"][0]["name"] == "the-raven"
    });
}

#[test]
fn other_sites_and_bent_names_are_refused() {
    let place = place();
    let served = place.serve(&["--memory", "16MiB"]);
    let board = Board::start(
        &place,
        &["--pool", &served.unix(), "--host", "board.example"],
    );
    let at = board.at();
    let token = board.token();
    // A name that somebody made to point here, with the right token even.
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
    ] {
        let text = format!(
            "GET /api/state HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        assert_eq!(status(&board.send(text.as_bytes())), "421", "{host}");
    }
    for head in ["", "Host: board.example\r\nHost: evil.example\r\n"] {
        let text =
            format!("GET /api/state HTTP/1.1\r\n{head}Authorization: Bearer {token}\r\n\r\n");
        assert!(["400", "421"].contains(&status(&board.send(text.as_bytes()))));
    }
    let named = format!(
        "GET /api/state HTTP/1.1\r\nHost: Board.Example\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    assert_eq!(status(&board.send(named.as_bytes())), "200");

    let drain = json!({"address": served.unix(), "begin": true}).to_string();
    for (lines, code) in [
        ("Origin: http://evil.example\r\n", "403"),
        ("Origin: null\r\n", "403"),
        ("Sec-Fetch-Site: cross-site\r\n", "403"),
        ("Sec-Fetch-Site: same-site\r\n", "403"),
    ] {
        let answer = board.authorized("POST /api/drain", lines, &drain);
        assert_eq!(status(&answer), code, "{lines}");
    }
    // What a form can send is not understood, and a preflight is not granted.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    ] {
        let lines = format!("Authorization: Bearer {token}\r\nContent-Type: {kind}\r\n");
        assert_eq!(status(&board.ask("POST /api/drain", &lines, &drain)), "400");
    }
    let preflight = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
    let answer = board.ask("OPTIONS /api/drain", preflight, "");
    assert_eq!(status(&answer), "405");
    assert!(
        !answer.to_lowercase().contains("access-control"),
        "{answer}"
    );
    // A GET changes nothing.
    assert_eq!(
        status(&board.authorized("GET /api/drain", "", &drain)),
        "404"
    );
    let state = board.state();
    assert!(state["servers"][0]["drain_ms"].is_null(), "{state}");
    let own = format!("Origin: http://{at}\r\nSec-Fetch-Site: same-origin\r\n");
    let answer = board.authorized("POST /api/drain", &own, &drain);
    assert_eq!(status(&answer), "202", "{answer}");
    until("it drains", || {
        !board.state()["servers"][0]["drain_ms"].is_null()
    });
    let page = board.ask("GET /", "", "");
    for line in [
        "frame-ancestors 'none'",
        "X-Frame-Options: DENY",
        "default-src 'none'",
        "nosniff",
    ] {
        assert!(page.contains(line), "{line}");
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_may_look_may_not_change_anything() {
    let place = place();
    let served = place.serve(&["--memory", "16MiB"]);
    for name in ["act", "see"] {
        let path = place.write(name, &format!("{name}-0123456789abcdef\n"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let tokens = ["--token-file", "act", "--view-token-file", "see"];
    let drain = json!({"address": served.tcp(), "begin": true}).to_string();
    for (read_only, who, may) in [
        (false, "see", false),
        (true, "act", false),
        (false, "act", true),
    ] {
        let mut args = vec!["--pool", "unix:./m.sock"];
        args.extend(tokens);
        args.extend(read_only.then_some("--read-only"));
        let board = Board::start(&place, &args);
        let lines = format!(
            "Authorization: Bearer {who}-0123456789abcdef\r\nContent-Type: application/json\r\n"
        );
        let state = board.ask("GET /api/state", &lines, "");
        assert_eq!(status(&state), "200");
        assert!(state.contains(&format!("\"may_act\":{may}")), "{state}");
        let answer = board.ask("POST /api/drain", &lines, &drain);
        assert_eq!(status(&answer), if may { "202" } else { "403" });
    }
    // Beyond this machine a token of one's own is needed, as private as a key.
    let open = place.run(&["dashboard", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.code, Some(2));
    assert_eq!(
        open.err,
        "muninn: refusing to show the dashboard at 0.0.0.0:0 without a token of your own: name a file with one \
         (--token-file PATH; 'muninn keygen PATH' makes it)\n"
    );
    std::fs::set_permissions(place.path("act"), PermissionsExt::from_mode(0o644)).unwrap();
    let known = place.run(&["dashboard", "--token-file", "act"]);
    assert_eq!(known.code, Some(2), "{known:?}");
}

/// The identity of the process decides, not that of who clicks: without the operator's key servers refuse.
#[test]
fn servers_have_the_last_word() {
    let place = place();
    for args in [
        &["keygen", "operator", "ops.key"][..],
        &[
            "keygen",
            "server",
            "raven.key",
            "raven",
            "--operator",
            "ops.key",
        ],
        &[
            "keygen",
            "client",
            "batch.key",
            "batch",
            "--operator",
            "ops.key",
        ],
    ] {
        assert_eq!(place.run(args).code, Some(0));
    }
    let served = place.serve(&["--memory", "16MiB", "--key-file", "raven.key"]);
    for (key, may) in [("batch.key", false), ("ops.key", true)] {
        let board = Board::start(&place, &["--pool", &served.tcp(), "--key-file", key]);
        let mark = board.state()["mark"].as_str().unwrap().to_string();
        let drain = json!({"address": served.tcp(), "begin": true}).to_string();
        assert_eq!(
            status(&board.authorized("POST /api/drain", "", &drain)),
            "202"
        );
        let mut said = String::new();
        until("it is said what came of it", || {
            let first = format!("GET /api/state?since={mark}");
            said = board.authorized(&first, "", "");
            said.contains("\"done\":[{")
        });
        assert_eq!(said.contains("\"ok\":true"), may, "{said}");
    }
}

#[test]
fn crowds_garbage_and_slow_ones_keep_nobody_out() {
    let place = place();
    let board = Board::start(&place, &["--every", "200ms"]);
    let pid = board.served.running.pid();
    board.state();
    let before = resident(pid);
    // Thousands who come and say nothing, or half of something; those that are too many are sent away.
    let mut crowd = Vec::new();
    for n in 0..2000 {
        let mut stream = TcpStream::connect(board.at()).unwrap();
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /api/state HTTP/1.1\r\nHost: ");
        }
        crowd.push(stream);
        if crowd.len() > 300 {
            crowd.remove(0);
        }
        if n % 200 == 0 {
            board.state();
        }
    }
    board.state();
    let long = "a".repeat(100_000);
    let many = "A: b\r\n".repeat(500);
    let token = board.token();
    for (bytes, codes) in [
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), &["431"][..]),
        (format!("GET / HTTP/1.1\r\nHost: {long}\r\n\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), &["431"]),
        (format!("POST /api/drain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 100000\r\n\r\n{long}"), &["413"]),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551616\r\n\r\n".to_string(), &["413"]),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_string(), &["501"]),
        ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\u{1}\r\n\r\n".to_string(), &["400"]),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n".to_string(), &["400"]),
        ("BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_string(), &["405"]),
    ] {
        let answer = board.send(bytes.as_bytes());
        assert!(codes.contains(&status(&answer)), "{:.60}: {answer}", bytes);
    }
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{\"address\":1,\"begin\":true}",
        "{\"address\":\"x\",\"begin\":true,\"more\":1}",
        &"[".repeat(4000),
    ] {
        let answer = board.authorized("POST /api/drain", "", body);
        assert_eq!(status(&answer), "400", "{body:.20}: {answer}");
    }
    let huge = json!({"pid": 1, "job": "x", "size": "999999999999TiB"}).to_string();
    assert_eq!(
        status(&board.authorized("POST /api/limit", "", &huge)),
        "400"
    );
    // Some who ask and never take the answer.
    let deaf: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(board.at()).unwrap();
            let _ = stream.write_all(format!("GET /api/state HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes());
            stream
        })
        .collect();
    for _ in 0..500 {
        board.state();
    }
    drop((deaf, crowd));
    let after = resident(pid);
    assert!(
        after < before + (8 << 20),
        "it held {} and holds {}",
        Bytes(before),
        Bytes(after)
    );
    assert_eq!(board.served.stop().code, Some(0));
}

fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A number is given out again: the limit of another program is not changed by a page that is behind.
#[test]
fn only_the_job_that_was_meant_is_changed() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let running: Running = job(&place, &["--metrics", "127.0.0.1:0"]);
    let board = Board::start(&place, &["--every", "100ms"]);
    until("the job is there", || {
        board.state()["jobs"][0]["name"] == "sleep"
    });
    let state = board.state();
    let (pid, mark) = (&state["jobs"][0]["pid"], state["mark"].as_str().unwrap());
    assert_eq!(pid, running.pid());
    let asked = |job: &str, size: &str| {
        let wish = json!({"pid": pid, "job": job, "size": size}).to_string();
        board.authorized("POST /api/limit", "", &wish)
    };
    assert_eq!(status(&asked("another", "1GiB")), "202");
    assert_eq!(
        status(&asked("sleep", "1KiB")),
        "202",
        "too little is told afterwards"
    );
    assert_eq!(status(&asked("sleep", "96MiB")), "202");
    let mut said = String::new();
    until("all is done", || {
        let first = format!("GET /api/state?since={mark}");
        said = board.authorized(&first, "", "");
        said.matches("\"ok\":").count() == 3
    });
    assert_eq!(said.matches("\"ok\":false").count(), 2, "{said}");
    until("it is shown", || {
        board.state()["jobs"][0]["limit"] == 96 << 20
    });
}
