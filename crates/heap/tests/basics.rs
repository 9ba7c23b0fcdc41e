//! Objects, references, roots, arrays, strings, and the errors of bad use.

mod common;

use common::*;
use muninn_heap::*;
use muninn_types::Bytes;

fn small(plan: Plan, servers: &Servers) -> Heap {
    let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
    let builder = builder.heap(Bytes::mib(8)).local(Bytes::mib(1));
    builder.region(Bytes::mib(1)).verify(true).build().unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
enum Colour {
    Red = 3,
    Blue,
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Point {
    x: f32,
    y: i16,
}

#[derive(Managed)]
struct Mixed {
    a: u8,
    colour: Colour,
    next: Ref<Mixed>,
    point: Point,
    name: Ref<str>,
    c: char,
    list: [u16; 3],
}

#[test]
fn fields_arrays_and_strings_keep_what_they_are_given() {
    let servers = servers(2, Bytes::mib(32), Over::Shm);
    let heap = small(Plan::Local, &servers);
    let mut mutator = heap.mutator().unwrap();
    let point = Point { x: 1.5, y: -3 };
    let root = mutator
        .enter(|s| {
            let first = s.alloc(MixedInit {
                a: 1,
                colour: Colour::Red,
                next: None,
                point,
                name: Some(s.alloc_str("älter")?),
                c: 'ß',
                list: [1, 2, 3],
            })?;
            let second = s.alloc(MixedInit {
                a: 2,
                colour: Colour::Blue,
                next: Some(first.clone()),
                point: Point { x: 0.0, y: 0 },
                name: None,
                c: 'a',
                list: [0; 3],
            })?;
            first.set_next(Some(&second));
            let array = s.alloc_refs::<Mixed>(3)?;
            array.set(1, Some(&first));
            s.name("array", &array)?;
            Ok(s.root(&second))
        })
        .unwrap();
    for _ in 0..3 {
        heap.collect().unwrap();
        mutator
            .enter(|s| {
                let second = s.open(&root)?;
                let first = second.next().unwrap();
                assert_eq!(
                    (first.a(), first.colour(), first.point()),
                    (1, Colour::Red, point)
                );
                assert_eq!((first.c(), first.list()), ('ß', [1, 2, 3]));
                assert_eq!(first.name().unwrap().text(), "älter");
                assert!(second.name().is_none());
                assert!(first.next().unwrap().is_same(&second));
                let array = s.open(&heap.find::<[Ref<Mixed>]>("array")?)?;
                assert!(array.get(0).is_none() && array.get(1).unwrap().is_same(&first));
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(
        heap.find::<Mixed>("array").unwrap_err().to_string(),
        "'array' is a [Ref<basics::Mixed>], not a Mixed"
    );
    assert_eq!(
        heap.find::<Mixed>("nothing").unwrap_err(),
        HeapError::NoRoot("nothing".to_string())
    );
}

#[test]
fn bad_use_is_an_error_that_says_so() {
    let servers = servers(2, Bytes::mib(32), Over::Shm);
    let builder = || {
        Heap::builder()
            .pool(servers.pool.clone())
            .region(Bytes::mib(1))
    };
    let too_large = builder().heap(Bytes::gib(1)).build().unwrap_err();
    assert!(
        too_large
            .to_string()
            .starts_with("the heap of 1GiB does not fit the pool: ")
    );
    let odd = builder().region(Bytes(3 << 20)).build().unwrap_err();
    assert_eq!(
        odd.to_string(),
        "a heap of 256MiB with regions of 3MiB cannot be: a region is a power of two from 64KiB to \
         64MiB"
    );
    let heap = small(Plan::Local, &servers);
    let other = small(Plan::Local, &servers);
    let mut mutator = heap.mutator().unwrap();
    let root = mutator
        .enter(|s| Ok(s.root(&s.alloc_str("here")?)))
        .unwrap();
    let foreign = other
        .mutator()
        .unwrap()
        .enter(|s| s.open(&root).map(|_| ()))
        .unwrap_err();
    assert_eq!(foreign.to_string(), "the root belongs to another heap");
    let long = mutator.enter(|s| s.alloc_filled(5 << 20, 0u8).map(|_| ()));
    assert_eq!(
        long.unwrap_err().to_string(),
        "an object of 5242896B does not fit a heap of 4MiB in one piece; make the heap larger"
    );
    // Full, then an error, then usable again.
    let full = mutator.enter(|s| {
        let mut held = Vec::new();
        loop {
            held.push(s.alloc_filled(1000, 7u8)?);
        }
        #[allow(unreachable_code)]
        Ok(())
    });
    assert!(matches!(full, Err(HeapError::Full { .. })), "{full:?}");
    mutator
        .enter(|s| s.alloc_filled(1000, 7u8).map(|_| ()))
        .unwrap();
}

#[test]
fn a_language_can_bring_types_of_its_own() {
    let servers = servers(1, Bytes::mib(32), Over::Shm);
    let heap = small(Plan::Local, &servers);
    let pair = TypeDescriptor {
        name: "pair".to_string(),
        shape: Shape::Struct {
            bytes: 24,
            refs: vec![8, 16],
        },
    };
    let pair = heap.register(pair).unwrap();
    let mut mutator = heap.mutator().unwrap();
    mutator
        .enter(|s| {
            let (a, b) = (s.alloc_raw(pair, 0)?, s.alloc_raw(pair, 0)?);
            a.store(0, &7u64.to_le_bytes())?;
            a.store_ref(8, Some(&b))?;
            b.store_ref(16, Some(&a))?;
            let back = a.load_ref(8)?.unwrap().load_ref(16)?.unwrap();
            let mut value = [0; 8];
            back.load(0, &mut value)?;
            assert_eq!(u64::from_le_bytes(value), 7);
            assert!(back.is_same(&a) && !back.is_same(&b));
            let wrong = a.load_ref(0).unwrap_err();
            assert_eq!(wrong.to_string(), "pair has no reference at offset 0");
            let wrong = a.store(4, &[0; 8]).unwrap_err();
            assert_eq!(wrong.to_string(), "pair has no value at offset 4");
            assert!(s.alloc_raw(99, 0).is_err());
            Ok(())
        })
        .unwrap();
}
