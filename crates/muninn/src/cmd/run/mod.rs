//! `muninn run`: an unmodified program, and all it starts, on far memory.
//!
//! The launcher checks all that can be checked, keeps the job's page and the servers, starts the
//! program with the library in `LD_PRELOAD`, passes signals on, waits for everybody, and says what it
//! took. It has no part in paging: that happens inside the program.

mod accounts;
mod agent;
mod elf;
mod holder;
pub mod library;
pub mod limit;
mod peaks;
mod pool;
pub mod program;
pub mod report;
mod strangers;
mod supervise;

use crate::config::{Config, RunTable};
use crate::failure::{Exit, Failure};
use crate::key_file::Current;
use crate::metrics::{self, MetricsArgs};
use crate::observe::jobs;
use crate::pool_list::{Entry, Watch};
use clap::builder::BoolishValueParser;
use holder::Holder;
use muninn_job::{Job, Porter};
use muninn_net::{Key, Lock};
use muninn_policy::evict::EvictPolicy;
use muninn_policy::layout::Layout;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_policy::take_over;
use muninn_policy::threshold::ThresholdPolicy;
use muninn_sys::own;
use muninn_sys::proc;
use muninn_sys::reap;
use muninn_sys::uffd::{Features, OpenError, Userfaultfd};
use muninn_types::{Bytes, LocalSize};
use peaks::Peaks;
use pool::Servers;
use report::{JsonFile, Ran, Report};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use supervise::Supervisor;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn run --local 1GiB -- ./program with its arguments
  muninn run --local 256MiB --stats -- python3 -c 'print(sum(range(10**7)))'
  muninn run --local 4GiB --pool 10.0.0.5:7000,10.0.0.6:7000 --key-file /etc/muninn.key -- redis-server
  muninn run --local 1GiB --pool a:7000,b:7000,c:7000 --layout mirror -- ./program
  muninn run --local 1GiB --pool pool:/etc/muninn/pool.toml -- ./program
  muninn run --pool agent --peak 8GiB -- ./program
  muninn run --local 200MiB --tune -- java -Xmx800m -jar program.jar
  muninn run --local 25% --peak 8GiB --json run.json -- make -j2

With no pool named, a memory server is started on this machine, for this run alone. The exit code is
that of the program; 128 and the number of a signal that ended it; 1 if one of its processes was
ended because its pages could not be had back, whatever the program made of that; 126 or 127 if it
cannot be executed or is not there; else as for all commands.")]
pub struct Args {
    /// Memory that may stay local, for the program and all it starts: a size such as 1GiB, or a share
    /// of the program's peak such as 50%
    #[arg(long, env = "MUNINN_LOCAL", value_name = "SIZE|PCT")]
    pub local: Option<LocalSize>,

    /// The program's peak, for a share; what is named here, or measured in a run, is remembered
    #[arg(long, env = "MUNINN_PEAK", value_name = "SIZE")]
    pub peak: Option<Bytes>,

    /// Servers, separated by commas: unix:PATH, HOST:PORT, or pool:FILE for a file that names them and may
    /// change while the program runs; or 'agent' (agent:SOCKET): this node's agent says where pages go and
    /// how much may stay local [default: one of its own]
    #[arg(long, env = "MUNINN_POOL", value_name = "URL,…", value_delimiter = ',')]
    pub pool: Vec<Entry>,

    /// With --pool agent: the name under which the agent keeps what it learns of this job [default: the
    /// program's]
    #[arg(long, env = "MUNINN_PROFILE", value_name = "NAME")]
    pub profile: Option<String>,

    /// File with the key that the servers were started with
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// How far pages lie over the servers: single (one copy), mirror (two copies at two servers: either
    /// may go), mirror:3, parity:4+1 (a sum of every four pages at a fifth server: any may go) and others
    /// such as parity:2+1 and parity:4+2 [default: mirror with two or more servers on other machines, else single]
    #[arg(long, env = "MUNINN_LAYOUT", value_name = "NAME")]
    pub layout: Option<Layout>,

