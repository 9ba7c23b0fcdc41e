//! What a module imports. On other targets than WebAssembly there is no host, but for tests a small one.

#[cfg(target_arch = "wasm32")]
mod imports {
    #[link(wasm_import_module = "muninn")]
    unsafe extern "C" {
        pub(crate) safe fn base() -> i64;
        pub(crate) safe fn end() -> i64;
        pub(crate) safe fn locks() -> i32;
        pub(crate) safe fn pause() -> i32;
        pub(crate) safe fn unlock(index: i32) -> i32;
        // The host reads and writes where these point to, as far as they say.
        pub(crate) fn args(to: *mut u8, len: usize) -> i32;
        pub(crate) fn reply(from: *const u8, len: usize);
        pub(crate) fn read(at: i64, to: *mut u8, len: usize) -> i32;
        pub(crate) fn write(at: i64, from: *const u8, len: usize) -> i32;
        pub(crate) fn cas(at: i64, expect: i64, new: i64, found: *mut u64) -> i32;
        pub(crate) fn fetch_add(at: i64, add: i64, found: *mut u64) -> i32;
        pub(crate) fn lock(index: i32, orphaned: *mut u32) -> i32;
    }
}

#[cfg(target_arch = "wasm32")]
pub(crate) use imports::{base, end, locks, pause, unlock};

#[cfg(not(target_arch = "wasm32"))]
mod nobody;
#[cfg(not(target_arch = "wasm32"))]
use nobody as imports;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use nobody::{base, end, locks, pause, unlock};

#[cfg(test)]
pub(crate) use nobody::tests as nobody_tests;

/// How many bytes of arguments there are; as many as fit are copied.
pub(crate) fn args(to: &mut [u8]) -> usize {
    // SAFETY: the host writes into the slice only.
    unsafe { imports::args(to.as_mut_ptr(), to.len()) as usize }
}
pub(crate) fn reply(from: &[u8]) {
    // SAFETY: the host reads the slice only.
    unsafe { imports::reply(from.as_ptr(), from.len()) }
}
pub(crate) fn read(at: u64, to: &mut [u8]) -> i32 {
    // SAFETY: as for `args`.
    unsafe { imports::read(at as i64, to.as_mut_ptr(), to.len()) }
}
pub(crate) fn write(at: u64, from: &[u8]) -> i32 {
    // SAFETY: as for `reply`.
    unsafe { imports::write(at as i64, from.as_ptr(), from.len()) }
}
pub(crate) fn cas(at: u64, expect: u64, new: u64, found: &mut u64) -> i32 {
    // SAFETY: the host writes one word there.
    unsafe { imports::cas(at as i64, expect as i64, new as i64, found) }
}
pub(crate) fn fetch_add(at: u64, add: u64, found: &mut u64) -> i32 {
    // SAFETY: the host writes one word there.
    unsafe { imports::fetch_add(at as i64, add as i64, found) }
}
pub(crate) fn lock(index: u32, orphaned: &mut u32) -> i32 {
    // SAFETY: the host writes 4 bytes there.
    unsafe { imports::lock(index as i32, orphaned) }
}
