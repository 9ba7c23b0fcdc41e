//! Every page fault of what this thread starts, from outside of it.
//!
//! The kernel has two tracepoints for page faults, in a program and in the kernel on its behalf. Events for
//! both are opened on the calling thread, one for each CPU, and inherited by all that it starts afterwards.
//! The kernel writes into rings that are read here; nothing is stopped and nothing runs in the program.
//! Faults say where, of whom, when, and whether something was to be written; what a process is called,
//! and when it executes another program, comes in the same rings, so in order.
//!
//! Known limits: needs root (or `CAP_PERFMON`) and the tracepoints. Who is slow to [`Recorder::drain`]
//! loses some; they are counted. The kinds of record and their layout are those of
//! `linux/perf_event.h`.

use crate::memory::{MapOptions, Mapping, MemoryError};
use muninn_types::{Bytes, PAGE_SIZE};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Both tracepoints; their records are the same.
const TRACEPOINTS: [&str; 2] = ["page_fault_user", "page_fault_kernel"];
/// Where the kernel describes them, if somebody has mounted it.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Pages of a ring beside its head; a power of two. A fault takes 80 bytes.
const RING_PAGES: usize = 1024;

const TYPE_TRACEPOINT: u32 = 2;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_RAW: u64 = 1 << 10;
const INHERIT: u64 = 1 << 1;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const COMM_EXEC: u64 = 1 << 24;
const FLAG_CLOEXEC: u64 = 1 << 3;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
const MISC_COMM_EXEC: u16 = 1 << 13;
/// Of the code that the processor gives for a fault.
const ERROR_WRITE: u64 = 1 << 1;
/// In a record of the tracepoint.
const AT_ADDRESS: usize = 8;
const AT_CODE: usize = 24;
/// In the head of a ring.
const AT_HEAD: usize = 1024;
const AT_TAIL: usize = 1032;

/// `struct perf_event_attr`, as long as the kernel's first version of it.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_at: u64,
}

/// Why faults cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    #[error(
        "the kernel describes no tracepoint for page faults ({0}): it was built without, or this user may not see them; run as root"
    )]
    NoTracepoint(io::Error),
    #[error("the kernel's tracepoint for page faults is not as it is known here: {0}")]
    OtherTracepoint(String),
    #[error(
        "page faults cannot be recorded ({0}): run as root, or lower kernel.perf_event_paranoid"
    )]
    Open(Errno),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("the CPUs of this machine cannot be listed: {0}")]
    Cpus(io::Error),
}

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Fault {
        address: u64,
        write: bool,
    },
    /// A thread calls itself so; `exec`: because its process has executed another program.
    Name {
        name: String,
        exec: bool,
    },
    /// A thread or a process was made by another process.
    Born {
        parent: u32,
    },
}

/// An event with its thread and the time in nanoseconds of the kernel's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub process: u32,
    pub thread: u32,
    pub time_ns: u64,
    pub event: Event,
}

/// All rings.
#[derive(Debug)]
pub struct Recorder {
    rings: Vec<Ring>,
    lost: u64,
}

#[derive(Debug)]
struct Ring {
    mapping: Mapping,
    _event: OwnedFd,
}

impl Recorder {
    /// From now on, of all that the calling thread starts.
    pub fn of_children() -> Result<Recorder, PerfError> {
        let ids = tracepoints()?;
        let mut rings = Vec::new();
        for cpu in cpus().map_err(PerfError::Cpus)? {
            for (at, id) in ids.iter().enumerate() {
                // Names are wanted once.
                let names = if at == 0 { COMM | TASK | COMM_EXEC } else { 0 };
                rings.push(Ring::open(*id, cpu, INHERIT | SAMPLE_ID_ALL | names)?);
            }
        }
        Ok(Recorder { rings, lost: 0 })
    }

    /// Hands over what was recorded since the last time, of each CPU in order.
    pub fn drain(&mut self, mut each: impl FnMut(Record)) {
        for ring in &self.rings {
            self.lost += ring.drain(&mut each);
        }
    }

