//! The screen as text, and what keys do.

use super::draw::{bar, draw};
use super::model::{Focus, Key, Model, Question, Sort, Wish};
use crate::observe::{JobNow, Picture, ProcessNow, ServerNow, Totals};
use muninn_types::{Bytes, Class};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn job(name: &str, launcher: u32, faults: u64) -> JobNow {
    JobNow {
        name: name.to_string(),
        launcher,
        launcher_alive: true,
        limit_bytes: 64 * MIB,
        here_bytes: 48 * MIB,
        far_bytes: 100 * MIB + faults,
        totals: Totals {
            faults,
            far: faults / 2,
            waited_ns: faults * 10_000,
            bytes_in: faults * 4096,
            bytes_out: faults * 2048,
        },
        message: None,
        layout: "single".to_string(),
        times: Default::default(),
        processes: vec![ProcessNow {
            pid: launcher + 1,
            ..ProcessNow::default()
        }],
    }
}

fn server(address: &str, granted: u64) -> ServerNow {
    let mut classes = [0; Class::COUNT];
    classes[Class::Demand.index()] = granted;
    ServerNow {
        address: address.to_string(),
        name: format!("raven-{}", address.len()),
        pool_bytes: 256 * MIB,
        granted_bytes: granted,
        sessions: 2,
        requests: granted / MIB,
        bytes_in: granted,
        bytes_out: granted * 2,
        classes,
        holders: vec![("sort (4711)".to_string(), granted)],
        ..ServerNow::default()
    }
}

fn picture(start: Instant, second: u64, servers: Vec<ServerNow>, jobs: Vec<JobNow>) -> Picture {
    let taken = start + Duration::from_secs(second);
    let answered = |mut server: ServerNow| {
        server.taken = server.error.is_none().then_some(taken);
        server
    };
    Picture {
        taken,
        servers: servers.into_iter().map(answered).collect(),
        jobs,
    }
}

/// Two jobs and three servers, one of them silent, after a second.
fn model() -> Model {
    let (mut model, start) = (Model::default(), Instant::now());
    let silent = ServerNow {
        address: "10.0.0.9:7000".to_string(),
        error: Some("connection refused".to_string()),
        ..ServerNow::default()
    };
    let servers = |granted| {
        vec![
            server("unix:./m.sock", granted),
            server("10.0.0.5:7000", 0),
            silent.clone(),
        ]
    };
    model.handle_picture(picture(
        start,
        0,
        servers(32 * MIB),
        vec![job("sort", 4711, 0), job("java", 99, 0)],
    ));
    let mut forked = job("java", 99, 1000);
    forked.processes.push(ProcessNow {
        pid: 101,
        waits: Some("process 101 has waited 3s for memory: all servers are full".to_string()),
        ..ProcessNow::default()
    });
    model.handle_picture(picture(
        start,
        1,
        servers(64 * MIB),
        vec![job("sort", 4711, 20_000), forked],
    ));
    model
}

fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(width));
    lines
        .map(|line| {
            line.iter()
                .map(|cell| cell.symbol())
                .collect::<String>()
                .trim_end()
                .to_string()
        })
        .collect()
}

fn line<'a>(screen: &'a [String], with: &str) -> &'a str {
    screen
        .iter()
        .find(|line| line.contains(with))
        .unwrap_or_else(|| panic!("no {with:?} in {screen:#?}"))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn a_wide_screen_shows_everything() {
    let screen = screen(&model(), 140, 30);
    assert_eq!(
        screen[0],
        "muninn top   3 servers, 1 silent   2 jobs   sorted by far memory"
    );
    assert_eq!(
        words(line(&screen, "raven-13 ")),
        [
            "raven-13",
            "64.0MiB",
            "of",
            "256MiB",
            "████············",
            "2",
            "32.0MiB/s",
            "64.0MiB/s",
            "sort",
            "(4711)",
            "64.0MiB"
        ]
    );
    assert!(line(&screen, "10.0.0.9:7000").contains("silent: connection"));
    assert_eq!(
        words(line(&screen, "sort  ")),
        [
            "sort",
            "4711",
            "64.0MiB",
            "48.0MiB",
            "████████████····",
            "100MiB",
            "20000",
            "10000",
            "20%",
            "78.1MiB/s",
            "39.1MiB/s"
        ]
    );
    assert_eq!(
        words(line(&screen, "process         ")),
        ["process", "100", "0B", "0B", "-", "-", "-", "-", "-"]
    );
    assert!(
        screen
            .iter()
            .any(|line| line == "  ! process 101 has waited 3s for memory: all servers are full"),
        "{screen:#?}"
    );
    assert!(line(&screen, "traffic ").contains("faults/s 21000"));
    assert!(line(&screen, "traffic ").contains(", most demand"));
    assert!(screen.last().unwrap().contains("q quit"));
}

#[test]
fn a_narrow_screen_shows_what_matters() {
    let screen = screen(&model(), 80, 24);
    assert_eq!(
        words(line(&screen, "sort  ")),
        [
            "sort", "4711", "64.0MiB", "48.0MiB", "100MiB", "20000", "10000", "20%"
        ]
    );
    assert!(screen.last().unwrap().contains("q quit"), "{screen:#?}");
    // Too small for anything is no reason to fail.
    for (width, height) in [(1, 1), (10, 3), (30, 8), (200, 5)] {
        self::screen(&model(), width, height);
    }
}

