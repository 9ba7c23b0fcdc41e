//! What the launcher tells the runtime, as text.
//!
//! One `name=value` on a line, because the reader is a library inside of somebody else's program:
//! it should be small, and a text can be looked at. Invariant: what is printed reads back equal; a
//! line that is not understood is an error, since launcher and runtime are of one build.

use muninn_policy::evict::EvictPolicy;
use muninn_policy::layout::Layout;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_policy::threshold::ThresholdPolicy;
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use muninn_wire::Lock;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// How far memory is to be used by a job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Config {
    /// What the job is called where people read it: the program's name.
    pub name: String,
    /// Servers that memory may be asked of, at the start; [`Job::pool_after`](crate::Job::pool_after) knows who came later.
    pub pool: Vec<Address>,
    /// What they ask for. The key is not here: the launcher has it, and shakes hands for its programs.
    pub lock: Lock,
    /// Where the launcher is asked to, by those who do not find it by its [name](Config::holder).
    pub holder_path: PathBuf,
    /// How far memory lies over the servers.
    pub layout: Layout,
    pub prefetch: PrefetchPolicy,
    pub evict: EvictPolicy,
    pub threshold: ThresholdPolicy,
    /// The most that may be far; `None` for as much as the pool gives.
    pub max_far: Option<Bytes>,
    /// Copy pages out of the program, as on a kernel that cannot move them.
    pub no_move: bool,
    /// Seal pages before they leave this machine's hands. The keys are not here: each process makes its
    /// own.
    pub seal: bool,
    /// The program was started with huge pages allowed.
    pub huge_pages: bool,
    /// Runtimes that manage memory themselves are told of the limit; else only what they would be told is noted.
    pub tune: bool,
    /// The launcher's door, its namespace of process numbers, and its user: a runtime that finds
    /// itself elsewhere asks there.
    pub door: String,
    pub namespace: u64,
    pub user: u32,
}

/// Why a text is not a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the job's configuration has a line '{0}', which is not of the form name=value")]
    Line(String),
    #[error("the job's configuration names '{0}', which is not known here")]
    Unknown(String),
    #[error("the job's configuration says {name}={value}: {why}")]
    Value {
        name: &'static str,
        value: String,
        why: String,
    },
}

impl Config {
    /// The name under which the launcher shakes hands for its programs.
    pub fn holder(&self) -> String {
        format!("{}-key", self.door)
    }

    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| ConfigError::Line(line.to_string()))?;
            config.set(name, &unescape(value))?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        match name {
            "name" => self.name = value.to_string(),
            "pool" => self.pool.push(read("pool", value)?),
            "lock" => {
                let lock = Lock::ALL.into_iter().find(|lock| lock.name() == value);
                let why = || "use open, shared or identity".to_string();
                self.lock = lock.ok_or_else(|| wrong("lock", value, why()))?;
            }
            "holder-path" => self.holder_path = value.into(),
            "layout" => self.layout = read("layout", value)?,
            "prefetch" => self.prefetch = read("prefetch", value)?,
            "evict" => self.evict = read("evict", value)?,
            "threshold" => self.threshold = read("threshold", value)?,
            "max-far" => self.max_far = Some(read("max-far", value)?),
            "no-move" => self.no_move = read("no-move", value)?,
            "seal" => self.seal = read("seal", value)?,
            "huge-pages" => self.huge_pages = read("huge-pages", value)?,
            "tune" => self.tune = read("tune", value)?,
            "door" => self.door = value.to_string(),
            "namespace" => self.namespace = read("namespace", value)?,
            "user" => self.user = read("user", value)?,
            _ => return Err(ConfigError::Unknown(name.to_string())),
        }
        Ok(())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name={}", escape(&self.name))?;
        for server in &self.pool {
            writeln!(f, "pool={}", escape(&server.to_string()))?;
        }
        writeln!(f, "lock={}", self.lock.name())?;
        let path = self.holder_path.to_string_lossy();
        writeln!(f, "holder-path={}", escape(&path))?;
        writeln!(f, "layout={}", self.layout)?;
        writeln!(f, "prefetch={}", self.prefetch)?;
        writeln!(f, "evict={}", self.evict)?;
        writeln!(f, "threshold={}", self.threshold)?;
        if let Some(bytes) = self.max_far {
            writeln!(f, "max-far={bytes}")?;
        }
        writeln!(f, "no-move={}", self.no_move)?;
        writeln!(f, "seal={}", self.seal)?;
        writeln!(f, "huge-pages={}", self.huge_pages)?;
        writeln!(f, "tune={}", self.tune)?;
        writeln!(f, "door={}", escape(&self.door))?;
        writeln!(f, "namespace={}", self.namespace)?;
        writeln!(f, "user={}", self.user)
    }
}

