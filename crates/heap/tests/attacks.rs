//! What a program without `unsafe` can try against the heap, and what comes of it: an error, never a
//! wrong value, a hang or an end of the process.

mod common;

use common::*;
use muninn_heap::*;
use muninn_types::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

fn heap(plan: Plan, servers: &Servers) -> Heap {
    let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
    let builder = builder.heap(Bytes::mib(8)).local(Bytes::mib(1));
    builder.region(Bytes::mib(1)).build().unwrap()
}

/// Nothing in these tests takes this long, however busy the machine is.
const HANGS: Duration = Duration::from_secs(120);

/// Runs `work` on a thread of its own; a panic if it does not end.
fn ends<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    let thread = std::thread::spawn(move || done.send(work()));
    match result.recv_timeout(HANGS) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("{what}: it ended and said nothing"),
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
enum Gate {
    Open = 7,
    Shut = 9,
}

#[derive(Managed)]
struct Typed {
    number: u64,
    is_on: bool,
    letter: char,
    gate: Gate,
    next: Ref<Typed>,
    text: Ref<str>,
}

fn typed<'s>(s: &Scope<'s>) -> Result<Local<'s, Typed>, HeapError> {
    s.alloc(TypedInit {
        number: 0x4141_4141_4141_4141,
        is_on: true,
        letter: 'x',
        gate: Gate::Shut,
        next: None,
        text: None,
    })
}

/// A string taken for a node would make its bytes into references.
#[test]
fn raw_stores_do_not_get_into_objects_of_rust_types() {
    let servers = servers(1, Bytes::mib(32), Over::Shm);
    let heap = heap(Plan::Local, &servers);
    let inside = |s: &Scope<'_>| {
        let object = typed(s)?;
        let wrong = s.alloc_str(&"A".repeat(200))?;
        for offset in (0..64).step_by(8) {
            assert!(
                object.raw().store_ref(offset, Some(wrong.raw())).is_err(),
                "a string became a node at {offset}"
            );
        }
        for offset in 0..64 {
            assert!(
                object.raw().store(offset, &[0xFF]).is_err(),
                "any byte at {offset}"
            );
        }
        let bits = s.alloc_filled(8, true)?;
        assert!(bits.raw().store(0, &[0xFF]).is_err(), "a bool of 255");
        assert!(
            wrong.raw().store(0, &[0xFF]).is_err(),
            "a str that is not UTF-8"
        );
        // Looking is free.
        let mut number = [0; 8];
        object.raw().load(0, &mut number)?;
        assert_eq!(number, [0x41; 8]);
        Ok(())
    };
    heap.mutator().unwrap().enter(inside).unwrap();
}

/// What is zero is a value of its type, whoever made it.
#[test]
fn an_object_made_raw_of_a_rust_type_has_values_of_its_type() {
    let servers = servers(1, Bytes::mib(32), Over::Shm);
    let heap = heap(Plan::Local, &servers);
    let inside = |s: &Scope<'_>| {
        let like = typed(s)?;
        let made = s.alloc_raw(like.raw().type_id(), 0)?;
        assert!(made.load_ref(24)?.is_none());
        Ok(())
    };
    heap.mutator().unwrap().enter(inside).unwrap();
}

mod shadowed {
    #![allow(unused_macros, non_camel_case_types, dead_code)]
    use muninn_heap::{Managed, Plain, Ref};

    /// A tracing map without references, if the derive macro's `vec!` were this one.
    macro_rules! vec {
        ($($any:tt)*) => {
            ::std::vec::Vec::new()
        };
    }
    type Option = u8;
    type u32 = u8;
    type String = u8;
    type Result = u8;
    const OFFSET_0: usize = 40;

    #[derive(Managed)]
    pub struct Shadowed {
        pub next: Ref<Shadowed>,
        pub bytes: [u8; OFFSET_0],
        pub other: Ref<Shadowed>,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Plain)]
    pub struct Two {
        pub a: u32,
        pub b: u64,
    }
}

