//! Collections beside their twins of the standard library: the same random operations on both, under
//! every plan, with collections (of garbage) in between, in a cache that is smaller than the heap.

mod common;

use common::*;
use muninn_heap::*;
use muninn_types::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug)]
enum Op {
    Push(u16),
    Pop,
    Insert(u16, u16),
    Remove(u16),
    Set(u16, u16),
    Truncate(u16),
    Garbage,
    Collect,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = 0u16..120;
    let op = prop_oneof![
        6 => any::<u16>().prop_map(Op::Push),
        2 => Just(Op::Pop),
        12 => (place.clone(), any::<u16>()).prop_map(|(a, b)| Op::Insert(a, b)),
        7 => place.clone().prop_map(Op::Remove),
        4 => (place.clone(), any::<u16>()).prop_map(|(a, b)| Op::Set(a, b)),
        1 => place.prop_map(Op::Truncate),
        2 => Just(Op::Garbage),
        1 => Just(Op::Collect),
    ];
    proptest::collection::vec(op, 1..300)
}

#[derive(Managed)]
struct Number {
    value: u16,
}

fn number<'s>(s: &Scope<'s>, value: u16) -> Result<Local<'s, Number>, HeapError> {
    s.alloc(NumberInit { value })
}

/// What has to do with the heap and nothing with the collection.
fn besides(s: &Scope<'_>, op: &Op) -> Result<(), HeapError> {
    match op {
        Op::Garbage => s.alloc_filled(60_000, 0xA5u8).map(|_| ()),
        Op::Collect => s.collect(),
        _ => Ok(()),
    }
}

/// Runs a program of operations under every plan, many times, in one heap for each plan.
fn beside(twin: fn(&Scope<'_>, &[Op]) -> Result<(), HeapError>) {
    let is_full = std::env::var("MUNINN_TEST_FULL").is_ok_and(|v| v == "1");
    let cases = if is_full { 300 } else { 10 };
    for plan in Plan::ALL {
        let servers = servers(2, Bytes::mib(32), Over::Shm);
        let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
        let builder = builder.heap(Bytes::mib(8)).local(Bytes::kib(600));
        let heap = builder.region(Bytes::kib(512)).verify(true);
        let heap = heap.build().unwrap();
        let mutator = RefCell::new(heap.mutator().unwrap());
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 200,
            ..Config::default()
        };
        let ran = TestRunner::new(config).run(&ops(), |ops| {
            let ran = mutator.borrow_mut().enter(|s| twin(s, &ops));
            ran.map_err(|error| TestCaseError::fail(format!("{plan}: {error}")))
        });
        ran.unwrap_or_else(|error| panic!("{plan}: {error}"));
        assert!(heap.stats().collections > 0, "{plan}");
    }
}

fn vectors(s: &Scope<'_>, ops: &[Op]) -> Result<(), HeapError> {
    let (plain, refs) = (s.vec::<u16>()?, s.vec::<Ref<Number>>()?);
    let mut twin: Vec<u16> = Vec::new();
    for op in ops {
        besides(s, op)?;
        match *op {
            Op::Push(value) => {
                plain.push(s, value)?;
                refs.push(s, number(s, value)?)?;
                twin.push(value);
            }
            Op::Pop => {
                let want = twin.pop();
                assert_eq!(plain.pop(), want);
                assert_eq!(refs.pop().map(|n| n.value()), want);
            }
            Op::Insert(at, value) => {
                let at = usize::from(at) % (twin.len() + 1);
                plain.insert(s, at, value)?;
                refs.insert(s, at, number(s, value)?)?;
                twin.insert(at, value);
            }
            Op::Remove(at) => {
                let at = usize::from(at);
                let want = (at < twin.len()).then(|| twin.remove(at));
                assert_eq!(plain.remove(at), want);
                assert_eq!(refs.remove(at).map(|n| n.value()), want);
            }
            Op::Set(at, value) => {
                let at = usize::from(at);
                let want = twin.get_mut(at).map(|old| std::mem::replace(old, value));
                assert_eq!(plain.set(at, value), want);
                let was = refs.set(at, number(s, value)?);
                assert_eq!(was.map(|n| n.value()), want);
            }
            Op::Truncate(most) => {
                twin.truncate(most.into());
                plain.truncate(most.into());
                refs.truncate(most.into());
            }
            Op::Garbage | Op::Collect => {}
        }
        assert_eq!((plain.len(), refs.len()), (twin.len(), twin.len()));
        assert_eq!(plain.get(twin.len()), None);
    }
    assert_eq!(plain.to_vec(), twin);
    let backwards: Vec<u16> = refs.iter().rev().map(|n| n.value()).collect();
    assert!(backwards.iter().eq(twin.iter().rev()));
    Ok(())
}

