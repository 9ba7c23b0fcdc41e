//! No prefetching: the baseline of every comparison.

use super::{FarPages, Fault, Prefetch, Window};

#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrefetch;

impl Prefetch for NoPrefetch {
    fn handle_fault(&mut self, _: Fault, _: &dyn FarPages, window: &mut Window) {
        window.clear();
    }
}
