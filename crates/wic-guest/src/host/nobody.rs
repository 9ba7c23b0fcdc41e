//! Where there is no host: every access fails, and in tests there is a service of a few words.

#[cfg(test)]
pub(crate) use tests::*;

#[cfg(not(test))]
pub(crate) use none::*;

#[cfg(not(test))]
mod none {
    const FAILED: i32 = 10;

    pub(crate) fn base() -> i64 {
        0
    }
    pub(crate) fn end() -> i64 {
        0
    }
    pub(crate) fn locks() -> i32 {
        0
    }
    pub(crate) fn pause() -> i32 {
        0
    }
    pub(crate) fn unlock(_: i32) -> i32 {
        FAILED
    }
    // As unsafe as what they stand for.
    pub(crate) unsafe fn args(_: *mut u8, _: usize) -> i32 {
        0
    }
    pub(crate) unsafe fn reply(_: *const u8, _: usize) {}
    pub(crate) unsafe fn read(_: i64, _: *mut u8, _: usize) -> i32 {
        FAILED
    }
    pub(crate) unsafe fn write(_: i64, _: *const u8, _: usize) -> i32 {
        FAILED
    }
    pub(crate) unsafe fn cas(_: i64, _: i64, _: i64, _: *mut u64) -> i32 {
        FAILED
    }
    pub(crate) unsafe fn fetch_add(_: i64, _: i64, _: *mut u64) -> i32 {
        FAILED
    }
    pub(crate) unsafe fn lock(_: i32, _: *mut u32) -> i32 {
        FAILED
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    /// A service of four words from address 64 on, with two locks, and a call of it.
    #[derive(Default)]
    pub(crate) struct Fake {
        pub(crate) words: [u64; 4],
        pub(crate) held: Vec<i32>,
        pub(crate) orphaned: bool,
        pub(crate) args: Vec<u8>,
        pub(crate) reply: Vec<u8>,
        pub(crate) pauses: u32,
    }

    thread_local! {
        pub(crate) static FAKE: RefCell<Fake> = RefCell::default();
    }

    pub(crate) fn base() -> i64 {
        64
    }
    pub(crate) fn end() -> i64 {
        96
    }
    pub(crate) fn locks() -> i32 {
        2
    }
    pub(crate) fn pause() -> i32 {
        FAKE.with_borrow_mut(|fake| fake.pauses += 1);
        0
    }
    pub(crate) fn unlock(index: i32) -> i32 {
        FAKE.with_borrow_mut(|fake| match fake.held.iter().position(|h| *h == index) {
            Some(at) => {
                fake.held.remove(at);
                0
            }
            None => 3,
        })
    }
    pub(crate) unsafe fn args(to: *mut u8, len: usize) -> i32 {
        FAKE.with_borrow(|fake| {
            let n = len.min(fake.args.len());
            // SAFETY: the caller has so much room there.
            unsafe { std::ptr::copy_nonoverlapping(fake.args.as_ptr(), to, n) };
            fake.args.len() as i32
        })
    }
    pub(crate) unsafe fn reply(from: *const u8, len: usize) {
        // SAFETY: the caller has so many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        FAKE.with_borrow_mut(|fake| fake.reply = bytes.to_vec());
    }
    fn index(at: i64, len: usize) -> Option<usize> {
        let fits = at >= 64 && at as usize + len <= 96 && at % 8 == 0;
        fits.then_some((at as usize - 64) / 8)
    }
    pub(crate) unsafe fn read(at: i64, to: *mut u8, len: usize) -> i32 {
        let Some(index) = index(at, len) else {
            return 1;
        };
        FAKE.with_borrow(|fake| {
            let from = fake.words[index..].as_ptr().cast();
            // SAFETY: both have so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        });
        0
    }
    pub(crate) unsafe fn write(at: i64, from: *const u8, len: usize) -> i32 {
        let Some(index) = index(at, len) else {
            return 1;
        };
        FAKE.with_borrow_mut(|fake| {
            let to = fake.words[index..].as_mut_ptr().cast();
            // SAFETY: both have so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        });
        0
    }
    fn word(at: i64, found: *mut u64, change: impl FnOnce(u64) -> u64) -> i32 {
        if at % 8 != 0 {
            return 2;
        }
        let Some(index) = index(at, 8) else {
            return 1;
        };
        FAKE.with_borrow_mut(|fake| {
            // SAFETY: the caller has a word there.
            unsafe { found.write(fake.words[index]) };
            fake.words[index] = change(fake.words[index]);
        });
        0
    }
    pub(crate) unsafe fn cas(at: i64, expect: i64, new: i64, found: *mut u64) -> i32 {
        word(at, found, |old| match old == expect as u64 {
            true => new as u64,
            false => old,
        })
    }
    pub(crate) unsafe fn fetch_add(at: i64, add: i64, found: *mut u64) -> i32 {
        word(at, found, |old| old.wrapping_add(add as u64))
    }
    pub(crate) unsafe fn lock(index: i32, orphaned: *mut u32) -> i32 {
        if index >= locks() {
            return 3;
        }
        FAKE.with_borrow_mut(|fake| {
            assert!(
                !fake.held.contains(&index),
                "the test would wait for itself"
            );
            fake.held.push(index);
            // SAFETY: the caller has room for it there.
            unsafe { orphaned.write(u32::from(fake.orphaned)) };
        });
        0
    }
}
