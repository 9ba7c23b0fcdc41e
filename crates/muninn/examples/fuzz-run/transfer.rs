//! System calls whose buffers lie in memory that may be far: from one area, through the kernel, into
//! another.

use crate::actor::Actor;
use crate::calls::{self, check, errno};
use crate::model::{Guard, Kind, PAGE, Page};
use crate::step::{Filling, Part, Pick, Way};
use crate::uring;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// What an empty pipe or socket takes without anybody reading.
const CHUNK: usize = 16 * PAGE;

/// More than that at a time only takes longer.
const RANDOM_PAGES_MAX: usize = 32;

impl Actor {
    pub fn copy(
        &mut self,
        from: Pick,
        part: Part,
        to: Pick,
        at: Part,
        way: Way,
        salt: u64,
    ) -> Result<(), String> {
        let aligned = |kind: Kind| kind != Kind::Heap || !matches!(way, Way::Direct);
        let from = self.find(from, |area| aligned(area.kind));
        let to = self.find(to, |area| aligned(area.kind));
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(());
        };
        let source = self.run(from, part, Page::is_steady);
        let target = self.run(to, at, Page::is_writable);
        let (Some((read, readable)), Some((written, writable))) = (source, target) else {
            return Ok(());
        };
        let count = readable.min(writable);
        if from == to && read < written + count && written < read + count {
            return Ok(());
        }
        let source = self.area(from).address(read);
        let target = self.area(to).address(written);
        carry(source, target, count * PAGE, way)?;
        for n in 0..count {
            let content = self.area(from).pages[read + n].content.clone();
            self.area_mut(to).pages[written + n].content = content;
        }
        if salt.is_multiple_of(2) {
            self.check(to, written, count)?;
        }
        Ok(())
    }

    /// The kernel refuses to write where the program may not, and nothing changes.
    pub fn forbidden(&mut self, pick: Pick) -> Result<(), String> {
        let closed = |page: &Page| page.guard != Guard::Open;
        let Some(slot) = self.find(pick, |area| area.pages.iter().any(closed)) else {
            return Ok(());
        };
        let area = self.area(slot);
        let page = area.pages.iter().position(closed).unwrap_or(0);
        let zeros = File::open("/dev/zero").map_err(|error| format!("/dev/zero: {error}"))?;
        // SAFETY: the page is mapped without the right to write, which is what is being checked.
        let answer = unsafe { libc::read(zeros.as_raw_fd(), area.address(page) as *mut _, 64) };
        match Error::last_os_error().raw_os_error() {
            Some(libc::EFAULT) if answer < 0 => Ok(()),
            error => Err(format!(
                "read to a closed page answered {answer} ({error:?})"
            )),
        }
    }

    /// What the kernel writes is unknown, and written over.
    pub fn random(&mut self, pick: Pick, part: Part, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((from, count)) = self.run(slot, part, Page::is_writable) else {
            return Ok(());
        };
        let count = count.min(RANDOM_PAGES_MAX);
        let at = self.area(slot).address(from);
        // SAFETY: the shadow says that these pages may be written.
        let answer = unsafe { libc::getrandom(at as *mut _, count * PAGE, 0) };
        if answer < 0 && errno() != libc::EINTR {
            return Err(format!("getrandom: {}", Error::last_os_error()));
        }
        self.fill_pages(slot, from, count, Filling::Own, salt);
        Ok(())
    }
}

fn carry(from: usize, to: usize, len: usize, way: Way) -> Result<(), String> {
    match way {
        Way::MemCpy => {
            crate::memory::copy(from, len, to);
            Ok(())
        }
        Way::Pipe => {
            let (output, input) = pipe()?;
            chunks(from, to, len, &input, &output)
        }
        Way::Socket => {
            let (one, other) = socket_pair()?;
            chunks(from, to, len, &one, &other)
        }
        Way::MemFd => {
            let file = memfd()?;
            calls::write_from(file.as_raw_fd(), from, len)?;
            // SAFETY: a plain call.
            check("lseek", unsafe {
                libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET)
            })?;
            calls::read_to(file.as_raw_fd(), to, len)
        }
        Way::FileV => {
            let file = temporary(0)?;
            vectors(&file, from, to, len)
        }
        Way::FileP => there_and_back(&temporary(0)?, from, to, len),
        Way::Direct => {
            let file = temporary(libc::O_DIRECT).or_else(|_| temporary(0))?;
            there_and_back(&file, from, to, len)
        }
        Way::SendFile => send_file(from, to, len),
        Way::ProcessVmRead => between(from, to, len, libc::process_vm_readv, false),
        Way::ProcessVmWrite => between(from, to, len, libc::process_vm_writev, true),
        Way::ProcMem => {
            let memory = File::options()
                .read(true)
                .write(true)
                .open("/proc/self/mem");
            let memory = memory.map_err(|error| format!("/proc/self/mem: {error}"))?;
            all("write of /proc/self/mem", len, |done| {
                // SAFETY: writes to memory that the shadow says may be written.
                unsafe {
                    let at = (from + done) as *const _;
                    libc::pwrite(memory.as_raw_fd(), at, len - done, (to + done) as i64)
                }
            })
        }
        Way::Uring => uring::there_and_back(&temporary(0)?, from, to, len),
    }
}

