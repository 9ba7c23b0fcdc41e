//! What a heap asks of its agents and what they answer: encoder and decoder side by side.
//!
//! Bodies are short; what is long goes through a *scratch* grant of the session: the heap writes it
//! there and says [`Ask::Append`], or runs something and reads the result after [`Ask::Fetch`].
//!
//! Invariant: decoding takes nothing but what the bytes have, allocates nothing, and refuses what is
//! left over, so that a message has one encoding.

use crate::bytes::{Reader, Short, Writer};
use crate::command::{Op, Task};
use crate::layout::Geometry;
use crate::termination::Flags;

/// The most of an error's text that an answer carries, in bytes.
const ERROR_MAX: usize = 200;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    Attach(Attach),
    /// Take this many bytes of the scratch grant as input of what comes next.
    Append {
        len: u32,
    },
    /// Queue a task; what is given here comes after the input so far.
    Run {
        task: Task,
        input: &'a [u8],
    },
    Poll,
    /// Put the result from this offset on into the scratch grant.
    Fetch {
        offset: u64,
    },
    /// Put references for another server into the scratch grant: batch `taken`, counted from 0. All
    /// before it have been handed over.
    Ghosts {
        taken: u64,
    },
    /// The input so far is references to trace.
    Roots,
    Stats,
    Detach,
}

/// Starts an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    pub geometry: Geometry,
    /// The number of this server, and how many there are.
    pub me: u32,
    pub servers: u32,
    pub scratch: u64,
    /// Bytes of the list in the scratch grant: grants of this server's regions, then of its tablets.
    pub list_len: u32,
}

impl Ask<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let op = |w: &mut Writer, op: Op| w.u8(op as u8);
        match self {
            Ask::Attach(attach) => {
                op(&mut w, Op::Attach);
                attach.geometry.encode(&mut w);
                w.u32(attach.me);
                w.u32(attach.servers);
                w.u64(attach.scratch);
                w.u32(attach.list_len);
            }
            Ask::Append { len } => {
                op(&mut w, Op::Append);
                w.u32(*len);
            }
            Ask::Run { task, input } => {
                op(&mut w, Op::Run);
                w.u8(*task as u8);
                w.0.extend_from_slice(input);
            }
            Ask::Poll => op(&mut w, Op::Poll),
            Ask::Fetch { offset } => {
                op(&mut w, Op::Fetch);
                w.u64(*offset);
            }
            Ask::Ghosts { taken } => {
                op(&mut w, Op::Ghosts);
                w.u64(*taken);
            }
            Ask::Roots => op(&mut w, Op::Roots),
            Ask::Stats => op(&mut w, Op::Stats),
            Ask::Detach => op(&mut w, Op::Detach),
        }
        w.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Ask<'_>, Short> {
        let mut r = Reader::new(bytes);
        let ask = match Op::from_byte(r.u8()?)? {
            Op::Attach => Ask::Attach(Attach {
                geometry: Geometry::decode(&mut r)?,
                me: r.u32()?,
                servers: r.u32()?,
                scratch: r.u64()?,
                list_len: r.u32()?,
            }),
            Op::Append => Ask::Append { len: r.u32()? },
            Op::Run => Ask::Run {
                task: Task::from_byte(r.u8()?)?,
                input: r.rest(),
            },
            Op::Poll => Ask::Poll,
            Op::Fetch => Ask::Fetch { offset: r.u64()? },
            Op::Ghosts => Ask::Ghosts { taken: r.u64()? },
            Op::Roots => Ask::Roots,
            Op::Stats => Ask::Stats,
            Op::Detach => Ask::Detach,
        };
        if r.is_empty() { Ok(ask) } else { Err(Short) }
    }
}

/// The answer to [`Ask::Poll`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    pub flags: Flags,
    /// Tasks queued or under way.
    pub pending: u32,
    pub result_len: u64,
    /// Empty: all is well.
    pub error: String,
}

impl Polled {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u8(self.flags.to_byte());
        w.u32(self.pending);
        w.u64(self.result_len);
        let end = self.error.floor_char_boundary(ERROR_MAX);
        w.text(&self.error[..end]);
        w.0
    }
    pub fn decode(bytes: &[u8]) -> Result<Polled, Short> {
        let mut r = Reader::new(bytes);
        Ok(Polled {
            flags: Flags::from_byte(r.u8()?),
            pending: r.u32()?,
            result_len: r.u64()?,
            error: r.text()?,
        })
    }
}

/// The answer to [`Ask::Ghosts`]: so many references for a server lie in the scratch grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostBatch {
    pub server: u32,
    /// None: there is no such batch, now.
    pub words: u32,
}

impl GhostBatch {
    pub fn encode(self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.server);
        w.u32(self.words);
        w.0
    }
    pub fn decode(bytes: &[u8]) -> Result<GhostBatch, Short> {
        let mut r = Reader::new(bytes);
        Ok(GhostBatch {
            server: r.u32()?,
            words: r.u32()?,
        })
    }
}

/// The answer to [`Ask::Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub metadata_bytes: u64,
    pub metadata_peak_bytes: u64,
    pub served_bytes: u64,
    pub cpu_ns: u64,
    pub traced_objects: u64,
    pub moved_bytes: u64,
    pub discarded_traces: u64,
}

impl Stats {
    pub fn encode(self) -> Vec<u8> {
        let mut w = Writer::default();
        for number in [
            self.metadata_bytes,
            self.metadata_peak_bytes,
            self.served_bytes,
            self.cpu_ns,
            self.traced_objects,
            self.moved_bytes,
            self.discarded_traces,
        ] {
            w.u64(number);
        }
        w.0
    }
    pub fn decode(bytes: &[u8]) -> Result<Stats, Short> {
        let mut r = Reader::new(bytes);
        Ok(Stats {
            metadata_bytes: r.u64()?,
            metadata_peak_bytes: r.u64()?,
            served_bytes: r.u64()?,
            cpu_ns: r.u64()?,
            traced_objects: r.u64()?,
            moved_bytes: r.u64()?,
            discarded_traces: r.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Mode;

    #[test]
    fn what_is_asked_arrives() {
        let attach = Attach {
            geometry: Geometry {
                region_shift: 20,
                regions: 4,
                regions_per_server: 2,
                mode: Mode::Indirect,
            },
            me: 1,
            servers: 2,
            scratch: 77,
            list_len: 32,
        };
        let asks = [
            Ask::Attach(attach),
            Ask::Append { len: 9 },
            Ask::Run {
                task: Task::Evacuate,
                input: b"rest",
            },
            Ask::Poll,
            Ask::Fetch { offset: 1 << 40 },
            Ask::Ghosts { taken: 3 },
            Ask::Roots,
            Ask::Stats,
            Ask::Detach,
        ];
        for ask in asks {
            let bytes = ask.encode();
            assert_eq!(Ask::decode(&bytes), Ok(ask));
            for short in 0..bytes.len() {
                // Only a task's input may be of any length.
                let cut = Ask::decode(&bytes[..short]);
                assert!(
                    cut.is_err() || matches!(cut, Ok(Ask::Run { .. })),
                    "{ask:?}"
                );
            }
        }
    }

    #[test]
    fn long_errors_are_cut_between_letters() {
        let polled = Polled {
            error: "ü".repeat(300),
            ..Polled::default()
        };
        let told = Polled::decode(&polled.encode()).unwrap();
        assert_eq!(told.error, "ü".repeat(100));
    }
}