#[test]
fn names_of_the_program_do_not_forge_a_tracing_map() {
    let descriptor = shadowed::Shadowed::descriptor();
    let want = Shape::Struct {
        bytes: 56,
        refs: vec![0, 48],
    };
    assert_eq!(descriptor.shape, want);
    let servers = servers(1, Bytes::mib(32), Over::Shm);
    let heap = heap(Plan::Local, &servers);
    let inside = |s: &Scope<'_>| {
        let two = shadowed::Two { a: 1, b: u64::MAX };
        let list = s.alloc_filled(3, two)?;
        assert_eq!(list.to_vec(), [two; 3]);
        Ok(())
    };
    heap.mutator().unwrap().enter(inside).unwrap();
}

#[test]
fn a_thread_is_inside_of_one_heap_once() {
    ends("entering twice", || {
        let servers = servers(2, Bytes::mib(64), Over::Shm);
        let one = heap(Plan::Local, &servers);
        let two = heap(Plan::Local, &servers);
        let (mut a, mut b) = (one.mutator().unwrap(), one.mutator().unwrap());
        let mut c = two.mutator().unwrap();
        a.enter(|s| {
            let again = b.enter(|t| t.alloc_str("twice").map(|_| ())).unwrap_err();
            assert_eq!(again, HeapError::Inside);
            let other = c.enter(|t| t.alloc_str("both").map(|_| ())).unwrap_err();
            assert_eq!(other, HeapError::Inside);
            assert_eq!(one.collect().unwrap_err(), HeapError::Inside);
            assert_eq!(one.audit().unwrap_err(), HeapError::Inside);
            // From here it works.
            let kept = s.alloc_str("kept")?;
            s.collect()?;
            assert_eq!(kept.text(), "kept");
            Ok(())
        })
        .unwrap();
        // And when one is out again, one may come in again; also after a panic.
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            a.enter(|_| -> Result<(), HeapError> { std::panic::resume_unwind(Box::new(1)) })
        }));
        assert!(panic.is_err());
        b.enter(|s| s.alloc_str("later").map(|_| ())).unwrap();
        one.collect().unwrap();
    });
}

/// Each of these waits for a lock that a collection holds, which waits for the mutator.
#[test]
fn mutators_come_and_go_inside_of_a_scope() {
    for plan in Plan::ALL {
        ends("mutators inside of a scope", move || {
            let servers = servers(1, Bytes::mib(32), Over::Shm);
            let heap = heap(plan, &servers);
            let over = Arc::new(AtomicBool::new(false));
            let collector = {
                let (heap, over) = (heap.clone(), Arc::clone(&over));
                std::thread::spawn(move || {
                    while !over.load(Relaxed) {
                        heap.collect().unwrap();
                    }
                })
            };
            let mut mutator = heap.mutator().unwrap();
            mutator
                .enter(|s| {
                    for n in 0..300u64 {
                        let kept = s.alloc_filled(4, n)?;
                        drop(heap.mutator()?);
                        assert_eq!(kept.get(3), n);
                    }
                    Ok(())
                })
                .unwrap();
            over.store(true, Relaxed);
            collector.join().unwrap();
        });
    }
}

