//! An arena: memory of this process, the least used chunks of which are far.
//!
//! One thread answers all touches of absent pages and, when more than may be is near, first moves a chunk out:
//! by UFFDIO_MOVE into memory of its own, so that nobody can write to it any more (pages that a device writes to
//! are refused by the kernel and stay), then to the server. Which chunk leaves is for `policy::evict` to say.
//!
//! Invariants: a chunk is untouched (zeros), near, far, or lost; it is far only after the server has confirmed all
//! of it. Lost is said loudly: touching it raises SIGBUS. The thread takes no lock of the program's and has a pool
//! of its own: a call that waits for a page while it holds a lane can so not wait for itself.
//!
//! Known limits: chunks of 32 KiB come and go as a whole. What the program gives back with MADV_DONTNEED reads as
//! zeros if it was near, and as it was if it was far. Children of fork do not have the arena. Memory that is locked
//! or pinned stays near, above the limit if it must.

use crate::far::Far;
use muninn_net::Pool;
use muninn_policy::evict::{Arrival, Evict, EvictPolicy, PageIndex};
use muninn_sys::memory::{HugeAdvice, Mapping, program};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, Features, MoveMode, PageRange, Partial,
    RegisterMode, Userfaultfd, Wake,
};
use muninn_types::{Bytes, PAGE_SIZE, PageNo};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pages that come and go together.
pub(crate) const CHUNK_PAGES: usize = 8;
pub(crate) const CHUNK_LEN: usize = CHUNK_PAGES * PAGE_SIZE;
/// Less would have the thread do nothing else than to exchange chunks.
const LOCAL_MIN: u64 = 1 << 20;
/// Chunks are numbered by 32 bits.
const SIZE_MAX: u64 = 64 << 40;
/// Chunks that are tried before one is let in above the limit.
const TRIES_MAX: usize = 16;
/// How often it is looked whether the arena is closed.
const LOOK: Duration = Duration::from_millis(100);
const ALIGN_MAX: u64 = PAGE_SIZE as u64;

/// What is counted, for everybody to see.
#[derive(Debug, Default)]
pub struct Counts {
    pub near_bytes: AtomicU64,
    pub far_bytes: AtomicU64,
    pub fetched: AtomicU64,
    pub evicted: AtomicU64,
    pub kept: AtomicU64,
    pub lost: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn less(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Ordering::Relaxed);
}

