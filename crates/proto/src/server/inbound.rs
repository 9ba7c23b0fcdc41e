//! Bytes of a connection into frames, and payloads into the memory they are meant for.
//!
//! Holds at most one header and body; a payload is written through to its spans as it arrives, so a
//! connection needs little memory whatever its client sends. A driver may also fill the spans
//! itself (`recvmsg` straight into the pool) and report the count with [`Inbound::filled`].

use super::memory::{Backing, SegmentMemory};
use super::shard::Span;
use crate::framing::FrameBuffer;
use muninn_wire::{DecodeError, Header};

#[derive(Debug)]
enum Phase<B: Backing> {
    /// Collecting a header, then its body.
    Head,
    /// The frame was handed out; the next byte belongs to what follows it.
    Taken,
    Payload {
        spans: Vec<Span<B>>,
        at: usize,
        done_in_span: u32,
    },
    Discard {
        left: u32,
    },
}

#[derive(Debug)]
pub struct Inbound<B: Backing> {
    frame: FrameBuffer,
    phase: Phase<B>,
    /// Kept from payload to payload, so that a list of spans is not allocated each time.
    spare: Vec<Span<B>>,
}

/// What the bytes so far amount to.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    NeedMore,
    /// A header and its body are whole: see [`Inbound::body`].
    Frame(Header),
    /// The last byte of a payload is in place.
    PayloadDone,
}

impl<B: Backing> Default for Inbound<B> {
    fn default() -> Self {
        Inbound {
            frame: FrameBuffer::default(),
            phase: Phase::Head,
            spare: Vec::new(),
        }
    }
}

impl<B: Backing> Inbound<B> {
    /// Bytes that it holds beside what it is.
    pub fn held(&self) -> usize {
        let spans = match &self.phase {
            Phase::Payload { spans, .. } => spans.capacity(),
            _ => 0,
        };
        self.frame.held() + (spans + self.spare.capacity()) * size_of::<Span<B>>()
    }

    /// Takes bytes off the front of `input` until a frame or a payload is whole, or none are left.
    pub fn advance(&mut self, input: &mut &[u8]) -> Result<Progress, DecodeError> {
        if let Phase::Taken = self.phase {
            self.frame.clear();
            self.phase = Phase::Head;
        }
        match &mut self.phase {
            Phase::Head | Phase::Taken => {
                let Some(header) = self.frame.advance(input)? else {
                    return Ok(Progress::NeedMore);
                };
                self.phase = Phase::Taken;
                Ok(Progress::Frame(header))
            }
            Phase::Payload { .. } => {
                while let Some((span, done)) = self.target() {
                    if input.is_empty() {
                        return Ok(Progress::NeedMore);
                    }
                    let n = input.len().min((span.len - done) as usize);
                    let (now, later) = input.split_at(n);
                    span.extent.mem().write(span.at + u64::from(done), now);
                    *input = later;
                    self.filled(n);
                }
                Ok(self.payload_done())
            }
            Phase::Discard { left } => {
                let n = input.len().min(*left as usize);
                *left -= n as u32;
                *input = &input[n..];
                if *left > 0 {
                    return Ok(Progress::NeedMore);
                }
                Ok(self.payload_done())
            }
        }
    }

    fn payload_done(&mut self) -> Progress {
        if let Phase::Payload { spans, .. } = std::mem::replace(&mut self.phase, Phase::Taken) {
            self.spare = spans;
            self.spare.clear();
        }
        Progress::PayloadDone
    }

    /// The body of the frame that was last handed out.
    pub fn body(&self) -> &[u8] {
        self.frame.body()
    }
    pub fn header(&self) -> Option<&Header> {
        self.frame.header()
    }

    /// Puts the payload that follows the last frame into these spans, which are taken.
    pub fn receive(&mut self, spans: &mut Vec<Span<B>>) {
        let spans = std::mem::replace(spans, std::mem::take(&mut self.spare));
        self.phase = Phase::Payload {
            spans,
            at: 0,
            done_in_span: 0,
        };
    }
    /// Drops the payload that follows the last frame.
    pub fn discard(&mut self, len: u32) {
        self.phase = Phase::Discard { left: len };
    }

    fn target(&self) -> Option<(&Span<B>, u32)> {
        match &self.phase {
            Phase::Payload {
                spans,
                at,
                done_in_span,
            } => spans.get(*at).map(|span| (span, *done_in_span)),
            _ => None,
        }
    }

    /// The spans that a payload still has to fill, and how much of the first is done.
    pub fn targets(&self) -> (&[Span<B>], u32) {
        match &self.phase {
            Phase::Payload {
                spans,
                at,
                done_in_span,
            } => (&spans[*at..], *done_in_span),
            _ => (&[], 0),
        }
    }

    /// `n` more bytes of the payload are in place.
    pub fn filled(&mut self, mut n: usize) {
        let Phase::Payload {
            spans,
            at,
            done_in_span,
        } = &mut self.phase
        else {
            return;
        };
        while n > 0 && *at < spans.len() {
            let step = n.min((spans[*at].len - *done_in_span) as usize);
            *done_in_span += step as u32;
            n -= step;
            if *done_in_span == spans[*at].len {
                *at += 1;
                *done_in_span = 0;
            }
        }
    }
}
