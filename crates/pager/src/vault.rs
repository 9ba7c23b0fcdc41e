//! The pool below the engine, for real: a volume, and who seals pages and knows them again.
//!
//! A server may lie, or its memory may be faulty. The fingerprint of each page (and how it was
//! sealed) never leaves the client, so the right copy is known when it is seen; the wrong ones are made anew.

use crate::hash::Hasher;
use crate::seal::{KeyNo, Sealer, Secret, is_right};
use muninn_pager_core::{Far, FarError, Fatal, Hash, Incoming, Outgoing, Print};
use muninn_types::{Class, Extent, ExtentId, PAGE_SIZE, ServerId};
pub use muninn_volume::Transfer;
use muninn_volume::{Volume, VolumeError};

/// The contents of a page.
pub type Page = [u8; PAGE_SIZE];

/// Where pages lie.
pub trait Store {
    /// Reads far pages, all or none.
    ///
    /// # Safety
    ///
    /// Each `near` must be writable and used by nobody else during the call.
    unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), VolumeError>;

    /// Writes far pages. They are at the server when this returns.
    ///
    /// # Safety
    ///
    /// Each `near` must be readable and not written to during the call.
    unsafe fn write(&mut self, transfers: &[Transfer], class: Class) -> Result<(), VolumeError>;

    /// Reads a page from the `n`th copy of its extent; whose that is. `None` when there are no more.
    ///
    /// # Safety
    ///
    /// As for [`Store::read`].
    unsafe fn read_copy(
        &mut self,
        _transfer: &Transfer,
        _class: Class,
        _n: usize,
    ) -> Option<Result<ServerId, VolumeError>> {
        None
    }

    /// A copy was found to be wrong, while another is right.
    fn distrust(&mut self, _extent: ExtentId, _server: ServerId) {}

    /// Where an extent is, for messages.
    fn describe(&self, extent: ExtentId) -> String {
        extent.to_string()
    }

    fn extent(&mut self) -> Result<Extent, VolumeError>;
    fn granted(&mut self) -> Option<Extent>;
    fn replenish(&mut self, free: u64, evicted: u64);
    fn release(&mut self, extent: ExtentId);
    fn attend(&mut self) -> Option<(ExtentId, String)> {
        None
    }
}

impl Store for Volume {
    unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), VolumeError> {
        // SAFETY: as the caller says.
        unsafe { Volume::read(self, transfers, class) }
    }

    unsafe fn write(&mut self, transfers: &[Transfer], class: Class) -> Result<(), VolumeError> {
        // SAFETY: as the caller says.
        unsafe { Volume::write(self, transfers, class) }
    }

    unsafe fn read_copy(
        &mut self,
        transfer: &Transfer,
        class: Class,
        n: usize,
    ) -> Option<Result<ServerId, VolumeError>> {
        // SAFETY: as the caller says.
        unsafe { Volume::read_copy(self, transfer, class, n) }
    }

    fn distrust(&mut self, extent: ExtentId, server: ServerId) {
        Volume::distrust(self, extent, server);
    }

    fn describe(&self, extent: ExtentId) -> String {
        Volume::describe(self, extent)
    }

    fn extent(&mut self) -> Result<Extent, VolumeError> {
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

    fn attend(&mut self) -> Option<(ExtentId, String)> {
        Volume::attend(self);
        self.take_lost()
    }
}

/// What an engine has far, and by what it is known again.
#[derive(Debug)]
pub struct Vault<S> {
    pub store: S,
    hasher: Hasher,
    /// What seals pages, if they are sealed.
    sealer: Option<Sealer>,
    /// Kept so that a fault allocates nothing.
    transfers: Vec<Transfer>,
}

