//! The pool below the engine, for real: a volume.

use crate::below::{Far, FarError, Transfer};
use muninn_types::{Class, ServerId};
use muninn_volume::{Census, Extent, ExtentId, Volume};

impl Far for Volume {
    unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError> {
        // SAFETY: as the caller says.
        unsafe { Volume::read(self, transfers, class) }
    }

    unsafe fn write(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError> {
        // SAFETY: as the caller says.
        unsafe { Volume::write(self, transfers, class) }
    }

    unsafe fn read_copy(
        &mut self,
        transfer: &Transfer,
        class: Class,
        n: usize,
    ) -> Option<Result<ServerId, FarError>> {
        // SAFETY: as the caller says.
        unsafe { Volume::read_copy(self, transfer, class, n) }
    }

    fn distrust(&mut self, extent: ExtentId, server: ServerId) {
        Volume::distrust(self, extent, server);
    }

    fn describe(&self, extent: ExtentId) -> String {
        Volume::describe(self, extent)
    }

    fn extent(&mut self) -> Result<Extent, FarError> {
        Volume::extent(self)
    }

    fn granted(&mut self) -> Option<Extent> {
        self.take_granted()
    }

    fn replenish(&mut self, free: u64, evicted: u64) {
        Volume::replenish(self, free, evicted);
    }

    fn release(&mut self, extent: ExtentId) {
        Volume::release(self, extent);
    }

    fn census(&self) -> Census {
        Volume::census(self)
    }

    fn attend(&mut self) -> Option<(ExtentId, String)> {
        Volume::attend(self);
        self.take_lost()
    }
}
