//! A page that came back with other contents than it left with: the other copies are asked.
//!
//! A server may lie, or its memory may be faulty. The fingerprint of each page (and how it was
//! sealed) never leaves the client, so the right copy is known when it is seen; the wrong ones are made anew.

use crate::below::{Far, FarError, Kernel, Transfer};
use crate::chunk::Page;
use crate::engine::{Engine, Fatal};
use crate::seal::{Print, is_right};
use muninn_types::{Class, ServerId};

impl<K: Kernel, F: Far> Engine<K, F> {
    /// Whether a page that was just read is what was sent; it is opened if it was sealed.
    pub(crate) fn opens(&self, page: &mut Page, print: &Print) -> bool {
        is_right(self.sealer.as_ref(), &self.hasher, page, print)
    }

    /// Reads a page from one copy after the other until its contents are right.
    pub(crate) fn read_other_copy(
        &mut self,
        transfer: &Transfer,
        print: &Print,
        address: u64,
        class: Class,
    ) -> Result<(), Fatal> {
        let mut wrong: Vec<ServerId> = Vec::new();
        let where_from = self.far.describe(transfer.extent);
        for n in 0.. {
            // SAFETY: the page is the caller's, who has just read into it.
            match unsafe { self.far.read_copy(transfer, class, n) } {
                None => break,
                Some(Err(FarError::Full(_) | FarError::Lost(_))) => {}
                Some(Ok(server)) => {
                    // SAFETY: it was just filled and nobody else knows of it.
                    if self.opens(unsafe { &mut *transfer.near }, print) {
                        for server in wrong {
                            self.far.distrust(transfer.extent, server);
                        }
                        return Ok(());
                    }
                    wrong.push(server);
                }
            }
        }
        Err(Fatal::Changed(address, where_from))
    }
}
