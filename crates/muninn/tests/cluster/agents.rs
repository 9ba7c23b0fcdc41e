//! Agents and a coordinator without a scheduler.

use crate::common::{Running, far_memory_possible};
use crate::rack::{Rack, limit, size};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

#[test]
fn jobs_share_a_node_and_survive_everybody_who_divides_it() {
    if !far_memory_possible() {
        return;
    }
    let rack = Rack::new();
    let coordinator = rack.coordinator();
    let giver = rack.agent("giver", "64MiB", &["--donate", "320MiB"]);
    let mut taker = rack.agent("taker", "160MiB", &["--no-server"]);
    // Its pool is what the coordinator says, and that it has not said at first.
    let pool = rack.path("taker/pool.toml");
    crate::rack::eventually("a pool", || {
        let text = std::fs::read_to_string(&pool).ok()?;
        text.contains("giver/memory.sock").then_some(())
    });
    let first = rack.job("first", "taker", 100, "128MiB");
    rack.until("taker", "alone", |state| {
        limit(state, "first") == Some(128 * MIB)
    });
    let second = rack.job("second", "taker", 100, "128MiB");
    let state = rack.until("taker", "shared", |state| {
        limit(state, "second").is_some() && limit(state, "first") < Some(128 * MIB)
    });
    assert!(size(&state["limits"]).unwrap() <= 160 * MIB, "{state:#}");
    crate::rack::eventually("far", || (rack.granted("giver") > 0).then_some(()));
    // The coordinator hears of jobs with the next word of their agent.
    crate::rack::eventually("two nodes and two jobs", || {
        let cluster = rack.cluster();
        let len = |of: &str| cluster[of].as_array().unwrap().len();
        (len("nodes") == 2 && len("jobs") == 2).then_some(())
    });

    // The agent is killed, and jobs go on with what they have.
    taker.kill();
    assert!(rack.state("taker").is_none());
    let taker = rack.agent("taker", "160MiB", &["--no-server"]);
    rack.until("taker", "back", |state| {
        limit(state, "first").is_some() && limit(state, "second").is_some()
    });
    // The coordinator is killed, and the agent goes on with the pool as it is.
    coordinator.signal(Signal::KILL);
    assert_eq!(coordinator.end().code, None);
    rack.until("taker", "alone", |state| state["coordinated"] == false);
    rack.finish("second", second, 100);
    rack.until("taker", "given back", |state| {
        limit(state, "first") == Some(128 * MIB)
    });
    let coordinator = rack.coordinator();
    rack.until("taker", "coordinated", |state| state["coordinated"] == true);
    let text = std::fs::read_to_string(&pool).unwrap();
    assert!(
        text.contains("giver/memory.sock"),
        "nobody has left: {text}"
    );
    // The giver's agent is killed: its server goes on, and the next agent finds it.
    let pid = giver.server_pid();
    let mut giver = giver;
    giver.kill();
    let giver = rack.agent("giver", "64MiB", &["--donate", "320MiB"]);
    assert_eq!(giver.server_pid(), pid);
    rack.finish("first", first, 100);
    rack.nothing_left(&["giver"]);
    rack.until("taker", "empty", |state| {
        state["jobs"].as_array().unwrap().is_empty()
    });
    // What was learned is kept.
    let profiles = std::fs::read_to_string(rack.path("taker/profiles")).unwrap();
    assert!(profiles.contains(":first"), "{profiles}");
    assert_eq!(taker.stop().code, Some(0));
    assert_eq!(giver.stop().code, Some(0));
    coordinator.signal(Signal::TERM);
    assert_eq!(coordinator.end().code, Some(0));
}

#[test]
fn a_donor_shrinks_when_its_own_jobs_need_the_memory() {
    if !far_memory_possible() {
        return;
    }
    let rack = Rack::new();
    let coordinator = rack.coordinator();
    let lender = rack.agent("lender", "256MiB", &[]);
    let keeper = rack.agent("keeper", "16MiB", &["--donate", "256MiB"]);
    let taker = rack.agent("taker", "48MiB", &["--no-server"]);
    let pool = rack.path("taker/pool.toml");
    crate::rack::eventually("a pool of both", || {
        let text = std::fs::read_to_string(&pool).ok()?;
        (text.contains("lender/") && text.contains("keeper/")).then_some(())
    });
    let far = rack.job("far", "taker", 96, "112MiB");
    crate::rack::eventually("lent", || {
        (rack.granted("lender") + rack.granted("keeper") > 0).then_some(())
    });
    // A job of the lender's own wants all it has.
    let own = rack.job("own", "lender", 200, "256MiB");
    let state = rack.until("lender", "given back", |state| {
        limit(state, "own") == Some(256 * MIB) && size(&state["granted"]) == Some(0)
    });
    assert_eq!(size(&state["ceiling"]), Some(0));
    rack.finish("own", own, 200);
    rack.until("lender", "lending again", |state| {
        size(&state["ceiling"]) > Some(0)
    });
    rack.finish("far", far, 96);
    rack.nothing_left(&["lender", "keeper"]);
    for agent in [lender, keeper, taker] {
        assert_eq!(agent.stop().code, Some(0));
    }
    coordinator.signal(Signal::TERM);
    assert_eq!(coordinator.end().code, Some(0));
}

