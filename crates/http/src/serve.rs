//! Visitors, side by side, by one thread.

use crate::request::{Method, Refused, Request};
use crate::response::Response;
use muninn_sys::epoll::{Epoll, Events, Interest};
use muninn_sys::socket::{ByteStream, Listener, Stream, Transfer};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often it is looked at whether the site is to close.
const LOOK: Duration = Duration::from_millis(200);
/// What is read of one visitor in one go.
const CHUNK: usize = 4096;
/// Of a request that was refused, so much is read and thrown away, so that its sender sees the answer.
const DISCARD_MAX: usize = 256 << 10;
const LISTENER: u64 = u64::MAX;

/// What visitors may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Served side by side; when there are more, the one that came first makes room.
    pub visitors: usize,
    /// Time to ask, and to take the answer.
    pub patience: Duration,
    pub head: usize,
    pub body: usize,
}

impl Limits {
    /// For short questions without a body.
    pub const SMALL: Limits = Limits {
        visitors: 64,
        patience: Duration::from_secs(1),
        head: 4096,
        body: 0,
    };
}

/// What is served.
pub trait Site {
    fn answer(&self, request: &Request<'_>) -> Response;
    /// One was sent away because there were too many.
    fn crowded(&self) {}
}

/// One who is being answered.
#[derive(Debug)]
struct Visitor {
    stream: Stream,
    until: Instant,
    request: Vec<u8>,
    /// Head and body; empty until it is known.
    answer: Option<[Cow<'static, [u8]>; 2]>,
    sent: usize,
    /// Still to be thrown away of what it sends.
    discards: usize,
}

enum Wants {
    Read,
    Write,
    Nothing,
}

impl Visitor {
    /// Goes on as far as it can without waiting.
    fn advance(&mut self, site: &impl Site, limits: &Limits) -> Wants {
        while self.answer.is_none() {
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
                Ok(Transfer::Bytes(n)) => self.request.extend_from_slice(&chunk[..n]),
                Ok(Transfer::WouldBlock) => return Wants::Read,
                Ok(Transfer::Closed) | Err(_) => return Wants::Nothing,
            }
            let read = Request::read(&self.request, limits.head, limits.body);
            self.answer = match read {
                Ok(None) => None,
                Ok(Some(request)) => {
                    let response = site.answer(&request);
                    Some(bytes_of(response, request.method))
                }
                Err(refused) => {
                    self.discards = DISCARD_MAX;
                    Some(refusal(refused))
                }
            };
        }
        self.request = Vec::new();
        let parts = self.answer.as_ref().expect("it is there by now");
        let all = parts[0].len() + parts[1].len();
        while self.sent < all {
            let head = &parts[0][self.sent.min(parts[0].len())..];
            let body = &parts[1][self.sent.saturating_sub(parts[0].len())..];
            match self.stream.write(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(Transfer::Bytes(n)) => self.sent += n,
                Ok(Transfer::WouldBlock) => return Wants::Write,
                Ok(Transfer::Closed) | Err(_) => return Wants::Nothing,
            }
        }
        if self.discards > 0 {
            self.stream.finish();
        }
        while self.discards > 0 {
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
                Ok(Transfer::Bytes(n)) => self.discards = self.discards.saturating_sub(n),
                Ok(Transfer::WouldBlock) => return Wants::Read,
                Ok(Transfer::Closed) | Err(_) => return Wants::Nothing,
            }
        }
        Wants::Nothing
    }
}

fn bytes_of(response: Response, method: Method) -> [Cow<'static, [u8]>; 2] {
    let head = Cow::Owned(response.head());
    match method {
        Method::Head => [head, Cow::Borrowed(&[])],
        _ => [head, response.into_body()],
    }
}

fn refusal(refused: Refused) -> [Cow<'static, [u8]>; 2] {
    let response = Response::text(refused.status(), format!("{refused}\n"));
    bytes_of(response, Method::Get)
}

/// Answers visitors until told to stop.
pub fn serve(
    listener: &Listener,
    site: &impl Site,
    limits: &Limits,
    stop: &AtomicBool,
) -> io::Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(listener, LISTENER, Interest::READ)?;
    let mut visitors: VecDeque<(u64, Visitor)> = VecDeque::new();
    let mut next = 0;
    let mut events = Events::default();
    let mut deaf_until: Option<Instant> = None;
    while !stop.load(Relaxed) {
        epoll.wait(&mut events, Some(LOOK))?;
        let now = Instant::now();
        if deaf_until.is_some_and(|until| until <= now) {
            deaf_until = None;
            epoll.modify(listener, LISTENER, Interest::READ)?;
        }
        for event in events.iter() {
            if event.token != LISTENER {
                let found = visitors.iter().position(|(id, _)| *id == event.token);
                let Some(at) = found else { continue };
                settle(&epoll, &mut visitors, at, site, limits);
                continue;
            }
            // A few at a time: those who are here already are looked at in between.
            for _ in 0..(limits.visitors / 2).max(1) {
                let stream = match listener.accept() {
                    Ok(Some(stream)) => stream,
                    Ok(None) => break,
                    Err(_) => {
                        // No descriptor left: look away for a while instead of turning in circles.
                        let nothing = Interest {
                            read: false,
                            ..Interest::READ
                        };
                        epoll.modify(listener, LISTENER, nothing)?;
                        deaf_until = Some(now + LOOK);
                        break;
                    }
                };
                if epoll.add(&stream, next, Interest::READ).is_err() {
                    continue;
                }
                let visitor = Visitor {
                    stream,
                    until: now + limits.patience,
                    request: Vec::new(),
                    answer: None,
                    sent: 0,
                    discards: 0,
                };
                visitors.push_back((next, visitor));
                next += 1;
                // Mostly the request is here already: who asks at once is not sent away by those who do not.
                let at = visitors.len() - 1;
                settle(&epoll, &mut visitors, at, site, limits);
                if visitors.len() > limits.visitors {
                    site.crowded();
                    visitors.pop_front();
                }
            }
        }
        visitors.retain(|(_, visitor)| visitor.until > now);
    }
    Ok(())
}

/// Lets one go on, and waits for what it wants next.
fn settle(
    epoll: &Epoll,
    visitors: &mut VecDeque<(u64, Visitor)>,
    at: usize,
    site: &impl Site,
    limits: &Limits,
) {
    let (id, visitor) = &mut visitors[at];
    let interest = match visitor.advance(site, limits) {
        Wants::Nothing => {
            visitors.remove(at);
            return;
        }
        Wants::Read => Interest::READ,
        Wants::Write => Interest::WRITE,
    };
    if epoll.modify(&visitor.stream, *id, interest).is_err() {
        visitors.remove(at);
    }
}