    /// Records for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Ring {
    fn open(id: u64, cpu: i32, flags: u64) -> Result<Ring, PerfError> {
        let attr = Attr {
            kind: TYPE_TRACEPOINT,
            size: size_of::<Attr>() as u32,
            config: id,
            period: 1,
            sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_RAW,
            flags,
            ..Attr::default()
        };
        // SAFETY: a description of as many bytes as it says; this thread, one CPU, no group.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                0,
                cpu,
                -1,
                FLAG_CLOEXEC,
            )
        };
        if opened < 0 {
            let error = io::Error::last_os_error();
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
            return Err(PerfError::Open(errno));
        }
        // SAFETY: new, and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(opened as i32) };
        let len = Bytes::pages(1 + RING_PAGES as u64);
        let mapping = MapOptions::default().shared().file(&event, 0, len)?;
        Ok(Ring {
            mapping,
            _event: event,
        })
    }

    /// How many were lost.
    fn drain(&self, each: &mut impl FnMut(Record)) -> u64 {
        const RING: usize = RING_PAGES * PAGE_SIZE;
        let start = self.mapping.as_ptr();
        let word = |at: usize| {
            // SAFETY: inside of the mapping, aligned, and only ever read and written as words, by the
            // kernel as well.
            unsafe { AtomicU64::from_ptr(start.add(at).cast()) }
        };
        let (head, tail) = (word(AT_HEAD), word(AT_TAIL));
        let (mut at, end) = (tail.load(Ordering::Relaxed), head.load(Ordering::Acquire));
        let mut lost = 0;
        let mut bytes = Vec::new();
        while end - at >= 8 {
            let copy = |at: u64, len: usize, into: &mut Vec<u8>| {
                into.clear();
                let from = at as usize % RING;
                let first = len.min(RING - from);
                // SAFETY: the kernel writes behind `end` only until the tail is moved, so these bytes
                // are still; both pieces are inside of the ring.
                unsafe {
                    let data = start.add(PAGE_SIZE);
                    into.extend_from_slice(std::slice::from_raw_parts(data.add(from), first));
                    into.extend_from_slice(std::slice::from_raw_parts(data, len - first));
                }
            };
            copy(at, 8, &mut bytes);
            let len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
            if len < 8 || len as u64 > end - at {
                // Nonsense: what is left cannot be told apart.
                lost += 1;
                at = end;
                break;
            }
            copy(at, len, &mut bytes);
            match parse(&bytes) {
                Some(Parsed::Record(record)) => each(record),
                Some(Parsed::Lost(records)) => lost += records,
                None => {}
            }
            at += len as u64;
        }
        tail.store(at, Ordering::Release);
        lost
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Record(Record),
    Lost(u64),
}

/// One record with its head; `None` for kinds that are of no use here.
fn parse(bytes: &[u8]) -> Option<Parsed> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let misc = (u32_at(4)? & 0xffff) as u16;
    // Behind every record but a fault: process, thread and time once more.
    let time_at_end = || u64_at(bytes.len().checked_sub(8)?);
    let (process, thread, time_ns, event) = match u32_at(0)? {
        RECORD_LOST => return Some(Parsed::Lost(u64_at(16)?)),
        RECORD_COMM => {
            let name = bytes.get(16..bytes.len().checked_sub(16)?)?;
            let end = name
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(name.len());
            let event = Event::Name {
                name: String::from_utf8_lossy(&name[..end]).into_owned(),
                exec: misc & MISC_COMM_EXEC != 0,
            };
            (u32_at(8)?, u32_at(12)?, time_at_end()?, event)
        }
        RECORD_FORK => {
            let parent = u32_at(12)?;
            (u32_at(8)?, u32_at(16)?, u64_at(24)?, Event::Born { parent })
        }
        RECORD_SAMPLE => {
            const RAW: usize = 8 + 8 + 8 + 4;
            let event = Event::Fault {
                address: u64_at(RAW + AT_ADDRESS)?,
                write: u64_at(RAW + AT_CODE)? & ERROR_WRITE != 0,
            };
            (u32_at(8)?, u32_at(12)?, u64_at(16)?, event)
        }
        _ => return None,
    };
    Some(Parsed::Record(Record {
        process,
        thread,
        time_ns,
        event,
    }))
}

/// The numbers of both tracepoints.
fn tracepoints() -> Result<Vec<u64>, PerfError> {
    let mounted = TRACEFS.map(Path::new).into_iter();
    let found = mounted
        .map(|root| root.join("events/exceptions"))
        .find(|folder| folder.join(TRACEPOINTS[0]).exists());
    match found {
        Some(folder) => read_tracepoints(&folder),
        // Nobody has mounted it: a thread that sees other mounts than everybody else does, and ends.
        None => std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let folder = mount_for_this_thread().map_err(PerfError::NoTracepoint)?;
                read_tracepoints(&folder.join("events/exceptions"))
            });
            let gone = || PerfError::NoTracepoint(io::ErrorKind::Other.into());
            looker.join().unwrap_or_else(|_| Err(gone()))
        }),
    }
}

