//! `muninn.toml`: what holds where neither a flag nor a `MUNINN_*` variable says otherwise.
//!
//! Flags and variables are read by clap, which lets a flag win; commands then fill what is still
//! open from here, option by option. A key that is not known is an error and not passed over: a
//! misspelt `key-file` must never mean a server without a key.

use crate::failure::Failure;
use crate::hosting::{PushChoice, WicChoice};
use crate::pool_list::Entry;
use muninn_policy::evict::EvictPolicy;
use muninn_policy::layout::Layout;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_policy::threshold::ThresholdPolicy;
use muninn_sys::files;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, LocalSize, parse_duration};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A file longer than this is something else.
const FILE_MAX: u64 = 1 << 20;

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub serve: ServeTable,
    pub client: ClientTable,
    pub run: RunTable,
}

/// `[serve]`: each key is the flag of the same name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ServeTable {
    pub memory: Option<Bytes>,
    pub listen: Texts<Address>,
    pub socket: Vec<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub insecure: Option<bool>,
    pub lease: Option<Span>,
    pub quota: BTreeMap<String, Bytes>,
    pub max_sessions: Option<usize>,
    pub max_sessions_per_client: Option<usize>,
    pub threads: Option<usize>,
    pub segment: Option<Bytes>,
    pub prealloc: Option<bool>,
    pub huge_pages: Option<HugeChoice>,
    pub spin: Option<Span>,
    pub keep_awake: Option<bool>,
    pub equal_classes: Option<bool>,
    pub no_agents: Option<bool>,
    pub weights: BTreeMap<String, u32>,
    pub metrics: Option<SocketAddr>,
    pub metrics_token_file: Option<PathBuf>,
    pub name: Option<String>,
    pub stop_grace: Option<Span>,
    pub take_over: Option<bool>,
    pub fdstore: Option<bool>,
    pub reserve: Option<Bytes>,
    pub wic: Option<WicChoice>,
    pub wic_window: Option<usize>,
    pub wic_steps: Option<u32>,
    pub wic_push: Option<PushChoice>,
}

/// The part of `[serve]` that says how functions are run.
#[derive(Clone, Copy, Debug, Default)]
pub struct WicTable {
    pub wic: Option<WicChoice>,
    pub wic_window: Option<usize>,
    pub wic_steps: Option<u32>,
}

impl ServeTable {
    pub fn wic_table(&self) -> WicTable {
        WicTable {
            wic: self.wic,
            wic_window: self.wic_window,
            wic_steps: self.wic_steps,
        }
    }
}

/// `[client]`: for every command that talks to servers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ClientTable {
    pub pool: Texts<Entry>,
    pub key_file: Option<PathBuf>,
}

/// `[run]`: each key is the flag of the same name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct RunTable {
    pub local: Option<Text<LocalSize>>,
    pub layout: Option<Text<Layout>>,
    pub prefetch: Option<Text<PrefetchPolicy>>,
    pub evict: Option<Text<EvictPolicy>>,
    pub threshold: Option<Text<ThresholdPolicy>>,
    pub max_far: Option<Bytes>,
    pub seal: Option<bool>,
    pub tune: Option<bool>,
}

/// `--huge-pages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum HugeChoice {
    /// Transparent huge pages where the kernel gives them
    #[default]
    Auto,
    /// Ordinary pages only
    Off,
    /// Reserved 2 MiB pages, or no start
    Required,
}

/// A duration written as `10s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        let text = String::deserialize(from)?;
        parse_duration(&text)
            .map(Span)
            .map_err(serde::de::Error::custom)
    }
}

/// A thing that is written as a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<T>, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Text).map_err(serde::de::Error::custom)
    }
}

/// A list of things that are written as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts<T>(pub Vec<T>);

impl<T> Default for Texts<T> {
    fn default() -> Texts<T> {
        Texts(Vec::new())
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Texts<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Texts<T>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let read = |text: &String| text.parse().map_err(serde::de::Error::custom);
        texts.iter().map(read).collect::<Result<_, _>>().map(Texts)
    }
}

/// Reads the file that was named, or else the first that exists of the usual places.
pub fn load(named: Option<&Path>) -> Result<Config, Failure> {
    if let Some(path) = named {
        return read(path);
    }
    for path in usual_places(|name| std::env::var_os(name)) {
        let file = match files::open_found(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound || is_out_of_sight(&path) => continue,
            Err(error) => return Err(unreadable(&path, error)),
        };
        // Whoever could write it could have our pages sent to themselves.
        if let Some(why) = files::distrusted(&path, &file) {
            eprintln!(
                "muninn: passing over the configuration file {}: {why}; name it with --config if it \
                 is to be used",
                path.display()
            );
            continue;
        }
        return read_open(file, &path);
    }
    Ok(Config::default())
}