fn read<T: FromStr<Err: fmt::Display>>(name: &'static str, value: &str) -> Result<T, ConfigError> {
    value
        .parse()
        .map_err(|error: T::Err| wrong(name, value, error.to_string()))
}

fn wrong(name: &'static str, value: &str, why: String) -> ConfigError {
    ConfigError::Value {
        name,
        value: value.to_string(),
        why,
    }
}

/// Line ends inside of a value, as a path may have them.
pub(crate) fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

pub(crate) fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => text.push('\n'),
                Some('r') => text.push('\r'),
                Some(other) => text.push(other),
                None => {}
            },
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_read_and_nonsense_is_named() {
        let text = "name=sort\npool=unix:/run/m.sock\npool=10.0.0.5:7000\nlock=shared\nholder-path=/run/h\n\
                    layout=mirror\nprefetch=none\nevict=sieve\nthreshold=fixed\nmax-far=1GiB\nno-move=true\n\
                    seal=true\nhuge-pages=true\ntune=true\ndoor=muninn-job-7\nnamespace=4026531836\nuser=1000\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.to_string(), text);
        assert_eq!(config.lock, Lock::Shared);
        assert_eq!(config.holder(), "muninn-job-7-key");
        assert_eq!(config.max_far, Some(Bytes::gib(1)));
        let refusal = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert_eq!(
            refusal("what"),
            "the job's configuration has a line 'what', which is not of the form name=value"
        );
        assert_eq!(
            refusal("colour=red"),
            "the job's configuration names 'colour', which is not known here"
        );
        assert_eq!(
            refusal("evict=lru"),
            "the job's configuration says evict=lru: 'lru' is not an eviction policy: use fifo, \
             random, segmented-fifo, s3-fifo or sieve"
        );
        assert_eq!(
            refusal("lock=heavy"),
            "the job's configuration says lock=heavy: use open, shared or identity"
        );
    }

    fn addresses() -> impl Strategy<Value = Address> {
        prop_oneof![
            any::<(u32, u16)>().prop_map(|(host, port)| {
                Address::Tcp((std::net::Ipv4Addr::from(host), port).into())
            }),
            "/[^\0]{1,20}".prop_map(|path| Address::Unix(path.into())),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(
            name in any::<String>(),
            pool in proptest::collection::vec(addresses(), 0..4),
            lock in 0usize..3,
            holder in "/[^\0]{1,20}",
            which in 0usize..5,
            adaptive: bool,
            max_far: Option<u64>,
            no_move: bool,
            seal: bool,
            huge_pages: bool,
            tune: bool,
            layout in prop::sample::select(vec!["single", "mirror", "mirror:3", "parity:2+1", "parity:8+2"]),
        ) {
            let layout: Layout = layout.parse().unwrap();
            let threshold = ThresholdPolicy::ALL[usize::from(adaptive)];
            let config = Config {
                door: name.clone(),
                lock: Lock::ALL[lock],
                holder_path: holder.into(),
                name, pool, layout, threshold, no_move, seal, huge_pages, tune,
                namespace: u64::MAX,
                user: 65_534,
                prefetch: PrefetchPolicy::ALL[which],
                evict: EvictPolicy::ALL[which],
                max_far: max_far.map(Bytes),
            };
            prop_assert_eq!(Config::parse(&config.to_string()).unwrap(), config);
        }

        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "[ -~\n=é\\\\]{0,80}") {
            let _ = Config::parse(&text);
        }
    }
}