    /// Which pages are fetched before they are asked for: none, fixed, adaptive, trend, slot
    /// [default: adaptive]
    #[arg(long, env = "MUNINN_PREFETCH", value_name = "NAME")]
    pub prefetch: Option<PrefetchPolicy>,

    /// Which pages leave: fifo, random, segmented-fifo, s3-fifo, sieve [default: s3-fifo]
    #[arg(long, env = "MUNINN_EVICT", value_name = "NAME")]
    pub evict: Option<EvictPolicy>,

    /// When pages begin to leave: adaptive, fixed [default: adaptive]
    #[arg(long, env = "MUNINN_THRESHOLD", value_name = "NAME")]
    pub threshold: Option<ThresholdPolicy>,

    /// The most that may be far [default: as much as the servers have]
    #[arg(long, env = "MUNINN_MAX_FAR", value_name = "SIZE")]
    pub max_far: Option<Bytes>,

    /// At the end, say on standard error in four lines what it took: time, memory, faults, and what limit
    /// would have been enough; with --stats=full also all counters, and the kinds of memory
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "short"
    )]
    pub stats: Option<Stats>,

    #[command(flatten)]
    pub metrics: MetricsArgs,

    /// At the end, write all of it to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Copy pages out of the program, as on a kernel that cannot move them (before Linux 6.8)
    #[arg(long, env = "MUNINN_NO_MOVE")]
    pub no_move: bool,

    /// Seal pages before they leave: servers can neither read nor change them nor give back old ones
    /// [default: when a server is on another machine]
    #[arg(long, env = "MUNINN_SEAL", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub seal: Option<bool>,

    /// Do not seal pages, wherever the servers are: whoever keeps them can read them
    #[arg(long, overrides_with = "seal")]
    pub no_seal: bool,

    /// Tell runtimes that manage memory themselves of the limit, where you left it open: a Java virtual
    /// machine gets a collector and a nursery that go well with little memory. What you set yourself is
    /// never changed. Without this, a line at the end says what would have been set
    #[arg(long, env = "MUNINN_TUNE", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tune: Option<bool>,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// How much is told at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stats {
    /// Four lines
    Short,
    /// And all counters, and the kinds of memory
    Full,
}

/// Features without which no program can be run; the pager has another way for all others.
const FEATURES_NEEDED: Features = Features::EVENT_REMAP
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP);

/// A program that ends sooner may have ended before the library in it said that it is there.
const HEARD_AFTER: Duration = Duration::from_secs(1);