#[test]
fn with_nothing_there_it_says_how_to_begin() {
    let mut model = Model::default();
    model.handle_picture(picture(Instant::now(), 0, Vec::new(), Vec::new()));
    let screen = screen(&model, 80, 24);
    assert_eq!(
        screen[0],
        "muninn top   no servers named   0 jobs   sorted by far memory"
    );
    line(&screen, "none: 'muninn run --local SIZE -- CMD' starts one");
}

#[test]
fn rows_that_are_chosen_stay_chosen_when_the_order_changes() {
    let mut model = model();
    assert_eq!(model.jobs[model.chosen_job()].job.name, "sort");
    model.handle_key(Key::Down);
    assert_eq!(model.jobs[model.chosen_job()].job.name, "java");
    model.handle_key(Key::Down);
    assert_eq!(
        model.jobs[model.chosen_job()].job.name,
        "java",
        "it is the last"
    );
    while model.sort != Sort::Name {
        model.handle_key(Key::Letter('s'));
    }
    assert_eq!(model.jobs[0].job.name, "java");
    assert_eq!(model.jobs[model.chosen_job()].job.name, "java");
    model.handle_key(Key::Other);
    assert_eq!(model.focus, Focus::Servers);
    model.handle_key(Key::Down);
    assert_eq!(
        model.servers[model.chosen_server()].server.address,
        "10.0.0.5:7000"
    );
}

fn press(model: &mut Model, text: &str) -> Wish {
    let mut wish = Wish::Nothing;
    for letter in text.chars() {
        wish = model.handle_key(match letter {
            '\n' => Key::Enter,
            '\x08' => Key::Backspace,
            '\x1b' => Key::Escape,
            letter => Key::Letter(letter),
        });
    }
    wish
}

#[test]
fn a_limit_is_asked_for_and_read() {
    let mut model = model();
    assert_eq!(press(&mut model, "l5q\x0812MiB"), Wish::Nothing);
    let foot = screen(&model, 100, 24).pop().unwrap();
    assert!(
        foot.starts_with("new limit of sort, such as 512MiB: 512MiB▏"),
        "{foot}"
    );
    let wish = Wish::Limit {
        pid: 4711,
        job: "sort".to_string(),
        size: Bytes::mib(512),
    };
    assert_eq!(press(&mut model, "\n"), wish);
    assert_eq!(press(&mut model, "lmuch\n"), Wish::Nothing);
    assert!(
        model.said.as_ref().unwrap().contains("'much'"),
        "{:?}",
        model.said
    );
    assert_eq!(press(&mut model, "l1\x1b"), Wish::Nothing);
    assert_eq!((&model.question, &model.said), (&None, &None));
    let long = format!("l{}", "1".repeat(1000));
    press(&mut model, &long);
    let Some(Question::Limit { typed, .. }) = &model.question else {
        panic!("{model:?}");
    };
    assert_eq!(typed.len(), 24);
}

#[test]
fn a_server_is_drained_only_after_a_yes() {
    let mut model = model();
    let address = "unix:./m.sock".to_string();
    assert_eq!(press(&mut model, "dn"), Wish::Nothing);
    assert_eq!(model.said.as_deref(), Some("not drained"));
    assert_eq!(press(&mut model, "d\n"), Wish::Nothing, "by accident");
    assert_eq!(
        press(&mut model, "dy"),
        Wish::Drain {
            address: address.clone()
        }
    );
    assert_eq!(press(&mut model, "D"), Wish::CancelDrain { address });
    assert_eq!(press(&mut model, "q"), Wish::Quit);
    let mut empty = Model::default();
    assert_eq!(press(&mut empty, "dlD"), Wish::Nothing);
    assert!(empty.question.is_none());
}

#[test]
fn what_is_another_by_the_same_name_makes_no_rate() {
    let (mut model, start) = (Model::default(), Instant::now());
    model.handle_picture(picture(
        start,
        0,
        vec![server("a", 64 * MIB)],
        vec![job("sort", 7, 1000)],
    ));
    model.handle_picture(picture(
        start,
        1,
        vec![server("a", MIB)],
        vec![job("sort", 7, 10)],
    ));
    assert_eq!(
        (model.jobs[0].rates.faults, model.servers[0].rates.bytes_in),
        (0.0, 0.0)
    );
    // Two pictures of one moment.
    model.handle_picture(picture(start, 1, Vec::new(), vec![job("sort", 7, 20)]));
    assert_eq!(model.jobs[0].rates.faults, 0.0);
    for second in 2..400 {
        model.handle_picture(picture(
            start,
            second,
            Vec::new(),
            vec![job("sort", 7, second)],
        ));
    }
    assert_eq!(model.history.len(), 120);
    model.handle_key(Key::Letter('p'));
    model.handle_picture(picture(start, 400, Vec::new(), Vec::new()));
    assert_eq!(model.jobs.len(), 1, "paused");
    model.handle_key(Key::Letter('?'));
    assert!(
        screen(&model, 80, 24)
            .iter()
            .any(|line| line.contains("any key closes this"))
    );
    assert_eq!(
        model.handle_key(Key::Letter('q')),
        Wish::Nothing,
        "it closes the help"
    );
}

#[test]
fn bars_are_never_longer_than_they_may() {
    let cells = |part, whole| bar(part, whole).chars().filter(|c| *c == '█').count();
    assert_eq!(
        (
            cells(0, 0),
            cells(0, 9),
            cells(1, u64::MAX),
            cells(u64::MAX, 1)
        ),
        (0, 0, 1, 16)
    );
    assert_eq!(cells(8, 16), 8);
}
