//! A key-value store with a lock for each few buckets.

mod common;

use muninn_wic::Place;
use muninn_wic::apps::kv::{query, update};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let server = common::server()?;
    let store = common::open(&server, Place::Server, 256)?;
    for key in 1..=1000 {
        store.run(update, (key, key * key))?;
    }
    for place in [Place::Client, Place::Server] {
        store.set_place(place);
        store.run(query, 1)?; // connects
        let found = common::show(&format!("query, {place:?}"), || store.run(query, 31))?;
        assert_eq!(found, Some(961));
    }
    Ok(())
}