/// The namespace goes with the thread, and the mount with it.
fn mount_for_this_thread() -> io::Result<PathBuf> {
    let at = c"/sys/kernel";
    // SAFETY: only this thread's view of the mounts is changed; all arguments are strings or nothing.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                c"tracefs".as_ptr(),
                at.as_ptr(),
                c"tracefs".as_ptr(),
                libc::MS_RDONLY,
                std::ptr::null(),
            ) == 0
    };
    match done {
        true => Ok(PathBuf::from("/sys/kernel")),
        false => Err(io::Error::last_os_error()),
    }
}

fn read_tracepoints(folder: &Path) -> Result<Vec<u64>, PerfError> {
    let read = |name: &str, file: &str| {
        let path = folder.join(name).join(file);
        std::fs::read_to_string(path).map_err(PerfError::NoTracepoint)
    };
    let id_of = |name: &&str| {
        let format = read(name, "format")?;
        for (field, at) in [("address", AT_ADDRESS), ("error_code", AT_CODE)] {
            let known = format!("unsigned long {field};\toffset:{at};\tsize:8;");
            if !format.contains(&known) {
                return Err(PerfError::OtherTracepoint(format!("{name} has no {known}")));
            }
        }
        let id = read(name, "id")?;
        let number = id.trim().parse();
        number.map_err(|_| PerfError::OtherTracepoint(format!("its number is '{}'", id.trim())))
    };
    TRACEPOINTS.iter().map(id_of).collect()
}

/// The CPUs that are on: `0-3,5`.
fn cpus() -> io::Result<Vec<i32>> {
    let path = "/sys/devices/system/cpu/online";
    let mut text = String::new();
    io::Read::read_to_string(&mut File::open(path)?, &mut text)?;
    let cpus = parse_cpus(text.trim());
    cpus.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} says {text}")))
}

fn parse_cpus(list: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<i32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("all"), None);
    }

    #[test]
    fn records_are_taken_apart_and_nonsense_is_passed_over() {
        let mut fault = Vec::new();
        fault.extend(RECORD_SAMPLE.to_le_bytes());
        fault.extend([0, 0, 64, 0]);
        fault.extend([7u32, 8].map(u32::to_le_bytes).concat());
        fault.extend(99u64.to_le_bytes());
        fault.extend(36u32.to_le_bytes());
        fault.extend([0u64, 0x1234_5000, 5, 6].map(u64::to_le_bytes).concat());
        let record = |event| {
            Some(Parsed::Record(Record {
                process: 7,
                thread: 8,
                time_ns: 99,
                event,
            }))
        };
        let (address, write) = (0x1234_5000, true);
        assert_eq!(parse(&fault), record(Event::Fault { address, write }));
        let mut name = Vec::new();
        name.extend(RECORD_COMM.to_le_bytes());
        name.extend([0, 0x20, 48, 0]);
        name.extend([7u32, 8].map(u32::to_le_bytes).concat());
        name.extend(b"java\0\0\0\0");
        name.extend([7u32, 8].map(u32::to_le_bytes).concat());
        name.extend(99u64.to_le_bytes());
        let event = Event::Name {
            name: "java".to_string(),
            exec: true,
        };
        assert_eq!(parse(&name), record(event));
        for len in 0..fault.len() {
            let _ = (parse(&fault[..len]), parse(&name[..len.min(name.len())]));
        }
    }

    /// A child that touches pages has its faults recorded, with its name.
    #[test]
    fn what_a_child_touches_is_recorded() {
        let mut recorder = match Recorder::of_children() {
            Ok(recorder) => recorder,
            Err(why) => {
                println!("SKIPPED: {why}");
                return;
            }
        };
        let mut child = Command::new("sh").args(["-c", ":"]).spawn().unwrap();
        child.wait().unwrap();
        let mut records = Vec::new();
        recorder.drain(|record| records.push(record));
        let own: Vec<&Record> = records.iter().filter(|r| r.process == child.id()).collect();
        let faults = own
            .iter()
            .filter(|r| matches!(r.event, Event::Fault { .. }));
        assert!(faults.count() > 50, "{own:?}");
        let writes = |wanted: bool| {
            let is =
                |r: &&&Record| matches!(r.event, Event::Fault { write, .. } if write == wanted);
            own.iter().filter(is).count()
        };
        assert!(writes(true) > 5 && writes(false) > 5, "{own:?}");
        let named =
            |r: &&Record| matches!(&r.event, Event::Name { name, exec: true } if name == "sh");
        assert!(own.iter().any(named), "{own:?}");
        assert_eq!(recorder.lost(), 0);
    }
}
