//! What kind of file a program is: enough of ELF and of `#!` to know whether a library can be loaded
//! into it.
//!
//! Invariant: reads little, from any file, and never fails on nonsense; what is not understood is
//! [`Image::Unknown`]. Source: elf(5), execve(2).

use std::io;
use std::os::unix::fs::FileExt;

/// A program header of a 64-bit file.
const PROGRAM_HEADER_LEN: usize = 56;
/// Linux accepts no more (64 KiB of them).
const PROGRAM_HEADERS_MAX: u16 = 1170;
const PT_INTERP: u32 = 3;
const MACHINE_X86_64: u16 = 62;
/// The kernel reads this much of a script's first line.
const FIRST_LINE_MAX: usize = 256;
const PATH_MAX: usize = 4096;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A program for x86-64 that this loader starts.
    Dynamic {
        loader: String,
    },
    /// A program for x86-64 that needs no loader.
    Static,
    /// A program for another machine.
    Foreign(&'static str),
    Script {
        interpreter: String,
    },
    Unknown,
}

pub fn inspect(file: &impl FileExt) -> io::Result<Image> {
    let mut head = [0; FIRST_LINE_MAX];
    let n = read_up_to(file, &mut head, 0)?;
    let head = &head[..n];
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    if head.len() < 64 || !head.starts_with(b"\x7fELF") {
        return Ok(Image::Unknown);
    }
    let (bits, order, machine) = (head[4], head[5], u16_at(head, 18));
    if order != 1 {
        return Ok(Image::Foreign("a processor of other byte order"));
    }
    match (bits, machine) {
        (2, MACHINE_X86_64) => {}
        (1, MACHINE_X86_64) => return Ok(Image::Foreign("x32")),
        (1, 3) => return Ok(Image::Foreign("32-bit x86")),
        (2, 183) => return Ok(Image::Foreign("arm64")),
        (1, 40) => return Ok(Image::Foreign("32-bit arm")),
        (2, 243) => return Ok(Image::Foreign("risc-v")),
        _ => return Ok(Image::Foreign("another processor")),
    }
    Ok(match loader(file, head)? {
        Some(loader) => Image::Dynamic { loader },
        None => Image::Static,
    })
}

/// The path in the segment PT_INTERP, if there is one.
fn loader(file: &impl FileExt, head: &[u8]) -> io::Result<Option<String>> {
    let start = u64_at(head, 32);
    let (size, count) = (u16_at(head, 54), u16_at(head, 56));
    if usize::from(size) != PROGRAM_HEADER_LEN || count > PROGRAM_HEADERS_MAX {
        return Ok(None);
    }
    for index in 0..u64::from(count) {
        let mut header = [0; PROGRAM_HEADER_LEN];
        let at = start.saturating_add(index * PROGRAM_HEADER_LEN as u64);
        if read_up_to(file, &mut header, at)? < header.len() {
            break;
        }
        if u32_at(&header, 0) == PT_INTERP {
            let (offset, len) = (u64_at(&header, 8), u64_at(&header, 32));
            let mut path = vec![0; (len as usize).min(PATH_MAX)];
            let n = read_up_to(file, &mut path, offset)?;
            let end = path[..n].iter().position(|&b| b == 0).unwrap_or(n);
            return Ok(Some(String::from_utf8_lossy(&path[..end]).into_owned()));
        }
    }
    Ok(None)
}

fn script(line: &[u8]) -> Image {
    let end = line.iter().position(|&b| b == b'\n').unwrap_or(line.len());
    let line = String::from_utf8_lossy(&line[..end]);
    match line.split_ascii_whitespace().next() {
        Some(path) => Image::Script {
            interpreter: path.to_string(),
        },
        None => Image::Unknown,
    }
}

fn read_up_to(file: &impl FileExt, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        // Past the largest offset there is nothing.
        let Some(at) = offset
            .checked_add(filled as u64)
            .filter(|at| *at <= i64::MAX as u64)
        else {
            break;
        };
        match file.read_at(&mut buffer[filled..], at) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Small files for tests, here and in `program`.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// A program of this class and machine, with a loader or without.
    pub fn elf(bits: u8, machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        (file[4], file[5]) = (bits, 1);
        file[16..18].copy_from_slice(&2u16.to_le_bytes());
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&(PROGRAM_HEADER_LEN as u16).to_le_bytes());
        file[56..58].copy_from_slice(&2u16.to_le_bytes());
        let mut headers = [[0u8; PROGRAM_HEADER_LEN]; 2];
        headers[0][0] = 1;
        if let Some(path) = loader {
            headers[1][0] = PT_INTERP as u8;
            headers[1][8..16].copy_from_slice(&176u64.to_le_bytes());
            headers[1][32..40].copy_from_slice(&(path.len() as u64 + 1).to_le_bytes());
        }
        file.extend(headers.concat());
        file.extend(loader.unwrap_or_default().as_bytes());
        file.push(0);
        file
    }
}

#[cfg(test)]
mod tests {
    use super::samples::elf;
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn image(bytes: &[u8]) -> Image {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        inspect(&file).unwrap()
    }

    #[test]
    fn files_are_told_apart() {
        let loader = "/lib64/ld-linux-x86-64.so.2";
        let dynamic = Image::Dynamic {
            loader: loader.to_string(),
        };
        assert_eq!(image(&elf(2, MACHINE_X86_64, Some(loader))), dynamic);
        assert_eq!(image(&elf(2, MACHINE_X86_64, None)), Image::Static);
        assert_eq!(image(&elf(1, 3, Some("x"))), Image::Foreign("32-bit x86"));
        assert_eq!(image(&elf(2, 183, None)), Image::Foreign("arm64"));
        let script = |interpreter: &str| Image::Script {
            interpreter: interpreter.to_string(),
        };
        assert_eq!(image(b"#!/bin/sh\necho"), script("/bin/sh"));
        assert_eq!(image(b"#! /usr/bin/env python3\n"), script("/usr/bin/env"));
        assert_eq!(image(b"#!\n"), Image::Unknown);
        assert_eq!(image(b"echo hello"), Image::Unknown);
        assert_eq!(image(b""), Image::Unknown);
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(inspect(&own).unwrap(), Image::Dynamic { .. }));
    }

    proptest! {
        #[test]
        fn nonsense_is_no_program_but_no_panic_either(
            noise in proptest::collection::vec((0usize..300, any::<u8>()), 0..40),
            cut in 0usize..300,
        ) {
            let mut bytes = elf(2, MACHINE_X86_64, Some("/lib/ld.so"));
            for (at, byte) in noise {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            image(&bytes);
        }
    }
}
