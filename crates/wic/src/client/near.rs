//! Calls at a client that has the memory mapped: they run as they would at a server, a window of them
//! at once where that takes less time.

use crate::error::WicError;
use crate::local::{Chunks, Limits, LocalMemory, Outcome, Styles, Window};
use crate::registry::Function;
use muninn_sys::clock;
use muninn_types::Nanos;
use std::rc::Rc;

/// Calls that run at once, as at a server.
const WINDOW: usize = 8;

pub struct Near {
    pub chunks: Rc<Chunks>,
    styles: Styles,
    /// By their tasks.
    window: Window<usize>,
}

impl Near {
    /// At most `multiplex` calls are begun at once.
    pub fn new(chunks: Rc<Chunks>, multiplex: usize) -> Near {
        let size = WINDOW.min(multiplex.max(1));
        Near {
            chunks,
            styles: Styles::adaptive(clock::now()),
            window: Window::new(size, Limits::default().allocated),
        }
    }

    /// Calls begun and not ended.
    pub fn under_way(&self) -> usize {
        self.window.len()
    }

    pub fn begin(
        &mut self,
        function: &Function,
        args: &[u8],
        holder: u64,
        (task, deadline): (usize, Nanos),
    ) -> Result<(), WicError> {
        let chunks = Rc::clone(&self.chunks);
        let memory = LocalMemory::new(chunks, self.styles.style(), holder, Limits::default());
        let running = function.start(memory, args)?;
        self.window.push(running, task, deadline);
        Ok(())
    }

    /// Runs for a bounded time, and adds what has ended. False: all that are left wait for somebody else.
    pub fn run(&mut self, ended: &mut Vec<(usize, Outcome)>) -> bool {
        if self.window.is_empty() {
            return false;
        }
        let begin = clock::now();
        let went_on = self
            .window
            .run(begin, |task, outcome| ended.push((task, outcome)));
        self.styles.ran(ended.len() as u32, begin, clock::now());
        went_on
    }
}
