use super::*;
use std::time::{Duration, Instant};

fn module(name: &str) -> Vec<u8> {
    let wat = format!(
        r#"(module (memory (export "memory") 1)
            (func (export "{name}") (param i32) (result i64) (i64.const 0)))"#
    );
    wat::parse_str(wat).unwrap()
}

fn shelf(policy: Push) -> Shelf {
    Shelf::new(policy, Arc::new(Registry::collect()))
}

fn client(owner: &str) -> Pusher<'_> {
    Pusher {
        owner,
        is_operator: false,
        may_own: true,
        is_server: false,
    }
}

const OPERATOR: Pusher<'_> = Pusher {
    owner: "root",
    is_operator: true,
    may_own: true,
    is_server: false,
};
const NIC: Pusher<'_> = Pusher {
    owner: "nic",
    is_operator: false,
    may_own: false,
    is_server: true,
};

fn state(shelf: &Shelf, by: &Pusher<'_>, hash: ModuleHash) -> ModuleState {
    match shelf.handle(by, &WicsRequest::State { hash }).unwrap() {
        WicsReply::State(state) => state,
        other => panic!("{other:?}"),
    }
}

/// Pushes all of it, and waits until it is known what becomes of it.
fn push(shelf: &Shelf, by: &Pusher<'_>, bytes: &[u8]) -> Result<ModuleState, Refusal> {
    let hash = hash_of(bytes);
    for (at, part) in bytes.chunks(40).enumerate() {
        let part = WicsRequest::Part {
            hash,
            len: bytes.len() as u32,
            offset: at as u32 * 40,
            bytes: part.to_vec(),
        };
        shelf.handle(by, &part)?;
    }
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match state(shelf, by, hash) {
            ModuleState::Translating => assert!(Instant::now() < until, "it takes too long"),
            state => return Ok(state),
        }
        std::thread::yield_now();
    }
}

fn found(shelf: &Shelf, by: &Pusher<'_>, owner: &str, name: &str) -> Option<PushedInfo> {
    let find = WicsRequest::Find {
        owner: ShortText::lossy(owner, 64),
        name: ShortText::lossy(name, 64),
        version: 1,
    };
    match shelf.handle(by, &find) {
        Ok(WicsReply::Found(info)) => Some(info),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => {
            assert_eq!(refusal.code, ErrorCode::NoWic);
            None
        }
    }
}

#[test]
fn what_a_client_pushes_is_for_its_identity() {
    let shelf = shelf(Push::Clients);
    let (a, b) = (client("a"), client("b"));
    let bytes = module("f@1");
    assert_eq!(push(&shelf, &a, &bytes), Ok(ModuleState::Ready(1)));
    let info = found(&shelf, &a, "", "f").unwrap();
    assert_eq!((info.owner.as_str(), info.common), ("a", false));
    assert!(shelf.may_call(info.number, "a") && !shelf.may_call(info.number, "b"));
    // Neither under its name, nor by its number or hash, nor as somebody else.
    assert_eq!(found(&shelf, &b, "a", "f"), None);
    assert_eq!(shelf.find("b", "f", 1), Err(None));
    let hash = info.hash;
    let fetch = WicsRequest::Fetch { hash, offset: 0 };
    assert!(shelf.handle(&b, &fetch).is_err());
    assert!(shelf.handle(&b, &WicsRequest::Remove { hash }).is_err());
    let list = shelf.handle(&b, &WicsRequest::List { after: 0 });
    assert_eq!(list, Ok(WicsReply::List(Vec::new())));
    assert_eq!(state(&shelf, &b, hash), ModuleState::Missing);
    // A nic asks for its clients.
    assert_eq!(found(&shelf, &NIC, "a", "f"), Some(info.clone()));
    assert_eq!(found(&shelf, &NIC, "b", "f"), None);
    assert!(shelf.handle(&NIC, &fetch).is_ok());
    // The other may have one of the same name, and each finds its own.
    let other = module("f@1 idempotent");
    assert_eq!(push(&shelf, &b, &other), Ok(ModuleState::Ready(1)));
    assert!(found(&shelf, &b, "", "f").unwrap().idempotent);
    assert!(!found(&shelf, &a, "", "f").unwrap().idempotent);
    // An operator sees and removes everybody's.
    shelf
        .handle(&OPERATOR, &WicsRequest::Remove { hash })
        .unwrap();
    assert_eq!(found(&shelf, &a, "", "f"), None);
    assert!(!shelf.may_call(info.number, "a"));
}

