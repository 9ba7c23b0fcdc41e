//! A cache of texts that forgets the oldest: what it drops is collected on the servers.
//!
//!     cargo run --release -p muninn-heap --example cache

use muninn_heap::{Heap, HeapError, Managed, Mutator, Plan, Ref, Root};
use muninn_net::Pool;
use muninn_server::{Server, ServerConfig};
use muninn_types::Bytes;
use std::sync::Arc;

#[derive(Managed)]
struct Entry {
    key: u64,
    text: Ref<str>,
}

struct Cache {
    mutator: Mutator,
    entries: Root<[Ref<Entry>]>,
    places: u64,
}

impl Cache {
    fn new(heap: &Heap, places: u64) -> Result<Cache, HeapError> {
        let mut mutator = heap.mutator()?;
        let entries = mutator.enter(|s| Ok(s.root(&s.alloc_refs::<Entry>(places as usize)?)))?;
        Ok(Cache {
            mutator,
            entries,
            places,
        })
    }

    fn put(&mut self, key: u64, text: &str) -> Result<(), HeapError> {
        let (entries, place) = (&self.entries, (key % self.places) as usize);
        self.mutator.enter(|s| {
            let text = Some(s.alloc_str(text)?);
            s.open(entries)?
                .set(place, Some(&s.alloc(EntryInit { key, text })?));
            Ok(())
        })
    }

    fn get(&mut self, key: u64) -> Result<Option<String>, HeapError> {
        let (entries, place) = (&self.entries, (key % self.places) as usize);
        self.mutator.enter(|s| {
            let entry = s
                .open(entries)?
                .get(place)
                .filter(|entry| entry.key() == key);
            Ok(entry.and_then(|entry| entry.text()).map(|text| text.text()))
        })
    }
}

fn main() -> Result<(), HeapError> {
    let listen = vec!["127.0.0.1:0".parse().expect("an address")];
    let server = Server::start(ServerConfig {
        listen,
        ..ServerConfig::default()
    });
    let server = server.expect("a server");
    let pool = Arc::new(Pool::connect(
        &server.addresses()[0].to_string(),
        Default::default(),
    )?);
    let heap = Heap::builder()
        .plan(Plan::Mako)
        .heap(Bytes::mib(32))
        .local(Bytes::mib(4));
    let heap = heap.region(Bytes::mib(1)).pool(pool).build()?;
    let mut cache = Cache::new(&heap, 20_000)?;
    for key in 0..300_000 {
        cache.put(
            key,
            &format!("the text of {key}, which is a little longer than its number"),
        )?;
    }
    println!("{:?}, {:?}", cache.get(5)?, cache.get(299_995)?);
    let stats = heap.stats();
    println!(
        "{} collections, {} in use",
        stats.collections,
        stats.used.rounded()
    );
    Ok(())
}
