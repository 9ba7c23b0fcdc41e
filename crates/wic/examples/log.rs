//! A log that several clients append to, each from another place.

mod common;

use muninn_wic::Place;
use muninn_wic::apps::log::{append, read_tail};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let server = common::server()?;
    let near = common::open(&server, Place::Client, 1)?;
    let far = common::open(&server, Place::Server, 1)?;
    for value in 0..5 {
        common::show("append at the client", || near.run(append, (1, value)))?;
        common::show("append at the server", || far.run(append, (2, value)))?;
    }
    let last = common::show("read the tail", || far.run(read_tail, ()))?;
    assert_eq!(last, Some((9, 2, 4)));
    Ok(())
}