pub fn run(args: &Args, config: &Config) -> Result<ExitCode, Failure> {
    let (name, arguments) = args.command.split_first().expect("clap requires one");
    let peaks = Peaks::of_user();
    let program = program::find(name)?;
    let known_peak = || args.peak.or_else(|| peaks.get(&program, arguments));
    let named = named(args, config);
    let agent = agent::asked(named, args, &program, known_peak)?;
    let limit = match &agent {
        Some((link, _)) => link.limit(),
        None => limit::resolve(args.local.or(config.run.local.map(|l| l.0)), known_peak)?,
    };
    let (named, key_file) = match &agent {
        Some((_, told)) => (&told.pool[..], told.key_file.as_deref()),
        None => (named, args.key_file.as_deref()),
    };
    let key_file = key_file.or(config.client.key_file.as_deref());
    let library = library::find(key_file.is_some())?;
    userfaultfd().map_err(|error| Failure::new(Exit::Unsupported, error))?;
    if let Err(OpenError::ForkNotPermitted) = forks_are_told() {
        eprintln!(
            "muninn: if this program forks, all of its memory comes near, above the limit ('muninn setup --check' \
             says why)"
        );
    }
    let json = args.json.as_deref().map(JsonFile::create).transpose()?;
    let metrics = args.metrics.listen()?;
    if let Some(peak) = args.peak {
        peaks.remember(&program, arguments, peak);
    }
    let mut key = Current::load(key_file)?;
    let mut job_config = job_config(args, config, &program);
    let wanted = args.layout.or(config.run.layout.map(|l| l.0));
    let watch = watch(named)?;
    let mut servers = servers(watch.as_ref(), key.key(), &job_config, wanted)?;
    job_config.layout = servers.layout(wanted);
    // Who joins later may be on another machine.
    let elsewhere = servers.elsewhere() > 0 || watch.as_ref().is_some_and(Watch::has_files);
    job_config.seal = seal(args, &config.run).unwrap_or(elsewhere);
    job_config.pool.clone_from(&servers.addresses);
    if let Some(embedded) = servers.key() {
        key = Current::fixed(embedded.clone());
    }
    job_config.lock = key.key().lock();
    let holder = Holder::open(&mut job_config)?;
    let job = JobFile(Job::create(&job_config, limit).map_err(Failure::failed)?);
    if let Some(watch) = &watch {
        job.0.set_pool(watch.list()).map_err(Failure::failed)?;
    }

    let mut command = Command::new(&program);
    {
        use std::os::unix::process::CommandExt;
        command.arg0(name);
    }
    command
        .args(arguments)
        .env(muninn_job::VARIABLE, job.0.path())
        .env(muninn_job::DOOR_VARIABLE, &job_config.door)
        .env(
            "LD_PRELOAD",
            library::preload(library.path(), std::env::var_os("LD_PRELOAD")),
        );
    // For programs that ask how much they should hold, as `sort` does, and then need less.
    muninn_sys::child::limit_resident(&mut command, take_over::advised(limit));
    let embedded = servers.is_embedded();
    let started = Instant::now();
    let mut supervisor = Supervisor::new(&job.0, &mut servers)?;
    let porter = Porter::new(&job_config.door, job.0.path())?;
    std::thread::spawn(move || porter.serve());
    holder.serve(key);
    if let Some(watch) = watch.filter(Watch::has_files) {
        watch.follow(job.0.clone());
    }
    if let Some(metrics) = metrics {
        eprintln!("muninn: metrics at {}", metrics.url());
        let job = job.0.clone();
        metrics.serve(move || metrics::of_jobs(jobs::of_launcher(&job).as_slice()));
    }
    if let Some((link, _)) = agent {
        link.follow(job.0.clone());
    }
    let end = supervisor.run(&mut command)?;
    let lost = supervisor.lost();
    let kinds = supervisor.kinds();
    let ran = Ran {
        command: args.command.iter().map(shown).collect(),
        end,
        time: started.elapsed(),
        cpu: reap::children_cpu_time(),
        embedded,
        lost,
        kinds,
    };
    let report = Report::new(&job.0, ran)?;
    finish(args, json, &report)?;
    // Of a program that was cut short, or in which the library had no part, nothing was learnt.
    if args.peak.is_none() && report.peak_bytes > 0 && report.signal.is_none() {
        peaks.remember(&program, arguments, Bytes(report.peak_bytes));
    }
    Ok(ExitCode::from(exit_code(&report)))
}

/// The program's own code. Only that it succeeded is not believed where one of its processes was
/// ended for want of its pages.
fn exit_code(report: &Report) -> u8 {
    match (report.exit_code, &report.message) {
        (0, Some(_)) => Exit::Failed as u8,
        (code, _) => code,
    }
}

fn finish(args: &Args, json: Option<JsonFile>, report: &Report) -> Result<(), Failure> {
    if let Some(message) = &report.message {
        eprintln!("muninn: {message}");
    }
    // Nothing looks different then, so it has to be said.
    if report.processes == 0 && report.seconds >= HEARD_AFTER.as_secs_f64() {
        eprintln!(
            "muninn: the program ran without far memory: Muninn's library was not loaded into it \
             (does it start another program with other variables?)"
        );
    }
    if let Some(advice) = report.unheeded_advice() {
        eprintln!("muninn: {advice}");
    }
    if args.stats.is_some() {
        for line in report.lines() {
            eprintln!("muninn: {line}");
        }
    }
    if args.stats == Some(Stats::Full) {
        eprintln!("{}\n", report.counters_table());
        eprintln!("{}", report.kinds_table());
    }
    json.map_or(Ok(()), |file| file.write(report))
}

