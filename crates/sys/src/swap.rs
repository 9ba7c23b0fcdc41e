//! Swap areas that are there for a while: a zram device, or a file.
//!
//! For measuring beside the kernel's own ways. An area is made once ([`Zram::create`],
//! [`SwapFile::create`]) and switched on and off as often as wanted ([`SwapArea::on`]); the header is
//! written by hand, as `mkswap` does. Invariant: whatever was made is taken away again when its guard
//! is dropped, first the switch, then the area. Known limits: all of it needs root; a process that is
//! killed without being asked leaves its areas behind ([`swapoff`] and removal by hand); the kernel
//! knows one order of priorities for all processes, so ours come first but others are not hidden.
//!
//! Source: Linux `mm/swapfile.c` (the header), `Documentation/admin-guide/blockdev/zram.rst`.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use muninn_types::{Bytes, PAGE_SIZE};
use rustix::io::Errno;

use crate::signal::last_errno;

/// A swap area could not be made, switched or removed.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    #[error(
        "there is no zram in this kernel ({ZRAM_CONTROL} is missing): modprobe zram, or use a swap file"
    )]
    NoZram,
    #[error("cannot {action} {}: {source}; swap areas need root", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot {action} {}: {source}; switching swap needs root, and a file system that can hold swap files", path.display())]
    Switch {
        action: &'static str,
        path: PathBuf,
        source: Errno,
    },
    #[error("{} holds '{text}', which is not the number of a device", path.display())]
    Unexpected { path: PathBuf, text: String },
}

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

/// Higher than anything that is switched on by itself.
const PRIORITY: i32 = 32_000;
const PREFER: i32 = 0x8000;

/// The first page of a swap area of this many pages: version 1, no bad pages, a mark at its end.
pub fn header(pages: u32) -> Vec<u8> {
    const VERSION_AT: usize = 1024;
    let mut page = vec![0; PAGE_SIZE];
    page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&1u32.to_ne_bytes());
    // The number of the last page, not of pages.
    let last = pages.saturating_sub(1);
    page[VERSION_AT + 4..VERSION_AT + 8].copy_from_slice(&last.to_ne_bytes());
    page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Something that swap can be switched on for.
pub trait SwapArea {
    fn path(&self) -> &Path;

    /// Switched on, before all others, until the guard is dropped.
    fn on(&self) -> Result<SwapOn, SwapError> {
        swapon(self.path())?;
        Ok(SwapOn {
            path: self.path().to_path_buf(),
        })
    }
}

/// An area that is in use.
#[derive(Debug)]
pub struct SwapOn {
    path: PathBuf,
}

impl Drop for SwapOn {
    fn drop(&mut self) {
        // Fails only when memory is too short to take everything back in: nothing to be done here.
        let _ = swapoff(&self.path);
    }
}

