//! `muninn dashboard`: servers and jobs, live, in a browser. One process, one page, nothing from elsewhere.
//!
//! One thread collects pictures ([`Sampler`]), one does what operators ask for, one answers browsers. A browser
//! asks once in a while for what is new; nobody who looks costs more than that, and one who looks away costs nothing.
//! What is changed is changed with the key of this process: servers decide whether they let it.

mod board;
mod guard;
mod heat;
mod life;
mod site;
#[cfg(test)]
mod tests;

use crate::client::{Client, ClientArgs};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::observe::{Sampler, act, check_every};
use crate::{key_file, ui};
use board::{Board, Done};
use guard::Guard;
use muninn_http::{Limits, Token, serve};
use muninn_sys::signal::Termination;
use muninn_sys::socket::{Address, Listener};
use muninn_sys::{clock, rand};
use muninn_types::parse_duration;
use serde::Serialize;
use site::{Dashboard, Wish};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What browsers may take: the whole state of a large rack passes in well under a second.
const LIMITS: Limits = Limits {
    visitors: 64,
    patience: Duration::from_secs(10),
    head: 8 << 10,
    body: 4 << 10,
};
/// Things that are asked for and not done yet.
const WISHES_MAX: usize = 16;
/// How often it is looked at whether this is to end.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn dashboard
  muninn dashboard --pool pool:/etc/muninn/pool.toml --key-file ops.key
  ssh -L 7180:127.0.0.1:7180 rack-1       (then open the address that it prints there)
  muninn dashboard --listen 10.0.0.1:7180 --token-file ops.token --view-token-file view.token

Shows the servers of the pool and the jobs of 'muninn run' on this machine (of this user, and for root of
everybody). Whoever has the token sees all of that, and may drain servers and change limits as far as this
process may: with its key file, and its user. Nothing is encrypted: beyond this machine put a proxy with TLS
in front of it (and name it with --host), or use ssh.")]
pub struct Args {
    #[command(flatten)]
    pub client: ClientArgs,

    /// Where browsers reach it
    #[arg(
        long,
        env = "MUNINN_DASHBOARD_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:7180"
    )]
    pub listen: SocketAddr,

    /// File with the token that lets in operators; needed beyond this machine [default: one is made, and is part
    /// of the address that is printed]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,

    /// File with a token that lets in people who may look, and change nothing
    #[arg(long, value_name = "PATH")]
    pub view_token_file: Option<PathBuf>,

    /// Change nothing, whoever asks
    #[arg(long)]
    pub read_only: bool,

    /// Names by which browsers may call it, beside addresses and localhost
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub host: Vec<String>,

    /// How often everything is looked at
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub every: Duration,

    /// Print one JSON object a line instead of text
    #[arg(long)]
    pub json: bool,
}

/// What scripts wait for.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    Listening {
        pid: u32,
        url: &'a str,
        /// Where one was made.
        token: Option<&'a str>,
        servers: usize,
        read_only: bool,
    },
    Stopped {},
}

