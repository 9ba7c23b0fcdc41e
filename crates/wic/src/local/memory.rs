//! Memory that can be loaded from and stored to.
//!
//! Two styles. *Sync*: an access is a load or a store, and the function runs on. *Prefetch*: an access
//! asks for the cache line and suspends; by the time the executor comes back, having started the
//! accesses of the others in its window, the line is there (AMAC; WICKit's asynchronous backend).
//! Either way a function that has made many steps is suspended now and then, so that a long one does
//! not hold up the thread it runs on.
//!
//! The memory is shared with other processes and never goes away while a [`Chunks`] lives: its files
//! are sealed against being cut.

use crate::alloc;
use crate::error::WicError;
use crate::memory::{Addr, Layout, Memory, Record};
use muninn_proto::server::LOCK_ORPHANED;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines of an access that are asked for ahead; the hardware finds the rest by itself.
const PREFETCH_LINES: usize = 8;

/// A service's memory in this address space.
pub struct Chunks {
    pub layout: Layout,
    starts: Vec<*mut u8>,
    /// Whatever keeps it mapped.
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are to memory that other processes change too; it is only accessed by copies
// and atomic operations, which are allowed to race (see `SegmentMemory`).
unsafe impl Send for Chunks {}
// SAFETY: as above.
unsafe impl Sync for Chunks {}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({:?})", self.layout)
    }
}

impl Chunks {
    /// # Safety
    ///
    /// Each start is that of 2^shift bytes (the last one's as far as the layout goes) that stay
    /// readable and writable as long as `keep` lives, aligned to a page, and into which no reference
    /// exists.
    pub unsafe fn new(
        layout: Layout,
        starts: Vec<*mut u8>,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Chunks {
        let room = (starts.len() as u64) << layout.shift;
        assert!(
            layout.bytes <= room,
            "the chunks are too few for the layout"
        );
        assert!(u64::from(layout.locks) * 8 <= layout.base);
        Chunks {
            layout,
            starts,
            _keep: keep,
        }
    }

    /// The same memory again, for a thread of its own: what a thread does not share it counts without
    /// stopping its processor, which would wait for every load under way.
    pub fn again(chunks: &Arc<Chunks>) -> Chunks {
        Chunks {
            layout: chunks.layout,
            starts: chunks.starts.clone(),
            _keep: Box::new(Arc::clone(chunks)),
        }
    }

    /// The address of a byte. The caller has checked that it is inside.
    #[inline]
    fn place(&self, at: u64) -> *mut u8 {
        let within = at & ((1 << self.layout.shift) - 1);
        self.starts[(at >> self.layout.shift) as usize].wrapping_add(within as usize)
    }

    /// Calls `step` for each piece of a checked range that lies in one chunk.
    #[inline]
    fn pieces(&self, at: u64, len: usize, mut step: impl FnMut(*mut u8, usize, usize)) {
        let chunk = 1u64 << self.layout.shift;
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let room = (chunk - (here & (chunk - 1))) as usize;
            let n = room.min(len - done);
            step(self.place(here), done, n);
            done += n;
        }
    }

    #[inline]
    fn load(&self, at: u64, into: &mut [u8]) {
        let to = into.as_mut_ptr();
        self.pieces(at, into.len(), |from, done, n| {
            // SAFETY: `from` is n bytes inside of a chunk (`new`'s contract, and the caller checked
            // the range); `to` is the slice, which cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(done), n) }
        });
    }

    /// As `load`, of a length that the compiler knows: a few moves instead of a call.
    #[inline]
    fn load_record<T: Record>(&self, at: u64) -> T {
        let mut value = T::new_zeroed();
        let room = (1u64 << self.layout.shift) - (at & ((1 << self.layout.shift) - 1));
        if size_of::<T>() == 0 {
            return value;
        }
        let bytes = value.as_mut_bytes();
        if size_of::<T>() as u64 <= room {
            let from = self.place(at);
            // SAFETY: as in `load`: all of it lies in one chunk, and `bytes` is exactly that long.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size_of::<T>()) };
        } else {
            self.load(at, bytes);
        }
        value
    }

