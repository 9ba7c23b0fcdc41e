//! Which of the kernel's two ways of waiting should a memory server use?
//!
//! A bare server of each kind answers 48-byte requests with 4,128 bytes over loopback, spinning, as
//! the real one does for a page; the client spins too. Run it on a quiet machine:
//! `cargo run --release -p muninn-server --example epoll_or_io_uring`. The outcome is in
//! `docs/benchmarks/net.md`.

use io_uring::{IoUring, opcode, types};
use muninn_sys::affinity::{self, Thread};
use muninn_sys::epoll::{Epoll, Events, Interest};
use muninn_sys::{clock, pm_qos};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

const ASK: usize = 48;
const ANSWER: usize = 4128;
const PINGS: usize = 20_000;
const ROUNDS: usize = 7;

type Serve = fn(TcpStream) -> std::io::Result<()>;

/// epoll, then recv, then send: three system calls a request.
fn with_epoll(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let epoll = Epoll::new()?;
    epoll.add(&stream, 1, Interest::READ)?;
    let mut events = Events::default();
    let (mut ask, answer) = ([0; 4096], [7; ANSWER]);
    loop {
        while epoll.wait(&mut events, Some(Duration::ZERO))? == 0 {
            std::hint::spin_loop();
        }
        if stream.read(&mut ask)? == 0 {
            return Ok(());
        }
        stream.write_all(&answer)?;
    }
}

/// One `io_uring_enter` a request submits the answer and the next receive; completions are looked
/// for in the ring. `SINGLE_ISSUER` only: with deferred task work, looking would need the kernel.
fn with_io_uring(stream: TcpStream) -> std::io::Result<()> {
    let mut ring: IoUring = IoUring::builder().setup_single_issuer().build(8)?;
    let fd = types::Fd(stream.as_raw_fd());
    let (mut ask, answer) = ([0u8; 4096], [7u8; ANSWER]);
    let receive = |ask: &mut [u8; 4096]| {
        opcode::Recv::new(fd, ask.as_mut_ptr(), ask.len() as u32)
            .build()
            .user_data(1)
    };
    let send = opcode::Send::new(fd, answer.as_ptr(), ANSWER as u32)
        .build()
        .user_data(2);
    let first = receive(&mut ask);
    // SAFETY: both buffers live until this function returns, and it returns only when the
    // connection is closed and nothing is under way any more.
    unsafe { ring.submission().push(&first) }.map_err(std::io::Error::other)?;
    ring.submit()?;
    loop {
        let done = loop {
            if let Some(done) = ring.completion().next() {
                break done;
            }
            std::hint::spin_loop();
        };
        if done.user_data() == 1 {
            if done.result() <= 0 {
                return Ok(());
            }
            let next = receive(&mut ask);
            // SAFETY: as above; the received request is not looked at any more.
            unsafe {
                ring.submission()
                    .push(&send)
                    .map_err(std::io::Error::other)?;
                ring.submission()
                    .push(&next)
                    .map_err(std::io::Error::other)?;
            }
            ring.submit()?;
        }
    }
}

fn round_trip_ns(serve: Serve) -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let _ = affinity::pin(Thread::Current, 1);
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        serve(stream)
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (ask, mut answer) = ([0; ASK], [0; ANSWER]);
    let mut ping = || -> std::io::Result<()> {
        stream.write_all(&ask)?;
        let mut have = 0;
        while have < ANSWER {
            match stream.read(&mut answer[have..]) {
                Ok(n) => have += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    };
    for _ in 0..PINGS / 10 {
        ping()?;
    }
    let start = clock::now();
    for _ in 0..PINGS {
        ping()?;
    }
    let ns = (clock::now() - start).0 as f64 / PINGS as f64;
    drop(stream);
    server.join().expect("the server does not panic")?;
    Ok(ns)
}

fn main() -> std::io::Result<()> {
    let _awake = pm_qos::keep_awake();
    let _ = affinity::pin(Thread::Current, 0);
    let kinds: [(&str, Serve); 2] = [("epoll", with_epoll), ("io_uring", with_io_uring)];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, (_, serve)) in times.iter_mut().zip(kinds) {
            times.push(round_trip_ns(serve)?);
        }
    }
    for (times, (name, _)) in times.iter_mut().zip(kinds) {
        times.sort_by(f64::total_cmp);
        println!(
            "{name:9} {:7.0} ns a round trip (median of {ROUNDS})",
            times[ROUNDS / 2]
        );
    }
    Ok(())
}