pub fn run(args: &Args, config: &Config) -> Outcome {
    let every = check_every(args.every)?;
    let read = |path: &Option<PathBuf>| path.as_deref().map(key_file::metrics_token).transpose();
    let (named, see) = (read(&args.token_file)?, read(&args.view_token_file)?);
    if named.is_none() && !args.listen.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "refusing to show the dashboard at {} without a token of your own: name a file with one (--token-file \
             PATH; 'muninn keygen PATH' makes it)",
            args.listen
        )));
    }
    let client = args.client.resolve_if_any(&config.client)?;
    // Before any other thread, so that all of them inherit the blocked signals.
    let termination = Termination::watch().map_err(Failure::failed)?;
    let listener = Listener::bind(&Address::Tcp(args.listen)).map_err(Failure::failed)?;
    let made = named.is_none();
    let act = named.unwrap_or_else(|| Token::from_random(rand::bytes()));
    announce(args, &listener, made.then_some(&act), client.as_ref());

    let board = Arc::new(Mutex::new(Board::new(rand::u64(), every)));
    let (wishes, wished) = sync_channel(WISHES_MAX);
    let site = Dashboard {
        board: Arc::clone(&board),
        guard: Guard {
            act,
            see,
            names: args.host.clone(),
        },
        read_only: args.read_only,
        wishes,
        next: AtomicU64::new(1),
    };
    let sampler = Sampler::start(client.as_ref(), every);
    let (stop, served) = (AtomicBool::new(false), AtomicBool::new(true));
    let outcome = std::thread::scope(|scope| {
        // It ends with the site, which has the other end of the channel.
        let (looked, doing) = (&sampler, &board);
        let operator = client.as_ref();
        scope.spawn(move || fulfil(&wished, operator, doing, looked));
        scope.spawn(|| collect(&sampler, &board, &stop));
        let (listener, stop_serving, running) = (&listener, &stop, &served);
        let serving = scope.spawn(move || {
            let outcome = serve(listener, &site, &LIMITS, stop_serving);
            running.store(false, Relaxed);
            outcome
        });
        while served.load(Relaxed) {
            match termination.wait(Some(LOOK)) {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
        }
        stop.store(true, Relaxed);
        serving.join().expect("serving does not panic")
    });
    outcome.map_err(|error| Failure::failed(format!("the dashboard's port is closed: {error}")))?;
    if args.json {
        let text = serde_json::to_string(&Event::Stopped {}).expect("plain data serialises");
        ui::print_out(&text);
    }
    Ok(())
}

fn announce(args: &Args, listener: &Listener, made: Option<&Token>, client: Option<&Client>) {
    let at = match listener.address() {
        Address::Tcp(at) => *at,
        Address::Unix(_) => args.listen,
    };
    let mut url = format!("http://{at}/");
    if let Some(token) = made {
        // Behind the hash: browsers keep that to themselves.
        url += &format!("#token={}", token.reveal());
    }
    let servers = client.map_or(0, |client| client.pool.len());
    if !at.ip().is_loopback() {
        eprintln!(
            "muninn: what the dashboard says, and its tokens, pass unencrypted: put a proxy with TLS in front of it, \
             or listen at 127.0.0.1 and use 'ssh -L'"
        );
    }
    if args.json {
        let event = Event::Listening {
            pid: std::process::id(),
            url: &url,
            token: made.map(Token::reveal),
            servers,
            read_only: args.read_only,
        };
        ui::print_out(&serde_json::to_string(&event).expect("plain data serialises"));
    } else {
        let watched = match servers {
            0 => {
                "jobs of this machine; no servers are named, and none listens at the default place"
                    .to_string()
            }
            1 => "jobs of this machine, and 1 server".to_string(),
            n => format!("jobs of this machine, and {n} servers"),
        };
        ui::print_out(&format!("showing {watched}\nopen {url}\nstop with ctrl-c"));
    }
}

fn collect(sampler: &Sampler, board: &Mutex<Board>, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        if let Some(picture) = sampler.wait(LOOK) {
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            board.handle_picture(picture, clock::unix());
        }
    }
}

fn fulfil(
    wished: &Receiver<(u64, Wish)>,
    client: Option<&Client>,
    board: &Mutex<Board>,
    sampler: &Sampler,
) {
    while let Ok((id, wish)) = wished.recv() {
        let outcome = match &wish {
            Wish::Limit { pid, job, size } => act::change_limit(*pid, job, *size),
            Wish::Drain { address, begin } => act::drain(client, address, *begin),
        };
        let (ok, text) = match outcome {
            Ok(text) => (true, text),
            Err(failure) => (false, failure.message),
        };
        let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
        board.note_done(Done { id, ok, text });
        drop(board);
        sampler.hurry();
    }
}
