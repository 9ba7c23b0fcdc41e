//! What doctor asks of a machine: the real one, or one that a test describes.
//!
//! Each question is one small function that tries the thing itself and puts it back: a kernel that
//! lists a feature may still refuse it to this user.

use crate::cmd::run::library;
use muninn_sys::affinity;
use muninn_sys::epoll::{Interest, wait_for};
use muninn_sys::limits::{self, Limit, Limited};
use muninn_sys::memory::{Mapping, Memfd};
use muninn_sys::pagemap::{Categories, PageScan, Pagemap, Query, Region};
use muninn_sys::pm_qos;
use muninn_sys::proc::{ProcSource, RealProc};
use muninn_sys::socket::{Address, Listener, Marks, Stream};
use muninn_sys::uffd::{Features, PageRange, Route, Userfaultfd, supported_features};
use muninn_types::{Bytes, Class};
use std::fmt::Display;
use std::time::Duration;

/// A thing that was tried: what was found, or why it is not to be had.
pub type Tried<T> = Result<T, String>;

pub trait Machine {
    type Proc: ProcSource;
    fn proc(&self) -> &Self::Proc;
    /// Opens a userfaultfd that may serve faults of the kernel, too.
    fn open_uffd(&self, route: Route) -> Tried<()>;
    /// Opens one that serves faults of user code only.
    fn open_uffd_user_mode(&self) -> Tried<()>;
    fn uffd_features(&self) -> Tried<Features>;
    /// Opens one that is told of forks, which takes more permission than the rest.
    fn open_uffd_with_forks(&self) -> Tried<()>;
    fn pagemap_scan(&self) -> Tried<()>;
    fn memfd(&self) -> Tried<()>;
    /// Finds the library that goes into programs.
    fn program_library(&self) -> Tried<()>;
    fn keep_awake(&self) -> Tried<()>;
    fn cpus(&self) -> usize;
    fn limit(&self, what: Limited) -> Limit;
    /// Connects over loopback, and marks the connection as the most urgent class.
    fn loopback(&self) -> Tried<Marks>;
}

/// This machine, for this user.
#[derive(Debug, Default)]
pub struct ThisMachine {
    proc: RealProc,
}

fn text(error: impl Display) -> String {
    error.to_string()
}

impl Machine for ThisMachine {
    type Proc = RealProc;

    fn proc(&self) -> &RealProc {
        &self.proc
    }

    fn open_uffd(&self, route: Route) -> Tried<()> {
        Userfaultfd::open_by(route, Features::NONE, Features::NONE)
            .map(drop)
            .map_err(text)
    }

    fn open_uffd_user_mode(&self) -> Tried<()> {
        Userfaultfd::open_user_mode_only(Features::NONE, Features::NONE)
            .map(drop)
            .map_err(text)
    }

    fn uffd_features(&self) -> Tried<Features> {
        supported_features().map_err(text)
    }

    fn open_uffd_with_forks(&self) -> Tried<()> {
        Userfaultfd::open(Features::EVENT_FORK, Features::NONE)
            .map(drop)
            .map_err(text)
    }

    fn pagemap_scan(&self) -> Tried<()> {
        let map = Mapping::options()
            .populate()
            .anonymous(Bytes::PAGE)
            .map_err(text)?;
        let range = PageRange::of_bytes(map.addr(), Bytes::PAGE.0).ok_or("an unaligned mapping")?;
        let mut found = [Region {
            range,
            categories: Categories::NONE,
        }];
        let pagemap = Pagemap::open().map_err(text)?;
        let scanned = pagemap
            .scan(range, &Query::PRESENT, &mut found)
            .map_err(text)?;
        match scanned.regions {
            1 => Ok(()),
            _ => Err("a page that is there was not found".to_string()),
        }
    }

    fn memfd(&self) -> Tried<()> {
        let file = Memfd::create("muninn-doctor", Bytes::PAGE).map_err(text)?;
        let map = Mapping::options()
            .shared()
            .file(&file, 0, Bytes::PAGE)
            .map_err(text)?;
        map.write_at(0, &[1]).map_err(text)
    }

    fn program_library(&self) -> Tried<()> {
        library::find(false).map(drop).map_err(text)
    }

    fn keep_awake(&self) -> Tried<()> {
        pm_qos::keep_awake().map(drop).map_err(text)
    }

    fn cpus(&self) -> usize {
        affinity::allowed_count()
    }

    fn limit(&self, what: Limited) -> Limit {
        limits::limit(what)
    }

    fn loopback(&self) -> Tried<Marks> {
        let wait = Duration::from_secs(2);
        let any: Address = "127.0.0.1:0".parse().map_err(text)?;
        let listener = Listener::bind(&any).map_err(text)?;
        let client = Stream::connect(listener.address(), wait).map_err(text)?;
        wait_for(&listener, Interest::READ, Some(wait)).map_err(text)?;
        match listener.accept().map_err(text)? {
            Some(_) => Ok(client.set_class(Class::UrgentEviction)),
            None => Err("a connection to ourselves did not arrive".to_string()),
        }
    }
}
