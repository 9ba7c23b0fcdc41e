//! Functions that are pushed to a running server and called by a client that was built without them: at every
//! place, over every transport; and modules that mean harm.

mod common;

use common::{EVERYWHERE, Over, World, session};
use muninn_net::Observer;
use muninn_types::Bytes;
use muninn_types::SplitMix64;
use muninn_wic::apps::list::{Ring, traverse};
use muninn_wic::apps::{kv, log};
use muninn_wic::local::LocalHosts;
use muninn_wic::{
    Addr, CallError, Function, Module, Place, Push, Remote, Service, ServiceOptions, WicError,
};
use muninn_wic::{list_pushed, push};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const LIST: &str = include_str!("../../../examples/wasm-apps/list.wat");

fn observer(world: &World) -> Observer {
    Observer::connect(&world.unix.parse().unwrap(), &session()).unwrap()
}

fn push_wat(world: &World, wat: &str) -> u32 {
    let bytes = wat::parse_str(wat).unwrap();
    push(&mut observer(world), &bytes, PATIENCE).unwrap()
}

/// A module with one function `t.f@1` whose body is this, and the imports that tests use.
fn module(body: &str) -> String {
    format!(
        r#"(module
  (import "muninn" "args" (func $args (param i32 i32) (result i32)))
  (import "muninn" "reply" (func $reply (param i32 i32)))
  (import "muninn" "base" (func $base (result i64)))
  (import "muninn" "read" (func $read (param i64 i32 i32) (result i32)))
  (import "muninn" "write" (func $write (param i64 i32 i32) (result i32)))
  (import "muninn" "cas" (func $cas (param i64 i64 i64 i32) (result i32)))
  (import "muninn" "fetch_add" (func $fetch_add (param i64 i64 i32) (result i32)))
  (import "muninn" "lock" (func $lock (param i32 i32) (result i32)))
  (import "muninn" "unlock" (func $unlock (param i32) (result i32)))
  (import "muninn" "pause" (func $pause (result i32)))
  (memory (export "memory") 1)
  (global (export "__heap_base") i32 (i32.const 64))
  (func $again (param i32) (result i32) (call $again (i32.add (local.get 0) (i32.const 1))))
  (func (export "t.f@1") (param $len i32) (result i64) {body}))"#
    )
}

/// Calls `t.f@1` with these bytes, everywhere, on a service of its own with three locks.
fn everywhere(body: &str, args: &[u8], check: impl Fn(&Service, Result<Vec<u8>, CallError>)) {
    let world = World::new(LocalHosts::prefetching(8)).with_nic();
    assert_eq!(push_wat(&world, &module(body)), 1);
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        let options = world.options(over, &format!("s{n}"), place).locks(3);
        let service = Service::open(options).unwrap();
        let f = service.function::<(), ()>("t.f", 1).unwrap();
        let reply = service.block_on(service.call_bytes(f.function(), args));
        check(&service, reply.map(|reply| reply.bytes().to_vec()));
    }
}

