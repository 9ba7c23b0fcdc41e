//! A heap whose pages are kept by a volume: several copies, or parity, at servers any of which may go.
//!
//! The linear space lies in extents, one behind the other, all of which are taken when the heap is
//! made: an eviction must not fail because a pool has become full. Which servers hold an extent only
//! the volume knows; it reads from whoever answers, writes to all, and makes anew what is lost. Nobody
//! but this process changes the pages, so a sum of each (with a secret) tells whether what comes back
//! is what was written: if it is not, other copies are asked, and who lied is not asked again.
//!
//! Known limit: the volume's data path has one user at a time, so threads that fault wait for each
//! other here.

use crate::error::HeapError;
use muninn_net::{Keeping, PoolOptions};
use muninn_policy::layout::Layout;
use muninn_sys::rand;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, PAGE_SHIFT, PAGE_SIZE};
use muninn_volume::{Attempt, Census, Clerk, Extent, Page, Roster, Transfer, Volume};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Pages that are read or written together.
const TOGETHER: usize = 64;
/// What the sum makes use of.
const SECRET_LEN: usize = 192;

/// Where copies are to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    pub servers: Vec<Address>,
    pub options: PoolOptions,
    pub layout: Layout,
}

struct Desk {
    volume: Volume,
    /// The first page of each extent, and the extent.
    extents: Vec<(u32, Extent)>,
    buffer: Box<[Page]>,
}

// SAFETY: what a volume points to are mappings of servers' memory, which its members keep; any thread
// may use them, one at a time.
unsafe impl Send for Desk {}

/// Far memory that outlives its servers.
pub(super) struct Copies {
    desk: Mutex<Desk>,
    /// Of each page, as it was written last.
    sums: Box<[AtomicU64]>,
    secret: Box<[u8; SECRET_LEN]>,
    clerk: Arc<Clerk>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}

impl Desk {
    fn transfer(&self, page: u32, near: *mut Page) -> Transfer {
        let after = self.extents.partition_point(|(first, _)| *first <= page);
        let (first, extent) = self.extents[after - 1];
        Transfer {
            extent: extent.id,
            place: page - first,
            near,
        }
    }
}

impl Copies {
    pub fn new(keep: &Keep, space: Bytes) -> Result<Copies, HeapError> {
        let options = PoolOptions {
            keeper: Keeping::Caller,
            ..keep.options.clone()
        };
        let connect = move |address: &Address, attempt: Attempt| {
            let options = PoolOptions {
                connect_timeout: attempt.patience,
                ..options.clone()
            };
            let session = muninn_net::connect_over(attempt.connected, address, &options);
            session.map_err(|error| error.to_string())
        };
        // What a server does is in the census; a library prints nothing.
        let roster = Roster::new(&keep.servers, Box::new(connect), Box::new(|_| {}));
        let roster = Arc::new(roster);
        let process = u64::from(muninn_sys::proc::own_pid());
        let clerk = Arc::new(Clerk::new(Arc::clone(&roster), keep.layout, 0, process));
        let running = Arc::clone(&clerk);
        let thread = std::thread::Builder::new().name("muninn-clerk".to_string());
        let thread = thread
            .spawn(move || running.run())
            .map_err(|e| HeapError::Machine(e.to_string()))?;
        let pages = (space.0 >> PAGE_SHIFT) as u32;
        let copies = Copies {
            desk: Mutex::new(Desk {
                volume: Volume::new(roster, Arc::clone(&clerk)),
                extents: Vec::new(),
                buffer: vec![[0; PAGE_SIZE]; TOGETHER].into_boxed_slice(),
            }),
            sums: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            secret: Box::new(rand::bytes()),
            clerk,
            thread: Some(thread),
        };
        copies.take_extents(pages, space, keep.layout)?;
        Ok(copies)
    }