/// Whether somebody else's folder hides what is there: HOME often stays when a program becomes another user.
fn is_out_of_sight(path: &Path) -> bool {
    let seen = path.symlink_metadata();
    seen.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Where a file is looked for, in this order.
fn usual_places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let of_user = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
    let mut places = vec![PathBuf::from("muninn.toml")];
    places.extend(of_user.map(|dir| dir.join("muninn/muninn.toml")));
    places.push(PathBuf::from("/etc/muninn.toml"));
    places
}

fn read(path: &Path) -> Result<Config, Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    read_open(file, path)
}

fn read_open(file: File, path: &Path) -> Result<Config, Failure> {
    let text = std::io::read_to_string(file.take(FILE_MAX));
    parse(&text.map_err(|error| unreadable(path, error))?, path)
}

fn unreadable(path: &Path, error: std::io::Error) -> Failure {
    let path = path.display();
    Failure::usage(format!(
        "cannot read the configuration file {path}: {error}; name another with --config"
    ))
}

fn parse(text: &str, path: &Path) -> Result<Config, Failure> {
    parse_toml(text, path)
}

/// Reads any table; a mistake is named with its file and line.
pub fn parse_toml<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Failure> {
    toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map(|span| 1 + text[..span.start].matches('\n').count())
            .map_or(String::new(), |line| format!(", line {line}"));
        let message = error.message().replace('`', "'");
        Failure::usage(format!("{}{line}: {message}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text, Path::new("muninn.toml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            [serve]
            memory = "64GiB"
            listen = ["10.0.0.5:7000"]
            socket = ["/run/muninn.sock"]
            key-file = "/etc/muninn.key"
            insecure = false
            lease = "20s"
            quota = { "*" = "1GiB", batch = "8GiB" }
            max-sessions = 100
            max-sessions-per-client = 50
            threads = 2
            segment = "32MiB"
            prealloc = true
            huge-pages = "required"
            spin = "20us"
            keep-awake = false
            equal-classes = false
            weights = { demand = 64 }
            metrics = "127.0.0.1:9000"
            metrics-token-file = "/etc/muninn.metrics"
            name = "rack-1"
            stop-grace = "1m"
            wic = "async"
            wic-window = 16
            wic-steps = 1000
            wic-push = "clients"

            [client]
            pool = ["unix:/run/muninn.sock", "10.0.0.5:7000"]
            key-file = "/etc/muninn.key"

            [run]
            local = "25%"
            prefetch = "trend"
            evict = "sieve"
            threshold = "fixed"
            max-far = "8GiB"
        "#;
        let Config { serve, client, run } = parse(text, Path::new("muninn.toml")).unwrap();
        assert_eq!(serve.memory, Some(Bytes::gib(64)));
        assert_eq!(serve.lease, Some(Span(Duration::from_secs(20))));
        assert_eq!(serve.quota["*"], Bytes::gib(1));
        assert_eq!(serve.huge_pages, Some(HugeChoice::Required));
        assert_eq!(serve.weights["demand"], 64);
        assert_eq!(serve.wic, Some(WicChoice::Async));
        assert_eq!(serve.wic_push, Some(PushChoice::Clients));
        assert_eq!(client.pool.0.len(), 2);
        assert_eq!(run.local.unwrap().0.to_string(), "25%");
        assert_eq!(run.evict, Some(Text(EvictPolicy::Sieve)));
        assert_eq!(run.max_far, Some(Bytes::gib(8)));
    }

    #[test]
    fn mistakes_are_named_with_their_file_and_line() {
        assert!(
            refusal("[serve]\nmemory = \"1GiB\"\nkeyfile = \"x\"\n").starts_with(
                "muninn.toml, line 3: unknown field 'keyfile', expected one of 'memory', 'listen'"
            ),
        );
        assert_eq!(
            refusal("[server]\n"),
            "muninn.toml, line 1: unknown field 'server', expected one of 'serve', 'client', 'run'"
        );
        assert_eq!(
            refusal("[serve]\nlease = \"soon\"\n"),
            "muninn.toml, line 2: 'soon' is not a duration: write a number and a unit, such as \
             250ms, 10s or 2m"
        );
        assert_eq!(
            refusal("[client]\npool = [\"nowhere\"]\n"),
            "muninn.toml, line 2: 'nowhere' is not an address: write HOST:PORT (such as \
             10.0.0.5:7000 or [::1]:7000) or unix:PATH"
        );
    }

    #[test]
    fn the_nearest_place_comes_first() {
        let places = |xdg: Option<&str>| {
            usual_places(|name| match name {
                "XDG_CONFIG_HOME" => xdg.map(OsString::from),
                _ => Some("/home/me".into()),
            })
        };
        let paths = |own: &str| ["muninn.toml", own, "/etc/muninn.toml"].map(PathBuf::from);
        assert_eq!(places(Some("/x")), paths("/x/muninn/muninn.toml"));
        assert_eq!(places(None), paths("/home/me/.config/muninn/muninn.toml"));
        assert_eq!(usual_places(|_| None).len(), 2);
    }
}