#[test]
fn a_far_vec_does_what_a_vec_does() {
    beside(vectors);
}

fn strings(s: &Scope<'_>, ops: &[Op]) -> Result<(), HeapError> {
    let (far, mut twin) = (s.string("älter")?, "älter".to_string());
    for op in ops {
        besides(s, op)?;
        match op {
            Op::Push(value) | Op::Set(_, value) => {
                let letter = char::from_u32(u32::from(*value)).unwrap_or('ß');
                far.push(s, letter)?;
                twin.push(letter);
            }
            Op::Insert(..) => {
                far.push_str(s, "wörter")?;
                twin.push_str("wörter");
            }
            Op::Pop | Op::Remove(_) => assert_eq!(far.pop(), twin.pop()),
            Op::Truncate(0..4) => {
                far.clear();
                twin.clear();
            }
            _ => {}
        }
        assert_eq!(far.len(), twin.len());
    }
    assert_eq!(far.text(), twin);
    Ok(())
}

#[test]
fn a_far_string_does_what_a_string_does() {
    beside(strings);
}

fn name(number: u16) -> String {
    // Of many lengths, and some the beginning of others.
    "k".repeat(usize::from(number % 70)) + &number.to_string()
}

fn hash_maps(s: &Scope<'_>, ops: &[Op]) -> Result<(), HeapError> {
    let plain = s.hash_map::<u16, u16>()?;
    let named = s.hash_map::<Ref<str>, Ref<Number>>()?;
    let mut twin: HashMap<u16, u16> = HashMap::new();
    for op in ops {
        besides(s, op)?;
        match *op {
            Op::Insert(key, value) | Op::Set(key, value) => {
                let want = twin.insert(key, value);
                assert_eq!(plain.insert(s, &key, value)?, want);
                let was = named.insert(s, &name(key), number(s, value)?)?;
                assert_eq!(was.map(|n| n.value()), want);
            }
            Op::Push(key) | Op::Remove(key) => {
                let want = twin.remove(&key);
                assert_eq!(plain.remove(&key), want);
                assert_eq!(named.remove(&name(key)).map(|n| n.value()), want);
            }
            Op::Truncate(0..2) => {
                twin.clear();
                plain.clear();
                named.clear();
            }
            Op::Truncate(key) => {
                let want = twin.get(&key).copied();
                assert_eq!(plain.get(&key), want);
                assert_eq!(named.get(&name(key)).map(|n| n.value()), want);
                assert_eq!(plain.contains_key(&key), want.is_some());
            }
            _ => {}
        }
        assert_eq!((plain.len(), named.len()), (twin.len(), twin.len()));
    }
    assert_eq!(plain.iter().collect::<HashMap<_, _>>(), twin);
    let found = named.iter().map(|(key, n)| (key.text(), n.value()));
    let found: HashMap<String, u16> = found.collect();
    let want = twin.iter().map(|(key, value)| (name(*key), *value));
    assert_eq!(found, want.collect());
    Ok(())
}

#[test]
fn a_far_hash_map_does_what_a_hash_map_does() {
    beside(hash_maps);
}

fn trees(s: &Scope<'_>, ops: &[Op]) -> Result<(), HeapError> {
    let plain = s.btree_map::<u16, u16>()?;
    let named = s.btree_map::<Ref<str>, Ref<Number>>()?;
    let (mut twin, mut named_twin) = (BTreeMap::new(), BTreeMap::new());
    for op in ops {
        besides(s, op)?;
        match *op {
            Op::Insert(key, value) | Op::Set(key, value) => {
                let want = twin.insert(key, value);
                named_twin.insert(name(key), value);
                assert_eq!(plain.insert(s, &key, value)?, want);
                let was = named.insert(s, &name(key), number(s, value)?)?;
                assert_eq!(was.map(|n| n.value()), want);
            }
            Op::Push(key) | Op::Remove(key) => {
                let key = key % 120;
                let want = twin.remove(&key);
                named_twin.remove(&name(key));
                assert_eq!(plain.remove(&key), want);
                assert_eq!(named.remove(&name(key)).map(|n| n.value()), want);
            }
            Op::Truncate(0..2) => {
                twin.clear();
                named_twin.clear();
                plain.clear();
                named.clear();
            }
            Op::Truncate(key) => {
                let want: Vec<(u16, u16)> = twin.range(key..).map(|(k, v)| (*k, *v)).collect();
                assert_eq!(plain.range_from(&key).collect::<Vec<_>>(), want);
                assert_eq!(plain.get(&key), twin.get(&key).copied());
            }
            _ => {}
        }
        assert_eq!((plain.len(), named.len()), (twin.len(), twin.len()));
    }
    assert!(plain.iter().eq(twin));
    let found: Vec<(String, u16)> = named.iter().map(|(k, n)| (k.text(), n.value())).collect();
    assert!(found.into_iter().eq(named_twin));
    Ok(())
}

