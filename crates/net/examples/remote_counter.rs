//! Memory on another machine in thirty lines: a buffer, a counter, and what a neighbour may read.
//!
//! Start a server (`muninn serve --memory 256MiB --socket /tmp/muninn.sock`), then
//! `cargo run --example remote_counter -- unix:/tmp/muninn.sock`.

use muninn_net::{NetError, Pool, PoolOptions};

fn main() -> Result<(), NetError> {
    let servers = std::env::args()
        .nth(1)
        .unwrap_or("unix:/tmp/muninn.sock".to_string());
    let pool = Pool::connect(&servers, PoolOptions::default())?;

    let grant = pool.grant("1MiB".parse().expect("a size"))?;
    pool.write(&grant, 4096, b"kept far away")?;
    let mut back = [0; 13];
    pool.read(&grant, 4096, &mut back)?;
    println!("{}", String::from_utf8_lossy(&back));

    for _ in 0..3 {
        pool.fetch_add(&grant, 0, 14)?;
    }
    println!("the counter stands at {}", pool.fetch_add(&grant, 0, 0)?);

    // Another session may read what was written so far; from here on it cannot change.
    let share = pool.share(&[grant])?;
    let neighbour = Pool::connect(&servers, PoolOptions::default())?;
    let theirs = neighbour.adopt(&share)?[0];
    neighbour.read(&theirs, 4096, &mut back)?;
    println!("the neighbour reads: {}", String::from_utf8_lossy(&back));
    pool.release(&[grant])
}
