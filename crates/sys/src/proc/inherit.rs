//! Which memory a child does not get as its parent has it, from `/proc/self/smaps`.
//!
//! A program can ask that children find a range empty (`MADV_WIPEONFORK`: generators of random numbers
//! do) or not at all (`MADV_DONTFORK`). The kernel tells of neither by an event, only by flags here.
//! Known limit: the file costs a microsecond a mapping and a little for each page that is there.

use super::{maps::hex, open, threads::living_thread};
use crate::uffd::PageRange;
use rustix::io::Errno;

/// Read at a time.
const BUFFER: usize = 64 << 10;

/// Ranges that children of this process find empty, or do not have.
pub fn not_inherited() -> Result<Vec<PageRange>, Errno> {
    not_inherited_in("/proc/self/smaps")
}

/// Those of another process, by a thread of it; `None` where that lives among other numbers.
pub fn not_inherited_of(thread: u32) -> Option<Vec<PageRange>> {
    let namespace = |whose: &str| {
        let path = format!("/proc/{whose}/ns/pid");
        rustix::fs::stat(crate::own::rooted(&path)).map(|stat| stat.st_ino)
    };
    let same = namespace(&thread.to_string()).ok()? == namespace("self").ok()?;
    let ranges = || not_inherited_in(&format!("/proc/{thread}/smaps")).ok();
    same.then(ranges).flatten()
}

/// Whether any memory of a process is registered with userfaultfd: somebody has to answer for it.
pub fn is_registered(pid: u32) -> bool {
    let path = format!("/proc/{}/smaps", living_thread(pid));
    flagged(&path, &[b"um"]).is_ok_and(|ranges| !ranges.is_empty())
}

fn not_inherited_in(path: &str) -> Result<Vec<PageRange>, Errno> {
    flagged(path, &[b"wf", b"dc"])
}

/// Mappings with any of these flags.
fn flagged(path: &str, flags: &[&[u8]]) -> Result<Vec<PageRange>, Errno> {
    let file = open(path)?;
    let mut found = Vec::new();
    let mut current = None;
    let mut text = vec![0; BUFFER];
    let mut kept = 0;
    loop {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut text[kept..]))?;
        let filled = kept + got;
        let end = text[..filled].iter().rposition(|&byte| byte == b'\n');
        let whole = end.map_or(0, |newline| newline + 1);
        for line in text[..whole].split(|&byte| byte == b'\n') {
            look(line, flags, &mut current, &mut found);
        }
        if got == 0 {
            return Ok(found);
        }
        text.copy_within(whole..filled, 0);
        kept = (filled - whole) % BUFFER;
    }
}

/// A line that begins a mapping, that has its flags, or any other.
fn look(
    line: &[u8],
    wanted: &[&[u8]],
    current: &mut Option<PageRange>,
    found: &mut Vec<PageRange>,
) {
    if let Some(flags) = line.strip_prefix(b"VmFlags:") {
        let mut flags = flags.split(|&byte| byte == b' ');
        if flags.any(|flag| wanted.contains(&flag)) {
            found.extend(*current);
        }
    } else if let Some(range) = range(line) {
        *current = Some(range);
    }
}

fn range(line: &[u8]) -> Option<PageRange> {
    let dash = line.iter().position(|&byte| byte == b'-')?;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let start = hex(line.get(..dash)?)?;
    let end = hex(line.get(dash + 1..space)?)?;
    PageRange::of_bytes(start, end.checked_sub(start)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;
    use muninn_types::{Bytes, PageNo};
    use rustix::mm::{Advice, madvise};

    #[test]
    fn what_was_asked_to_be_kept_from_children_is_found() {
        let map = Mapping::anonymous(Bytes::pages(8)).unwrap();
        let page = |at: u64| PageNo(PageNo::of_addr(map.addr()).0 + at);
        let advise = |at: usize, advice| {
            // SAFETY: inside of the mapping, whose contents nobody needs.
            unsafe { madvise(map.as_ptr().add(at * 4096).cast(), 4096, advice) }.unwrap();
        };
        advise(1, Advice::LinuxWipeOnFork);
        advise(3, Advice::LinuxDontFork);
        advise(5, Advice::LinuxWipeOnFork);
        advise(5, Advice::LinuxKeepOnFork);
        let found = not_inherited().unwrap();
        let is_found = |at: u64| found.iter().any(|range| range.contains(page(at)));
        let expected = [false, true, false, true, false, false, false, false];
        assert_eq!(std::array::from_fn(|at| is_found(at as u64)), expected);
    }
}
