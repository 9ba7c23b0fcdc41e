//! What `muninn status` shows.

use crate::common::{Ended, options, place};
use muninn_net::Pool;
use muninn_types::Bytes;
use serde_json::Value;

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn sessions_grants_traffic_and_refusals_are_counted() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--segment", "4MiB", "--name", "raven"]);
    let socket = format!("unix:{}", place.path("m.sock").display());
    let near = Pool::connect(&socket, options("near")).unwrap();
    let far = served.client("far");
    near.grant(Bytes::mib(1)).unwrap();
    let grant = far.grant(Bytes::kib(64)).unwrap();
    far.write(&grant, 0, &[1; 8192]).unwrap();
    far.read(&grant, 0, &mut [0; 4096]).unwrap();
    far.grant(Bytes::mib(4)).unwrap_err();

    let pool = format!("{socket},{}", served.tcp());
    let ended = place.run(&["status", "--pool", &pool, "--json"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let servers = json(&ended)["servers"].clone();
    assert_eq!(servers.as_array().unwrap().len(), 2);
    let server = &servers[1];
    assert_eq!(server["address"], served.tcp());
    assert_eq!(server["name"], "raven");
    assert_eq!(server["ok"], true);
    assert_eq!(server["pool_bytes"], 8 << 20);
    assert_eq!(server["granted_bytes"], (1 << 20) + (64 << 10));
    assert_eq!(server["grants"], 2);
    assert_eq!(server["draining"], false);
    assert_eq!(server["refusals"]["pool-full"], 1);
    let traffic = server["traffic"].as_array().unwrap();
    let class = |name: &str| traffic.iter().find(|row| row["class"] == name).unwrap();
    assert_eq!(class("demand")["bytes_out"], 4096);
    assert_eq!(class("eviction-4")["bytes_in"], 8192);
    let sessions = server["sessions"].as_array().unwrap();
    let names: Vec<_> = sessions
        .iter()
        .map(|row| (row["name"].clone(), row["transport"].clone()))
        .collect();
    assert_eq!(
        names,
        [("near".into(), "shm".into()), ("far".into(), "tcp".into())]
    );
    for session in sessions {
        // All digits, also of a number that begins with zeros.
        let id = session["id"].as_str().unwrap();
        assert_eq!((id.len(), &id[..1]), (17, "s"), "{id}");
    }
    assert_eq!(sessions[1]["pid"], std::process::id());
    assert_eq!(sessions[1]["granted_bytes"], 64 << 10);

    let shown = place.run(&["status", "--pool", &served.tcp()]).out;
    let start = format!("{}: 'raven', up ", served.tcp());
    assert!(shown.starts_with(&start), "{shown}");
    for part in [
        "1.06MiB of 8.00MiB granted",
        "2 sessions, 2 grants, ",
        "\n  session            client ",
        "\n  class       requests       in      out\n",
        "\n  pool-full            1",
    ] {
        assert!(shown.contains(part), "{part:?} is not in:\n{shown}");
    }
}

#[test]
fn a_server_that_is_away_does_not_hide_the_others() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--name", "raven"]);
    let gone = format!("unix:{}", place.path("gone.sock").display());
    let pool = format!("{gone},{}", served.tcp());
    let ended = place.run(&["status", "--pool", &pool]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.out.starts_with(&format!(
            "{gone}\n  cannot connect to {gone}: nobody listens there; is the server running?\n\n\
             {}: 'raven', up ",
            served.tcp()
        )),
        "{}",
        ended.out
    );
    assert_eq!(
        ended.err,
        "muninn: 1 of 2 servers gave no status; why is said above\n"
    );
    let ended = place.run(&["status", "--json", "--pool", &pool]);
    assert_eq!(ended.code, Some(3));
    let servers = &json(&ended)["servers"];
    assert_eq!(servers[0]["ok"], false);
    assert_eq!(
        servers[0]["error"],
        format!("cannot connect to {gone}: nobody listens there; is the server running?")
    );
    assert_eq!(servers[1]["ok"], true);
}
