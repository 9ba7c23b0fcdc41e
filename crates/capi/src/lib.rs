//! Far memory from C: what `include/muninn.h` promises.
//!
//! Two ways, as the header has them: a pool that is read and written by calls, and an [`arena`](arena::Arena) of
//! ordinary memory whose pages are far. Invariant: no panic leaves this library; it becomes an error with its
//! message. Known limit: nothing here works in a child of fork.

mod arena;
mod far;

use arena::{Arena, Counts};
use muninn_net::{Grant, Key, Pool, PoolOptions};
use muninn_sys::files;
use muninn_types::{Bytes, GrantId, ServerId};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;

/// A key file longer than this is something else.
const KEY_FILE_MAX: u64 = 64 << 10;

/// As `muninn_grant` in the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CGrant {
    id: u64,
    bytes: u64,
    server: u32,
    reserved: u32,
}

/// As `muninn_arena_stats` in the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CStats {
    pub near_bytes: u64,
    pub far_bytes: u64,
    pub fetched: u64,
    pub evicted: u64,
    pub kept: u64,
    pub lost: u64,
}

impl From<&CGrant> for Grant {
    fn from(grant: &CGrant) -> Grant {
        Grant {
            server: ServerId(grant.server),
            id: GrantId(grant.id),
            bytes: Bytes(grant.bytes),
        }
    }
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

type Failed = String;

/// Runs it; what it fails with, or panics with, is kept for `muninn_error`.
fn guarded<T>(otherwise: T, action: impl FnOnce() -> Result<T, Failed>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(action));
    let message = match outcome {
        Ok(Ok(value)) => return value,
        Ok(Err(message)) => message,
        Err(_) => "a mistake in Muninn; what it said is on standard error".to_string(),
    };
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    ERROR.with(|error| *error.borrow_mut() = text);
    otherwise
}

fn text(error: impl std::fmt::Display) -> Failed {
    error.to_string()
}

/// # Safety
///
/// `text` is null, or ends with a zero and lives for as long as the answer is used.
unsafe fn string<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failed> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as promised by the caller.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes
        .to_str()
        .map(Some)
        .map_err(|_| format!("{what} is not UTF-8"))
}

/// # Safety
///
/// `pointer` is null or points to a `T` that lives for as long as the answer is used.
unsafe fn borrowed<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failed> {
    // SAFETY: as promised by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("{what} is NULL"))
}

fn key(path: Option<&str>) -> Result<Key, Failed> {
    let Some(path) = path else {
        return Ok(Key::none());
    };
    let failed = |error: &dyn std::fmt::Display| format!("cannot use the key file {path}: {error}");
    let file = files::open_found(Path::new(path)).map_err(|error| failed(&error))?;
    if let Some(why) = files::distrusted(Path::new(path), &file) {
        return Err(failed(&why));
    }
    let mut contents = Vec::new();
    file.take(KEY_FILE_MAX)
        .read_to_end(&mut contents)
        .map_err(|error| failed(&error))?;
    let key = Key::from_file_contents(&contents).map_err(|error| failed(&error));
    muninn_sys::secret::wipe(&mut contents);
    key
}

/// # Safety
///
/// Both are null or end with a zero.
unsafe fn connect(servers: *const c_char, key_file: *const c_char) -> Result<Pool, Failed> {
    // SAFETY: as promised by the caller.
    let (servers, key_file) = unsafe {
        (
            string(servers, "the list of servers")?,
            string(key_file, "the key file's path")?,
        )
    };
    let options = PoolOptions {
        key: key(key_file)?,
        ..PoolOptions::default()
    };
    Pool::connect(servers.ok_or("the list of servers is NULL")?, options).map_err(text)
}

