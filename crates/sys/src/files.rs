//! What may be done with a file, and what it gives to those who execute it.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD};

/// Whether this user may execute the file.
pub fn may_execute(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Whether the file carries capabilities (setcap).
pub fn has_capabilities(path: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_be_executed_and_a_text_may_not() {
        assert!(may_execute(Path::new("/proc/self/exe")));
        assert!(!may_execute(Path::new("/etc/passwd")));
        assert!(!may_execute(Path::new("/not/there")));
        assert!(!has_capabilities(Path::new("/etc/passwd")));
    }
}
