//! Keeping secrets in this process: out of swap, out of dumps, out of the reach of others.
//!
//! Known limit: root may read anything. Copies that are made while a secret is used lie where they lie;
//! they are why the whole process is hidden, too.

use muninn_types::PAGE_SIZE;
use rustix::mm::{Advice, madvise, mlock};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// From now on other processes of this user can neither trace this one nor read its memory, and it
/// leaves no dump. Programs that it starts are as others are.
pub fn hide_process() {
    // Fails for values that the kernel does not know only.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Keeps the pages that hold some bytes of ours out of swap, as far as the limit of locked memory
/// allows, and out of dumps and children.
pub fn lock(bytes: &[u8]) {
    let start = bytes.as_ptr().addr() / PAGE_SIZE * PAGE_SIZE;
    let end = (bytes.as_ptr().addr() + bytes.len()).next_multiple_of(PAGE_SIZE);
    let pointer = std::ptr::with_exposed_provenance_mut(start);
    let _ = bytes.as_ptr().expose_provenance();
    // SAFETY: neither changes what is in memory; the pages are mapped, as some of their bytes are.
    unsafe {
        let _ = mlock(pointer, end - start);
        let _ = madvise(pointer, end - start, Advice::LinuxDontDump);
    }
}

/// Overwrites bytes that were a secret, whatever the compiler thinks of bytes nobody reads.
pub fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a byte that is borrowed mutably may be written.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of the mapping that an address lies in.
    fn flags_of(address: usize) -> String {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|word| {
                let (first, last) = word.split_once('-')?;
                let hex = |text| usize::from_str_radix(text, 16).ok();
                Some(hex(first)?..hex(last)?)
            });
            if let Some(range) = range {
                inside = range.contains(&address);
            } else if inside && line.starts_with("VmFlags:") {
                return line.to_string();
            }
        }
        panic!("the address is not mapped");
    }

    #[test]
    fn a_secret_is_neither_swapped_nor_dumped() {
        let secret = vec![7u8; 3 * PAGE_SIZE];
        lock(&secret[PAGE_SIZE..PAGE_SIZE + 32]);
        let flags = flags_of(secret.as_ptr().addr() + PAGE_SIZE);
        assert!(flags.contains(" dd"), "{flags}");
        let limit = crate::limits::limit(crate::limits::Limited::LockedMemory);
        if limit.soft == Some(0) {
            muninn_testing::skip("no memory may be locked here");
        } else {
            assert!(flags.contains(" lo"), "{flags}");
        }
        assert_eq!(secret[PAGE_SIZE], 7);
    }

    /// Run by the test below, in a process of its own.
    #[test]
    fn hidden() {
        if std::env::var_os("MUNINN_TEST_HIDE").is_some() {
            hide_process();
            assert_eq!(
                rustix::process::dumpable_behavior().unwrap(),
                DumpableBehavior::NotDumpable
            );
        }
    }

    #[test]
    fn a_process_can_be_hidden() {
        let own = std::env::current_exe().unwrap();
        let ended = std::process::Command::new(own)
            .args(["secret::tests::hidden", "--exact"])
            .env("MUNINN_TEST_HIDE", "1")
            .output()
            .unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
}