#[unsafe(no_mangle)]
pub extern "C" fn muninn_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn muninn_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_pool_open(
    servers: *const c_char,
    key_file: *const c_char,
) -> *mut Pool {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: strings of the caller's.
        let pool = unsafe { connect(servers, key_file) }?;
        Ok(Box::into_raw(Box::new(pool)))
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_pool_close(pool: *mut Pool) {
    guarded((), || {
        if !pool.is_null() {
            // SAFETY: made by `muninn_pool_open`, and not used any more.
            drop(unsafe { Box::from_raw(pool) });
        }
        Ok(())
    });
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_grant_take(
    pool: *const Pool,
    bytes: u64,
    grant: *mut CGrant,
) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, out) = unsafe {
            (
                borrowed(pool, "the pool")?,
                grant.as_mut().ok_or("the grant is NULL")?,
            )
        };
        let granted = pool.grant(Bytes(bytes)).map_err(text)?;
        *out = CGrant {
            id: granted.id.0,
            bytes: granted.bytes.0,
            server: granted.server.0,
            reserved: 0,
        };
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_grant_release(pool: *const Pool, grant: *const CGrant) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, grant) = unsafe { (borrowed(pool, "the pool")?, borrowed(grant, "the grant")?) };
        pool.release(&[grant.into()]).map_err(text)?;
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_read(
    pool: *const Pool,
    grant: *const CGrant,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, grant) = unsafe { (borrowed(pool, "the pool")?, borrowed(grant, "the grant")?) };
        if bytes == 0 {
            return Ok(0);
        }
        if into.is_null() {
            return Err("what is read into is NULL".to_string());
        }
        // Through memory of ours: the caller's may hold no values yet, and other threads may look at it.
        let mut buffer = vec![0; bytes];
        pool.read(&grant.into(), offset, &mut buffer)
            .map_err(text)?;
        // SAFETY: the caller has that much memory there.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), into.cast(), bytes) };
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_write(
    pool: *const Pool,
    grant: *const CGrant,
    offset: u64,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, grant) = unsafe { (borrowed(pool, "the pool")?, borrowed(grant, "the grant")?) };
        if bytes == 0 {
            return Ok(0);
        }
        if from.is_null() {
            return Err("what is written is NULL".to_string());
        }
        let mut buffer: Vec<u8> = Vec::with_capacity(bytes);
        // SAFETY: the caller has that much memory there; all of the buffer is written before its length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(from.cast(), buffer.as_mut_ptr(), bytes);
            buffer.set_len(bytes);
        }
        pool.write(&grant.into(), offset, &buffer).map_err(text)?;
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_compare_swap(
    pool: *const Pool,
    grant: *const CGrant,
    offset: u64,
    expect: u64,
    desired: u64,
    found: *mut u64,
) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, grant, found) = unsafe {
            (
                borrowed(pool, "the pool")?,
                borrowed(grant, "the grant")?,
                found.as_mut(),
            )
        };
        let before = pool
            .compare_swap(&grant.into(), offset, expect, desired)
            .map_err(text)?;
        *found.ok_or("where to put what was found is NULL")? = before;
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_fetch_add(
    pool: *const Pool,
    grant: *const CGrant,
    offset: u64,
    add: u64,
    found: *mut u64,
) -> c_int {
    guarded(-1, || {
        // SAFETY: pointers of the caller's.
        let (pool, grant, found) = unsafe {
            (
                borrowed(pool, "the pool")?,
                borrowed(grant, "the grant")?,
                found.as_mut(),
            )
        };
        let before = pool.fetch_add(&grant.into(), offset, add).map_err(text)?;
        *found.ok_or("where to put what was found is NULL")? = before;
        Ok(0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_open(
    servers: *const c_char,
    key_file: *const c_char,
    bytes: u64,
    local: u64,
) -> *mut Arena {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: strings of the caller's.
        let pool = unsafe { connect(servers, key_file) }?;
        let arena = Arena::open(pool, Bytes(bytes), Bytes(local))?;
        Ok(Box::into_raw(Box::new(arena)))
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_close(arena: *mut Arena) {
    guarded((), || {
        if !arena.is_null() {
            // SAFETY: made by `muninn_arena_open`, and not used any more.
            drop(unsafe { Box::from_raw(arena) });
        }
        Ok(())
    });
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_base(arena: *const Arena) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: a pointer of the caller's.
        Ok(unsafe { borrowed(arena, "the arena")? }.base().cast())
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_size(arena: *const Arena) -> u64 {
    guarded(0, || {
        // SAFETY: a pointer of the caller's.
        Ok(unsafe { borrowed(arena, "the arena")? }.size().0)
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_take(
    arena: *const Arena,
    bytes: u64,
    align: u64,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: a pointer of the caller's.
        let arena = unsafe { borrowed(arena, "the arena")? };
        Ok(arena.take(bytes, align)?.cast())
    })
}

/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muninn_arena_look(arena: *const Arena, stats: *mut CStats) {
    guarded((), || {
        // SAFETY: pointers of the caller's.
        let (arena, stats) = unsafe { (borrowed(arena, "the arena")?, stats.as_mut()) };
        let Counts {
            near_bytes,
            far_bytes,
            fetched,
            evicted,
            kept,
            lost,
        } = arena.counts();
        let now = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        *stats.ok_or("the statistics are NULL")? = CStats {
            near_bytes: now(near_bytes),
            far_bytes: now(far_bytes),
            fetched: now(fetched),
            evicted: now(evicted),
            kept: now(kept),
            lost: now(lost),
        };
        Ok(())
    });
}