/// While a thread waits for something else, others collect.
#[test]
fn blocking_inside_of_a_scope_does_not_stop_the_world() {
    for plan in Plan::ALL {
        ends("blocking", move || {
            let servers = servers(1, Bytes::mib(32), Over::Shm);
            let heap = heap(plan, &servers);
            let (ready, is_ready) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let waiter = {
                let heap = heap.clone();
                std::thread::spawn(move || {
                    heap.mutator().unwrap().enter(|s| {
                        let kept = s.alloc_filled(100, 77u64)?;
                        let list = s.alloc_refs::<[u64]>(1)?;
                        list.set(0, Some(&kept));
                        ready.send(()).unwrap();
                        let heap = heap.clone();
                        s.blocking(move || {
                            may_go.recv().unwrap();
                            // Inside of nothing here.
                            heap.collect().unwrap();
                        });
                        assert_eq!(kept.to_vec(), [77; 100]);
                        assert_eq!(list.get(0).unwrap().to_vec(), [77; 100]);
                        Ok(())
                    })
                })
            };
            is_ready.recv().unwrap();
            for _ in 0..3 {
                heap.collect().unwrap();
            }
            go.send(()).unwrap();
            waiter.join().unwrap().unwrap();
            // A panic on the way leaves the scope in order.
            let mut mutator = heap.mutator().unwrap();
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                mutator.enter(|s| {
                    let _kept = s.alloc_str("kept")?;
                    s.blocking(|| std::panic::resume_unwind(Box::new(2)));
                    Ok(())
                })
            }));
            assert!(panic.is_err());
            heap.collect().unwrap();
            mutator.enter(|s| s.alloc_str("again").map(|_| ())).unwrap();
        });
    }
}

/// The result of an agent's task is not taken for that of another's.
#[test]
fn types_are_registered_while_collections_run() {
    for plan in [Plan::Semeru, Plan::Mako] {
        ends("registering", move || {
            let servers = servers(2, Bytes::mib(32), Over::Shm);
            let heap = heap(plan, &servers);
            let mut mutator = heap.mutator().unwrap();
            let root = mutator
                .enter(|s| Ok(s.root(&s.alloc_filled(5000, 1u64)?)))
                .unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let collector = {
                let (heap, over) = (heap.clone(), Arc::clone(&over));
                std::thread::spawn(move || {
                    while !over.load(Relaxed) {
                        heap.collect().unwrap();
                    }
                })
            };
            for n in 0..150 {
                let name = format!("type {n}");
                let shape = Shape::Values { bytes: 1 + n };
                heap.register(TypeDescriptor { name, shape }).unwrap();
            }
            over.store(true, Relaxed);
            collector.join().unwrap();
            mutator
                .enter(|s| {
                    assert_eq!(s.open(&root)?.to_vec(), [1; 5000]);
                    Ok(())
                })
                .unwrap();
        });
    }
}

/// Whoever watches phases and panics ends the heap, and nothing else.
#[test]
fn an_observer_that_panics_is_a_lost_heap() {
    for plan in Plan::ALL {
        for phase in Phase::of(plan) {
            let phase = *phase;
            ends("a panic of an observer", move || {
                let servers = servers(1, Bytes::mib(32), Over::Shm);
                let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
                let builder = builder.heap(Bytes::mib(8)).region(Bytes::mib(1));
                let heap = builder
                    .observe(move |now| {
                        if now == phase {
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }
                    })
                    .build()
                    .unwrap();
                let mut actor = Actor::new(&heap, 5, 800);
                let error = loop {
                    if let Err(error) = actor.act(200) {
                        break error;
                    }
                    if let Err(error) = heap.collect() {
                        break error;
                    }
                };
                assert!(matches!(error, HeapError::Lost(_)), "{plan}: {error}");
                assert!(actor.act(1).is_err(), "{plan}: a lost heap works again");
            });
        }
    }
}

/// Looks at the heap when it goes.
struct Last<'s> {
    number: Local<'s, Typed>,
    list: Local<'s, [Ref<Typed>]>,
    values: Local<'s, [bool]>,
    heap: Heap,
}

impl Drop for Last<'_> {
    fn drop(&mut self) {
        // Values of their types, whatever has happened; no second panic.
        self.number.set_number(7);
        let _ = (self.number.gate(), self.number.letter());
        self.number.set_next(Some(&self.number.clone()));
        if let Some(next) = self.number.next() {
            assert!(matches!(next.gate(), Gate::Open | Gate::Shut));
        }
        self.list.set(50, Some(&self.number));
        let _ = self.list.get(99).map(|t| t.text().map(|t| t.text()));
        self.values.set(99_999, true);
        let _ = (self.values.get(99_999), self.values.to_vec());
        let _ = (self.heap.collect().is_ok(), self.heap.mutator().is_ok());
    }
}

