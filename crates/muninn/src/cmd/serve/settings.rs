//! From flags, variables and the configuration file to a [`ServerConfig`].

use super::ceiling::Ceiling;
use crate::client::default_socket;
use crate::config::{HugeChoice, ServeTable, Span};
use crate::failure::{Exit, Failure};
use crate::hosting::{HostArgs, PushChoice};
use crate::key_file;
use clap::builder::BoolishValueParser;
use muninn_policy::donor::Donor;
use muninn_policy::wrr::Weights;
use muninn_server::{CallFactory, HugePages, ServerConfig};
use muninn_sys::affinity;
use muninn_sys::proc::{self, ProcSource};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, format_duration, parse_duration};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Sockets of one server at most.
const LISTEN_MAX: usize = 16;
/// More loops than this gain nothing that was ever measured.
const DEFAULT_THREADS_MAX: usize = 4;
/// A client that is away for longer has lost its memory's meaning, too.
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Spinning for longer than a second is a mistake in the unit.
const SPIN_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  muninn serve --memory 64GiB
  muninn serve --memory 64GiB --listen 10.0.0.5:7000 --key-file /etc/muninn.key
  muninn serve --memory 256MiB --socket ./m.sock --listen 127.0.0.1:0 --json
  muninn serve --memory 64GiB --take-over      (a new release, and no client loses anything)

With --json, one JSON object a line: first where it listens, at the end that it stopped.
Every option can also be given as MUNINN_NAME in the environment, or as name = … under [serve] in
muninn.toml.")]
pub struct Args {
    /// Memory to give to the pool, such as 64GiB
    #[arg(long, env = "MUNINN_MEMORY", value_name = "SIZE")]
    pub memory: Option<Bytes>,

    /// Listen for tcp here, such as 10.0.0.5:7000 (port 0: any); may be given several times
    #[arg(long, env = "MUNINN_LISTEN", value_name = "ADDR", value_delimiter = ',', value_parser = parse_listen)]
    pub listen: Vec<Address>,