fn fails_everywhere(body: &str, wanted: impl Fn(&WicError) -> bool) {
    everywhere(body, &[], |_, reply| match reply {
        Err(CallError::Failed(error)) if wanted(&error) => {}
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_pushed_function_runs_at_every_place_for_a_client_that_never_knew_it() {
    let world = World::new(LocalHosts::adaptive(8)).with_nic();
    assert_eq!(push_wat(&world, LIST), 1);
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        let service = world.open(over, &format!("list-{n}"), place);
        let ring = Ring::new(service.range().0, 500, 7);
        ring.build(&service).unwrap();
        let walk = service.function::<(), ()>("wat.walk", 1).unwrap();
        for (start, hops) in [(0, 1), (3, 4), (499, 16), (7, 0)] {
            let mut args = ring.address(start).0.to_le_bytes().to_vec();
            args.extend_from_slice(&u32::to_le_bytes(hops));
            let reply = service.block_on(service.call_bytes(walk.function(), &args));
            let found = u64::from_le_bytes(reply.unwrap().bytes().try_into().unwrap());
            assert_eq!(found, ring.walk(start, hops), "{place:?} over {over:?}");
        }
        // What it is told it gives back, with what it did not know.
        let mut args = u64::to_le_bytes(8).to_vec();
        args.extend_from_slice(&1u32.to_le_bytes());
        let reply = service.block_on(service.call_bytes(walk.function(), &args));
        assert_eq!(reply.unwrap_err(), CallError::Failed(WicError::Bounds(8)));
    }
}

#[test]
fn what_is_pushed_is_listed_and_removed() {
    let world = World::new(LocalHosts::sync());
    push_wat(&world, LIST);
    let mut server = observer(&world);
    let all = list_pushed(&mut server).unwrap();
    assert_eq!(all.len(), 1);
    let info = &all[0];
    assert_eq!((info.name.as_str(), info.version), ("wat.walk", 1));
    assert!(info.idempotent && info.common);
    // The same bytes once more change nothing; other bytes of the same name are refused.
    assert_eq!(push_wat(&world, LIST), 1);
    let other = LIST.replace("(i64.const 7)", "(i64.const 8)");
    let bytes = wat::parse_str(&other).unwrap();
    let error = push(&mut server, &bytes, PATIENCE).unwrap_err();
    assert!(
        error.to_string().contains("wat.walk@1 is there already"),
        "{error}"
    );

    let service = world.open(Over::Tcp, "s", Place::Server);
    let walk = service.function::<(u64, u32), u64>("wat.walk", 1).unwrap();
    let missing = service.function::<(), ()>("wat.walk", 2).unwrap_err();
    assert!(missing.to_string().contains("version 1"), "{missing}");
    server
        .wics(muninn_wire::WicsRequest::Remove { hash: info.hash })
        .unwrap();
    assert_eq!(list_pushed(&mut server).unwrap(), []);
    let gone = service.block_on(service.call_bytes(walk.function(), &[0; 12]));
    assert!(matches!(gone, Err(CallError::Refused { .. })), "{gone:?}");
    assert_eq!(push_wat(&world, &other), 1);
}

#[test]
fn a_server_takes_functions_from_those_who_may_push_only() {
    let refused = |policy| {
        let world = World::new(LocalHosts::sync().taking(policy));
        let bytes = wat::parse_str(LIST).unwrap();
        let at = |address: &str| Observer::connect(&address.parse().unwrap(), &session()).unwrap();
        let by = |address: &str| {
            push(&mut at(address), &bytes, PATIENCE)
                .err()
                .map(|e| e.to_string())
        };
        [by(&world.tcp), by(&world.unix)]
            .map(|refusal| refusal.is_some_and(|r| r.contains("not permitted")))
    };
    // Over tcp without a key anybody could come; at the socket it is the server's own user.
    assert_eq!(refused(Push::Off), [true, true]);
    assert_eq!(refused(Push::Operators), [true, false]);
    assert_eq!(refused(Push::Clients), [false, false]);
}

#[test]
fn imports_do_what_they_say_everywhere() {
    // Adds 5 to a word under lock 2, twice: by compare-and-swap and by addition. Replies the last word found.
    let body = "
      (local $at i64)
      (local.set $at (i64.add (call $base) (i64.const 16)))
      (if (call $lock (i32.const 2) (i32.const 40)) (then (return (i64.const 3))))
      (drop (call $read (local.get $at) (i32.const 0) (i32.const 8)))
      (drop (call $pause))
      (drop (call $cas (local.get $at) (i64.load (i32.const 0)) (i64.add (i64.load (i32.const 0)) (i64.const 5)) (i32.const 8)))
      (drop (call $fetch_add (local.get $at) (i64.const 5) (i32.const 16)))
      (drop (call $read (local.get $at) (i32.const 24) (i32.const 8)))
      (drop (call $write (i64.add (local.get $at) (i64.const 8)) (i32.const 24) (i32.const 8)))
      (if (call $unlock (i32.const 2)) (then (return (i64.const 3))))
      (call $reply (i32.const 8) (i32.const 36))
      (i64.const 0)";
    everywhere(body, &[], |service, reply| {
        let reply = reply.unwrap();
        let word = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().unwrap());
        assert_eq!((word(0), word(8), word(16)), (0, 5, 10));
        assert_eq!(reply[32..36], [0; 4], "the lock was not orphaned");
        let mut words = [0; 16];
        service
            .read_bulk(service.range().0.plus(16), &mut words)
            .unwrap();
        assert_eq!(words, [[10, 0, 0, 0, 0, 0, 0, 0]; 2].concat()[..]);
    });
}

#[test]
fn nothing_is_left_over_from_one_call_to_the_next() {
    // Writes its arguments where the next call would see them, and replies what was there.
    let body = "
      (call $reply (i32.const 0) (i32.const 4))
      (drop (call $args (i32.const 0) (i32.const 4)))
      (i64.const 0)";
    let world = World::new(LocalHosts::sync());
    push_wat(&world, &module(body));
    for place in [Place::Server, Place::Client] {
        let service = world.open(Over::Tcp, "s", place);
        let f = service.function::<(), ()>("t.f", 1).unwrap();
        for _ in 0..3 {
            let reply = service.block_on(service.call_bytes(f.function(), &[7; 4]));
            assert_eq!(reply.unwrap().bytes(), [0; 4]);
        }
    }
}

// --- the applications, compiled for WebAssembly from the source that is compiled natively too ----------

/// One operation and what the model says, on a function that was pushed.
struct Apps<'s> {
    service: &'s Service,
    append: Remote<(u64, u64), u64>,
    read_tail: Remote<(), Option<(u64, u64, u64)>>,
    query: Remote<u64, Option<u64>>,
    update: Remote<(u64, u64), Option<u64>>,
    traverse: Remote<(u64, u32), u64>,
}

