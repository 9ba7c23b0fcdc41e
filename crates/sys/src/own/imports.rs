//! Functions of the C library, called past the program.
//!
//! What a library calls is looked up in the program first. One that is not position-independent and takes
//! the address of, say, `poll` has a place of its own for it, which then is `poll` for everybody; who
//! calls it first is led through the loader's tables, in memory of the program that may be far: the pager
//! would wait for himself. So when this library is loaded, each of its imports that leads into the
//! program is replaced by the one that the libraries after it have.
//!
//! Known limit: only functions. A variable of the C library that such a program uses lives in the program.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;

use muninn_types::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

/// Tags of the dynamic section, and the two kinds of relocation that name an import.
const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
#[cfg(target_arch = "x86_64")]
const IMPORTS: [u64; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const IMPORTS: [u64; 2] = [1025, 1026];
/// A function, or one that the C library chooses by processor.
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_WEAK: u8 = 2;

/// Whoever frees must be the one who allocated, also inside of the C library. Our threads call none of these.
const ALLOCATORS: [&[u8]; 5] = [b"malloc", b"calloc", b"realloc", b"free", b"posix_memalign"];

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
        let is_function = matches!(symbol.st_info & 0xf, STT_FUNC | STT_GNU_IFUNC | 0);
        if symbol.st_shndx != 0 || !is_function || !program.contains(&now) {
            return Some(false);
        }
        let name = self.strings + symbol.st_name as usize;
        let name: *const c_char = std::ptr::with_exposed_provenance(name);
        // SAFETY: a name of the table.
        if ALLOCATORS.contains(&unsafe { CStr::from_ptr(name) }.to_bytes()) {
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
