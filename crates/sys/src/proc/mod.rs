//! What the kernel tells in text: `/proc` and `/sys`.
//!
//! All readers go through [`ProcSource`], one call that fills a buffer of the caller; the fake,
//! [`FakeProc`], gives texts of a test. Invariant: parsing never allocates and never panics, and a
//! field that is missing is 0 or `None`, never a guess. The sampler uses [`StatmReader`], which
//! keeps the file open: one `pread` per look.
//!
//! Known limit: files longer than [`TEXT_MAX`] are cut; `maps`, which may be longer, is read in
//! pieces by [`for_each_map`].

mod about;
mod alive;
mod fake;
mod inherit;
mod late_writes;
mod maps;
mod parse;
mod smaps;
mod threads;

pub use about::{has_mapped, is_same_program, name_of};
pub use alive::ProcessId;
pub use fake::FakeProc;
pub use inherit::{is_registered, not_inherited, not_inherited_of};
pub(crate) use late_writes::writes_later;
pub use late_writes::{LateWrites, holds_pages, late_writes};
pub use maps::{MapEntry, MapKind, Maps, MapsError, Permissions, for_each_map};
pub use parse::{MemInfo, SmapsRollup, Statm, Status};
pub use smaps::{MapMemory, for_each_map_memory};
pub use threads::{find_thread_of_program, has_memory_of};

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Longest text read in one piece: `/proc/meminfo` and its kind are a tenth of this.
pub const TEXT_MAX: usize = 16 << 10;

/// A file of the kernel could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcError {
    #[error("cannot read {path}: {source}; is /proc mounted, and is this process allowed to?")]
    Read { path: String, source: Errno },
    #[error("{path} holds '{text}', which is not what was expected there")]
    Unexpected { path: String, text: String },
}

/// Something that can read files of the kernel.
pub trait ProcSource {
    /// Reads from `offset` until `buffer` is full or the text ends; 0 at the end.
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno>;
}

/// The files themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealProc;

impl ProcSource for RealProc {
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let file = open(path)?;
        let mut filled = 0;
        while filled < buffer.len() {
            let n = pread(&file, &mut buffer[filled..], offset + filled as u64)?;
            if n == 0 {
                break;
            }
            filled += n;
        }
        Ok(filled)
    }
}

pub(crate) fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        crate::own::rooted(path),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn pread(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *buffer, offset))
}

/// The user this process acts as.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The group this process acts as.
pub fn own_gid() -> u32 {
    rustix::process::getegid().as_raw()
}

/// The id of this process.
pub fn own_pid() -> u32 {
    std::process::id()
}

/// The number here of a process that another, which may live among other numbers, knows by `number`.
pub fn number_here(of: u32, number: u32) -> Option<u32> {
    let namespace = |pid: u32| {
        let stat = rustix::fs::stat(format!("/proc/{pid}/ns/pid")).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    let theirs = namespace(of)?;
    if theirs == namespace(own_pid())? {
        return Some(number);
    }
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        // Its numbers from here inwards.
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let innermost = numbers.and_then(|n| n.split_ascii_whitespace().last()?.parse().ok());
        innermost == Some(number) && namespace(*pid) == Some(theirs)
    };
    pids.into_iter().find(is_it)
}