impl<'s> Apps<'s> {
    fn of(service: &'s Service) -> Apps<'s> {
        Apps {
            append: service.function("wasm-apps.append", 1).unwrap(),
            read_tail: service.function("wasm-apps.read_tail", 1).unwrap(),
            query: service.function("wasm-apps.query", 1).unwrap(),
            update: service.function("wasm-apps.update", 1).unwrap(),
            traverse: service.function("wasm-apps.traverse", 1).unwrap(),
            service,
        }
    }
}

const APPS: &[u8] = include_bytes!("../../../examples/wasm-apps/apps.wasm");
const SEED: u64 = 20_261_119;

fn memory_of(service: &Service) -> Vec<u8> {
    let (base, end) = service.range();
    let mut bytes = vec![0; (end.0 - base.0) as usize];
    service.read_bulk(base, &mut bytes).unwrap();
    bytes
}

/// Runs operations at every place, over both transports and moving at every step, once with the functions that
/// are built in and once with those that were pushed: equal replies, and equal memory at the end.
fn same_as_built_in(
    locks: u32,
    hosts: LocalHosts,
    built_in: impl Fn(&Service, &mut SplitMix64, usize),
    pushed: impl Fn(&Apps<'_>, &mut SplitMix64, usize),
) {
    let world = World::new(hosts).with_nic();
    push(&mut observer(&world), APPS, PATIENCE).unwrap();
    let model = Service::open(
        world
            .options(Over::Shm, "model", Place::Server)
            .locks(locks),
    )
    .unwrap();
    let mut rng = SplitMix64::new(SEED);
    for step in 0..100 {
        built_in(&model, &mut rng, step);
    }
    let wanted = memory_of(&model);
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        for moving in [false, true] {
            let options = world.options(over, &format!("s{n}-{moving}"), place);
            let service = Service::open(options.locks(locks)).unwrap();
            let apps = Apps::of(&service);
            let (mut rng, mut way) = (SplitMix64::new(SEED), SplitMix64::new(n as u64));
            for step in 0..100 {
                if moving {
                    let places = [Place::Client, Place::Server, Place::Nic, Place::Auto];
                    service.set_place(places[way.below(4) as usize]);
                }
                pushed(&apps, &mut rng, step);
            }
            assert!(
                memory_of(&service) == wanted,
                "{place:?} over {over:?}, moving {moving}"
            );
        }
    }
}

#[test]
fn a_pushed_log_is_the_log_that_is_built_in() {
    let tails = std::cell::RefCell::new(Vec::new());
    same_as_built_in(
        1,
        LocalHosts::adaptive(8),
        |service, rng, _| {
            let (writer, value) = (rng.below(9), rng.next_u64());
            service.run(log::append, (writer, value)).unwrap();
            let last = service.run(log::read_tail, ()).unwrap();
            tails.borrow_mut().push(last);
        },
        |apps, rng, step| {
            let args = (rng.below(9), rng.next_u64());
            let number = apps.service.run_pushed(&apps.append, &args).unwrap();
            let last = apps.service.run_pushed(&apps.read_tail, &()).unwrap();
            assert_eq!(number, step as u64);
            assert_eq!(last, tails.borrow()[step], "seed {SEED}");
        },
    );
}

#[test]
fn a_pushed_store_is_the_store_that_is_built_in() {
    for locks in [1, 64] {
        let olds = std::cell::RefCell::new(Vec::new());
        same_as_built_in(
            locks,
            LocalHosts::prefetching(8),
            |service, rng, _| {
                let (key, value) = (1 + rng.below(60), rng.next_u64());
                let old = service.run(kv::update, (key, value)).unwrap();
                assert_eq!(service.run(kv::query, key), Ok(Some(value)));
                olds.borrow_mut().push(old);
            },
            |apps, rng, step| {
                let (key, value) = (1 + rng.below(60), rng.next_u64());
                let old = apps.service.run_pushed(&apps.update, &(key, value));
                assert_eq!(old, Ok(olds.borrow()[step]), "seed {SEED}");
                assert_eq!(apps.service.run_pushed(&apps.query, &key), Ok(Some(value)));
            },
        );
    }
}

#[test]
fn a_pushed_traversal_finds_what_the_built_in_one_does_and_errors_are_the_same() {
    let world = World::new(LocalHosts::prefetching(8)).with_nic();
    push(&mut observer(&world), APPS, PATIENCE).unwrap();
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        let service = world.open(over, &format!("s{n}"), place);
        let ring = Ring::new(service.range().0, 500, SEED);
        ring.build(&service).unwrap();
        let apps = Apps::of(&service);
        let mut rng = SplitMix64::new(SEED);
        for _ in 0..40 {
            let (start, hops) = (rng.below(500) as u32, rng.below(17) as u32);
            let args = (ring.address(start).0, hops);
            let found = service.run_pushed(&apps.traverse, &args);
            assert_eq!(found, Ok(ring.walk(start, hops)), "seed {SEED}");
        }
        for bad in [0, u64::MAX, service.range().1.0] {
            let pushed = service.run_pushed(&apps.traverse, &(bad, 1));
            assert_eq!(pushed, service.run(traverse, (bad, 1)));
        }
        let no_key = service.run_pushed(&apps.update, &(0, 1));
        assert_eq!(no_key, Err(CallError::Failed(WicError::App(kv::NO_KEY))));
        // Arguments of another function's.
        let wrong: Remote<(), u64> = service.function("wasm-apps.append", 1).unwrap();
        let refused = service.run_pushed(&wrong, &());
        assert_eq!(refused, Err(CallError::Failed(WicError::Args)));
    }
}

