use super::converse::speaks_for;
use super::*;
use crate::channel::Who;
use crate::ledger::Wish;
use crate::message::{FromCoordinator, NodeState};

/// A scheduler that does what it is told, and can be looked at.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<FakeState>>);

#[derive(Default)]
struct FakeState {
    seen: Seen,
    started: Vec<Start>,
    away: bool,
}

impl Scheduler for Fake {
    fn look(&mut self) -> Result<Seen, String> {
        let state = self.0.lock().unwrap();
        match state.away {
            true => Err("gone".to_string()),
            false => Ok(state.seen.clone()),
        }
    }
    fn start(&mut self, start: &Start) -> Result<(), String> {
        self.0.lock().unwrap().started.push(start.clone());
        Ok(())
    }
    fn keep(&mut self, _: &[u64]) -> Result<(), String> {
        Ok(())
    }
}

fn request(job: u64, mib: u64) -> Request {
    Request {
        job,
        name: "j".to_string(),
        user: "u".to_string(),
        uid: 1000,
        cores: 1,
        memory: Bytes::mib(mib),
        floor: Bytes::mib(mib / 2),
        wish: Wish::Auto,
        run_s: 1.0,
        nodes: Vec::new(),
    }
}

struct World {
    dir: tempfile::TempDir,
    fake: Fake,
}

impl World {
    fn new() -> World {
        let fake = Fake::default();
        let node = SeenNode {
            name: "n1".to_string(),
            cores: 4,
            others: (0, Bytes::ZERO),
            open: true,
        };
        fake.0.lock().unwrap().seen.nodes = vec![node];
        World {
            dir: tempfile::tempdir().unwrap(),
            fake,
        }
    }

    fn start(&self) -> Coordinator {
        let settings = Settings {
            listen: vec![Address::unix(self.dir.path().join("c.sock")).unwrap()],
            key: Key::none(),
            admission: Admission::HeadStart,
            state: self.dir.path().join("state"),
            servers: Vec::new(),
            far: Bytes::gib(1),
            measured: Measured::default(),
        };
        Coordinator::start(settings, Some(Box::new(self.fake.clone()))).unwrap()
    }

    fn submit(&self, job: u64, mib: u64) {
        self.fake
            .0
            .lock()
            .unwrap()
            .seen
            .jobs
            .push((request(job, mib), None));
    }

    fn started(&self) -> Vec<u64> {
        let state = self.fake.0.lock().unwrap();
        state.started.iter().map(|start| start.job).collect()
    }
}

fn report(coordinator: &Coordinator, now: Nanos) -> FromCoordinator {
    let node = NodeState {
        name: "n1".to_string(),
        memory: Bytes::gib(1),
        servers: vec!["127.0.0.1:7".to_string()],
        ..NodeState::default()
    };
    lock(&coordinator.state).report(node, now)
}

#[test]
fn nothing_is_promised_before_enough_is_known_and_nothing_twice_after_a_restart() {
    let world = World::new();
    world.submit(1, 900);
    world.submit(2, 900);
    world.submit(3, 900);
    let mut coordinator = world.start();
    let begun = clock::now();
    report(&coordinator, begun);
    coordinator.tick(begun).unwrap();
    assert!(world.started().is_empty(), "it was only just started");
    let later = begun + SETTLE;
    report(&coordinator, later);
    coordinator.tick(later).unwrap();
    assert_eq!(world.started(), [1, 2]);
    let far = lock(&coordinator.state).ledger.far(later);
    drop(coordinator);
    // The next one knows what was promised, and that the third does not fit beside it.
    let mut coordinator = world.start();
    let now = clock::now() + SETTLE;
    report(&coordinator, now);
    coordinator.tick(now).unwrap();
    assert_eq!(world.started(), [1, 2]);
    assert_eq!(
        lock(&coordinator.state).ledger.far(now).promised,
        far.promised
    );
    // A job that is not there any more has given back what it was promised.
    world
        .fake
        .0
        .lock()
        .unwrap()
        .seen
        .jobs
        .retain(|(request, _)| request.job != 1);
    coordinator.tick(now).unwrap();
    assert_eq!(world.started(), [1, 2, 3]);
}