/// A whole file of the kernel as text.
pub fn read_text(source: &impl ProcSource, path: &str) -> Result<String, ProcError> {
    let mut buffer = vec![0; TEXT_MAX];
    let n = read_into(source, path, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// Longest text [`read_long_text`] takes in.
const LONG_TEXT_MAX: usize = 4 << 20;

/// A file of the kernel that may be long, such as the list of mounts.
pub fn read_long_text(source: &impl ProcSource, path: &str) -> Result<String, ProcError> {
    let mut text = Vec::new();
    let mut piece = vec![0; TEXT_MAX];
    while text.len() < LONG_TEXT_MAX {
        let n = source
            .read_at(path, text.len() as u64, &mut piece)
            .map_err(|source| ProcError::Read {
                path: path.to_string(),
                source,
            })?;
        text.extend_from_slice(&piece[..n]);
        // A short read is the end: sources fill the buffer as long as there is text.
        if n < piece.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A file that holds one number, such as those of `/proc/sys` and `/sys`.
pub fn read_number(source: &impl ProcSource, path: &str) -> Result<u64, ProcError> {
    let mut buffer = [0; 64];
    let n = read_into(source, path, &mut buffer)?;
    let text = String::from_utf8_lossy(&buffer[..n]);
    text.trim().parse().map_err(|_| ProcError::Unexpected {
        path: path.to_string(),
        text: text.trim().to_string(),
    })
}

/// A setting of the kernel by its name: `sysctl("vm.max_map_count")`.
pub fn sysctl(source: &impl ProcSource, name: &str) -> Result<u64, ProcError> {
    read_number(source, &format!("/proc/sys/{}", name.replace('.', "/")))
}

fn read_into(source: &impl ProcSource, path: &str, buffer: &mut [u8]) -> Result<usize, ProcError> {
    source
        .read_at(path, 0, buffer)
        .map_err(|source| ProcError::Read {
            path: path.to_string(),
            source,
        })
}

/// Memory of the machine.
pub fn meminfo(source: &impl ProcSource) -> Result<MemInfo, ProcError> {
    let mut buffer = [0; TEXT_MAX];
    let n = read_into(source, "/proc/meminfo", &mut buffer)?;
    Ok(MemInfo::parse(&buffer[..n]))
}

/// For which share of the last ten seconds, in percent, all waited for memory.
pub fn memory_stall(source: &impl ProcSource) -> Result<f32, ProcError> {
    let path = "/proc/pressure/memory";
    let text = read_text(source, path)?;
    parse::full_stall(&text).ok_or_else(|| ProcError::Unexpected {
        path: path.to_string(),
        text: text.trim().to_string(),
    })
}

/// Whether two processes have one memory: a program and its companion do. `None` where the kernel does
/// not say.
pub fn share_memory(one: u32, other: u32) -> Option<bool> {
    /// The kind of thing that is to be compared: memory.
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: a plain system call; the last two arguments are not looked at.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}

/// Makes the kernel end other processes before this one when memory runs out. Lowering takes a right
/// that most users lack.
pub fn set_oom_score(score: i32) -> std::io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// Memory of a process in pages; `pid` 0 is this one.
pub fn statm(source: &impl ProcSource, pid: i32) -> Result<Statm, ProcError> {
    let mut buffer = [0; 256];
    let n = read_into(source, &path_of(pid, "statm"), &mut buffer)?;
    Ok(Statm::parse(&buffer[..n]))
}

/// State, threads and memory of a process; `pid` 0 is this one.
pub fn status(source: &impl ProcSource, pid: i32) -> Result<Status, ProcError> {
    let mut buffer = [0; TEXT_MAX];
    let n = read_into(source, &path_of(pid, "status"), &mut buffer)?;
    Ok(Status::parse(&buffer[..n]))
}

/// How often the program, or this process where there is no other, has asked for a page that was there or
/// made at once. Without allocating.
pub fn minor_faults() -> u64 {
    let mut path = [0u8; 32];
    let mut rest = &mut path[..];
    let program = crate::own::listed_pid();
    if std::io::Write::write_fmt(&mut rest, format_args!("/proc/{program}/stat")).is_err() {
        return 0;
    }
    let used = 32 - rest.len();
    let mut text = [0u8; 512];
    let read = std::str::from_utf8(&path[..used])
        .map_err(|_| Errno::INVAL)
        .and_then(open)
        .and_then(|file| pread(&file, &mut text, 0));
    let text = &text[..read.unwrap_or(0)];
    // After the name, which may hold anything: state, seven numbers, and then this one.
    let end = text.iter().rposition(|&byte| byte == b')').unwrap_or(0);
    let mut fields = text[end..].split(|&byte| byte == b' ');
    fields.nth(8).and_then(parse::number).unwrap_or(0)
}

/// Memory of a process by kind, shared pages counted in part; `pid` 0 is this one.
pub fn smaps_rollup(source: &impl ProcSource, pid: i32) -> Result<SmapsRollup, ProcError> {
    let mut buffer = [0; TEXT_MAX];
    let n = read_into(source, &path_of(pid, "smaps_rollup"), &mut buffer)?;
    Ok(SmapsRollup::parse(&buffer[..n]))
}

fn path_of(pid: i32, file: &str) -> String {
    if pid == 0 {
        format!("/proc/self/{file}")
    } else {
        format!("/proc/{pid}/{file}")
    }
}

/// The memory of this process, read again and again: one system call, no allocation.
#[derive(Debug)]
pub struct StatmReader {
    file: OwnedFd,
}

impl StatmReader {
    pub fn open() -> Result<StatmReader, ProcError> {
        StatmReader::open_at("/proc/self/statm")
    }

    /// Of another process.
    pub fn of(pid: i32) -> Result<StatmReader, ProcError> {
        StatmReader::open_at(&path_of(pid, "statm"))
    }

    fn open_at(path: &str) -> Result<StatmReader, ProcError> {
        let file = open(path).map_err(|source| ProcError::Read {
            path: path.to_string(),
            source,
        })?;
        Ok(StatmReader { file })
    }

    /// ESRCH when the process has ended.
    pub fn read(&self) -> Result<Statm, Errno> {
        let mut buffer = [0; 256];
        let n = pread(&self.file, &mut buffer, 0)?;
        if n == 0 {
            return Err(Errno::SRCH);
        }
        Ok(Statm::parse(&buffer[..n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;
    use muninn_types::Bytes;

    #[test]
    fn this_process_and_this_machine_can_be_read() {
        let machine = meminfo(&RealProc).unwrap();
        assert!(machine.total > machine.available && machine.available > Bytes::ZERO);
        let reader = StatmReader::open().unwrap();
        let before = reader.read().unwrap();
        let map = Mapping::options()
            .populate()
            .anonymous(Bytes::mib(64))
            .unwrap();
        let after = reader.read().unwrap();
        assert!(after.resident_pages >= before.resident_pages + 12_000);
        assert!(after.private_resident() > Bytes::mib(40));
        drop(map);
        let status = status(&RealProc, 0).unwrap();
        assert!(status.threads >= 1 && status.vm_hwm >= Bytes::mib(64));
        let rollup = smaps_rollup(&RealProc, std::process::id() as i32).unwrap();
        assert!(rollup.rss >= rollup.pss && rollup.pss > Bytes::ZERO);
        assert!(sysctl(&RealProc, "vm.max_map_count").unwrap() > 1000);
        assert!(statm(&RealProc, 0).unwrap().size_pages > 0);
    }

    #[test]
    fn errors_name_the_file() {
        let fake = FakeProc::new().with("/proc/sys/vm/swappiness", "sixty\n");
        assert_eq!(
            sysctl(&fake, "vm.swappiness").unwrap_err().to_string(),
            "/proc/sys/vm/swappiness holds 'sixty', which is not what was expected there"
        );
        assert!(matches!(
            sysctl(&fake, "vm.none"),
            Err(ProcError::Read {
                source: Errno::NOENT,
                ..
            })
        ));
    }
}
