//! A trace from a file: one visit a line, `PAGE [r|w] [THREAD]`.
//!
//! The page is a number, decimal or `0x…`. Empty lines and lines that begin with `#` are skipped. A
//! program's pages lie far apart, so they are renumbered from 0 in their own order; neighbours stay
//! neighbours and steps stay steps up to a gap of 1,024 pages, and longer gaps become about that long: each
//! page keeps its place in its chunk.

use super::trace::{Access, Trace};
use std::path::{Path, PathBuf};

const GAP_PAGES_MAX: u64 = 1_024;
const CHUNK: u64 = muninn_pager_core::CHUNK_PAGES as u64;
/// Larger than any trace worth replaying, and small enough for a page table of a few hundred MiB.
const TABLE_PAGES_MAX: u64 = 1 << 28;

#[derive(Debug, thiserror::Error)]
pub enum TraceFileError {
    #[error("--trace: cannot read {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("--trace: {} line {line}: '{text}' is not a page number", path.display())]
    NotAPage {
        path: PathBuf,
        line: usize,
        text: String,
    },
    #[error(
        "--trace: {} line {line}: '{text}' is neither r nor w",
        path.display()
    )]
    NotAFlag {
        path: PathBuf,
        line: usize,
        text: String,
    },
    #[error(
        "--trace: {} line {line}: '{text}' is not a thread number from 0 to 65535",
        path.display()
    )]
    NotAThread {
        path: PathBuf,
        line: usize,
        text: String,
    },
    #[error(
        "--trace: {} line {line}: more than 'PAGE [r|w] [THREAD]': '{text}'",
        path.display()
    )]
    TooMuch {
        path: PathBuf,
        line: usize,
        text: String,
    },
    #[error("--trace: {} has no accesses in it", path.display())]
    Empty { path: PathBuf },
    #[error("--trace: {} names pages over too wide a range to replay", path.display())]
    TooWide { path: PathBuf },
}

/// Reads a trace file; an error names the file and the line.
pub fn read(path: &Path) -> Result<Trace, TraceFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| TraceFileError::Unreadable {
        path: path.to_path_buf(),
        source,
    })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Trace, TraceFileError> {
    let mut visits: Vec<(u64, u16, bool)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            visits.push(visit(path, number + 1, line)?);
        }
    }
    if visits.is_empty() {
        return Err(TraceFileError::Empty {
            path: path.to_path_buf(),
        });
    }
    let mut numbers: Vec<u64> = visits.iter().map(|v| v.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let places = places_of(&numbers);
    let table_pages = places.last().map_or(0, |last| last + 1);
    if table_pages > TABLE_PAGES_MAX {
        return Err(TraceFileError::TooWide {
            path: path.to_path_buf(),
        });
    }
    let accesses = visits.into_iter().map(|(page, thread, write)| {
        // Every number is in the list that was made from them.
        let at = numbers.partition_point(|n| *n < page);
        Access {
            page: places[at] as u32,
            thread,
            write,
        }
    });
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(Trace {
        name: name.to_string_lossy().into_owned(),
        table_pages: table_pages as u32,
        touched_pages: numbers.len() as u32,
        accesses: accesses.collect(),
        measured_from: 0,
    })
}

/// Where each page goes: the gaps between them kept, up to the longest allowed, and its place in its chunk.
fn places_of(numbers: &[u64]) -> Vec<u64> {
    let mut previous = numbers.first().copied().unwrap_or(0);
    let mut place = previous % CHUNK;
    let place_of = |number: &u64| {
        let gap = number - previous;
        place += gap.min(GAP_PAGES_MAX);
        if gap > GAP_PAGES_MAX {
            place += number.wrapping_sub(place) % CHUNK;
        }
        previous = *number;
        place
    };
    numbers.iter().map(place_of).collect()
}

fn visit(path: &Path, line: usize, text: &str) -> Result<(u64, u16, bool), TraceFileError> {
    let path = || path.to_path_buf();
    let mut words = text.split_whitespace();
    let page = words.next().unwrap_or_default();
    let number = match page.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => page.parse().ok(),
    };
    let Some(number) = number else {
        return Err(TraceFileError::NotAPage {
            path: path(),
            line,
            text: page.to_string(),
        });
    };
    let write = match words.next() {
        None | Some("r") => false,
        Some("w") => true,
        Some(other) => {
            return Err(TraceFileError::NotAFlag {
                path: path(),
                line,
                text: other.to_string(),
            });
        }
    };
    let thread = match words.next() {
        None => 0,
        Some(thread) => thread.parse().map_err(|_| TraceFileError::NotAThread {
            path: path(),
            line,
            text: thread.to_string(),
        })?,
    };
    match words.next() {
        None => Ok((number, thread, write)),
        Some(_) => Err(TraceFileError::TooMuch {
            path: path(),
            line,
            text: text.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Trace, String> {
        parse(Path::new("t.txt"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn pages_flags_and_threads_are_read() {
        let trace = parsed("# a comment\n7\n\n8 w\n0x9 r 3\n  7 w 65535\n").unwrap();
        let got: Vec<(u32, u16, bool)> = trace
            .accesses
            .iter()
            .map(|a| (a.page, a.thread, a.write))
            .collect();
        assert_eq!(
            got,
            [(7, 0, false), (8, 0, true), (9, 3, false), (7, 65535, true)]
        );
        assert_eq!((trace.touched_pages, trace.table_pages), (3, 10));
    }

    #[test]
    fn long_gaps_are_shortened_and_short_ones_kept() {
        let trace = parsed("0\n7\n0x7fffffffffff\n18446744073709551615\n").unwrap();
        let pages: Vec<u32> = trace.accesses.iter().map(|a| a.page).collect();
        // The last two are the last of their chunks.
        assert_eq!(pages, [0, 7, 1_039, 2_063]);
        assert_eq!(trace.touched_pages, 4);
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text: &str| parsed(text).unwrap_err();
        assert_eq!(
            message("1\n2\nthree\n"),
            "--trace: t.txt line 3: 'three' is not a page number"
        );
        assert_eq!(
            message("-1"),
            "--trace: t.txt line 1: '-1' is not a page number"
        );
        assert_eq!(
            message("1 x"),
            "--trace: t.txt line 1: 'x' is neither r nor w"
        );
        assert_eq!(
            message("1 r 70000"),
            "--trace: t.txt line 1: '70000' is not a thread number from 0 to 65535"
        );
        assert_eq!(
            message("1 r 0 0"),
            "--trace: t.txt line 1: more than 'PAGE [r|w] [THREAD]': '1 r 0 0'"
        );
        assert_eq!(
            message("# nothing\n"),
            "--trace: t.txt has no accesses in it"
        );
        assert_eq!(
            read(Path::new("/no/such/trace")).unwrap_err().to_string(),
            "--trace: cannot read /no/such/trace: No such file or directory (os error 2)"
        );
    }
}