#[test]
fn an_agent_that_is_killed_at_any_moment_costs_no_job() {
    if !far_memory_possible() {
        return;
    }
    let rack = Rack::new();
    let mut agent = rack.agent("n1", "64MiB", &[]);
    let server = agent.server_pid();
    for round in 0..5u64 {
        let name = format!("j{round}");
        std::fs::write(rack.stop_file(&name), "").unwrap();
        let job = Running::start(rack.job_command(&name, "n1", 40, "96MiB"));
        // Before it has arrived, while it arrives, and at any time later.
        std::thread::sleep(std::time::Duration::from_millis(round * round * 30));
        agent.kill();
        agent = rack.agent("n1", "64MiB", &[]);
        assert_eq!(agent.server_pid(), server);
        rack.finish(&name, job, 40);
    }
    rack.until("n1", "empty", |state| {
        state["jobs"].as_array().unwrap().is_empty()
    });
    rack.nothing_left(&["n1"]);
    assert_eq!(agent.stop().code, Some(0));
}

#[test]
fn another_user_is_nobody_but_himself() {
    if muninn_sys::proc::own_uid() != 0 {
        muninn_testing::skip("only root can become another user");
        return;
    }
    let rack = Rack::new();
    let open = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(rack.place.path(""), open).unwrap();
    let coordinator = rack.coordinator();
    let agent = rack.agent("n1", "64MiB", &[]);
    let say = |socket: &str, line: &str| {
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(60)\n\
                      s.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode()+b'\\n')\n\
                      print(s.makefile().readline().strip())";
        let mut command = Command::new("python3");
        command.args(["-c", script, &rack.path(socket), line]);
        let output = command
            .uid(65_534)
            .gid(65_534)
            .current_dir("/")
            .stdin(Stdio::null());
        let output = output.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let answer = say(
        "c.sock",
        r#"{"say":"node","name":"n1","memory":"1TiB","donate":"1TiB"}"#,
    );
    assert!(answer.contains("refused"), "{answer}");
    let answer = say("n1.sock", r#"{"say":"arrive","name":"x","memory":"32MiB"}"#);
    assert!(answer.contains("welcome"), "{answer}");
    // What the agent keeps is nobody else's to read or to change.
    let mut command = Command::new("python3");
    command.args(["-c", "import sys; open(sys.argv[1], 'a')"]);
    command
        .arg(rack.path("n1/pool.toml"))
        .uid(65_534)
        .gid(65_534);
    let refused = command
        .stderr(Stdio::null())
        .current_dir("/")
        .status()
        .unwrap();
    assert!(!refused.success());
    rack.until("n1", "empty", |state| {
        state["jobs"].as_array().unwrap().is_empty()
    });
    // An agent of somebody else's is not believed: here it is root's, which is; a socket of nobody's is not.
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n\
                  print('up',flush=True)\nimport time\ntime.sleep(600)";
    std::fs::set_permissions(rack.place.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new("python3");
    command
        .args(["-c", script, &rack.path("fake.sock")])
        .uid(65_534)
        .gid(65_534);
    command.current_dir("/");
    let fake = Running::start(command);
    assert_eq!(fake.line().as_deref(), Some("up"));
    let pool = format!("agent:{}", rack.path("fake.sock"));
    let ended = rack.place.run(&["run", "--pool", &pool, "--", "true"]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended
            .err
            .contains("belongs to user 65534, who is not trusted here"),
        "{ended:?}"
    );
    drop(fake);
    assert_eq!(agent.stop().code, Some(0));
    coordinator.signal(Signal::TERM);
    assert_eq!(coordinator.end().code, Some(0));
}

#[test]
fn nonsense_at_a_coordinators_door_harms_nobody() {
    use std::io::{Read, Write};
    let rack = Rack::new();
    let mut command = rack.coordinator_command(&["--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null());
    let coordinator = Running::start(command);
    let listening = coordinator.json();
    let listen = listening["listen"].as_array().unwrap();
    let tcp = listen
        .iter()
        .find_map(|at| at.as_str().filter(|at| at.starts_with("127.")));
    let mut dice = muninn_types::SplitMix64::new(11);
    let (tcp, unix) = (tcp.unwrap().to_string(), rack.path("c.sock"));
    for round in 0..60 {
        let mut bytes = vec![0; dice.below(3000) as usize];
        dice.fill(&mut bytes);
        if round % 3 == 0 {
            let node = r#"{"say":"node","name":"x","memory":"1e99","jobs":[{}]}"#;
            bytes = [node.as_bytes(), &b"\n"[..], &bytes].concat();
        }
        // It may hang up before all of it is said, or answer.
        if round % 2 == 0 {
            let mut stream = std::net::TcpStream::connect(&tcp).unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        } else {
            let mut stream = std::os::unix::net::UnixStream::connect(&unix).unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        }
    }
    let cluster = rack.cluster();
    assert!(
        cluster["nodes"].as_array().unwrap().is_empty(),
        "{cluster:#}"
    );
    coordinator.signal(Signal::TERM);
    assert_eq!(coordinator.end().code, Some(0));
}

#[test]
fn without_an_agent_it_is_said_what_to_do() {
    let rack = Rack::new();
    let ended = rack
        .place
        .run(&["cluster", "--coordinator", "unix:nobody.sock"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.err.contains("is 'muninn coordinator' running?"),
        "{ended:?}"
    );
    let ended = rack
        .place
        .run(&["run", "--pool", "agent", "--local", "64MiB", "--", "true"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let ended = rack.place.run(&["status", "--pool", "agent"]);
    assert!(
        ended.err.contains("'muninn run --pool agent' only"),
        "{ended:?}"
    );
    let far = [
        "coordinator",
        "--listen",
        "192.0.2.1:7100",
        "--socket",
        "x.sock",
    ];
    let ended = rack.place.run(&far);
    assert!(ended.err.contains("without a key"), "{ended:?}");
}