    #[inline]
    fn store(&self, at: u64, from: &[u8]) {
        let source = from.as_ptr();
        self.pieces(at, from.len(), |to, done, n| {
            // SAFETY: as in `load`, the other way round.
            unsafe { std::ptr::copy_nonoverlapping(source.wrapping_add(done), to, n) }
        });
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8));
        // SAFETY: inside of a chunk and aligned, as the caller checked; other accesses to it race as
        // the protocol allows, and none of them is a Rust reference.
        unsafe { AtomicU64::from_ptr(self.place(at).cast()) }
    }

    #[inline]
    fn compare_swap(&self, at: u64, expect: u64, new: u64) -> u64 {
        let order = Ordering::SeqCst;
        match self.word(at).compare_exchange(expect, new, order, order) {
            Ok(old) | Err(old) => old,
        }
    }

    #[inline]
    fn prefetch(&self, at: u64, len: usize) {
        // Nothing may lie at the very end, where there is no byte.
        let lines = len.div_ceil(LINE).min(PREFETCH_LINES);
        if lines == 0 {
            return;
        }
        let start = self.place(at);
        for line in 0..lines {
            let address = start.wrapping_add(line * LINE);
            prefetch_line(address);
        }
    }

    /// Copies a range out, for those who look at the memory from outside of a call.
    pub fn read(&self, at: Addr, into: &mut [u8]) -> Result<(), WicError> {
        self.layout.check(at, into.len())?;
        self.load(at.0, into);
        Ok(())
    }
    /// A lock's word, whose place is known to be good.
    pub(crate) fn read_word(&self, at: Addr, into: &mut [u8; 8]) {
        self.load(at.0, into);
    }
    pub fn write(&self, at: Addr, from: &[u8]) -> Result<(), WicError> {
        self.layout.check(at, from.len())?;
        self.store(at.0, from);
        Ok(())
    }
}

/// Asks for a cache line.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch has no effect that a program could see, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}
#[inline(always)]
#[cfg(target_arch = "aarch64")]
fn prefetch_line(address: *const u8) {
    // SAFETY: as above; it touches no register but its operand's, and no memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    };
}
#[inline(always)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn prefetch_line(_: *const u8) {}

/// How accesses are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Sync,
    Prefetch,
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Style::Sync => "sync",
            Style::Prefetch => "prefetch",
        })
    }
}

/// What one call may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Accesses and turns of loops.
    pub steps: u32,
    /// Bytes it may hold on the heap, where the program's allocator counts them.
    pub allocated: u32,
    /// Steps after which it lets others run.
    pub slice: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            steps: 1 << 20,
            allocated: 64 << 20,
            slice: 1024,
        }
    }
}

/// Why a function was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its line is on its way.
    Memory,
    /// It has run for long enough.
    Slice,
    /// What it waits for is held by somebody else.
    Pause,
    /// It is done but for its reply, which is made when it is resumed.
    Reply,
}

thread_local! {
    static WHY: Cell<Why> = const { Cell::new(Why::Memory) };
}

/// Why the function was suspended that this thread polled last.
pub(crate) fn why() -> Why {
    WHY.get()
}

/// Says why the function is suspended that is being polled.
pub(crate) fn set_why(why: Why) {
    WHY.set(why);
}

/// Suspends once.
pub(crate) fn suspend(why: Why) -> impl Future<Output = ()> {
    Suspend { why: Some(why) }
}

/// Suspends once.
struct Suspend {
    why: Option<Why>,
}