fn name_of(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

pub fn swapon(path: &Path) -> Result<(), SwapError> {
    let name = name_of(path);
    // SAFETY: a string that ends with a zero byte, alive during the call.
    match unsafe { libc::swapon(name.as_ptr(), PREFER | PRIORITY) } {
        0 => Ok(()),
        _ => Err(SwapError::Switch {
            action: "switch swap on at",
            path: path.to_path_buf(),
            source: last_errno(),
        }),
    }
}

/// Takes everything back into memory and stops using the area.
pub fn swapoff(path: &Path) -> Result<(), SwapError> {
    let name = name_of(path);
    // SAFETY: a string that ends with a zero byte, alive during the call.
    match unsafe { libc::swapoff(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(SwapError::Switch {
            action: "switch swap off at",
            path: path.to_path_buf(),
            source: last_errno(),
        }),
    }
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> SwapError + 'a {
    move |source| SwapError::File {
        action,
        path: path.to_path_buf(),
        source,
    }
}

fn write_text(path: &Path, text: &str) -> Result<(), SwapError> {
    std::fs::write(path, text).map_err(failed("write", path))
}

/// A compressed block device in memory; removed when dropped.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    path: PathBuf,
}

impl Zram {
    /// A new device of this size, with a header. `algorithm` where it is not the kernel's choice.
    pub fn create(size: Bytes, algorithm: Option<&str>) -> Result<Zram, SwapError> {
        let control = Path::new(ZRAM_CONTROL);
        if !control.exists() {
            return Err(SwapError::NoZram);
        }
        let add = control.join("hot_add");
        let text = std::fs::read_to_string(&add).map_err(failed("read", &add))?;
        let number = text.trim().parse().map_err(|_| SwapError::Unexpected {
            path: add,
            text: text.trim().to_string(),
        })?;
        let zram = Zram {
            number,
            path: PathBuf::from(format!("/dev/zram{number}")),
        };
        if let Some(algorithm) = algorithm {
            write_text(&zram.setting("comp_algorithm"), algorithm)?;
        }
        write_text(&zram.setting("disksize"), &size.0.to_string())?;
        zram.make_node()?;
        let mut device = OpenOptions::new()
            .write(true)
            .open(&zram.path)
            .map_err(failed("open", &zram.path))?;
        device
            .write_all(&header(size.whole_pages() as u32))
            .and_then(|()| device.sync_all())
            .map_err(failed("write", &zram.path))?;
        Ok(zram)
    }

    /// Memory that the device takes now for what was written to it, with what it needs beside.
    pub fn used(&self) -> Option<Bytes> {
        let text = std::fs::read_to_string(self.setting("mm_stat")).ok()?;
        Some(Bytes(text.split_whitespace().nth(2)?.parse().ok()?))
    }

    fn setting(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }

    /// Where nobody makes device nodes by themselves (a container without devtmpfs), we do.
    fn make_node(&self) -> Result<(), SwapError> {
        if self.path.exists() {
            return Ok(());
        }
        let setting = self.setting("dev");
        let text = std::fs::read_to_string(&setting).map_err(failed("read", &setting))?;
        let numbers = text.trim().split_once(':');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (major, minor) = numbers.ok_or_else(|| SwapError::Unexpected {
            path: setting,
            text: text.trim().to_string(),
        })?;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &self.path,
            rustix::fs::FileType::BlockDevice,
            rustix::fs::Mode::from_raw_mode(0o600),
            rustix::fs::makedev(major, minor),
        )
        .map_err(|errno| failed("make", &self.path)(errno.into()))
    }
}

impl SwapArea for Zram {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // A device that is still in use refuses, and stays.
        let _ = write_text(&self.setting("reset"), "1");
        let remove = Path::new(ZRAM_CONTROL).join("hot_remove");
        let _ = write_text(&remove, &self.number.to_string());
    }
}

/// A file for swap; removed when dropped.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    /// A new file of this size, every block of it written: swap takes no holes.
    pub fn create(path: &Path, size: Bytes) -> Result<SwapFile, SwapError> {
        const PIECE: usize = 4 << 20;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("create", path))?;
        let made = SwapFile {
            path: path.to_path_buf(),
        };
        let zeros = vec![0; PIECE];
        let fill = |file: &mut File| -> std::io::Result<()> {
            let mut left = size.0;
            while left > 0 {
                let piece = left.min(PIECE as u64) as usize;
                file.write_all(&zeros[..piece])?;
                left -= piece as u64;
            }
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header(size.whole_pages() as u32))?;
            file.sync_all()
        };
        fill(&mut file).map_err(failed("write", path))?;
        Ok(made)
    }
}

impl SwapArea for SwapFile {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_what_the_kernel_looks_for() {
        let page = header(1000);
        assert_eq!(page.len(), PAGE_SIZE);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!(page[1024..1028], 1u32.to_ne_bytes());
        assert_eq!(page[1028..1032], 999u32.to_ne_bytes());
        assert_eq!(page[1032..1036], [0; 4], "no bad pages");
    }

    #[test]
    fn a_file_is_whole_and_goes_with_its_guard() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("area.swap");
        let area = SwapFile::create(&path, Bytes::mib(1)).unwrap();
        let text = std::fs::read(&path).unwrap();
        assert_eq!(text.len(), 1 << 20);
        assert_eq!(text[..PAGE_SIZE], header(256));
        let again = SwapFile::create(&path, Bytes::mib(1)).unwrap_err();
        assert!(again.to_string().starts_with("cannot create "), "{again}");
        assert!(path.exists(), "the second attempt removed the first's file");
        drop(area);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_area_is_refused_with_a_reason() {
        let error = swapon(Path::new("/nowhere/area")).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot switch swap on at /nowhere/area: "),
            "{error}"
        );
        assert!(error.contains("needs root"), "{error}");
        assert!(swapoff(Path::new("/nowhere/area")).is_err());
    }
}