#[test]
fn a_torn_state_is_not_believed_and_nothing_is_started_on_a_guess() {
    let world = World::new();
    let mut coordinator = world.start();
    let later = clock::now() + SETTLE;
    report(&coordinator, later);
    world.submit(1, 900);
    coordinator.tick(later).unwrap();
    assert_eq!(world.started(), [1]);
    drop(coordinator);
    let path = world.dir.path().join("state");
    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let _ = std::fs::remove_file(world.dir.path().join("state.before"));
        let mut coordinator = world.start();
        let now = clock::now();
        world.submit(2, 900);
        let soon = now + SETTLE;
        report(&coordinator, soon);
        coordinator.tick(soon).unwrap();
        assert_eq!(world.started(), [1], "cut at {cut}");
        // The pool of an agent does not shrink on a guess either.
        let FromCoordinator::Plan { whole: all, .. } = report(&coordinator, soon) else {
            panic!("no plan");
        };
        assert!(!all);
        world
            .fake
            .0
            .lock()
            .unwrap()
            .seen
            .jobs
            .retain(|(request, _)| request.job != 2);
    }
}

#[test]
fn what_a_node_learned_of_jobs_lets_more_of_them_start() {
    let world = World::new();
    let job = |uid, min_ratio| crate::message::JobState {
        uid,
        name: "j".to_string(),
        profiled: true,
        min_ratio,
        full_s: 5.0,
        ..Default::default()
    };
    let hear = |coordinator: &Coordinator, jobs, now| {
        let node = NodeState {
            name: "n1".to_string(),
            memory: Bytes::gib(1),
            donate: Bytes::gib(2),
            servers: vec!["127.0.0.1:7".to_string()],
            jobs,
            ..NodeState::default()
        };
        lock(&coordinator.state).report(node, now);
    };
    let mut coordinator = world.start();
    let now = clock::now() + SETTLE;
    hear(&coordinator, Vec::new(), now);
    for number in [1, 2, 3] {
        world.submit(number, 900);
    }
    coordinator.tick(now).unwrap();
    assert_eq!(world.started(), [1, 2], "half of each must be near");
    // Jobs of that user and name bear more; what somebody else's do says nothing of them.
    let said = vec![job(7, 0.1), job(1000, f64::NAN), job(1000, 0.25)];
    hear(&coordinator, said, now);
    coordinator.tick(now).unwrap();
    drop(coordinator);
    // It is kept.
    let mut coordinator = world.start();
    for number in [1, 2, 3] {
        lock(&coordinator.state).ledger.ended(number);
    }
    let now = clock::now() + SETTLE;
    hear(&coordinator, Vec::new(), now);
    coordinator.tick(now).unwrap();
    assert_eq!(world.started(), [1, 2, 1, 2, 3]);
    let state = lock(&coordinator.state);
    let floors: Vec<Bytes> = state.ledger.placed().map(|one| one.request.floor).collect();
    assert_eq!(floors, [Bytes::mib(225); 3]);
}

#[test]
fn a_scheduler_that_is_away_ends_no_job() {
    let world = World::new();
    world.submit(1, 900);
    let mut coordinator = world.start();
    let now = clock::now() + SETTLE;
    report(&coordinator, now);
    coordinator.tick(now).unwrap();
    world.fake.0.lock().unwrap().away = true;
    coordinator.tick(now).unwrap();
    let state = lock(&coordinator.state);
    assert_eq!(state.ledger.placed().count(), 1);
    assert!(
        state
            .safe
            .as_ref()
            .unwrap()
            .contains("does not answer (gone)")
    );
}

#[test]
fn nobody_speaks_for_a_node_of_another_name() {
    let identity = |role, name: &str| {
        Who::Identity(muninn_proto::secure::Identity {
            role,
            name: name.to_string(),
            quota: None,
            id: String::new(),
            until: None,
            by: None,
        })
    };
    use muninn_proto::secure::Role;
    assert!(speaks_for(&identity(Role::Server, "n1"), "n1").is_ok());
    assert!(speaks_for(&identity(Role::Server, "n1"), "n2").is_err());
    assert!(speaks_for(&identity(Role::Client, "n1"), "n1").is_err());
    let peer = |uid| {
        Who::Local(muninn_sys::socket::PeerCredentials {
            pid: 1,
            uid,
            gid: uid,
        })
    };
    assert!(speaks_for(&peer(0), "n1").is_ok());
    assert!(speaks_for(&peer(65_534), "n1").is_err());
}
