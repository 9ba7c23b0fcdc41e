//! The numbers of `statm`, `status`, `meminfo` and `smaps_rollup`.
//!
//! Invariant: plain functions of bytes; unknown lines are passed over and missing ones leave 0, so
//! kernels with more or fewer fields do no harm. Known limit: sizes in these files are in KiB.

use muninn_types::Bytes;

/// Memory of a process, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statm {
    pub size_pages: u64,
    pub resident_pages: u64,
    /// Resident pages of files and shared memory: not the program's own.
    pub shared_pages: u64,
}

impl Statm {
    pub fn parse(text: &[u8]) -> Statm {
        let mut numbers = text
            .split(|b| b.is_ascii_whitespace())
            .filter(|word| !word.is_empty())
            .map(|word| number(word).unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Statm {
            size_pages: next(),
            resident_pages: next(),
            shared_pages: next(),
        }
    }

    pub fn resident(&self) -> Bytes {
        Bytes::pages(self.resident_pages)
    }

    /// Resident memory without that of files and shared memory (a mapped pool among them).
    pub fn private_resident(&self) -> Bytes {
        Bytes::pages(self.resident_pages.saturating_sub(self.shared_pages))
    }
}

/// Memory of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    pub total: Bytes,
    pub free: Bytes,
    pub available: Bytes,
    pub swap_total: Bytes,
    pub swap_free: Bytes,
    pub shmem: Bytes,
    pub huge_pages_total: u64,
    pub huge_pages_free: u64,
}

impl MemInfo {
    pub fn parse(text: &[u8]) -> MemInfo {
        let mut info = MemInfo::default();
        for (name, value) in fields(text) {
            match name {
                b"MemTotal" => info.total = kib(value),
                b"MemFree" => info.free = kib(value),
                b"MemAvailable" => info.available = kib(value),
                b"SwapTotal" => info.swap_total = kib(value),
                b"SwapFree" => info.swap_free = kib(value),
                b"Shmem" => info.shmem = kib(value),
                b"HugePages_Total" => info.huge_pages_total = first_number(value),
                b"HugePages_Free" => info.huge_pages_free = first_number(value),
                _ => {}
            }
        }
        info
    }
}

/// The line `full avg10=…` of a pressure file.
pub(super) fn full_stall(text: &str) -> Option<f32> {
    let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix("avg10=")?.parse().ok())
}

/// What `status` tells about a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `R`, `S`, `Z`, …; 0 where the file did not say.
    pub state: u8,
    pub ppid: u64,
    pub threads: u64,
    pub vm_size: Bytes,
    pub vm_rss: Bytes,
    /// The largest resident size so far.
    pub vm_hwm: Bytes,
    pub rss_anon: Bytes,
    /// Pages of files, such as the program itself.
    pub rss_file: Bytes,
    pub vm_swap: Bytes,
    pub vm_lck: Bytes,
    /// 0: none, 1: strict, 2: filter.
    pub seccomp: u64,
    pub no_new_privs: bool,
}

impl Status {
    pub fn parse(text: &[u8]) -> Status {
        let mut status = Status::default();
        for (name, value) in fields(text) {
            match name {
                b"State" => status.state = value.first().copied().unwrap_or(0),
                b"PPid" => status.ppid = first_number(value),
                b"Threads" => status.threads = first_number(value),
                b"VmSize" => status.vm_size = kib(value),
                b"VmRSS" => status.vm_rss = kib(value),
                b"VmHWM" => status.vm_hwm = kib(value),
                b"RssAnon" => status.rss_anon = kib(value),
                b"RssFile" => status.rss_file = kib(value),
                b"VmSwap" => status.vm_swap = kib(value),
                b"VmLck" => status.vm_lck = kib(value),
                b"Seccomp" => status.seccomp = first_number(value),
                b"NoNewPrivs" => status.no_new_privs = first_number(value) != 0,
                _ => {}
            }
        }
        status
    }
}

/// Memory of all mappings of a process together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmapsRollup {
    pub rss: Bytes,
    /// Shared pages counted in equal parts for each of their users.
    pub pss: Bytes,
    /// The part of that which is of no file.
    pub pss_anonymous: Bytes,
    pub private_clean: Bytes,
    pub private_dirty: Bytes,
    pub anonymous: Bytes,
    pub anon_huge: Bytes,
    pub swap: Bytes,
    pub locked: Bytes,
}

impl SmapsRollup {
    pub fn parse(text: &[u8]) -> SmapsRollup {
        let mut rollup = SmapsRollup::default();
        for (name, value) in fields(text) {
            match name {
                b"Rss" => rollup.rss = kib(value),
                b"Pss" => rollup.pss = kib(value),
                b"Pss_Anon" => rollup.pss_anonymous = kib(value),
                b"Private_Clean" => rollup.private_clean = kib(value),
                b"Private_Dirty" => rollup.private_dirty = kib(value),
                b"Anonymous" => rollup.anonymous = kib(value),
                b"AnonHugePages" => rollup.anon_huge = kib(value),
                b"Swap" => rollup.swap = kib(value),
                b"Locked" => rollup.locked = kib(value),
                _ => {}
            }
        }
        rollup
    }
}

/// `Name:  value` lines.
pub(super) fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&b| b == b'\n').filter_map(|line| {
        let colon = line.iter().position(|&b| b == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

fn first_number(value: &[u8]) -> u64 {
    let end = value
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(value.len());
    number(&value[..end]).unwrap_or(0)
}

pub(super) fn kib(value: &[u8]) -> Bytes {
    Bytes(first_number(value).saturating_mul(1024))
}

/// Decimal digits only; `None` for anything else or too large.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_texts_are_read() {
        let statm = Statm::parse(b"2871 500 120 3 0 139 0\n");
        assert_eq!(statm.resident(), Bytes::pages(500));
        assert_eq!(statm.private_resident(), Bytes::pages(380));
        let info = MemInfo::parse(
            b"MemTotal:       24737264 kB\nMemFree: 1 kB\nMemAvailable:   23180972 kB\n\
              HugePages_Total:       7\nHugePages_Free:        5\n",
        );
        assert_eq!(info.total, Bytes::kib(24_737_264));
        assert_eq!((info.huge_pages_total, info.huge_pages_free), (7, 5));
        let status = Status::parse(
            b"Name:\tsort: a\nState:\tS (sleeping)\nPPid:\t12\nVmRSS:\t    5096 kB\nThreads:\t3\nSeccomp:\t2\n",
        );
        assert_eq!((status.state, status.ppid, status.threads), (b'S', 12, 3));
        assert_eq!((status.vm_rss, status.seccomp), (Bytes::kib(5096), 2));
        let pressure = "some avg10=9.00 avg60=0.00 avg300=0.00 total=9\n\
                        full avg10=1.25 avg60=0.00 avg300=0.00 total=1650612\n";
        assert_eq!(full_stall(pressure), Some(1.25));
        assert_eq!(full_stall("some avg10=9.00\n"), None);
        let rollup =
            SmapsRollup::parse(b"55e0-7ffd ---p 00 00:00 0 [rollup]\nRss: 884 kB\nPss: 92 kB\n");
        assert_eq!((rollup.rss, rollup.pss), (Bytes::kib(884), Bytes::kib(92)));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_fail(text: Vec<u8>) {
            Statm::parse(&text);
            MemInfo::parse(&text);
            Status::parse(&text);
            SmapsRollup::parse(&text);
        }
    }
}
