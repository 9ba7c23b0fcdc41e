//! The C library's `getenv`, past one of our own, and what was loaded beside us.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The C library's function; 0 until it is learnt.
static GETENV: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// Learns where the C library's `getenv` is. Before, [`getenv`] looks for itself.
pub fn learn_getenv() {
    // SAFETY: a string; what is found is only called as what it is.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getenv".as_ptr()) };
    GETENV.store(next.expose_provenance(), Ordering::Release);
}

/// What the C library's function of that name does.
///
/// # Safety
///
/// As C says: a string, and nobody changes the environment meanwhile.
pub unsafe fn getenv(name: *const c_char) -> *mut c_char {
    let known: *const () = std::ptr::with_exposed_provenance(GETENV.load(Ordering::Acquire));
    if !known.is_null() {
        // SAFETY: the function of that name; as the caller says.
        return unsafe {
            let known: unsafe extern "C" fn(*const c_char) -> *mut c_char =
                std::mem::transmute(known);
            known(name)
        };
    }
    // SAFETY: as the caller says; the list ends with a null pointer, and may be none at all.
    unsafe {
        let (name, mut at) = (CStr::from_ptr(name).to_bytes(), environ);
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if entry.starts_with(name) && entry.get(name.len()) == Some(&b'=') {
                return (*at).add(name.len() + 1);
            }
            at = at.add(1);
        }
    }
    std::ptr::null_mut()
}

struct Wanted<'a> {
    file: &'a str,
    path: Option<PathBuf>,
}

/// Where the library with this file name is, if it was loaded with the program.
pub fn loaded_library(file: &str) -> Option<PathBuf> {
    let mut wanted = Wanted { file, path: None };
    // SAFETY: the function is called with the value given here, and keeps nothing of it.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.path
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: a description that is valid during the call, and what `loaded_library` gave.
    let (info, wanted) = unsafe { (&*info, &mut *wanted.cast::<Wanted>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a name of the loader's.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next();
    if name != Some(wanted.file.as_bytes()) {
        return 0;
    }
    wanted.path = Some(PathBuf::from(OsStr::from_bytes(path)));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_with_and_without_the_c_library() {
        let path = std::env::var_os("PATH").unwrap();
        let read = |name: &CStr| {
            // SAFETY: a string, and these tests leave the environment alone.
            let value = unsafe { getenv(name.as_ptr()) };
            // SAFETY: a string of the environment.
            (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
        };
        let check = || {
            assert_eq!(read(c"PATH").as_deref(), Some(path.as_bytes()));
            assert_eq!(read(c"PAT"), None);
            assert_eq!(read(c"MUNINN_NOT_THERE"), None);
            assert_eq!(read(c""), None);
        };
        check();
        learn_getenv();
        check();
    }

    #[test]
    fn a_loaded_library_is_found_by_its_name() {
        let libc = loaded_library("libc.so.6").unwrap();
        assert!(libc.is_absolute() && libc.exists());
        assert_eq!(loaded_library("libc.so"), None);
        assert_eq!(loaded_library("c.so.6"), None);
    }
}
