//! Thread-local storage for threads that the C library does not know.
//!
//! A thread that the C library makes gets a block of memory with the thread-local variables of every
//! library that was there at the start, a descriptor of itself above them, and a table of where each
//! library's variables are. The same is built here for threads of ours, from what the dynamic loader
//! tells about its libraries, so that `errno` and the standard library's own variables work in them
//! and nothing of the program is used: no memory from its allocator, no lock, no list.
//!
//! Invariant: every library of the start has its entry in the table, so that looking one up takes
//! neither the loader's lock nor memory, whatever the program loads later. Known limits: variables of
//! libraries that are loaded later must not be used by our threads; the layout is that of glibc on
//! x86-64 (a block below the descriptor, the table in its second word).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Libraries with thread-local variables at the start.
const MODULES_MAX: usize = 64;
/// Entries of the table: libraries loaded later only need to be countable.
const TABLE_ENTRIES: usize = 1024;
/// Room for the descriptor of a thread; glibc's has 2.3 KiB.
const DESCRIPTOR_BYTES: usize = 4096;
/// A block further away from the descriptor than this is not one of the start.
const BLOCK_MAX: usize = 16 << 20;

/// Words of the descriptor that the rest of the library relies on, in bytes from its start.
const SELF: usize = 0x00;
const TABLE: usize = 0x08;
const SELF_AGAIN: usize = 0x10;
/// The stack protector's value, the pointer guard, and which processor features are in use.
const COPIED: [usize; 3] = [0x28, 0x30, 0x48];

struct Module {
    id: AtomicUsize,
    /// Bytes from its variables up to the descriptor.
    below: AtomicUsize,
    image: AtomicUsize,
    image_len: AtomicUsize,
}

static MODULES: [Module; MODULES_MAX] = [const {
    Module {
        id: AtomicUsize::new(0),
        below: AtomicUsize::new(0),
        image: AtomicUsize::new(0),
        image_len: AtomicUsize::new(0),
    }
}; MODULES_MAX];
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// Bytes of all blocks together.
static BLOCK: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's descriptor.
fn descriptor() -> usize {
    let own: usize;
    // SAFETY: the first word of a descriptor is its own address.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) own, options(nostack, readonly)) };
    own
}

/// # Safety
///
/// The address must be that of a word of a descriptor.
unsafe fn word(address: usize) -> *mut usize {
    std::ptr::with_exposed_provenance_mut(address)
}

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader hands out a description that is valid during the call.
    let info = unsafe { &*info };
    let variables = info.dlpi_tls_data.addr();
    let below = descriptor().wrapping_sub(variables);
    if info.dlpi_tls_modid == 0 || variables == 0 || below > BLOCK_MAX {
        return 0;
    }
    // SAFETY: as many headers as it says.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_TLS) else {
        return 0;
    };
    let at = FOUND.load(Ordering::Relaxed);
    let Some(module) = MODULES.get(at) else {
        return 1;
    };
    module.id.store(info.dlpi_tls_modid, Ordering::Relaxed);
    module.below.store(below, Ordering::Relaxed);
    let image = (info.dlpi_addr + header.p_vaddr) as usize;
    module.image.store(image, Ordering::Relaxed);
    let len = header.p_filesz as usize;
    module.image_len.store(len, Ordering::Relaxed);
    BLOCK.fetch_max(below, Ordering::Relaxed);
    FOUND.store(at + 1, Ordering::Release);
    0
}

/// Finds the libraries of the start. To be called once, while the library is loaded: later the
/// loader's lock may be held by a thread that waits for us. False if there are too many of them.
pub fn learn() -> bool {
    FOUND.store(0, Ordering::Relaxed);
    // SAFETY: the function only reads what it is handed.
    let ended = unsafe { libc::dl_iterate_phdr(Some(note), std::ptr::null_mut()) };
    ended == 0 && FOUND.load(Ordering::Relaxed) > 0
}

/// Bytes that [`build`] takes.
pub fn bytes() -> usize {
    let table = (TABLE_ENTRIES + 2) * 16;
    (BLOCK.load(Ordering::Relaxed).next_multiple_of(64) + DESCRIPTOR_BYTES + table)
        .next_multiple_of(4096)
}

/// Builds the storage of a new thread; the address of its descriptor.
///
/// # Safety
///
/// `at` must be [`bytes`] of zeroed memory, aligned to pages, that belong to the new thread alone.
/// [`learn`] must have been called.
pub(super) unsafe fn build(at: *mut u8) -> usize {
    let block = BLOCK.load(Ordering::Relaxed).next_multiple_of(64);
    let new = at.expose_provenance() + block;
    let table = new + DESCRIPTOR_BYTES;
    let now = descriptor();
    // SAFETY: everything written lies in the caller's memory: blocks below the descriptor, words of
    // the descriptor, entries of the table; what is read is the calling thread's own descriptor and
    // table, and images that stay as long as their libraries, which are never unloaded.
    unsafe {
        let generation = *word(*word(now + TABLE));
        // The table begins one entry before its first: its length. Then comes its age.
        *word(table) = TABLE_ENTRIES - 2;
        let entries = table + 16;
        *word(entries) = generation;
        for entry in 1..TABLE_ENTRIES {
            // Not there: for what is loaded later.
            *word(entries + entry * 16) = usize::MAX;
        }
        let found = FOUND.load(Ordering::Acquire);
        for module in &MODULES[..found.min(MODULES_MAX)] {
            let id = module.id.load(Ordering::Relaxed);
            let variables = new - module.below.load(Ordering::Relaxed);
            let image = *word(&raw const module.image as usize);
            let len = module.image_len.load(Ordering::Relaxed);
            word(variables)
                .cast::<u8>()
                .copy_from_nonoverlapping(word(image).cast::<u8>(), len);
            if id < TABLE_ENTRIES {
                *word(entries + id * 16) = variables;
            }
        }
        *word(new + SELF) = new;
        *word(new + TABLE) = entries;
        *word(new + SELF_AGAIN) = new;
        for copied in COPIED {
            *word(new + copied) = *word(now + copied);
        }
    }
    new
}
