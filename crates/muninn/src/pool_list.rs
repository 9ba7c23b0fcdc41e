//! What `--pool` may name: servers, and files of servers that may change.
//!
//! A *pool file* is TOML with one `[[server]]` for each server, with its `address` and, where more fails
//! together than a host, its `rack`. `muninn run` watches it while its program runs ([`Watch`]); other commands
//! read it once. The launcher does the watching, for all processes of its job: names can be resolved here, but
//! not inside of a program, whose C library may be in the middle of anything.
//!
//! The file is looked at twice a second, not waited for with inotify: that hears nothing of files that change on
//! network file systems, and loses a file that is replaced by another, as careful editors do.

use crate::config::{Text, parse_toml};
use crate::failure::Failure;
use muninn_job::{Job, PoolServer};
use muninn_sys::files::open_found;
use muninn_sys::proc;
use muninn_sys::socket::{Address, AddressError};
use muninn_volume::SERVERS_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How often a file is looked at. A change counts when it is still the same at the next look: files
/// are not written at once.
const LOOK: Duration = Duration::from_millis(500);
/// A file longer than this is something else.
const FILE_MAX: u64 = 1 << 20;

/// One word of `--pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A server; several where a host name has several addresses.
    Servers(Vec<Address>),
    File(PathBuf),
    /// Whatever the agent of this node says, who is asked at this socket.
    Agent(PathBuf),
}

/// Where an agent listens when nothing else is said.
pub const AGENT_SOCKET: &str = "/run/muninn/agent.sock";