#[test]
fn a_far_b_tree_does_what_a_b_tree_does() {
    beside(trees);
}

/// Thousands of keys, so that the tree is several nodes deep, put in and taken out in any order.
#[test]
fn a_deep_tree_and_a_large_map_keep_what_they_are_given() {
    let servers = servers(2, Bytes::mib(32), Over::Shm);
    let builder = Heap::builder().plan(Plan::Local).pool(servers.pool.clone());
    let builder = builder.heap(Bytes::mib(8)).local(Bytes::mib(1));
    let heap = builder.region(Bytes::mib(1)).build().unwrap();
    let work = |s: &Scope<'_>| {
        let (tree, map) = (s.btree_map::<u32, u32>()?, s.hash_map::<u32, u32>()?);
        let mut twin = BTreeMap::new();
        let mut dice = muninn_types::SplitMix64::new(11);
        for step in 0..20_000u32 {
            let key = dice.below(4000) as u32;
            if dice.chance(if step < 10_000 { 0.8 } else { 0.2 }) {
                let want = twin.insert(key, step);
                assert_eq!(tree.insert(s, &key, step)?, want);
                assert_eq!(map.insert(s, &key, step)?, want);
            } else {
                let want = twin.remove(&key);
                assert_eq!(tree.remove(&key), want);
                assert_eq!(map.remove(&key), want);
            }
            if step % 2500 == 0 {
                assert!(tree.iter().eq(twin.iter().map(|(k, v)| (*k, *v))));
                assert_eq!(map.iter().count(), twin.len());
            }
        }
        for key in 0..4000 {
            assert_eq!(tree.remove(&key), twin.remove(&key));
        }
        assert!(tree.is_empty() && tree.iter().next().is_none());
        Ok(())
    };
    heap.mutator().unwrap().enter(work).unwrap();
}

/// Collections that several mutators change at once may lose what is put in, but never more.
#[test]
fn mutators_that_share_a_collection_do_no_harm() {
    for plan in Plan::ALL {
        let servers = servers(1, Bytes::mib(32), Over::Shm);
        let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
        let builder = builder.heap(Bytes::mib(8)).local(Bytes::mib(1));
        let heap = builder.region(Bytes::kib(512)).build().unwrap();
        type Shared = (
            Root<FarVec<Ref<str>>>,
            Root<FarHashMap<u16, Ref<str>>>,
            Root<FarBTreeMap<Ref<str>, u16>>,
        );
        let shared: Shared = heap
            .mutator()
            .unwrap()
            .enter(|s| {
                let (list, map, tree) = (s.vec()?, s.hash_map()?, s.btree_map()?);
                Ok((s.root(&list), s.root(&map), s.root(&tree)))
            })
            .unwrap();
        let race = &|seed: u64| {
            let mut dice = muninn_types::SplitMix64::new(seed);
            let mut mutator = heap.mutator().unwrap();
            for _ in 0..1500 {
                let raced = mutator.enter(|s| {
                    let (list, map, tree) =
                        (s.open(&shared.0)?, s.open(&shared.1)?, s.open(&shared.2)?);
                    let key = dice.below(300) as u16;
                    let text = s.alloc_str(&name(key))?;
                    match dice.below(8) {
                        0 | 1 => list.push(s, text)?,
                        2 => drop(list.pop().map(|text| text.text())),
                        3 | 4 => drop(map.insert(s, &key, text)?),
                        5 => drop(map.remove(&key).map(|text| text.text())),
                        6 => drop(tree.insert(s, &name(key), key)?),
                        _ => drop(tree.remove(&name(key))),
                    }
                    drop(list.iter().last().map(|text| text.text()));
                    drop(map.iter().last().map(|(_, text)| text.text()));
                    drop(tree.iter().take(400).last().map(|(text, _)| text.text()));
                    Ok(())
                });
                // A tree may say that it is none any more.
                if let Err(error) = raced {
                    let said = error.to_string();
                    assert!(said.contains("guard it"), "{plan}, seed {seed}: {said}");
                }
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|seed| drop(scope.spawn(move || race(seed))));
        });
        heap.collect().unwrap();
        heap.audit().unwrap();
    }
}