impl<S: Store> Vault<S> {
    pub fn new(store: S, hasher: Hasher, seal: bool) -> Vault<S> {
        Vault {
            store,
            hasher,
            sealer: seal.then(|| Sealer::new(&[]).expect("the first key has a number")),
            transfers: Vec::with_capacity(muninn_pager_core::BATCH_MAX),
        }
    }

    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }
    pub fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
    }

    /// Begins with what a parent has: its fingerprints, and the keys it sealed with.
    pub fn inherit(&mut self, hasher: Hasher, keys: &[(KeyNo, Secret)]) -> Result<(), String> {
        if self.sealer.is_some() {
            let sealer = Sealer::new(keys);
            self.sealer = Some(sealer.ok_or("its memory was sealed with too many keys")?);
        }
        self.hasher = hasher;
        Ok(())
    }

    /// Whether a page that was just read is what was sent; it is opened if it was sealed.
    fn opens(&self, page: &mut Page, print: &Print) -> bool {
        is_right(self.sealer.as_ref(), &self.hasher, page, print)
    }

    /// Reads a page from one copy after the other until its contents are right.
    fn read_other_copy(
        &mut self,
        one: &Incoming,
        near: &mut Page,
        class: Class,
    ) -> Result<(), Fatal> {
        let mut wrong: Vec<ServerId> = Vec::new();
        let extent = one.from.extent;
        let transfer = Transfer {
            extent,
            place: one.from.place,
            near,
        };
        let where_from = self.store.describe(extent);
        for n in 0.. {
            // SAFETY: the page is the caller's, who lent it to us alone.
            match unsafe { self.store.read_copy(&transfer, class, n) } {
                None => break,
                Some(Err(VolumeError::Full(_) | VolumeError::Lost(_))) => {}
                Some(Ok(server)) => {
                    // SAFETY: it was just filled and nobody else knows of it.
                    if self.opens(unsafe { &mut *transfer.near }, &one.print) {
                        for server in wrong {
                            self.store.distrust(extent, server);
                        }
                        return Ok(());
                    }
                    wrong.push(server);
                }
            }
        }
        Err(Fatal::Changed(one.page.addr(), where_from))
    }
}

fn far_error(error: VolumeError) -> FarError {
    match error {
        VolumeError::Full(why) => FarError::Full(why),
        VolumeError::Lost(why) => FarError::Lost(why),
    }
}

impl<S: Store> Far<Page> for Vault<S> {
    fn fingerprint(&self, page: &Page) -> Hash {
        self.hasher.hash(page)
    }
    fn zero(&self) -> Hash {
        self.hasher.zero()
    }

    fn read(&mut self, from: &[Incoming], into: &mut [Page], class: Class) -> Result<(), Fatal> {
        assert!(from.len() <= into.len());
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.clear();
        for (one, near) in from.iter().zip(&mut *into) {
            transfers.push(Transfer {
                extent: one.from.extent,
                place: one.from.place,
                near,
            });
        }
        // SAFETY: the pages were lent to us alone, and each is named once.
        let read = unsafe { self.store.read(&transfers, class) };
        self.transfers = transfers;
        read.map_err(|error| Fatal::Lost(error.to_string()))?;
        for (one, near) in from.iter().zip(into) {
            if !self.opens(near, &one.print) {
                self.read_other_copy(one, near, class)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, pages: &mut [Outgoing<'_, Page>], class: Class) -> Result<(), FarError> {
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.clear();
        for (at, one) in pages.iter_mut().enumerate() {
            // A volume only reads what it writes away.
            let mut near: *mut Page = std::ptr::from_ref(one.near).cast_mut();
            if let Some(sealer) = &mut self.sealer {
                let (sealed, seal) = sealer.seal(at, one.near);
                one.print.seal = Some(seal);
                near = sealed;
            }
            transfers.push(Transfer {
                extent: one.to.extent,
                place: one.to.place,
                near,
            });
        }
        // SAFETY: neither pages nor what was sealed are written to until this returns.
        let written = unsafe { self.store.write(&transfers, class) };
        self.transfers = transfers;
        written.map_err(far_error)
    }

    fn extent(&mut self) -> Result<Extent, FarError> {
        self.store.extent().map_err(far_error)
    }
    fn granted(&mut self) -> Option<Extent> {
        self.store.granted()
    }
    fn replenish(&mut self, free: u64, evicted: u64) {
        self.store.replenish(free, evicted);
    }
    fn release(&mut self, extent: ExtentId) {
        self.store.release(extent);
    }
    fn attend(&mut self) -> Option<(ExtentId, String)> {
        self.store.attend()
    }
}