/// Eight clients append at once, each from another place: nothing is lost or twice.
#[test]
fn clients_append_to_a_pushed_log_at_once() {
    let world = World::new(LocalHosts::adaptive(8)).with_nic();
    push(&mut observer(&world), APPS, PATIENCE).unwrap();
    let each = 25;
    // The log ends with the last who has it open.
    let _keeper = world.open(Over::Tcp, "log", Place::Server);
    let numbers: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = EVERYWHERE
            .into_iter()
            .enumerate()
            .map(|(n, (over, place))| {
                let options = world.options(over, "log", place);
                scope.spawn(move || {
                    let service = Service::open(options).unwrap();
                    let append: Remote<(u64, u64), u64> =
                        service.function("wasm-apps.append", 1).unwrap();
                    let one = |value| service.run_pushed(&append, &(n as u64, value)).unwrap();
                    (0..each).map(one).collect::<Vec<u64>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let mut numbers = numbers;
    numbers.sort_unstable();
    let all: Vec<u64> = (0..EVERYWHERE.len() as u64 * each).collect();
    assert_eq!(numbers, all);
}

// --- modules that mean harm -------------------------------------------------------------------------

#[test]
fn an_endless_loop_is_ended_and_others_go_on_meanwhile() {
    let world = World::new(LocalHosts::sync());
    push_wat(&world, &module("(loop $again (br $again)) (i64.const 0)"));
    push_wat(&world, LIST);
    let looping = world.open(Over::Tcp, "a", Place::Server);
    let other = world.open(Over::Tcp, "b", Place::Server);
    let f = looping.function::<(), ()>("t.f", 1).unwrap();
    let walk = other.function::<(), ()>("wat.walk", 1).unwrap();
    looping.start_function(f.function(), Vec::new(), 1, muninn_sys::clock::now());
    assert!(looping.poll(Duration::ZERO).is_none());
    let mut args = other.range().0.0.to_le_bytes().to_vec();
    args.extend_from_slice(&[0; 4]);
    for _ in 0..20 {
        let reply = other.block_on(other.call_bytes(walk.function(), &args));
        assert!(reply.is_ok(), "{reply:?}");
    }
    let ended = loop {
        if let Some(ended) = looping.poll(Duration::from_millis(10)) {
            break ended;
        }
    };
    let limit = u64::from(muninn_wic::local::Limits::default().steps);
    assert_eq!(
        ended.result.unwrap_err(),
        CallError::Failed(WicError::Steps(limit))
    );
}

#[test]
fn a_loop_that_waits_for_a_lock_is_bounded_by_its_deadline() {
    // It takes a lock twice: the second time it waits for itself.
    let body = "(drop (call $lock (i32.const 0) (i32.const 0))) (drop (call $lock (i32.const 0) (i32.const 0))) (i64.const 0)";
    let world = World::new(LocalHosts::sync());
    push_wat(&world, &module(body));
    for place in [Place::Server, Place::Client] {
        let mut options = world.options(Over::Tcp, &format!("{place:?}"), place);
        options.tuning.deadline = Duration::from_millis(300);
        let service = Service::open(options).unwrap();
        let f = service.function::<(), ()>("t.f", 1).unwrap();
        let late = service.block_on(service.call_bytes(f.function(), &[]));
        assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
        // What it held is free, and the next one is told. That it is freed may take a moment.
        let until = Instant::now() + PATIENCE;
        loop {
            let mut word = [0; 8];
            service_lock_word(&service, &mut word);
            if word == [1, 0, 0, 0, 0, 0, 0, 0] {
                break;
            }
            assert!(Instant::now() < until, "the lock is {word:?}");
            service.poll(Duration::from_millis(1));
        }
    }
}

/// Lock words lie below what functions may touch; a bulk read goes there by another way.
fn service_lock_word(service: &Service, word: &mut [u8; 8]) {
    *word = service.lock_word(0).unwrap().to_le_bytes();
}

#[test]
fn a_module_that_recurses_is_ended() {
    fails_everywhere("(i64.extend_i32_u (call $again (i32.const 0)))", |error| {
        matches!(error, WicError::Trapped(_) | WicError::Steps(_))
    });
}

#[test]
fn a_module_that_allocates_is_ended() {
    fails_everywhere(
        "(loop $more (drop (memory.grow (i32.const 16))) (br $more)) (i64.const 0)",
        |error| matches!(error, WicError::Allocated(_)),
    );
}

#[test]
fn a_module_that_traps_is_ended() {
    fails_everywhere("unreachable", |error| *error == WicError::Panicked);
    fails_everywhere(
        "(i64.div_u (i64.const 1) (i64.extend_i32_u (i32.load (i32.const 0))))",
        |error| matches!(error, WicError::Trapped(_)),
    );
}

#[test]
fn a_module_that_lies_about_lengths_is_ended() {
    for call in [
        "(drop (call $args (i32.const 65530) (i32.const 7)))",
        "(call $reply (i32.const -4) (i32.const 8))",
        "(drop (call $read (call $base) (i32.const 65529) (i32.const 8)))",
        "(drop (call $write (call $base) (i32.const 0) (i32.const -1)))",
        "(drop (call $cas (call $base) (i64.const 0) (i64.const 0) (i32.const -8)))",
        "(drop (call $fetch_add (call $base) (i64.const 0) (i32.const 65535)))",
        "(drop (call $lock (i32.const 0) (i32.const -1)))",
    ] {
        fails_everywhere(
            &format!("{call} (i64.const 0)"),
            |error| matches!(error, WicError::Trapped(why) if why.contains("memory")),
        );
    }
    fails_everywhere(
        "(call $reply (i32.const 0) (i32.const 2000)) (i64.const 0)",
        |error| *error == WicError::Reply,
    );
}

#[test]
fn a_module_that_holds_a_lock_and_dies_leaves_it_orphaned() {
    let body = "(drop (call $lock (i32.const 1) (i32.const 0))) unreachable";
    everywhere(body, &[], |service, reply| {
        assert_eq!(reply, Err(CallError::Failed(WicError::Panicked)));
        let until = Instant::now() + PATIENCE;
        while service.lock_word(1).unwrap() != 1 {
            assert!(Instant::now() < until, "the lock was not freed");
            service.poll(Duration::from_millis(1));
        }
    });
}

#[test]
fn what_is_no_module_is_refused_with_a_reason() {
    let big = vec![0; muninn_wire::MAX_MODULE + 1];
    for (bytes, wanted) in [
        (vec![], "1 to 262144 bytes"),
        (big, "1 to 262144 bytes"),
        (b"no module".to_vec(), "cannot be read"),
        (wat::parse_str("(module)").unwrap(), "exports no function"),
        (
            wat::parse_str(r#"(module (import "env" "exit" (func)) (memory (export "memory") 1))"#).unwrap(),
            "imports 'env.exit'",
        ),
        (
            wat::parse_str(r#"(module (import "muninn" "fork" (func)) (memory (export "memory") 1) (func (export "a@1") (param i32) (result i64) (i64.const 0)))"#).unwrap(),
            "fork",
        ),
        (
            wat::parse_str(r#"(module (memory (export "memory") 1) (func (export "a@one")))"#).unwrap(),
            "'a@one' is no name",
        ),
        (
            wat::parse_str(r#"(module (memory (export "memory") 1) (func (export "a@1")))"#).unwrap(),
            "does not take one i32",
        ),
        (
            wat::parse_str(r#"(module (func (export "a@1") (param i32) (result i64) (i64.const 0)))"#).unwrap(),
            "no memory",
        ),
        (
            wat::parse_str(r#"(module (memory (export "memory") 1000) (func (export "a@1") (param i32) (result i64) (i64.const 0)))"#).unwrap(),
            "cannot be started",
        ),
        (
            wat::parse_str(r#"(module (memory (export "memory") 1) (func $s) (start $s) (func (export "a@1") (param i32) (result i64) (i64.const 0)))"#).unwrap(),
            "cannot be",
        ),
    ] {
        let error = Module::load(bytes).unwrap_err().to_string();
        assert!(error.contains(wanted), "'{error}' does not say '{wanted}'");
    }
}

/// The whole of what a server keeps is bounded, and a thousand modules are little.
#[test]
fn a_thousand_modules_are_kept_and_called() {
    let world = World::new(LocalHosts::sync());
    let mut server = observer(&world);
    let before = resident();
    let service = world.open(Over::Shm, "s", Place::Server);
    for n in 0..1000 {
        let wat = LIST.replace("wat.walk@1", &format!("wat.walk@{n}"));
        push(&mut server, &wat::parse_str(&wat).unwrap(), PATIENCE).unwrap();
    }
    assert_eq!(list_pushed(&mut server).unwrap().len(), 1000);
    let mut args = service.range().0.0.to_le_bytes().to_vec();
    args.extend_from_slice(&[0; 4]);
    for n in 0..1000 {
        let walk = service.function::<(), ()>("wat.walk", n).unwrap();
        let reply = service.block_on(service.call_bytes(walk.function(), &args));
        assert!(reply.is_ok(), "{reply:?}");
    }
    let grown = Bytes(resident().saturating_sub(before));
    assert!(grown < Bytes::mib(256), "1000 modules took {grown}");
    let none_left = push(
        &mut server,
        &wat::parse_str(LIST.replace("wat.walk@1", "x.y@1").as_str()).unwrap(),
        PATIENCE,
    );
    assert!(none_left.is_ok(), "1001 are not too many: {none_left:?}");
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// What is built in and what is pushed are told apart, whatever they are called.
#[test]
fn a_function_is_known_by_its_source() {
    let bytes = wat::parse_str(LIST).unwrap();
    let module = std::sync::Arc::new(Module::load(bytes).unwrap());
    let pushed = muninn_wic::Pushed::all(&module).next().unwrap();
    let function = Function::Pushed(pushed);
    assert_eq!((function.name(), function.version()), ("wat.walk", 1));
    assert!(function.idempotent());
    let _ = (Addr(0), ServiceOptions::new("unix:x", "y", Bytes::mib(1)));
}
