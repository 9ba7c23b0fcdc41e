//! A fixed window: the aligned block of 16 pages around the fault, mapped at once.
//!
//! What COMEX does by slot and Linux does on its swap device, here by address. An aligned block
//! serves a program that walks backwards as well as one that walks forwards. Nothing is learnt, so a
//! program that jumps about pays for 15 pages it does not want at each fault.

use super::{FarPages, Fault, Landing, PageIndex, Prefetch, Source, Window};

/// COMEX found 8 and 16 good for all of its programs and used 16.
const BLOCK_PAGES: u32 = 16;

#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl Prefetch for Fixed {
    fn handle_fault(&mut self, fault: Fault, far: &dyn FarPages, window: &mut Window) {
        window.clear();
        window.landing = Landing::Mapped;
        if fault.source == Source::Buffer {
            return;
        }
        let first = fault.page.0 / BLOCK_PAGES * BLOCK_PAGES;
        for index in (first..=first + (BLOCK_PAGES - 1)).map(PageIndex) {
            if index != fault.page && far.is_far(index) {
                window.push(index);
            }
        }
    }
}
