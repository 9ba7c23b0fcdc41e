//! What another process is: its name, its program, what it has mapped.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// What a process is called.
pub fn name_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(text.trim_end().to_string())
}

/// Whether a process runs the program that this one runs.
pub fn is_same_program(pid: u32) -> bool {
    let file = |pid: u32| {
        let metadata = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let own = file(std::process::id());
    own.is_some() && own == file(pid)
}

/// Whether a process has a file mapped in whose path these words are; `None` where that cannot be seen.
pub fn has_mapped(pid: u32, words: &str) -> Option<bool> {
    let text = fs::read(format!("/proc/{pid}/maps")).ok()?;
    // One that has ended, or is a thread of the kernel, has none at all.
    let any = !text.is_empty();
    let found = |line: &[u8]| {
        line.windows(words.len())
            .any(|part| part == words.as_bytes())
    };
    any.then(|| text.split(|byte| *byte == b'\n').any(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_itself() {
        let own = std::process::id();
        assert!(is_same_program(own));
        assert_eq!(has_mapped(own, "libc.so"), Some(true));
        assert_eq!(has_mapped(own, "no such library"), Some(false));
        assert!(name_of(own).is_some_and(|name| !name.is_empty()));
    }

    #[test]
    fn others_are_not() {
        assert!(!is_same_program(1) || std::process::id() == 1);
        assert_eq!(name_of(u32::MAX), None);
        assert_eq!(has_mapped(u32::MAX, "libc.so"), None);
    }
}
