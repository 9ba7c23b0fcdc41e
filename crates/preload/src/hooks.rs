//! When the library is loaded, and when the program forks.

use muninn_job::VARIABLE;
use std::sync::OnceLock;

/// The job's file. Kept in memory that children have, too: the heap they do not.
static JOB: OnceLock<Path> = OnceLock::new();

struct Path {
    bytes: [u8; 4096],
    len: usize,
}

impl Path {
    fn get(&'static self) -> &'static str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return;
    };
    let name = name.as_encoded_bytes();
    let mut path = Path {
        bytes: [0; 4096],
        len: name.len(),
    };
    if name.len() > path.bytes.len() {
        return;
    }
    path.bytes[..name.len()].copy_from_slice(name);
    let job = JOB.get_or_init(|| path).get();
    crate::start(job);
}