    fn take_extents(&self, pages: u32, space: Bytes, layout: Layout) -> Result<(), HeapError> {
        let small = |why: String| HeapError::PoolTooSmall { heap: space, why };
        let mut desk = self.lock();
        let mut first = 0;
        while first < pages {
            let extent = desk.volume.extent().map_err(|e| small(e.to_string()))?;
            desk.extents.push((first, extent));
            first += extent.pages;
        }
        desk.volume.attend();
        match desk.volume.census().degraded {
            0 => Ok(()),
            // It would go on with fewer copies; but whoever asks for copies is told that there are none.
            _ => Err(small(format!(
                "{layout} wants {} servers with room, and there are fewer",
                layout.members()
            ))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sum(&self, page: &Page) -> u64 {
        xxh3_64_with_secret(page, &self.secret[..])
    }

    pub fn memory_bytes(&self) -> u64 {
        self.sums.len() as u64 * 8 + (TOGETHER * PAGE_SIZE) as u64
    }

    /// Looks after servers that went or came; why the heap is lost, if it is.
    pub fn attend(&self) -> Result<Census, String> {
        let mut desk = self.lock();
        desk.volume.attend();
        match desk.volume.take_lost() {
            Some((_, why)) => Err(why),
            None => Ok(desk.volume.census()),
        }
    }

    /// Reads neighbouring pages and shows them, as many at a time as there is room for: the first of
    /// them, how many, and their bytes.
    pub fn read(
        &self,
        first: u32,
        pages: u32,
        class: Class,
        mut show: impl FnMut(u32, u32, *const u8),
    ) -> Result<(), String> {
        let mut guard = self.lock();
        let desk = &mut *guard;
        let all: Vec<u32> = (first..first + pages).collect();
        for some in all.chunks(TOGETHER) {
            let buffer = desk.buffer.as_mut_ptr();
            let near = |at: usize| buffer.wrapping_add(at);
            let mut transfers = [Transfer::EMPTY; TOGETHER];
            for (at, page) in some.iter().enumerate() {
                transfers[at] = desk.transfer(*page, near(at));
            }
            let transfers = &transfers[..some.len()];
            desk.volume.attend();
            // SAFETY: all lie in the buffer, which the lock keeps to us.
            unsafe { desk.volume.read(transfers, class) }.map_err(|e| e.to_string())?;
            for (page, transfer) in some.iter().zip(transfers) {
                self.make_right(&mut desk.volume, *page, transfer, class)?;
            }
            show(some[0], some.len() as u32, buffer.cast_const().cast());
        }
        Ok(())
    }

    /// A page that was read is made what was written, if a copy of that is left.
    fn make_right(
        &self,
        volume: &mut Volume,
        page: u32,
        transfer: &Transfer,
        class: Class,
    ) -> Result<(), String> {
        let wanted = self.sums[page as usize].load(Relaxed);
        // SAFETY: in the buffer, as in `read`.
        let is_right = || self.sum(unsafe { &*transfer.near }) == wanted;
        if is_right() {
            return Ok(());
        }
        let mut liars = Vec::new();
        // SAFETY: as in `read`.
        while let Some(read) = unsafe { volume.read_copy(transfer, class, liars.len()) } {
            let server = read.map_err(|e| e.to_string())?;
            if is_right() {
                for liar in liars {
                    volume.distrust(transfer.extent, liar);
                }
                return Ok(());
            }
            liars.push(server);
        }
        Err(format!(
            "{} gave back other bytes than were written",
            volume.describe(transfer.extent)
        ))
    }

    /// Writes pages from where they lie.
    ///
    /// # Safety
    ///
    /// `near` gives the address of each: mapped, and written to by nobody meanwhile.
    pub unsafe fn write(
        &self,
        pages: &[u32],
        near: impl Fn(u32) -> *mut u8,
        class: Class,
    ) -> Result<(), String> {
        let mut guard = self.lock();
        let desk = &mut *guard;
        desk.volume.attend();
        for some in pages.chunks(TOGETHER) {
            let mut transfers = [Transfer::EMPTY; TOGETHER];
            for (at, page) in some.iter().enumerate() {
                let from = near(*page).cast::<Page>();
                // SAFETY: as the caller vouches for.
                let sum = self.sum(unsafe { &*from });
                self.sums[*page as usize].store(sum, Relaxed);
                transfers[at] = desk.transfer(*page, from);
            }
            // SAFETY: as the caller vouches for.
            unsafe { desk.volume.write(&transfers[..some.len()], class) }
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.clerk.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