impl Future for Suspend {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.why.take() {
            Some(why) => {
                WHY.set(why);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

/// The memory of one call.
#[derive(Debug)]
pub struct LocalMemory {
    chunks: Rc<Chunks>,
    style: Style,
    holder: u64,
    limits: Limits,
    replies_later: bool,
    steps: Cell<u32>,
    /// The step at which it lets others run.
    slice_ends: Cell<u32>,
    accesses: Cell<u32>,
}

impl LocalMemory {
    pub fn new(chunks: Rc<Chunks>, style: Style, holder: u64, limits: Limits) -> LocalMemory {
        LocalMemory {
            chunks,
            style,
            holder,
            limits,
            replies_later: false,
            steps: Cell::new(0),
            slice_ends: Cell::new(limits.slice),
            accesses: Cell::new(0),
        }
    }
    /// The call is suspended before its reply is made. Making one looks at what was loaded last; whoever
    /// has something else to do meanwhile does not wait for that line to come.
    pub(crate) fn replying_later(self) -> LocalMemory {
        LocalMemory {
            replies_later: true,
            ..self
        }
    }
    pub(crate) fn before_reply(&self) -> impl Future<Output = ()> + use<> {
        Suspend {
            why: self.replies_later.then_some(Why::Reply),
        }
    }
    pub fn accesses(&self) -> u32 {
        self.accesses.get()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Counts an access that can be made at once. False: it has to wait for something first, and nothing
    /// was counted.
    #[inline]
    fn at_once(&self) -> Result<bool, WicError> {
        if self.style != Style::Sync || self.steps.get() + 1 >= self.slice_ends.get() {
            return Ok(false);
        }
        self.step()?;
        self.accesses.set(self.accesses.get() + 1);
        Ok(true)
    }
    /// An access for those who cannot await it; None: it has to be awaited.
    #[inline]
    fn now<T>(
        &self,
        check: Result<(), WicError>,
        access: impl FnOnce() -> T,
    ) -> Option<Result<T, WicError>> {
        if let Err(error) = check {
            return Some(Err(error));
        }
        match self.at_once() {
            Ok(true) => Some(Ok(access())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
    pub(crate) fn read_now(&self, at: Addr, into: &mut [u8]) -> Option<Result<(), WicError>> {
        let check = self.chunks.layout.check(at, into.len());
        self.now(check, || self.chunks.load(at.0, into))
    }
    pub(crate) fn write_now(&self, at: Addr, from: &[u8]) -> Option<Result<(), WicError>> {
        let check = self.chunks.layout.check(at, from.len());
        self.now(check, || self.chunks.store(at.0, from))
    }
    pub(crate) fn compare_swap_now(
        &self,
        at: Addr,
        expect: u64,
        new: u64,
    ) -> Option<Result<u64, WicError>> {
        let check = self.chunks.layout.check_word(at);
        self.now(check, || self.chunks.compare_swap(at.0, expect, new))
    }
    pub(crate) fn fetch_add_now(&self, at: Addr, add: u64) -> Option<Result<u64, WicError>> {
        let check = self.chunks.layout.check_word(at);
        self.now(check, || {
            self.chunks.word(at.0).fetch_add(add, Ordering::SeqCst)
        })
    }

    #[inline]
    fn step(&self) -> Result<(), WicError> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps > self.limits.steps {
            return Err(WicError::Steps(u64::from(self.limits.steps)));
        }
        if alloc::is_over() {
            return Err(WicError::Allocated(u64::from(self.limits.allocated)));
        }
        Ok(())
    }

    /// What comes before every access: a step, and a wait if the style has one.
    #[inline]
    fn access(&self, at: u64, len: usize) -> Result<Suspend, WicError> {
        self.step()?;
        self.accesses.set(self.accesses.get() + 1);
        let why = match self.style {
            Style::Prefetch => {
                self.chunks.prefetch(at, len);
                Some(Why::Memory)
            }
            Style::Sync if self.steps.get() >= self.slice_ends.get() => {
                self.slice_ends.set(self.steps.get() + self.limits.slice);
                Some(Why::Slice)
            }
            Style::Sync => None,
        };
        Ok(Suspend { why })
    }
}

impl Memory for LocalMemory {
    fn base(&self) -> Addr {
        Addr(self.chunks.layout.base)
    }
    fn end(&self) -> Addr {
        Addr(self.chunks.layout.bytes)
    }

    async fn read<T: Record>(&self, at: Addr) -> Result<T, WicError> {
        self.chunks.layout.check(at, size_of::<T>())?;
        self.access(at.0, size_of::<T>())?.await;
        Ok(self.chunks.load_record(at.0))
    }
    async fn read_into(&self, at: Addr, into: &mut [u8]) -> Result<(), WicError> {
        self.chunks.layout.check(at, into.len())?;
        self.access(at.0, into.len())?.await;
        self.chunks.load(at.0, into);
        Ok(())
    }
    async fn write_from(&self, at: Addr, from: &[u8]) -> Result<(), WicError> {
        self.chunks.layout.check(at, from.len())?;
        self.access(at.0, from.len())?.await;
        self.chunks.store(at.0, from);
        Ok(())
    }
    async fn compare_swap(&self, at: Addr, expect: u64, new: u64) -> Result<u64, WicError> {
        self.chunks.layout.check_word(at)?;
        self.access(at.0, 8)?.await;
        Ok(self.chunks.compare_swap(at.0, expect, new))
    }
    async fn fetch_add(&self, at: Addr, add: u64) -> Result<u64, WicError> {
        self.chunks.layout.check_word(at)?;
        self.access(at.0, 8)?.await;
        Ok(self.chunks.word(at.0).fetch_add(add, Ordering::SeqCst))
    }

    fn locks(&self) -> u32 {
        self.chunks.layout.locks
    }
    #[inline]
    fn tick(&self) -> Result<(), WicError> {
        self.step()
    }
    async fn pause(&self) -> Result<(), WicError> {
        let why = Some(Why::Pause);
        Suspend { why }.await;
        Ok(())
    }

    fn holder(&self) -> u64 {
        self.holder
    }
    async fn swap_lock(&self, index: u32, expect: u64, new: u64) -> Result<u64, WicError> {
        let at = self.chunks.layout.lock_word(index)?;
        self.accesses.set(self.accesses.get() + 1);
        Ok(self.chunks.compare_swap(at.0, expect, new))
    }
    fn orphan_lock(&self, index: u32) {
        if let Ok(at) = self.chunks.layout.lock_word(index) {
            self.chunks.compare_swap(at.0, self.holder, LOCK_ORPHANED);
        }
    }
}
