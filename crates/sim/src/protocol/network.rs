//! Connections: two streams of bytes that arrive in pieces, late, and sometimes not at all.
//!
//! A stream keeps its order; nothing is promised between two of them. A cut takes away a tail of
//! what is under way, in the middle of a frame if need be, and each end learns of it in its own
//! time. An end that was closed still delivers what it sent before (or part of it), which is how
//! late writes reach a server after their client has given the connection up.

use super::backing::Files;
use muninn_types::{ConnId, Nanos, SplitMix64};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From client to server.
    Up,
    Down,
}

#[derive(Debug)]
struct Chunk {
    at: Nanos,
    bytes: Vec<u8>,
    files: Files,
}

#[derive(Debug, Default)]
struct Stream {
    chunks: VecDeque<Chunk>,
    queued: usize,
    last: Nanos,
    /// What is written goes nowhere.
    broken: bool,
    /// The reader went away.
    deaf: bool,
    /// When the reader learns that no more will come.
    ends: Option<Nanos>,
}

/// The owner of a connection at the client's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub client: usize,
    pub server: usize,
    /// Of the client's session.
    pub generation: u32,
    pub lane: usize,
    /// Of the server.
    pub epoch: u32,
}

#[derive(Debug)]
struct Link {
    end: End,
    latency: u64,
    up: Stream,
    down: Stream,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    Nothing,
    Bytes,
    Closed,
}

#[derive(Debug, Default)]
pub struct Network {
    links: BTreeMap<ConnId, Link>,
    next: u64,
    /// When there is something to take, since the last time anyone asked.
    pub wakes: Vec<(Nanos, ConnId, Way)>,
}

impl Link {
    fn stream(&mut self, way: Way) -> &mut Stream {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

impl Network {
    pub fn open(&mut self, end: End, rng: &mut SplitMix64) -> ConnId {
        self.next += 1;
        let link = Link {
            end,
            latency: 20_000 + rng.below(200_000),
            up: Stream::default(),
            down: Stream::default(),
        };
        self.links.insert(ConnId(self.next), link);
        ConnId(self.next)
    }

    pub fn end(&self, conn: ConnId) -> Option<End> {
        self.links.get(&conn).map(|link| link.end)
    }
    /// Bytes under way.
    pub fn queued(&self, conn: ConnId, way: Way) -> usize {
        self.links.get(&conn).map_or(0, |link| match way {
            Way::Up => link.up.queued,
            Way::Down => link.down.queued,
        })
    }
    /// Connections that could be cut.
    pub fn whole(&self) -> Vec<ConnId> {
        let whole = |l: &Link| !l.up.broken && !l.down.broken;
        (self.links.iter())
            .filter(|(_, l)| whole(l))
            .map(|(c, _)| *c)
            .collect()
    }

    pub fn send(
        &mut self,
        conn: ConnId,
        way: Way,
        bytes: &[u8],
        mut files: Files,
        now: Nanos,
        rng: &mut SplitMix64,
    ) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let latency = link.latency;
        let stream = link.stream(way);
        if stream.broken || stream.deaf {
            return;
        }
        let size_max = match rng.below(8) {
            0 => 7,
            1 | 2 => 200,
            _ => 1 << 16,
        };
        let mut rest = bytes;
        for pieces in 0.. {
            let n = (1 + rng.below(size_max) as usize).min(rest.len());
            let n = if pieces < 5 { n } else { rest.len() };
            let (now_sent, later) = rest.split_at(n);
            let late = if rng.chance(0.01) {
                15_000_000
            } else {
                latency
            };
            let at = stream.last.max(now + Nanos(latency + rng.below(late)));
            stream.last = at;
            stream.queued += n;
            stream.chunks.push_back(Chunk {
                at,
                bytes: now_sent.to_vec(),
                files: std::mem::take(&mut files),
            });
            self.wakes.push((at, conn, way));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }

    /// Takes what has arrived by now, a piece at a time.
    pub fn take(
        &mut self,
        conn: ConnId,
        way: Way,
        now: Nanos,
        bytes: &mut Vec<u8>,
        files: &mut Files,
    ) -> Arrival {
        let Some(link) = self.links.get_mut(&conn) else {
            return Arrival::Nothing;
        };
        let stream = link.stream(way);
        if stream.deaf {
            return Arrival::Nothing;
        }
        if stream.chunks.front().is_some_and(|chunk| chunk.at <= now)
            && let Some(chunk) = stream.chunks.pop_front()
        {
            stream.queued -= chunk.bytes.len();
            *bytes = chunk.bytes;
            files.extend(chunk.files);
            return Arrival::Bytes;
        }
        let over = stream.chunks.is_empty() && stream.ends.is_some_and(|ends| ends <= now);
        if over {
            Arrival::Closed
        } else {
            Arrival::Nothing
        }
    }

    /// The connection breaks: a tail of what is under way is lost. True if in the middle of a piece.
    pub fn cut(
        &mut self,
        conn: ConnId,
        now: Nanos,
        notice: [Nanos; 2],
        rng: &mut SplitMix64,
    ) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let mut torn = false;
        for (way, notice) in [Way::Up, Way::Down].into_iter().zip(notice) {
            let stream = link.stream(way);
            torn |= stream.lose_tail(rng);
            stream.broken = true;
            if rng.chance(0.4) {
                // What is left arrives late, perhaps after its sender has long come back elsewhere.
                let late = Nanos(rng.below(10_000_000));
                for chunk in &mut stream.chunks {
                    chunk.at += late;
                    self.wakes.push((chunk.at, conn, way));
                }
                stream.last += late;
            }
            let at = stream.last.max(now).max(now + notice);
            stream.ends = Some(at);
            self.wakes.push((at, conn, way));
        }
        torn
    }

    /// One end closes. What it sent still arrives, or part of it; what was sent to it does not.
    pub fn close(
        &mut self,
        conn: ConnId,
        writes: Way,
        notice: Nanos,
        now: Nanos,
        rng: &mut SplitMix64,
    ) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let reads = match writes {
            Way::Up => Way::Down,
            Way::Down => Way::Up,
        };
        let gone = link.stream(reads);
        gone.deaf = true;
        gone.chunks.clear();
        gone.queued = 0;
        let stream = link.stream(writes);
        if rng.chance(0.3) {
            stream.lose_tail(rng);
        }
        stream.broken = true;
        if stream.ends.is_none() {
            let at = stream.last.max(now) + notice;
            stream.ends = Some(at);
            self.wakes.push((at, conn, writes));
        }
        if link.up.deaf && link.down.deaf {
            self.links.remove(&conn);
        }
    }
}

impl Stream {
    fn lose_tail(&mut self, rng: &mut SplitMix64) -> bool {
        let mut keep = rng.below(self.queued as u64 + 1) as usize;
        if rng.chance(0.3) {
            keep = self.queued;
        }
        let mut torn = false;
        let mut kept = 0;
        self.chunks.retain_mut(|chunk| {
            let n = (keep - kept).min(chunk.bytes.len());
            torn |= n > 0 && n < chunk.bytes.len();
            chunk.bytes.truncate(n);
            kept += n;
            n > 0
        });
        self.queued = kept;
        torn
    }
}