    /// Listen at this Unix socket, for shared memory on this machine; may be given several times
    /// [default if there is no --listen: muninn.sock in $XDG_RUNTIME_DIR or /run]
    #[arg(
        long,
        env = "MUNINN_SOCKET",
        value_name = "PATH",
        value_delimiter = ','
    )]
    pub socket: Vec<PathBuf>,

    /// File with the key that clients must have; 'muninn keygen' makes one
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// Listen beyond this machine without a key
    #[arg(long, env = "MUNINN_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub insecure: Option<bool>,

    /// How long a silent client keeps its memory [default: 10s]
    #[arg(long, env = "MUNINN_LEASE", value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Option<Duration>,

    /// The most that clients of this name may hold ('*': any other name); may be given several times
    #[arg(long, env = "MUNINN_QUOTA", value_name = "NAME=SIZE", value_delimiter = ',', value_parser = parse_quota)]
    pub quota: Vec<(String, Bytes)>,

    /// Sessions at most [default: 4096]
    #[arg(long, env = "MUNINN_MAX_SESSIONS", value_name = "N")]
    pub max_sessions: Option<usize>,

    /// Sessions at most of one client: a user of this machine, or an address [default: half of all,
    /// at least 64]
    #[arg(long, env = "MUNINN_MAX_SESSIONS_PER_CLIENT", value_name = "N")]
    pub max_sessions_per_client: Option<usize>,

    /// Event loops [default: one for each CPU, 4 at most]
    #[arg(long, env = "MUNINN_THREADS", value_name = "N")]
    pub threads: Option<usize>,

    /// Piece in which memory is handled, a power of two [default: a sixteenth of the memory, 2MiB
    /// to 64MiB]
    #[arg(long, env = "MUNINN_SEGMENT", value_name = "SIZE")]
    pub segment: Option<Bytes>,

    /// Take all memory at the start and lock it, instead of on first use
    #[arg(long, env = "MUNINN_PREALLOC", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub prealloc: Option<bool>,

    /// Pages of 2 MiB [default: auto]
    #[arg(long, env = "MUNINN_HUGE_PAGES", value_name = "WHEN")]
    pub huge_pages: Option<HugeChoice>,

    /// How long an idle loop spins before it sleeps [default: 50us]
    #[arg(long, env = "MUNINN_SPIN", value_name = "DURATION", value_parser = parse_duration)]
    pub spin: Option<Duration>,

    /// Keep CPUs from sleeping while there are sessions, where permitted [default: true]
    #[arg(long, env = "MUNINN_KEEP_AWAKE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub keep_awake: Option<bool>,

    /// Run no agents of managed heaps
    #[arg(long, env = "MUNINN_NO_AGENTS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub no_agents: Option<bool>,

    /// Who may push functions to be run here [default: operators]
    #[arg(long, env = "MUNINN_WIC_PUSH", value_name = "WHO")]
    pub wic_push: Option<PushChoice>,

    /// Serve all classes of traffic alike
    #[arg(long, env = "MUNINN_EQUAL_CLASSES", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub equal_classes: Option<bool>,

    /// Weights of classes that are to differ from the usual, such as demand=32,prefetch=2
    #[arg(long, env = "MUNINN_WEIGHTS", value_name = "CLASS=N,…", value_delimiter = ',', value_parser = parse_weight)]
    pub weights: Vec<(Class, u32)>,

    /// Serve metrics for Prometheus here, such as 127.0.0.1:9100
    #[arg(long, env = "MUNINN_METRICS", value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,

    /// File with a token that scrapers must send; needed for metrics beyond this machine
    #[arg(long, env = "MUNINN_METRICS_TOKEN_FILE", value_name = "PATH")]
    pub metrics_token_file: Option<PathBuf>,

    /// Name in 'muninn status' [default: the name of the host]
    #[arg(long, env = "MUNINN_NAME", value_name = "NAME")]
    pub name: Option<String>,

    /// When told to stop, first give clients this long to move away [default: 0s]
    #[arg(long, env = "MUNINN_STOP_GRACE", value_name = "DURATION", value_parser = parse_duration)]
    pub stop_grace: Option<Duration>,

    /// Go on in the place of the server that runs at the same --socket, with its memory, its sessions and
    /// its addresses; it then ends. With nobody there, start as usual
    #[arg(long, env = "MUNINN_TAKE_OVER", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub take_over: Option<bool>,

    /// When told to end, leave memory and sessions to systemd's store of descriptors, and take them from there at
    /// the next start: for a service with FileDescriptorStoreMax= (see the guide)
    #[arg(long, env = "MUNINN_FDSTORE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub fdstore: Option<bool>,

    /// Memory that is left to this machine: with less available nothing more is granted [default: a part
    /// in 32 of all, 512MiB at most; none with --prealloc]
    #[arg(long, env = "MUNINN_RESERVE", value_name = "SIZE")]
    pub reserve: Option<Bytes>,

    /// File with the size up to which --memory is granted now; it may change, and what is granted beyond
    /// it is then asked back. Written by 'muninn agent'
    #[arg(long, env = "MUNINN_CEILING_FILE", value_name = "PATH")]
    pub ceiling_file: Option<PathBuf>,

    #[command(flatten)]
    pub host: HostArgs,

    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// What to start, and how to end it.
#[derive(Debug)]
pub struct Settings {
    pub server: ServerConfig,
    pub stop_grace: Duration,
    /// Where the server listens whose place this one is to take.
    pub take_over: Option<Address>,
    /// The service manager keeps what there is while a process takes the place of another.
    pub fdstore: bool,
    /// What is left to the machine; `None` where all memory was taken at the start.
    pub reserve: Option<Bytes>,
    /// How much of the memory may be granted now.
    pub ceiling: Option<Ceiling>,
    /// Nothing said where to listen.
    pub default_socket: bool,
    /// Read again when it changes.
    pub key_file: Option<PathBuf>,
}