/// Whether pages are sealed, if anybody said so.
fn seal(args: &Args, file: &RunTable) -> Option<bool> {
    match args.no_seal {
        true => Some(false),
        false => args.seal.or(file.seal),
    }
}

fn shown(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

/// The job's page, whose file goes when the launcher does.
struct JobFile(Job);

impl Drop for JobFile {
    fn drop(&mut self) {
        self.0.remove();
    }
}

fn job_config(args: &Args, config: &Config, program: &Path) -> muninn_job::Config {
    let file: &RunTable = &config.run;
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    muninn_job::Config {
        name: name.into_owned(),
        pool: Vec::new(),
        lock: Lock::Open,
        holder_path: PathBuf::new(),
        layout: Layout::default(),
        prefetch: args
            .prefetch
            .or(file.prefetch.map(|p| p.0))
            .unwrap_or_default(),
        evict: args.evict.or(file.evict.map(|p| p.0)).unwrap_or_default(),
        threshold: args
            .threshold
            .or(file.threshold.map(|p| p.0))
            .unwrap_or_default(),
        max_far: args.max_far.or(file.max_far),
        no_move: args.no_move,
        seal: false,
        huge_pages: own::has_huge_pages(),
        tune: args.tune.or(file.tune).unwrap_or(false),
        door: muninn_job::new_door_name(),
        namespace: own::pid_namespace().unwrap_or_default(),
        user: proc::own_uid(),
    }
}

/// What was named as the pool; nothing if nothing was.
fn named<'a>(args: &'a Args, config: &'a Config) -> &'a [Entry] {
    match args.pool.is_empty() {
        false => &args.pool,
        true => &config.client.pool.0,
    }
}

fn watch(named: &[Entry]) -> Result<Option<Watch>, Failure> {
    (!named.is_empty()).then(|| Watch::new(named)).transpose()
}

fn servers(
    named: Option<&Watch>,
    key: &Key,
    job: &muninn_job::Config,
    layout: Option<Layout>,
) -> Result<Servers, Failure> {
    match named {
        Some(watch) => {
            let list = watch.list().iter().map(|server| server.address.clone());
            Servers::named(list.collect(), key, layout)
        }
        None => match layout.unwrap_or_default() {
            Layout::Single => Servers::embedded(job.max_far),
            layout => Err(Failure::usage(format!(
                "--layout {layout} needs {} servers: name them with --pool",
                layout.members()
            ))),
        },
    }
}

/// Whether this user may have userfaultfd at all, and the kernel has what is needed.
pub fn userfaultfd() -> Result<(), OpenError> {
    Userfaultfd::open(FEATURES_NEEDED, Features::NONE).map(drop)
}

/// Whether this user's programs are told of their forks, without which all of a program's memory comes near
/// when it forks.
pub fn forks_are_told() -> Result<(), OpenError> {
    Userfaultfd::open(FEATURES_NEEDED | Features::EVENT_FORK, Features::NONE).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_was_said_last_about_sealing_counts() {
        let said = |words: &[&str], file: Option<bool>| {
            let line = [&["run"], words, &["--", "true"]].concat();
            let file = RunTable {
                seal: file,
                ..RunTable::default()
            };
            seal(&Line::parse_from(line).args, &file)
        };
        assert_eq!(said(&[], None), None);
        assert_eq!(said(&["--seal"], None), Some(true));
        assert_eq!(said(&["--no-seal"], None), Some(false));
        assert_eq!(said(&["--seal=false"], Some(true)), Some(false));
        assert_eq!(said(&[], Some(true)), Some(true));
        assert_eq!(said(&["--no-seal"], Some(true)), Some(false));
        assert_eq!(said(&["--seal", "--no-seal"], None), Some(false));
        assert_eq!(said(&["--no-seal", "--seal"], None), Some(true));
    }
}