#[derive(Debug)]
pub struct Arena {
    /// Gone after the thread that answers for it.
    memory: Mapping,
    size: Bytes,
    taken: Mutex<u64>,
    counts: Arc<Counts>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Arena {
    pub fn open(pool: Pool, size: Bytes, local: Bytes) -> Result<Arena, String> {
        if size.0 == 0 || size.0 > SIZE_MAX {
            return Err(format!(
                "an arena of {size} cannot be: give it between one byte and 64 TiB"
            ));
        }
        if local.0 < LOCAL_MIN {
            return Err(format!(
                "an arena needs at least {} here, and was given {local}",
                Bytes(LOCAL_MIN)
            ));
        }
        let size = Bytes(size.0.next_multiple_of(CHUNK_LEN as u64));
        let device =
            Userfaultfd::open(Features::MOVE, Features::NONE).map_err(|error| error.to_string())?;
        let memory = mapping(size)?;
        let stage = mapping(Bytes(CHUNK_LEN as u64))?;
        for mapping in [&memory, &stage] {
            let range = PageRange::new(
                PageNo::of_addr(mapping.addr()),
                (mapping.len() / PAGE_SIZE) as u64,
            );
            program::keep_from_children(range).map_err(|errno| errno.to_string())?;
            // SAFETY: memory that was just mapped, in which nothing is yet.
            unsafe { device.register(range, RegisterMode::MISSING) }
                .map_err(|error| error.to_string())?;
        }
        let chunks = (size.0 / CHUNK_LEN as u64) as usize;
        let evict = EvictPolicy::default().build(chunks as u32, muninn_sys::rand::u64());
        let (counts, over) = (
            Arc::new(Counts::default()),
            Arc::new(AtomicBool::new(false)),
        );
        let pager = Pager {
            base: PageNo::of_addr(memory.addr()),
            stage,
            device,
            state: vec![State::Untouched; chunks],
            near: 0,
            near_max: (local.0 / CHUNK_LEN as u64) as usize,
            evict,
            far: Far::new(pool, chunks),
            counts: Arc::clone(&counts),
            buffer: vec![0; CHUNK_LEN],
            complained: false,
        };
        let flag = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("muninn-arena".to_string());
        // The program's signals are for its own threads: a handler here could touch the arena.
        let thread = without_signals(|| thread.spawn(move || pager.run(&flag)));
        Ok(Arena {
            memory,
            size,
            taken: Mutex::new(0),
            counts,
            over,
            thread: Some(thread.map_err(|error| error.to_string())?),
        })
    }

    pub fn base(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    pub fn size(&self) -> Bytes {
        self.size
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The next bytes that nobody has.
    pub fn take(&self, bytes: u64, align: u64) -> Result<*mut u8, String> {
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(format!(
                "memory cannot be aligned to {align}: use a power of two up to {ALIGN_MAX}"
            ));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let start = taken.next_multiple_of(align);
        let end = start.checked_add(bytes).filter(|end| *end <= self.size.0);
        let Some(end) = end else {
            let left = Bytes(self.size.0.saturating_sub(start));
            return Err(format!(
                "the arena has {left} left, and {} were asked for: make a larger one",
                Bytes(bytes)
            ));
        };
        *taken = end;
        Ok(self.base().wrapping_add(start as usize))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is started meanwhile has all signals blocked.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are this function's; the first is filled before it is read.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = start();
    if changed {
        // SAFETY: filled by the call above, which succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

fn mapping(size: Bytes) -> Result<Mapping, String> {
    let options = Mapping::options().no_reserve().huge(HugeAdvice::Never);
    options.anonymous(size).map_err(|error| error.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    Near,
    Far,
    Lost,
}

struct Pager {
    base: PageNo,
    /// Where a chunk is while it leaves.
    stage: Mapping,
    device: Userfaultfd,
    state: Vec<State>,
    near: usize,
    near_max: usize,
    evict: Box<dyn Evict>,
    far: Far,
    counts: Arc<Counts>,
    buffer: Vec<u8>,
    complained: bool,
}

impl Pager {
    fn run(mut self, over: &AtomicBool) {
        let mut events = EventBuffer::new();
        while !over.load(Ordering::Acquire) {
            match self.device.wait(Some(LOOK)) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(errno) => return self.complain(&format!("cannot wait for faults: {errno}")),
            }
            if let Err(errno) = self.device.read_events(&mut events) {
                return self.complain(&format!("cannot read faults: {errno}"));
            }
            while let Some(event) = events.pop() {
                if let Event::Fault(fault) = event {
                    self.serve(fault.page());
                }
            }
        }
    }

    fn range(&self, chunk: usize) -> PageRange {
        PageRange::new(
            PageNo(self.base.0 + (chunk * CHUNK_PAGES) as u64),
            CHUNK_PAGES as u64,
        )
    }

    fn stage_range(&self) -> PageRange {
        PageRange::new(PageNo::of_addr(self.stage.addr()), CHUNK_PAGES as u64)
    }

    fn serve(&mut self, page: PageNo) {
        let Some(pages) = page.0.checked_sub(self.base.0) else {
            return;
        };
        let chunk = pages as usize / CHUNK_PAGES;
        match self.state.get(chunk) {
            // Served since, for another thread; or given back by the program, and zeros.
            Some(State::Near) => {
                self.buffer.fill(0);
                self.fill(PageRange::one(page));
            }
            Some(State::Untouched) => {
                self.make_room();
                self.buffer.fill(0);
                self.arrive(chunk, Arrival::FirstTouch);
            }
            Some(State::Far) => {
                self.make_room();
                let mut buffer = std::mem::take(&mut self.buffer);
                let got = self.far.get(chunk, &mut buffer);
                self.buffer = buffer;
                match got {
                    Ok(()) => {
                        less(&self.counts.far_bytes, CHUNK_LEN as u64);
                        add(&self.counts.fetched, 1);
                        self.arrive(chunk, Arrival::Demand);
                    }
                    Err(why) => self.lose(chunk, &why),
                }
            }
            Some(State::Lost) | None => self.poison(PageRange::one(page)),
        }
    }

    /// What is in the buffer becomes the chunk.
    fn arrive(&mut self, chunk: usize, arrival: Arrival) {
        // First: who was woken by the first page may touch the second.
        self.state[chunk] = State::Near;
        self.near += 1;
        add(&self.counts.near_bytes, CHUNK_LEN as u64);
        self.evict.handle_resident(PageIndex(chunk as u32), arrival);
        self.fill(self.range(chunk));
    }

    /// Copies the buffer to absent pages. One that is there stays as it is.
    fn fill(&self, range: PageRange) {
        let mut done = 0;
        while done < range.pages() {
            let rest = range.skip(done);
            let from = self.buffer[done as usize * PAGE_SIZE..].as_ptr();
            // SAFETY: the buffer is as long as a chunk, and no range is longer.
            match unsafe { self.device.copy(rest, from, CopyMode::default()) } {
                Ok(()) => return,
                Err(Partial { done_pages, .. }) if done_pages > 0 => done += done_pages,
                Err(Partial {
                    cause: Cause::Exists,
                    ..
                }) => {
                    let _ = self.device.wake(PageRange::one(rest.first()));
                    done += 1;
                }
                // No memory for a page at this moment: whoever waits asks again when woken.
                Err(Partial {
                    cause: Cause::NoMemory | Cause::Again,
                    ..
                }) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Unmapped by the program: whoever waited finds that out.
                Err(_) => {
                    let _ = self.device.wake(rest);
                    return;
                }
            }
        }
    }

    /// Lets chunks go until another may come. If none can, it comes all the same: a limit is not worth a page.
    fn make_room(&mut self) {
        let mut tries = 0;
        while self.near >= self.near_max && tries < TRIES_MAX {
            let Some(run) = self.evict.next_run(1) else {
                return;
            };
            tries += 1;
            let chunk = run.first.0 as usize;
            if self.leave(chunk) {
                self.evict.handle_evicted(run.first);
            } else {
                add(&self.counts.kept, 1);
                self.evict.handle_resident(run.first, Arrival::Kept);
            }
        }
    }

    /// Whether the chunk is far now; else it is as it was.
    fn leave(&mut self, chunk: usize) -> bool {
        let (from, stage) = (self.range(chunk), self.stage_range());
        let mode = MoveMode {
            wake: Wake::Later,
            allow_holes: false,
        };
        // SAFETY: memory of the arena, and of ours, in which nothing is.
        let moved = match unsafe { self.device.move_pages(stage.first(), from, mode) } {
            Ok(()) => CHUNK_PAGES as u64,
            Err(partial) => partial.done_pages,
        };
        if moved == CHUNK_PAGES as u64 {
            let mut buffer = std::mem::take(&mut self.buffer);
            let put = self
                .stage
                .read_at(0, &mut buffer)
                .map_err(|error| error.to_string());
            let put = put.and_then(|()| self.far.put(chunk, &buffer));
            self.buffer = buffer;
            match put {
                Ok(()) => {
                    let _ = self.stage.discard(0, Bytes(CHUNK_LEN as u64));
                    self.state[chunk] = State::Far;
                    self.near -= 1;
                    less(&self.counts.near_bytes, CHUNK_LEN as u64);
                    add(&self.counts.far_bytes, CHUNK_LEN as u64);
                    add(&self.counts.evicted, 1);
                    return true;
                }
                Err(why) => self.complain(&format!("memory stays here, above the limit: {why}")),
            }
        }
        self.bring_back(chunk, moved);
        false
    }

    /// Pages of a chunk that could not leave as a whole.
    fn bring_back(&mut self, chunk: usize, pages: u64) {
        let (first, stage) = (self.range(chunk).first(), self.stage_range());
        let mut done = 0;
        while done < pages {
            let from = PageRange::new(PageNo(stage.first().0 + done), pages - done);
            // SAFETY: pages that were moved away just now, to where they were.
            match unsafe {
                self.device
                    .move_pages(PageNo(first.0 + done), from, MoveMode::default())
            } {
                Ok(()) => return,
                Err(Partial { done_pages, .. }) if done_pages > 0 => done += done_pages,
                Err(Partial {
                    cause: Cause::Again | Cause::NoMemory | Cause::Busy,
                    ..
                }) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Unmapped by the program meanwhile: nobody wants it any more.
                Err(_) => break,
            }
        }
        let _ = self.stage.discard(0, Bytes(CHUNK_LEN as u64));
    }

    fn lose(&mut self, chunk: usize, why: &str) {
        let at = self.range(chunk).first().addr();
        self.complained = false;
        self.complain(&format!(
            "the memory at {at:#x} is lost, touching it raises SIGBUS: {why}"
        ));
        self.state[chunk] = State::Lost;
        less(&self.counts.far_bytes, CHUNK_LEN as u64);
        add(&self.counts.lost, 1);
        self.poison(self.range(chunk));
    }

    fn poison(&self, range: PageRange) {
        for page in range.iter() {
            let _ = self.device.poison(PageRange::one(page), Wake::Later);
        }
        let _ = self.device.wake(range);
    }

    /// On standard error, once until something is lost. The lock of that stream is this library's own, and nobody
    /// holds it while he waits for a page.
    fn complain(&mut self, what: &str) {
        if std::mem::replace(&mut self.complained, true) {
            return;
        }
        eprintln!("muninn: {what}");
    }
}