fn parse_listen(text: &str) -> Result<Address, String> {
    match text.parse() {
        Ok(Address::Unix(path)) => Err(format!(
            "that is a path: for a Unix socket use --socket {}",
            path.display()
        )),
        Ok(address) => Ok(address),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_quota(text: &str) -> Result<(String, Bytes), String> {
    match text.rsplit_once('=') {
        Some((name, size)) if !name.is_empty() => {
            let size = size.parse::<Bytes>().map_err(|error| error.to_string())?;
            Ok((name.to_string(), size))
        }
        _ => Err("write a client's name and a size, such as batch=8GiB".to_string()),
    }
}

fn parse_weight(text: &str) -> Result<(Class, u32), String> {
    let (name, weight) = text
        .split_once('=')
        .ok_or("write a class and a number, such as demand=32")?;
    let weight = weight
        .parse()
        .map_err(|_| format!("'{weight}' is not a number"))?;
    Ok((class(name)?, weight))
}

fn class(name: &str) -> Result<Class, String> {
    let known = || {
        let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
        format!(
            "there is no class '{name}': the classes are {}",
            names.join(", ")
        )
    };
    let found = Class::ALL.into_iter().find(|class| class.name() == name);
    found.ok_or_else(known)
}

impl Args {
    pub fn resolve(
        &self,
        file: &ServeTable,
        source: &impl ProcSource,
    ) -> Result<Settings, Failure> {
        let defaults = ServerConfig::default();
        let span = |file: Option<Span>| file.map(|span| span.0);
        let memory = self.memory.or(file.memory).ok_or_else(|| {
            Failure::usage("how much memory to give to the pool? Say --memory SIZE, such as 64GiB")
        })?;
        check_fits(memory, source)?;
        let mut listen = self.sockets(file)?;
        let default_socket = listen.is_empty();
        if default_socket {
            listen.push(Address::unix(self::default_socket()).map_err(Failure::usage)?);
        }
        let lease = self.lease.or(span(file.lease)).unwrap_or(defaults.lease);
        at_most("a lease", lease, LEASE_MAX)?;
        let spin = self.spin.or(span(file.spin)).unwrap_or(defaults.spin);
        at_most("spinning", spin, SPIN_MAX)?;
        let max_sessions = self.max_sessions.or(file.max_sessions);
        let max_sessions = max_sessions.unwrap_or(defaults.max_sessions);
        if max_sessions == 0 {
            return Err(Failure::usage(
                "a server that accepts 0 sessions is of no use: give --max-sessions 1 or more",
            ));
        }
        let of_one = self
            .max_sessions_per_client
            .or(file.max_sessions_per_client);
        let token_file = self.metrics_token_file.as_deref();
        let token_file = token_file.or(file.metrics_token_file.as_deref());
        let quotas = if self.quota.is_empty() {
            file.quota.clone().into_iter().collect()
        } else {
            self.quota.iter().cloned().collect()
        };
        let threads = || affinity::allowed_count().min(DEFAULT_THREADS_MAX);
        let key_file = self.key_file.as_deref().or(file.key_file.as_deref());
        let server = ServerConfig {
            name: (self.name.clone().or_else(|| file.name.clone()))
                .unwrap_or_else(|| host_name(source)),
            memory,
            segment: self.segment.or(file.segment),
            listen,
            metrics: self.metrics.or(file.metrics),
            metrics_token: token_file.map(key_file::metrics_token).transpose()?,
            key: key_file::load(key_file)?,
            insecure: self.insecure.or(file.insecure).unwrap_or(false),
            lease,
            quotas,
            max_sessions,
            max_sessions_of_source: of_one,
            threads: self.threads.or(file.threads).unwrap_or_else(threads),
            spin,
            weights: self.class_weights(file)?,
            prealloc: self.prealloc.or(file.prealloc).unwrap_or(false),
            huge: match self.huge_pages.or(file.huge_pages).unwrap_or_default() {
                HugeChoice::Auto => HugePages::Auto,
                HugeChoice::Off => HugePages::Off,
                HugeChoice::Required => HugePages::Required,
            },
            keep_awake: self.keep_awake.or(file.keep_awake).unwrap_or(true),
            calls: (self.host.resolve(&file.wic_table(), None)?)
                .map(|hosts| {
                    hosts.taking(self.wic_push.or(file.wic_push).unwrap_or_default().into())
                })
                .map(|hosts| Arc::new(hosts) as Arc<dyn CallFactory>),
            agents: match self.no_agents.or(file.no_agents) {
                Some(true) => None,
                _ => defaults.agents,
            },
            hands_over: true,
            ..defaults
        };
        let take_over = match self.take_over.or(file.take_over) {
            Some(true) => Some(own_socket(&server.listen)?),
            _ => None,
        };
        let stop_grace = self.stop_grace.or(span(file.stop_grace));
        let usual = || {
            let total = proc::meminfo(source).ok()?.total;
            (!server.prealloc).then(|| Donor::usual_reserve(total))
        };
        let reserve = self.reserve.or(file.reserve).or_else(usual);
        Ok(Settings {
            server,
            stop_grace: stop_grace.unwrap_or(Duration::ZERO),
            take_over,
            fdstore: self.fdstore.or(file.fdstore).unwrap_or(false),
            reserve,
            ceiling: self
                .ceiling_file
                .as_deref()
                .map(Ceiling::open)
                .transpose()?,
            default_socket,
            key_file: key_file.map(std::path::Path::to_path_buf),
        })
    }

    /// Sockets first: in what is printed and in `status` they are the nearer ones.
    fn sockets(&self, file: &ServeTable) -> Result<Vec<Address>, Failure> {
        let paths = if self.socket.is_empty() {
            &file.socket
        } else {
            &self.socket
        };
        let tcp = if self.listen.is_empty() {
            &file.listen.0
        } else {
            &self.listen
        };
        let unix = paths.iter().map(Address::unix);
        let mut all: Vec<Address> = unix.collect::<Result<_, _>>().map_err(Failure::usage)?;
        all.extend(tcp.iter().cloned());
        if all.len() > LISTEN_MAX {
            return Err(Failure::usage(format!(
                "a server listens at {LISTEN_MAX} places at most, not {}",
                all.len()
            )));
        }
        Ok(all)
    }

    fn class_weights(&self, file: &ServeTable) -> Result<Weights, Failure> {
        let equal = self.equal_classes == Some(true);
        if equal && !self.weights.is_empty() {
            return Err(Failure::usage(
                "--equal-classes and --weights exclude each other: use one of them",
            ));
        }
        let from_file = || -> Result<Vec<(Class, u32)>, String> {
            let pairs = file.weights.iter();
            pairs.map(|(name, n)| Ok((class(name)?, *n))).collect()
        };
        let changes = match (&self.weights[..], self.equal_classes) {
            ([], Some(true)) => return Ok(Weights::equal()),
            ([], None) if file.equal_classes == Some(true) => return Ok(Weights::equal()),
            ([], _) => from_file().map_err(Failure::usage)?,
            (given, _) => given.to_vec(),
        };
        let mut weights = Class::ALL.map(|class| Weights::default().get(class));
        for (class, weight) in changes {
            weights[class.index()] = weight;
        }
        Weights::new(weights).map_err(Failure::usage)
    }
}

fn at_most(what: &str, time: Duration, most: Duration) -> Result<(), Failure> {
    if time <= most {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{what} of {} is too long: use {} or less",
        format_duration(time),
        format_duration(most)
    )))
}

