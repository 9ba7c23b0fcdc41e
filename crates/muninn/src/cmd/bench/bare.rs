//! What the transports are compared to: a copy from a mapping, and sockets with nothing on top.

use muninn_sys::affinity::{self, Thread};
use muninn_sys::memory::Mapping;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// Copies `len` bytes out of a mapping, with nothing around it.
pub fn copy(map: &Mapping, offset: usize, into: &mut [u8]) {
    assert!(offset + into.len() <= map.len(), "inside of the mapping");
    // SAFETY: the source lies inside of the mapping, which nobody else uses during the bench.
    unsafe {
        std::ptr::copy_nonoverlapping(map.as_ptr().add(offset), into.as_mut_ptr(), into.len())
    }
}

/// Pins the calling thread; a machine without that CPU is measured unpinned.
pub fn pin(cpu: usize) {
    let _ = affinity::pin(Thread::Current, cpu);
}

fn spin<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            other => return other,
        }
    }
}

/// Reads exactly, spinning.
pub fn read_spinning(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match spin(|| stream.read(&mut into[done..]))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

pub fn write_spinning(stream: &mut TcpStream, from: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < from.len() {
        done += spin(|| stream.write(&from[done..]))?;
    }
    Ok(())
}

/// A peer at the other end of a loopback connection, until its stream is closed.
#[derive(Debug)]
pub struct BarePeer {
    pub stream: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl BarePeer {
    fn start(
        cpu: usize,
        serve: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> io::Result<BarePeer> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        let thread = std::thread::spawn(move || {
            pin(cpu);
            let Ok((stream, _)) = listener.accept() else {
                return;
            };
            let _ = (stream.set_nodelay(true), stream.set_nonblocking(true));
            // Ends when the other side closes.
            let _ = serve(stream);
        });
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(BarePeer {
            stream,
            thread: Some(thread),
        })
    }

    /// Answers each request of `ask` bytes with `answer` bytes, spinning.
    pub fn ping_pong(cpu: usize, ask: usize, answer: usize) -> io::Result<BarePeer> {
        BarePeer::start(cpu, move |mut stream| {
            let (mut request, reply) = (vec![0; ask], vec![7; answer]);
            loop {
                read_spinning(&mut stream, &mut request)?;
                write_spinning(&mut stream, &reply)?;
            }
        })
    }

    /// Sends without end, `chunk` bytes at a time, from a buffer as large as `total`.
    pub fn stream(cpu: usize, chunk: usize, total: usize) -> io::Result<BarePeer> {
        BarePeer::start(cpu, move |mut stream| {
            let source = vec![7; total.max(chunk)];
            for piece in source.chunks_exact(chunk).cycle() {
                write_spinning(&mut stream, piece)?;
            }
            Ok(())
        })
    }
}

impl Drop for BarePeer {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
