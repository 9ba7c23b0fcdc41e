//! Which process is meant, for good: its number together with when it started.
//!
//! Numbers of processes are used again; a number and a start time are not. Both fit into one word,
//! so that they can be compared and exchanged in one step in shared memory. Invariant: nothing here
//! allocates or takes a lock, so it may run inside of any program.
//!
//! Known limit: the numbers are those of this process's `/proc`; processes of one job have to share
//! a pid namespace to be told apart.

use super::{open, parse::number, pread};

/// Bits of the start time, in ticks of 10 ms since the machine started: 697 years.
const START_BITS: u32 = 41;
const START_MASK: u64 = (1 << START_BITS) - 1;
/// The kernel's largest pid is 2²².
const PID_BITS: u32 = 22;

/// One process, told apart from all before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(u64);

impl ProcessId {
    /// The largest word that [`ProcessId::word`] can give, so that others can stand for something
    /// else.
    pub const WORD_MAX: u64 = (1 << (START_BITS + PID_BITS)) - 1;

    /// The process that has this number now; `None` when there is none, or only its corpse.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let mut path = [0u8; 32];
        let path = stat_path(pid, &mut path)?;
        let file = open(path).ok()?;
        // The name of the program is the only part of unknown length, and it is short.
        let mut text = [0u8; 512];
        let n = pread(&file, &mut text, 0).ok()?;
        let stat = Stat::parse(&text[..n])?;
        // Its first thread may have ended and others go on.
        if matches!(stat.state, b'Z' | b'X' | b'x') && stat.threads <= 1 {
            return None;
        }
        ProcessId::new(pid, stat.start)
    }

    /// The same process under the number that it has in another namespace of numbers.
    pub fn under(self, pid: u32) -> Option<ProcessId> {
        ProcessId::new(pid, self.0 & START_MASK)
    }

    fn new(pid: u32, start: u64) -> Option<ProcessId> {
        let fits = pid != 0 && u64::from(pid) < (1 << PID_BITS);
        fits.then(|| ProcessId((u64::from(pid) << START_BITS) | (start & START_MASK)))
    }

    /// As a number that is never 0.
    pub fn word(self) -> u64 {
        self.0
    }

    pub fn from_word(word: u64) -> Option<ProcessId> {
        let id = ProcessId(word);
        (word <= ProcessId::WORD_MAX && id.pid() != 0).then_some(id)
    }

    pub fn pid(self) -> u32 {
        (self.0 >> START_BITS) as u32
    }

    pub fn is_alive(self) -> bool {
        ProcessId::of(self.pid()) == Some(self)
    }
}

/// `/proc/PID/stat`, written without allocating.
fn stat_path(pid: u32, buffer: &mut [u8; 32]) -> Option<&str> {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "/proc/{pid}/stat").ok()?;
    let len = 32 - rest.len();
    std::str::from_utf8(&buffer[..len]).ok()
}

struct Stat {
    state: u8,
    threads: u64,
    start: u64,
}

impl Stat {
    /// `PID (NAME) STATE …`; the name may hold anything, the last `)` ends it.
    fn parse(text: &[u8]) -> Option<Stat> {
        let end = text.iter().rposition(|&b| b == b')')?;
        let mut words = text[end + 1..]
            .split(|b| b.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let state = *words.next()?.first()?;
        // Fields 20 and 22 of the line; the state is field 3.
        let threads = number(words.nth(16)?)?;
        let start = number(words.nth(1)?)?;
        Some(Stat {
            state,
            threads,
            start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_itself_until_it_has_ended() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert_eq!(me.pid(), std::process::id());
        assert_eq!(ProcessId::from_word(me.word()), Some(me));
        let earlier = ProcessId(me.word() ^ 1);
        assert!(!earlier.is_alive(), "another start time is another process");

        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!id.is_alive());
    }

    #[test]
    fn names_with_brackets_and_odd_words_are_read() {
        let tail = "0 ".repeat(18);
        let text = format!("12 (a) R (b) S {tail}777 0 0");
        let stat = Stat::parse(text.as_bytes()).unwrap();
        assert_eq!((stat.state, stat.start), (b'S', 777));
        assert_eq!(ProcessId::from_word(0), None);
        assert_eq!(ProcessId::from_word(u64::MAX), None);
        assert_eq!(ProcessId::new(0, 5), None);
        assert!(ProcessId::of(u32::MAX).is_none());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_fail(text: Vec<u8>) {
            Stat::parse(&text);
        }
    }
}