/// More than the machine has would be promised and, page by page, not kept.
/// The Unix socket at which another process can ask for all that a server has.
fn own_socket(listen: &[Address]) -> Result<Address, Failure> {
    let unix = listen.iter().find(|address| address.is_unix());
    unix.cloned().ok_or_else(|| {
        Failure::usage(
            "a server is taken over through its Unix socket: name that with --socket, as it was \
             when the other one was started",
        )
    })
}

fn check_fits(memory: Bytes, source: &impl ProcSource) -> Result<(), Failure> {
    match proc::meminfo(source) {
        Ok(machine) if machine.total > Bytes::ZERO && memory > machine.total => Err(Failure::new(
            Exit::Usage,
            format!(
                "{memory} are more than this machine has ({}): give the pool less",
                machine.total.rounded()
            ),
        )),
        _ => Ok(()),
    }
}

fn host_name(source: &impl ProcSource) -> String {
    let name = proc::read_text(source, "/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => ServerConfig::default().name,
        name => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_sys::proc::FakeProc;

    fn machine() -> FakeProc {
        FakeProc::new()
            .with("/proc/meminfo", "MemTotal: 25165824 kB\n")
            .with("/proc/sys/kernel/hostname", "huginn\n")
    }

    fn resolve(args: Args, file: &str) -> Result<Settings, String> {
        let config: crate::config::Config = toml::from_str(file).unwrap();
        args.resolve(&config.serve, &machine())
            .map_err(|failure| failure.to_string())
    }

    fn with_memory(args: Args) -> Args {
        Args {
            memory: Some(Bytes::mib(64)),
            ..args
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "[serve]\nmemory = \"1GiB\"\nlease = \"20s\"\nname = \"filed\"\nprealloc = true\n\
                    weights = { demand = 40 }\nlisten = [\"127.0.0.1:7000\"]\n";
        let settings = resolve(Args::default(), file).unwrap();
        assert_eq!(settings.server.memory, Bytes::gib(1));
        assert_eq!(settings.server.lease, Duration::from_secs(20));
        assert_eq!(settings.server.name, "filed");
        assert!(settings.server.prealloc && !settings.default_socket);
        assert_eq!(settings.server.weights.get(Class::Demand), 40);
        let flags = Args {
            lease: Some(Duration::from_secs(3)),
            prealloc: Some(false),
            equal_classes: Some(true),
            ..with_memory(Args::default())
        };
        let settings = resolve(flags, file).unwrap();
        assert_eq!(settings.server.memory, Bytes::mib(64));
        assert_eq!(settings.server.lease, Duration::from_secs(3));
        assert!(!settings.server.prealloc);
        assert_eq!(settings.server.weights, Weights::equal());
        let settings = resolve(with_memory(Args::default()), "").unwrap();
        assert_eq!(settings.server.name, "huginn");
        assert_eq!(settings.server.weights, Weights::default());
        assert!(settings.default_socket && settings.server.listen[0].is_unix());
    }

    #[test]
    fn nonsense_says_what_to_write() {
        let message = |args: Args| resolve(args, "").unwrap_err();
        assert_eq!(
            message(Args::default()),
            "how much memory to give to the pool? Say --memory SIZE, such as 64GiB"
        );
        let huge = Args {
            memory: Some(Bytes::gib(30_000)),
            ..Args::default()
        };
        assert_eq!(
            message(huge),
            "30000GiB are more than this machine has (24.0GiB): give the pool less"
        );
        let idle = Args {
            max_sessions: Some(0),
            ..Args::default()
        };
        assert_eq!(
            message(with_memory(idle)),
            "a server that accepts 0 sessions is of no use: give --max-sessions 1 or more"
        );
        let long = Args {
            lease: Some(Duration::from_secs(1 << 40)),
            ..Args::default()
        };
        assert!(message(with_memory(long)).ends_with("is too long: use 1440min or less"));
        let both = Args {
            equal_classes: Some(true),
            weights: vec![(Class::Demand, 3)],
            ..Args::default()
        };
        assert_eq!(
            message(with_memory(both)),
            "--equal-classes and --weights exclude each other: use one of them"
        );
        let starved = Args {
            weights: vec![(Class::Demand, 0)],
            ..Args::default()
        };
        assert_eq!(
            message(with_memory(starved)),
            "the weight of class demand is 0, it would never be served: use 1 to 65536"
        );
        assert_eq!(
            parse_weight("bulk=3").unwrap_err(),
            "there is no class 'bulk': the classes are control, urgent-eviction, demand, \
             eviction-6, eviction-5, eviction-4, eviction-3, eviction-2, prefetch"
        );
        assert_eq!(
            parse_listen("/run/m.sock").unwrap_err(),
            "that is a path: for a Unix socket use --socket /run/m.sock"
        );
        assert_eq!(
            parse_quota("batch").unwrap_err(),
            "write a client's name and a size, such as batch=8GiB"
        );
    }
}
