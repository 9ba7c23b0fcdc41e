//! Functions of the C library, called past the program.
//!
//! What a library calls is looked up in the program first. One that is not position-independent and takes
//! the address of, say, `poll` has a place of its own for it, which then is `poll` for everybody; who
//! calls it first is led through the loader's tables, in memory of the program that may be far: the pager
//! would wait for himself. So when this library is loaded, each of its imports that leads into the
//! program is replaced by the one that the libraries after it have.
//!
//! One import is replaced by a function of our own. The C library describes an error in the language of the
//! program, under a lock that asks for the calling thread's number. Threads of ours have none, and "unlocked"
//! a lock that nobody held: the program waited for ever at its next error.
//!
//! Known limit: only functions. A variable of the C library that such a program uses lives in the program.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use muninn_types::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

/// Tags of the dynamic section, and the two kinds of relocation that name an import (on x86-64).
const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const IMPORTS: [u64; 2] = [6, 7];
/// A function, or one that the C library chooses by processor.
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_WEAK: u8 = 2;

/// Whoever frees must be the one who allocated, also inside of the C library. Our threads call none of these.
const ALLOCATORS: [&[u8]; 5] = [b"malloc", b"calloc", b"realloc", b"free", b"posix_memalign"];

/// What the standard library calls to describe an error.
const STRERROR: &[u8] = b"__xpg_strerror_r";
/// The C library's table of descriptions, which takes no lock (glibc has had it since 2.32); 0 without it.
static TABLE: AtomicUsize = AtomicUsize::new(0);

/// In place of `strerror_r`: the description in English, or the number.
extern "C" fn describe(error: c_int, into: *mut c_char, len: usize) -> c_int {
    if len == 0 {
        return libc::ERANGE;
    }
    // SAFETY: the caller's buffer has so many bytes.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
    let mut number = [0; 16];
    let text = known(error).unwrap_or_else(|| unknown(error, &mut number));
    let end = text.len().min(len - 1);
    into[..end].copy_from_slice(&text[..end]);
    into[end] = 0;
    0
}

fn known(error: c_int) -> Option<&'static [u8]> {
    let table: *const () = std::ptr::with_exposed_provenance(TABLE.load(Ordering::Acquire));
    if table.is_null() {
        return None;
    }
    // SAFETY: the function of that name, which takes a number and returns a string that stays, or nothing.
    let text = unsafe {
        let table: extern "C" fn(c_int) -> *const c_char = std::mem::transmute(table);
        table(error)
    };
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn unknown(error: c_int, into: &mut [u8; 16]) -> &[u8] {
    use std::io::Write;
    let room = into.len();
    let mut rest = &mut into[..];
    let _ = write!(rest, "error {error}");
    let written = room - rest.len();
    &into[..written]
}

/// What is looked for among the loaded objects: the program comes first.
#[derive(Default)]
struct Found {
    program: Option<Range<usize>>,
    own: Option<Object>,
}

/// A loaded object with its tables.
#[derive(Clone, Copy, Default)]
struct Object {
    base: usize,
    strings: usize,
    symbols: usize,
    /// Where relocations begin, and how many bytes they have.
    relocations: [(usize, usize); 2],
    /// What can only be read once everything is in its place.
    read_only: (usize, usize),
}

/// How many imports led into the program; `None` if one still does.
pub fn lead_past_program() -> Option<usize> {
    let mut found = Found::default();
    // SAFETY: the function is called with the value given here, and keeps nothing of it.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let (Some(program), Some(own)) = (found.program, found.own) else {
        return Some(0);
    };
    // SAFETY: a string; what is found is only called as what it is.
    let table = unsafe { libc::dlsym(libc::RTLD_NEXT, c"strerrordesc_np".as_ptr()) };
    TABLE.store(table.expose_provenance(), Ordering::Release);
    let mut led = 0;
    for (start, bytes) in own.relocations {
        let first: *const libc::Elf64_Rela = std::ptr::with_exposed_provenance(start);
        let count = bytes / size_of::<libc::Elf64_Rela>();
        for at in 0..count {
            // SAFETY: the loader has read the same tables, which stay as long as this library.
            let import = unsafe { &*first.add(at) };
            // SAFETY: as above.
            led += usize::from(unsafe { own.lead(import, &program) }?);
        }
    }
    Some(led)
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: a description that is valid during the call, and what `lead_past_program` gave.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    // SAFETY: as many headers as it says.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let loaded = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let spans = loaded.map(|h| {
        let start = base + h.p_vaddr as usize;
        start..start + h.p_memsz as usize
    });
    let whole = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
    let whole = whole.unwrap_or(0..0);
    if found.program.is_none() {
        found.program = Some(whole.clone());
    }
    if !whole.contains(&(look as *const () as usize)) {
        return 0;
    }
    let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC);
    found.own = dynamic.map(|h| {
        let entries = std::ptr::with_exposed_provenance(base + h.p_vaddr as usize);
        // SAFETY: the dynamic section of a loaded object ends with an entry that says so.
        let mut own = unsafe { Object::read(base, entries) };
        if let Some(h) = headers.iter().find(|h| h.p_type == libc::PT_GNU_RELRO) {
            let start = base + h.p_vaddr as usize;
            // Whole pages only: what shares its last page with it can be written.
            let end = (start + h.p_memsz as usize) & !(PAGE_SIZE - 1);
            own.read_only = (start, end);
        }
        own
    });
    1
}

