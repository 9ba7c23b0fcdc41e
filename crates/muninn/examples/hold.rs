//! A client that holds memory until told otherwise: something to look at with `muninn status`, and
//! to be asked by `muninn drain`.
//!
//! `cargo run --example hold -- unix:./m.sock 64MiB`, and Enter to let go. It gives its memory back
//! when the server asks for it only with a third argument, `obliging`.

use muninn_net::{NetError, Pool, PoolOptions};
use muninn_types::{Bytes, ServerId};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

fn main() -> Result<(), NetError> {
    let args: Vec<String> = std::env::args().collect();
    let servers = args.get(1).map_or("unix:./m.sock", String::as_str);
    let size = args.get(2).map_or("1MiB", String::as_str);
    let bytes: Bytes = size.parse().expect("a size such as 64MiB");
    let obliging = args.get(3).is_some_and(|word| word == "obliging");

    let pool = Pool::connect(servers, PoolOptions::default())?;
    let grant = pool.grant(bytes)?;
    println!("holding {}; Enter lets go", grant.bytes);

    let (enter, entered) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = enter.send(());
    });
    let server = pool.transport(ServerId(0))?;
    while let Err(RecvTimeoutError::Timeout) = entered.recv_timeout(Duration::from_millis(50)) {
        if obliging && server.drain_left().is_some() {
            println!("the server wants its memory back");
            break;
        }
    }
    pool.release(&[grant])
}