impl FromStr for Entry {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Entry, AddressError> {
        if text == "agent" {
            return Ok(Entry::Agent(AGENT_SOCKET.into()));
        }
        if let Some(path) = text.strip_prefix("agent:").filter(|path| !path.is_empty()) {
            return Ok(Entry::Agent(path.into()));
        }
        match text.strip_prefix("pool:") {
            Some("") => Err(AddressError::Syntax(text.to_string())),
            Some(path) => Ok(Entry::File(path.into())),
            None => Address::all(text).map(Entry::Servers),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolFile {
    #[serde(default)]
    server: Vec<Line>,
    /// Whether a server that joins is given some of what others hold.
    rebalance: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    address: Text<Entry>,
    rack: Option<String>,
}

/// Whose each file was when it was first read.
type Owners = BTreeMap<PathBuf, u32>;

/// All servers that words name now, each once.
pub fn read(entries: &[Entry]) -> Result<Vec<PoolServer>, Failure> {
    read_of(entries, &mut Owners::new())
}

/// The same; a file that is another user's since is not believed.
fn read_of(entries: &[Entry], owners: &mut Owners) -> Result<Vec<PoolServer>, Failure> {
    let mut list: Vec<PoolServer> = Vec::new();
    let mut add = |addresses: &[Address], rack: Option<&String>, fill: bool| {
        for address in addresses {
            if list.iter().all(|known| known.address != *address) {
                list.push(PoolServer {
                    address: address.clone(),
                    rack: rack.cloned(),
                    left: false,
                    fill,
                });
            }
        }
    };
    for entry in entries {
        match entry {
            Entry::Servers(addresses) => add(addresses, None, true),
            Entry::Agent(_) => {
                return Err(Failure::usage(
                    "'agent' stands for a pool in 'muninn run --pool agent' only, and alone: \
                     'muninn agent --show' names the servers",
                ));
            }
            Entry::File(path) => {
                let file = read_file(path, owners)?;
                let fill = file.rebalance.unwrap_or(true);
                for line in file.server {
                    match &line.address.0 {
                        Entry::Servers(addresses) => add(addresses, line.rack.as_ref(), fill),
                        Entry::File(_) | Entry::Agent(_) => {
                            let path = path.display();
                            let text = format!("{path}: a pool file cannot name another");
                            return Err(Failure::usage(text));
                        }
                    }
                }
            }
        }
    }
    Ok(list)
}

fn read_file(path: &Path, owners: &mut Owners) -> Result<PoolFile, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        let path = path.display();
        Failure::usage(format!("cannot read the pool file {path}: {why}"))
    };
    // A pipe in its place keeps nobody waiting.
    let file = open_found(path).map_err(|error| refused(&error))?;
    let about = file.metadata().map_err(|error| refused(&error))?;
    if !about.is_file() {
        return Err(refused(&"it is not a file"));
    }
    // Whoever named it knew whose it was; nobody else is to lead a program's pages elsewhere since.
    let (own, now) = (proc::own_uid(), about.uid());
    let first = *owners.entry(path.to_path_buf()).or_insert(now);
    if ![first, own, 0].contains(&now) {
        let why = format!("it belongs to another user since (uid {now}, before {first})");
        return Err(refused(&why));
    }
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    // A part of a list looks like a list.
    if read.map_err(|error| refused(&error))? as u64 > FILE_MAX {
        return Err(refused(&"it is longer than 1MiB"));
    }
    let file: PoolFile = parse_toml(&text, path)?;
    if file.server.is_empty() {
        let path = path.display();
        return Err(Failure::usage(format!("{path}: names no [[server]]")));
    }
    Ok(file)
}

/// The same, with the sockets as a program finds them, whose working folder is another.
fn read_absolute(entries: &[Entry], owners: &mut Owners) -> Result<Vec<PoolServer>, Failure> {
    let mut list = read_of(entries, owners)?;
    for server in &mut list {
        if let Address::Unix(path) = &server.address {
            let path = std::path::absolute(path)?;
            server.address = Address::unix(path).map_err(Failure::usage)?;
        }
    }
    Ok(list)
}

/// Brings a list up to date: who is new comes last, and who is gone is marked. What has changed, for people.
fn merge(list: &mut Vec<PoolServer>, now: &[PoolServer]) -> Vec<String> {
    let mut said = Vec::new();
    let fill = now.iter().all(|server| server.fill);
    if list.iter().any(|known| known.fill != fill) {
        said.push(match fill {
            true => "servers that join the pool are given some of what others hold".to_string(),
            false => "nothing is moved to servers that join the pool".to_string(),
        });
    }
    list.iter_mut().for_each(|known| known.fill = fill);
    for known in list.iter_mut() {
        let left = now.iter().all(|server| server.address != known.address);
        if known.left != left {
            known.left = left;
            let at = &known.address;
            said.push(match left {
                true => format!("the server at {at} left the pool: what it holds is moved away"),
                false => format!("the server at {at} is in the pool again"),
            });
        }
    }
    for server in now {
        if list.iter().any(|known| known.address == server.address) {
            continue;
        }
        if list.len() >= SERVERS_MAX {
            said.push(format!(
                "the server at {} is not used: a job knows {SERVERS_MAX} servers at most",
                server.address
            ));
            continue;
        }
        said.push(format!("the server at {} joined the pool", server.address));
        list.push(PoolServer {
            fill,
            ..server.clone()
        });
    }
    said
}

/// What tells one state of a file from another.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// The pool of a job, with the files that it comes from.
#[derive(Debug)]
pub struct Watch {
    entries: Vec<Entry>,
    owners: Owners,
    list: Vec<PoolServer>,
    /// As of the last look, and as of when the files were read.
    seen: Vec<Stamp>,
    read: Vec<Stamp>,
    /// Why the files could not be read the last time.
    failed: Option<String>,
}

impl Watch {
    pub fn new(entries: &[Entry]) -> Result<Watch, Failure> {
        let mut watch = Watch {
            entries: entries.to_vec(),
            owners: Owners::new(),
            list: Vec::new(),
            seen: Vec::new(),
            read: Vec::new(),
            failed: None,
        };
        // Before the files are read: what changes meanwhile is read again.
        watch.read = watch.stamps();
        watch.list = read_absolute(entries, &mut watch.owners)?;
        watch.seen.clone_from(&watch.read);
        if watch.list.len() > SERVERS_MAX {
            let text = format!("a job knows {SERVERS_MAX} servers at most; name fewer");
            return Err(Failure::usage(text));
        }
        Ok(watch)
    }

    /// Whether the pool may change.
    pub fn has_files(&self) -> bool {
        let is_file = |entry: &Entry| matches!(entry, Entry::File(_));
        self.entries.iter().any(is_file)
    }