#[test]
fn destructors_that_use_a_lost_heap_do_not_end_the_program() {
    for plan in Plan::ALL {
        ends("destructors in a lost heap", move || {
            let mut servers = servers_with(
                1,
                Over::Shm,
                muninn_server::ServerConfig {
                    lease: Duration::from_secs(5),
                    ..server_config(Bytes::mib(32))
                },
            );
            let heap = heap(plan, &servers);
            let mut mutator = heap.mutator().unwrap();
            let lost: Result<(), HeapError> = mutator.enter(|s| {
                let make = || -> Result<Last<'_>, HeapError> {
                    Ok(Last {
                        number: typed(s)?,
                        list: s.alloc_refs(100)?,
                        values: s.alloc_filled(100_000, true)?,
                        heap: heap.clone(),
                    })
                };
                let _two = (make()?, make()?);
                servers.servers.clear();
                loop {
                    s.alloc_filled(100_000, 1u8)?;
                }
            });
            assert!(
                matches!(lost, Err(HeapError::Lost(_) | HeapError::Net(_))),
                "{plan}: {lost:?}"
            );
        });
    }
}

#[derive(Managed)]
struct Shared {
    count: u64,
    gate: Gate,
    letter: char,
    stack: Ref<Cell>,
}

/// One of a stack that several mutators push on.
#[derive(Managed)]
struct Cell {
    by: u32,
    under: Ref<Cell>,
}

/// Mutators that use one object at the same time, while collections move it: what is read is a value
/// that somebody stored, and what is compared and changed is changed once.
#[test]
fn mutators_race_for_one_object() {
    const EACH: u64 = 400;
    for plan in Plan::ALL {
        ends("a race", move || {
            let servers = servers(2, Bytes::mib(32), Over::Shm);
            let heap = heap(plan, &servers);
            let root = heap
                .mutator()
                .unwrap()
                .enter(|s| {
                    let shared = SharedInit {
                        count: 0,
                        gate: Gate::Open,
                        letter: 'a',
                        stack: None,
                    };
                    Ok(s.root(&s.alloc(shared)?))
                })
                .unwrap();
            let race = &|by: u32| {
                let mut mutator = heap.mutator()?;
                for n in 0..EACH {
                    mutator.enter(|s| {
                        let shared = s.open(&root)?;
                        s.alloc_filled(3000, by)?;
                        let mut count = shared.count();
                        while let Err(now) = shared.swap_count(count, count + 1) {
                            count = now;
                        }
                        shared.set_gate([Gate::Open, Gate::Shut][(n % 2) as usize]);
                        shared.set_letter(['ß', '\u{10FFFF}'][(n % 2) as usize]);
                        assert!(['a', 'ß', '\u{10FFFF}'].contains(&shared.letter()));
                        let mut under = shared.stack();
                        loop {
                            let cell = s.alloc(CellInit {
                                by,
                                under: under.clone(),
                            })?;
                            match shared.swap_stack(under.as_ref(), Some(&cell)) {
                                Ok(()) => return Ok(()),
                                Err(now) => under = now,
                            }
                        }
                    })?;
                }
                Ok::<(), HeapError>(())
            };
            std::thread::scope(|scope| {
                let racers: Vec<_> = (0..3).map(|by| scope.spawn(move || race(by))).collect();
                for _ in 0..5 {
                    heap.collect().unwrap();
                }
                racers.into_iter().for_each(|r| r.join().unwrap().unwrap());
            });
            let each = heap.mutator().unwrap().enter(|s| {
                let shared = s.open(&root)?;
                assert_eq!(shared.count(), 3 * EACH, "{plan}");
                let (mut each, mut next) = ([0; 3], shared.stack());
                while let Some(cell) = next {
                    each[cell.by() as usize] += 1;
                    next = cell.under();
                }
                Ok(each)
            });
            assert_eq!(
                each.unwrap(),
                [EACH; 3],
                "{plan}: something was pushed away"
            );
        });
    }
}