#[test]
fn what_an_operator_pushes_is_for_everybody_but_ones_own_comes_first() {
    let shelf = shelf(Push::Clients);
    let a = client("a");
    push(&shelf, &OPERATOR, &module("f@1")).unwrap();
    assert!(found(&shelf, &a, "", "f").unwrap().common);
    let hash = found(&shelf, &a, "", "f").unwrap().hash;
    let refused = shelf.handle(&a, &WicsRequest::Remove { hash });
    assert!(refused.is_err(), "a client removes what is everybody's");
    push(&shelf, &a, &module("f@1 idempotent")).unwrap();
    assert!(!found(&shelf, &a, "", "f").unwrap().common);
    assert!(found(&shelf, &client("b"), "", "f").unwrap().common);
}

#[test]
fn who_may_not_push_changes_nothing() {
    for (policy, by, may) in [
        (Push::Off, OPERATOR, false),
        (Push::Operators, OPERATOR, true),
        (Push::Operators, client("a"), false),
        (Push::Clients, client("a"), true),
        (Push::Clients, NIC, false),
    ] {
        let shelf = shelf(policy);
        let pushed = push(&shelf, &by, &module("f@1"));
        assert_eq!(pushed.is_ok(), may, "{policy:?} {by:?}: {pushed:?}");
        if let Err(refusal) = pushed {
            assert_eq!(refusal.code, ErrorCode::NotPermitted);
        }
    }
}

#[test]
fn parts_may_come_twice_or_be_missing_and_must_have_their_hash() {
    let shelf = shelf(Push::Clients);
    let (a, bytes) = (client("a"), module("f@1"));
    let send = |hash, offset: usize, end: usize| {
        let part = WicsRequest::Part {
            hash,
            len: bytes.len() as u32,
            offset: offset as u32,
            bytes: bytes[offset..end].to_vec(),
        };
        match shelf.handle(&a, &part).unwrap() {
            WicsReply::State(state) => state,
            other => panic!("{other:?}"),
        }
    };
    let hash = hash_of(&bytes);
    assert_eq!(send(hash, 0, 10), ModuleState::Receiving(10));
    assert_eq!(send(hash, 0, 10), ModuleState::Receiving(10), "twice");
    assert_eq!(send(hash, 20, 30), ModuleState::Receiving(10), "too far on");
    assert_eq!(
        send(hash, 5, 15),
        ModuleState::Receiving(15),
        "in part known"
    );
    assert_eq!(send(hash, 15, bytes.len()), ModuleState::Translating);
    let wrong = [7; 32];
    assert!(matches!(
        send(wrong, 0, bytes.len()),
        ModuleState::Refused(_)
    ));
    assert_eq!(state(&shelf, &a, wrong), ModuleState::Missing);
}

#[test]
fn those_on_their_way_are_bounded_for_each_owner() {
    let shelf = shelf(Push::Clients);
    let begin = |by: &Pusher<'_>, n: u8| {
        let part = WicsRequest::Part {
            hash: [n; 32],
            len: 1000,
            offset: 0,
            bytes: vec![n],
        };
        shelf.handle(by, &part).map_err(|refusal| refusal.code)
    };
    for n in 0..ARRIVING_OF_OWNER as u8 {
        begin(&client("a"), n).unwrap();
    }
    assert_eq!(begin(&client("a"), 99), Err(ErrorCode::TooManyModules));
    begin(&client("b"), 99).unwrap();
    // What is on its way already goes on.
    begin(&client("a"), 0).unwrap();
}

#[test]
fn a_name_that_is_taken_is_refused_with_the_name() {
    let shelf = shelf(Push::Clients);
    let built_in = module("muninn-wic.traverse@1");
    let ModuleState::Refused(why) = push(&shelf, &client("a"), &built_in).unwrap() else {
        panic!("it takes the place of what is built in");
    };
    assert!(why.as_str().contains("muninn-wic.traverse@1"), "{why}");
}
