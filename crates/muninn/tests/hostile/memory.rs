//! Looking through the memory of a process, as one may who could trace it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const PAGE: usize = 4096;
/// Read at a time; what cannot be read so is read page by page.
const PIECE: usize = 1 << 20;

/// How often each of some texts is in what a process could read of its own memory. Texts that begin on
/// one piece and end on the next are passed over once in 2^20 bytes.
pub fn find(pid: u32, needles: &[Vec<u8>]) -> Vec<usize> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = vec![0; needles.len()];
    let mut bytes = vec![0; PIECE];
    let mut looked_at = 0u64;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, mode) = (words.next().unwrap(), words.next().unwrap());
        let (first, last) = range.split_once('-').unwrap();
        let [first, last] = [first, last].map(|text| u64::from_str_radix(text, 16).unwrap());
        // What the kernel shows of itself cannot be read this way.
        if !mode.starts_with('r') || line.contains("[v") {
            continue;
        }
        let mut at = first;
        while at < last {
            let len = PIECE.min((last - at) as usize);
            let got = match memory.read_at(&mut bytes[..len], at) {
                Ok(n @ 1..) => n,
                // A page that is far, or beyond the end of a file.
                _ => match memory.read_at(&mut bytes[..PAGE.min(len)], at) {
                    Ok(n @ 1..) => n,
                    _ => {
                        at += PAGE as u64;
                        continue;
                    }
                },
            };
            looked_at += got as u64;
            for (count, needle) in found.iter_mut().zip(needles) {
                *count += occurrences(&bytes[..got], needle);
            }
            at += got as u64;
        }
    }
    assert!(looked_at > 1 << 20, "only {looked_at} bytes could be read");
    found
}

fn occurrences(bytes: &[u8], needle: &[u8]) -> usize {
    let (first, rest) = needle.split_first().unwrap();
    let mut count = 0;
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| byte == first) {
        at += next + 1;
        count += usize::from(bytes[at..].starts_with(rest));
    }
    count
}

/// A process and all that descend from it.
pub fn family(of: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that has ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let parent = rest.split_whitespace().nth(1).unwrap();
        parents.push((pid, parent.parse::<u32>().unwrap()));
    }
    let mut family = vec![of];
    let mut at = 0;
    while at < family.len() {
        let parent = family[at];
        let children = parents.iter().filter(|(_, its)| *its == parent);
        family.extend(children.map(|(pid, _)| *pid));
        at += 1;
    }
    family
}

/// Files that a process has open.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.flatten().map(|fd| std::fs::read_link(fd.path()));
    links.flatten().collect()
}
