//! Several queues to one side: what is posted is spread over them, a bounded number on each, and what
//! is posted together travels together.

use muninn_net::{Done, Lane, NetError, Op};
use std::time::Duration;

/// Queues to a server or a nic.
pub struct Lanes {
    lanes: Vec<Box<dyn Lane>>,
    /// The most operations under way on each.
    depth: usize,
    /// Operations that travel together; 1: each is sent at once.
    batch: usize,
    next: usize,
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({})", self.lanes.len())
    }
}

impl Lanes {
    pub fn open(
        count: usize,
        depth: usize,
        batch: usize,
        mut open: impl FnMut() -> Result<Box<dyn Lane>, NetError>,
    ) -> Result<Lanes, NetError> {
        let lanes: Result<Vec<_>, _> = (0..count.max(1)).map(|_| open()).collect();
        Ok(Lanes {
            lanes: lanes?,
            depth: depth.max(1),
            batch: batch.max(1),
            next: 0,
        })
    }

    pub fn under_way(&self) -> usize {
        self.lanes.iter().map(|lane| lane.under_way()).sum()
    }

    /// Posts on the next queue that has room, and says which; given back if none has.
    ///
    /// One queue is filled with a whole batch before the next one's turn, so that a batch is one
    /// system call.
    pub fn post(&mut self, mut op: Op) -> Result<usize, Op> {
        for _ in 0..self.lanes.len() {
            let at = self.next % self.lanes.len();
            let lane = &mut self.lanes[at];
            let under_way = lane.under_way();
            if under_way < self.depth {
                let posted = match self.batch {
                    1 => lane.post(op),
                    _ => lane.post_later(op),
                };
                match posted {
                    Ok(()) => {
                        if (under_way + 1).is_multiple_of(self.batch) {
                            self.next = at + 1;
                        }
                        return Ok(at);
                    }
                    Err(back) => op = back,
                }
            }
            self.next = at + 1;
        }
        Err(op)
    }

    /// Posts on this queue, after all that was posted there; dropped if it has no room.
    pub fn post_on(&mut self, at: usize, op: Op) {
        let _ = self.lanes[at].post(op);
    }

    /// Operations with this token on a queue are surely not done later than what comes next on it.
    pub fn abandon(&mut self, at: usize, token: u64) {
        self.lanes[at].abandon(token);
    }

    /// Sends what waits to be sent, and takes all answers that are here; how many.
    pub fn poll(&mut self, mut take: impl FnMut(Done)) -> usize {
        let mut count = 0;
        for lane in &mut self.lanes {
            if lane.under_way() == 0 {
                continue;
            }
            let mut next = lane.poll(Duration::ZERO);
            while let Some(done) = next {
                count += 1;
                take(done);
                next = lane.poll_ready();
            }
        }
        count
    }

    /// Waits for an answer on a queue that expects one.
    pub fn wait(&mut self, at_most: Duration, mut take: impl FnMut(Done)) {
        let waiting = self.lanes.iter_mut().find(|lane| lane.under_way() > 0);
        if let Some(lane) = waiting
            && let Some(done) = lane.poll(at_most)
        {
            take(done);
        }
    }
}
