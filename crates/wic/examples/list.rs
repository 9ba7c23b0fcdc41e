//! A linked list in a server's memory, walked from the client and beside the memory.

mod common;

use muninn_wic::Place;
use muninn_wic::apps::list::{Ring, traverse};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let server = common::server()?;
    let service = common::open(&server, Place::Client, 1)?;
    let ring = Ring::new(service.range().0, 10_000, 1);
    ring.build(&service)?;
    for place in [Place::Client, Place::Server] {
        service.set_place(place);
        service.run(traverse, (ring.address(0).0, 1))?; // connects
        let found = common::show(&format!("16 nodes, {place:?}"), || {
            service.run(traverse, (ring.address(7).0, 16))
        })?;
        assert_eq!(found, ring.walk(7, 16));
    }
    Ok(())
}
