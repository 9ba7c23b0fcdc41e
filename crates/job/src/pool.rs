//! The servers of a job, while they come and go.
//!
//! The launcher watches for changes and writes the list here; the runtimes in its programs read it, and need
//! neither the file that it comes from nor anybody who resolves names. One server on a line:
//! `+`, `=` (it is to be used, but not filled when it joins) or `-` (it is not), the rack, a tab, the address.
//! Invariant: a list begins with the servers of the one before it, in the same order. So the number of a
//! server is the same in all processes of a job, also in a child that takes over what its parent had.

use crate::config::{escape, unescape};
use crate::layout::POOL_MAX;
use crate::{Config, Job, JobError};
use muninn_sys::socket::Address;
use std::fmt::Write;
use std::sync::atomic::{Ordering, fence};

/// A server that may be used, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolServer {
    pub address: Address,
    /// What fails together with it, if that is more than its host.
    pub rack: Option<String>,
    /// It is not to be used any more, and what it holds is to be moved away.
    pub left: bool,
    /// When it joins, others give it some of what they hold.
    pub fill: bool,
}

fn print(list: &[PoolServer]) -> String {
    let mut text = String::new();
    for server in list {
        let mark = match (server.left, server.fill) {
            (true, _) => '-',
            (false, true) => '+',
            (false, false) => '=',
        };
        let rack = server
            .rack
            .as_deref()
            .unwrap_or_default()
            .replace('\t', " ");
        let address = escape(&server.address.to_string());
        let _ = writeln!(text, "{mark}{}\t{address}", escape(&rack));
    }
    text
}

fn parse(text: &str) -> Option<Vec<PoolServer>> {
    let server = |line: &str| {
        let (rack, address) = line.get(1..)?.split_once('\t')?;
        Some(PoolServer {
            address: unescape(address).parse().ok()?,
            rack: Some(unescape(rack)).filter(|rack| !rack.is_empty()),
            left: line.starts_with('-'),
            fill: !line.starts_with('='),
        })
    };
    text.lines().map(server).collect()
}

impl Job {
    /// Tells all processes which servers there are. Only the launcher does, one thread at a time.
    pub fn set_pool(&self, list: &[PoolServer]) -> Result<(), JobError> {
        let text = print(list);
        if text.len() > POOL_MAX {
            return Err(JobError::PoolTooLong);
        }
        let area = &self.page.pool;
        let before = area.sequence.load(Ordering::Relaxed);
        area.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        area.text.write(&text);
        area.sequence.store(before + 2, Ordering::Release);
        Ok(())
    }

    /// The list and its version, if that is not `seen`. `None` also while it is being written: who asks
    /// now and then gets it the next time. Takes no memory when nothing has changed.
    pub fn pool_after(&self, seen: u64) -> Option<(u64, Vec<PoolServer>)> {
        let area = &self.page.pool;
        let version = area.sequence.load(Ordering::Acquire);
        if version == seen || !version.is_multiple_of(2) {
            return None;
        }
        let text = String::from_utf8(area.text.read()?).ok()?;
        fence(Ordering::Acquire);
        let same = area.sequence.load(Ordering::Relaxed) == version;
        Some((version, parse(&text).filter(|_| same)?))
    }

    /// The servers as they are now, to be shown.
    pub fn pool(&self, config: &Config) -> Vec<String> {
        match self.pool_after(0) {
            Some((_, list)) => {
                let used = list.iter().filter(|server| !server.left);
                used.map(|server| server.address.to_string()).collect()
            }
            None => config.pool.iter().map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::Bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_reads_back(
            servers in prop::collection::vec(("/[^\0]{1,20}", prop::option::of("[^\t]{1,9}"), any::<bool>()), 0..6)
        ) {
            let server = |(path, rack, left): (String, _, _)| PoolServer {
                address: Address::Unix(path.into()),
                rack,
                left,
                fill: true,
            };
            let list: Vec<PoolServer> = servers.into_iter().map(server).collect();
            prop_assert_eq!(parse(&print(&list)), Some(list));
        }
    }

    #[test]
    fn a_change_is_seen_once() {
        let job = Job::create(&Config::default(), Bytes::mib(1)).unwrap();
        assert_eq!(job.pool_after(0), None);
        let mut list = vec![PoolServer {
            address: "10.0.0.5:7000".parse().unwrap(),
            rack: Some("r 1".to_string()),
            left: false,
            fill: false,
        }];
        job.set_pool(&list).unwrap();
        let (version, seen) = job.pool_after(0).unwrap();
        assert_eq!(seen, list);
        assert_eq!(job.pool_after(version), None);
        // Whether one that has left is to be filled is not asked, and not kept.
        (list[0].left, list[0].fill) = (true, true);
        job.set_pool(&list).unwrap();
        assert_eq!(job.pool_after(version).unwrap().1, list);
        let many = vec![list[0].clone(); POOL_MAX / 8];
        let refusal = job.set_pool(&many).unwrap_err().to_string();
        assert!(refusal.starts_with("the job's list of servers is longer"));
        assert_eq!(job.pool_after(0).unwrap().1, list, "the old list stays");
        job.remove();
    }
}