    pub fn list(&self) -> &[PoolServer] {
        &self.list
    }

    fn stamps(&self) -> Vec<Stamp> {
        let files = self.entries.iter().filter_map(|entry| match entry {
            Entry::File(path) => Some(stamp(path)),
            Entry::Servers(_) | Entry::Agent(_) => None,
        });
        files.collect()
    }

    /// Looks whether files have changed: what is to be told people, and whether the list is another.
    fn look(&mut self) -> (Vec<String>, bool) {
        let now = self.stamps();
        let settled = now == self.seen;
        self.seen.clone_from(&now);
        // What could not be read is tried again: it may be that a name had no address for a moment.
        if !settled || now == self.read && self.failed.is_none() {
            return (Vec::new(), false);
        }
        self.read = now;
        match read_absolute(&self.entries, &mut self.owners) {
            Ok(servers) => {
                self.failed = None;
                let said = merge(&mut self.list, &servers);
                let changed = !said.is_empty();
                (said, changed)
            }
            Err(why) => {
                let why = why.to_string();
                let known = self.failed.replace(why.clone());
                let news = known.as_ref() != Some(&why);
                let said = news.then(|| format!("{why}; the pool stays as it was"));
                (said.into_iter().collect(), false)
            }
        }
    }

    /// Keeps a job's list up to date, for as long as this process lives.
    pub fn follow(mut self, job: Job) {
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                let (mut said, changed) = self.look();
                if changed && let Err(why) = job.set_pool(&self.list) {
                    said.push(why.to_string());
                }
                for line in said {
                    eprintln!("muninn: {line}");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[PoolServer]) -> Vec<String> {
        let name = |server: &PoolServer| {
            let mark = if server.left { "-" } else { "+" };
            let rack = server.rack.as_deref().unwrap_or_default();
            format!("{mark}{} {rack}", server.address)
        };
        list.iter().map(name).collect()
    }

    struct File(PathBuf);

    impl File {
        fn new(text: &str) -> File {
            let name = format!("muninn-pool-{:016x}.toml", muninn_sys::rand::u64());
            let file = File(std::env::temp_dir().join(name));
            file.write(text);
            file
        }
        fn write(&self, text: &str) {
            std::fs::write(&self.0, text).unwrap();
        }
        fn entry(&self) -> Entry {
            format!("pool:{}", self.0.display()).parse().unwrap()
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const ONE: &str = "[[server]]\naddress = \"10.0.0.5:7000\"\nrack = \"r1\"\n";

    #[test]
    fn a_file_and_words_are_one_list() {
        let file = File::new(&format!(
            "{ONE}[[server]]\naddress = \"unix:/run/m.sock\"\n"
        ));
        let words: Vec<Entry> = vec!["10.0.0.7:7000".parse().unwrap(), file.entry(), file.entry()];
        let list = names(&read(&words).unwrap());
        assert_eq!(
            list,
            ["+10.0.0.7:7000 ", "+10.0.0.5:7000 r1", "+unix:/run/m.sock "]
        );
        assert!("pool:".parse::<Entry>().is_err());
        assert!("7000".parse::<Entry>().is_err());
    }

    #[test]
    fn mistakes_are_named_with_their_file_and_line() {
        let refusal = |text: &str| {
            let file = File::new(text);
            let why = read(&[file.entry()]).unwrap_err().to_string();
            why.replace(&file.0.display().to_string(), "FILE")
        };
        assert_eq!(refusal(""), "FILE: names no [[server]]");
        assert_eq!(
            refusal("[[server]]\naddress = \"nowhere\"\n"),
            "FILE, line 2: 'nowhere' is not an address: write HOST:PORT (such as 10.0.0.5:7000 or \
             [::1]:7000) or unix:PATH"
        );
        assert_eq!(
            refusal("[[server]]\naddress = \"pool:x\"\n"),
            "FILE: a pool file cannot name another"
        );
        assert!(
            refusal("[[server]]\nhost = \"a\"\n").starts_with("FILE, line 2: unknown field 'host'")
        );
    }

    #[test]
    fn what_is_no_list_of_servers_is_refused_at_once() {
        let file = File::new(ONE);
        let mut watch = Watch::new(&[file.entry()]).unwrap();
        let mut say = |what: &str| {
            watch.look();
            let (said, changed) = watch.look();
            assert!(!changed && watch.look().0.is_empty(), "{what}: {said:?}");
            let said = said.join("\n");
            assert!(
                said.contains(what) && said.ends_with("stays as it was"),
                "{said}"
            );
        };
        // Cut after the first megabyte this would be a list.
        let tail = "# long\n".repeat(1 << 18);
        file.write(&format!("{ONE}{tail}{}", ONE.replace(".5:", ".6:")));
        say("longer than 1MiB");
        std::fs::remove_file(&file.0).unwrap();
        say("cannot read the pool file");
        std::fs::create_dir(&file.0).unwrap();
        say("cannot read the pool file");
        std::fs::remove_dir(&file.0).unwrap();
        std::fs::write(&file.0, b"\xff\xfe").unwrap();
        say("cannot read the pool file");
        file.write("");
        say("names no [[server]]");
        file.write(&format!("{ONE}{ONE}"));
        watch.look();
        assert_eq!(
            watch.look(),
            (Vec::new(), false),
            "named twice, and the same"
        );
    }

    #[test]
    fn a_pipe_or_another_users_file_is_not_believed() {
        let file = File::new(ONE);
        let mut watch = Watch::new(&[file.entry()]).unwrap();
        let mut after = |change: &dyn Fn()| {
            change();
            watch.look();
            watch.look()
        };
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let (said, changed) = after(&|| {
            std::fs::remove_file(&file.0).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &file.0, mode).unwrap();
        });
        assert!(!changed && said[0].contains("it is not a file"), "{said:?}");
        if !rustix::process::geteuid().is_root() {
            return muninn_testing::skip("only root makes files of another user");
        }
        let (said, changed) = after(&|| {
            std::fs::remove_file(&file.0).unwrap();
            file.write(&ONE.replace("10.0.0.5", "10.6.6.6"));
            std::os::unix::fs::chown(&file.0, Some(61_234), None).unwrap();
        });
        let why =
            "it belongs to another user since (uid 61234, before 0); the pool stays as it was";
        assert!(!changed && said[0].contains(why), "{said:?}");
        assert_eq!(names(watch.list()), ["+10.0.0.5:7000 r1"]);
    }

    #[test]
    fn a_change_counts_when_it_has_settled_and_makes_sense() {
        let file = File::new(ONE);
        let mut watch = Watch::new(&[file.entry()]).unwrap();
        assert_eq!(watch.look(), (Vec::new(), false));
        file.write(&format!("{ONE}[[server]]\naddress = \"10.0.0.6:7000\"\n"));
        assert_eq!(watch.look(), (Vec::new(), false), "it may still be written");
        let joined = "the server at 10.0.0.6:7000 joined the pool".to_string();
        assert_eq!(watch.look(), (vec![joined], true));
        assert_eq!(watch.look(), (Vec::new(), false));
        file.write("[[server]\n");
        watch.look();
        let (said, changed) = watch.look();
        assert!(!changed && said.len() == 1 && said[0].ends_with("; the pool stays as it was"));
        assert_eq!(watch.look(), (Vec::new(), false), "it is said once");
        file.write("[[server]]\naddress = \"10.0.0.6:7000\"\n");
        watch.look();
        let left = "the server at 10.0.0.5:7000 left the pool: what it holds is moved away";
        assert_eq!(watch.look(), (vec![left.to_string()], true));
        assert_eq!(
            names(watch.list()),
            ["-10.0.0.5:7000 r1", "+10.0.0.6:7000 "]
        );
        file.write(&format!("{ONE}[[server]]\naddress = \"10.0.0.6:7000\"\n"));
        watch.look();
        let back = "the server at 10.0.0.5:7000 is in the pool again".to_string();
        assert_eq!(watch.look(), (vec![back], true));
        assert_eq!(
            names(watch.list()),
            ["+10.0.0.5:7000 r1", "+10.0.0.6:7000 "]
        );
    }
}
