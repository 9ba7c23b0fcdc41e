//! Any bytes are a message to a heap's agent or are refused; a message encodes to the same bytes again.
//! What comes after a first byte is also a task's input, for an agent whose heap is all zeros.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muninn_heap_agent::agent::Agent;
use muninn_heap_agent::command::Task;
use muninn_heap_agent::layout::{Geometry, Mode};
use muninn_heap_agent::message::{Ask, GhostBatch, Polled, Stats};
use muninn_heap_agent::room::Room;
use muninn_heap_agent::words::{Gone, Words};
use std::cell::RefCell;

const SHIFT: u32 = 16;
const REGIONS: u32 = 4;
/// Far more than an agent of this heap needs for what fits into a fuzzer's input.
const ROOM: u64 = 16 << 20;

#[derive(Debug)]
struct Little(RefCell<Vec<u64>>);

impl Words for Little {
    fn load(&self, at: u64) -> Result<u64, Gone> {
        let words = self.0.borrow();
        words
            .get((at / 8) as usize)
            .copied()
            .filter(|_| at % 8 == 0)
            .ok_or(Gone { at })
    }
    fn store(&self, at: u64, value: u64) -> Result<(), Gone> {
        let mut words = self.0.borrow_mut();
        let word = words.get_mut((at / 8) as usize).filter(|_| at % 8 == 0);
        *word.ok_or(Gone { at })? = value;
        Ok(())
    }
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone> {
        for offset in (0..len).step_by(8) {
            self.store(
                to.wrapping_add(offset),
                self.load(from.wrapping_add(offset))?,
            )?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Limit;

impl Room for Limit {
    fn may_hold(&mut self, bytes: u64) -> bool {
        bytes <= ROOM
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ask) = Ask::decode(bytes) {
        assert_eq!(ask.encode(), bytes, "another encoding of the same message");
    }
    let _ = (
        Polled::decode(bytes),
        GhostBatch::decode(bytes),
        Stats::decode(bytes),
    );
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let geometry = Geometry {
        region_shift: SHIFT,
        regions: REGIONS,
        regions_per_server: REGIONS / 2,
        mode: if first & 0x80 == 0 {
            Mode::Direct
        } else {
            Mode::Indirect
        },
    };
    let words = Little(RefCell::new(vec![0; (geometry.space_bytes() / 8) as usize]));
    let mut agent = Agent::new(geometry, words, 0, 2);
    let mut task = first & 0x7f;
    for input in rest.chunks(64) {
        if let Ok(task) = Task::from_byte(task % 13) {
            let _ = agent.run(task, input, &mut Limit);
            let _ = agent.trace_some(64);
        }
        task = task.wrapping_mul(5).wrapping_add(input[0]);
    }
});