impl Object {
    /// # Safety
    ///
    /// The entries must be those of a loaded object, up to one of the kind that ends them.
    unsafe fn read(base: usize, mut entry: *const [u64; 2]) -> Object {
        let mut object = Object {
            base,
            ..Object::default()
        };
        loop {
            // SAFETY: not past the end, which was not seen yet.
            let [tag, value] = unsafe { *entry };
            let value = value as usize;
            match tag {
                DT_NULL => return object,
                DT_STRTAB => object.strings = value,
                DT_SYMTAB => object.symbols = value,
                DT_RELA => object.relocations[0].0 = value,
                DT_RELASZ => object.relocations[0].1 = value,
                DT_JMPREL => object.relocations[1].0 = value,
                DT_PLTRELSZ => object.relocations[1].1 = value,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
    }

    /// Whether an import led into the program; `None` if there is no other place for it.
    ///
    /// # Safety
    ///
    /// The relocation must be one of this object's.
    unsafe fn lead(&self, import: &libc::Elf64_Rela, program: &Range<usize>) -> Option<bool> {
        if !IMPORTS.contains(&(import.r_info & 0xffff_ffff)) {
            return Some(false);
        }
        let slot = self.base + import.r_offset as usize;
        let slot: *mut usize = std::ptr::with_exposed_provenance_mut(slot);
        let symbols: *const libc::Elf64_Sym = std::ptr::with_exposed_provenance(self.symbols);
        // SAFETY: the caller's promise: slot and symbol are this object's, and in its tables.
        let (now, symbol) = unsafe { (*slot, &*symbols.add((import.r_info >> 32) as usize)) };
        let name = self.strings + symbol.st_name as usize;
        let name: *const c_char = std::ptr::with_exposed_provenance(name);
        // SAFETY: a name of the table.
        let word = unsafe { CStr::from_ptr(name) }.to_bytes();
        if word == STRERROR {
            // SAFETY: a word of this library's table of imports, which nobody else changes.
            unsafe { self.replace(slot, describe as *const () as usize) }.ok()?;
            return Some(false);
        }
        let is_function = matches!(symbol.st_info & 0xf, STT_FUNC | STT_GNU_IFUNC | 0);
        if symbol.st_shndx != 0 || !is_function || !program.contains(&now) {
            return Some(false);
        }
        if ALLOCATORS.contains(&word) {
            return Some(false);
        }
        // SAFETY: as above; the one who calls is this library, so the search begins behind it.
        let past = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
        if past.is_null() || program.contains(&past.addr()) {
            // What need not be there at all is not called either.
            return (symbol.st_info >> 4 == STB_WEAK).then_some(false);
        }
        // SAFETY: a word of this library's table of imports, which nobody else changes.
        unsafe { self.replace(slot, past.expose_provenance()) }.ok()?;
        Some(true)
    }

    /// # Safety
    ///
    /// The slot must be a word of this object that nobody else uses meanwhile.
    unsafe fn replace(&self, slot: *mut usize, value: usize) -> Result<(), Errno> {
        let page = slot.map_addr(|at| at & !(PAGE_SIZE - 1)).cast();
        let (start, end) = self.read_only;
        let is_read_only = (start..end).contains(&slot.addr());
        // SAFETY: the page has the access afterwards that it had before.
        unsafe {
            if is_read_only {
                mprotect(page, PAGE_SIZE, MprotectFlags::READ | MprotectFlags::WRITE)?;
            }
            slot.write(value);
            if is_read_only {
                mprotect(page, PAGE_SIZE, MprotectFlags::READ)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(error: c_int, room: usize) -> String {
        let mut text = [1u8; 64];
        assert_eq!(describe(error, text.as_mut_ptr().cast(), room), 0);
        let text = CStr::from_bytes_until_nul(&text).unwrap();
        text.to_str().unwrap().to_string()
    }

    #[test]
    fn errors_are_described_without_the_c_librarys_lock() {
        assert_eq!(said(13, 64), "error 13");
        // SAFETY: a string.
        let table = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strerrordesc_np".as_ptr()) };
        TABLE.store(table.expose_provenance(), Ordering::Release);
        assert_eq!(said(13, 64), "Permission denied");
        assert_eq!(said(13, 5), "Perm");
        assert_eq!(said(99_999, 64), "error 99999");
        TABLE.store(0, Ordering::Release);
        assert_eq!(describe(13, std::ptr::null_mut(), 0), libc::ERANGE);
    }
}