/// Calls until everything is done; a call may do a part.
pub fn all(what: &str, len: usize, mut call: impl FnMut(usize) -> isize) -> Result<(), String> {
    let mut done = 0;
    while done < len {
        match call(done) {
            n if n > 0 => done += n as usize,
            0 => return Err(format!("{what}: the end after {done} of {len} bytes")),
            _ if errno() == libc::EINTR => {}
            _ => {
                let error = Error::last_os_error();
                return Err(format!("{what}: {error} after {done} of {len} bytes"));
            }
        }
    }
    Ok(())
}

fn chunks(
    from: usize,
    to: usize,
    len: usize,
    input: &OwnedFd,
    output: &OwnedFd,
) -> Result<(), String> {
    for done in (0..len).step_by(CHUNK) {
        let part = CHUNK.min(len - done);
        calls::write_from(input.as_raw_fd(), from + done, part)?;
        calls::read_to(output.as_raw_fd(), to + done, part)?;
    }
    Ok(())
}

fn there_and_back(file: &File, from: usize, to: usize, len: usize) -> Result<(), String> {
    let fd = file.as_raw_fd();
    // SAFETY: the shadows say that the one may be read and the other written.
    unsafe {
        all("pwrite", len, |done| {
            libc::pwrite(fd, (from + done) as *const _, len - done, done as i64)
        })?;
        all("pread", len, |done| {
            libc::pread(fd, (to + done) as *mut _, len - done, done as i64)
        })
    }
}

/// Three pieces of what is left, none of them whole pages.
fn pieces(at: usize, len: usize) -> [libc::iovec; 3] {
    let (first, second) = (len / 3, len / 2);
    let piece = |from: usize, to: usize| libc::iovec {
        iov_base: (at + from) as *mut _,
        iov_len: to - from,
    };
    [piece(0, first), piece(first, second), piece(second, len)]
}

fn vectors(file: &File, from: usize, to: usize, len: usize) -> Result<(), String> {
    let fd = file.as_raw_fd();
    all("writev", len, |done| {
        let list = pieces(from + done, len - done);
        // SAFETY: the list names memory that the shadow says may be read.
        unsafe { libc::writev(fd, list.as_ptr(), 3) }
    })?;
    all("preadv", len, |done| {
        let list = pieces(to + done, len - done);
        // SAFETY: the list names memory that the shadow says may be written.
        unsafe { libc::preadv(fd, list.as_ptr(), 3, done as i64) }
    })
}

fn send_file(from: usize, to: usize, len: usize) -> Result<(), String> {
    let file = memfd()?;
    calls::write_from(file.as_raw_fd(), from, len)?;
    let (output, input) = pipe()?;
    let mut offset = 0i64;
    for done in (0..len).step_by(CHUNK) {
        let part = CHUNK.min(len - done);
        all("sendfile", part, |sent| {
            // SAFETY: the offset is ours.
            unsafe {
                let (to, from) = (input.as_raw_fd(), file.as_raw_fd());
                libc::sendfile(to, from, &mut offset, part - sent)
            }
        })?;
        calls::read_to(output.as_raw_fd(), to + done, part)?;
    }
    Ok(())
}

type Between = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// From this process to itself, as if it were another.
fn between(from: usize, to: usize, len: usize, call: Between, write: bool) -> Result<(), String> {
    all("process_vm_readv or writev", len, |done| {
        let (source, target) = (
            pieces(from + done, len - done),
            pieces(to + done, len - done),
        );
        let (own, other) = if write {
            (source, target)
        } else {
            (target, source)
        };
        // SAFETY: the lists name memory that the shadows say may be read and written.
        unsafe { call(libc::getpid(), own.as_ptr(), 3, other.as_ptr(), 3, 0) }
    })
}

/// The reading and the writing end.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    let (output, input) = calls::pipe()?;
    // SAFETY: made a moment ago, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(output), OwnedFd::from_raw_fd(input)) })
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), String> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    let answer = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    check("socketpair", answer.into())?;
    // SAFETY: made a moment ago, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn memfd() -> Result<OwnedFd, String> {
    // SAFETY: the name is a string with its end.
    let fd = unsafe { libc::memfd_create(c"fuzz-run".as_ptr(), libc::MFD_CLOEXEC) };
    check("memfd_create", fd.into())?;
    // SAFETY: made a moment ago, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file without a name in the folder for such files.
fn temporary(flags: i32) -> Result<File, String> {
    let folder = std::env::temp_dir();
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(libc::O_TMPFILE | flags);
    let opened = options.open(&folder);
    opened.map_err(|error| format!("a file in {}: {error}", folder.display()))
}
