//! Asking servers for their status.
//!
//! One that does not answer holds up nobody else: each is asked by a thread of its own. To look again and again
//! there is a [`Watch`] over each server, which keeps its connection and leaves the newest answer where a picture
//! is made; how long a server has said nothing is seen from outside.

use super::picture::ServerNow;
use muninn_net::{NetError, Observer, SessionOptions};
use muninn_sys::socket::Address;
use muninn_types::format_duration;
use muninn_wire::StatusPage;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A server that is asked and has not answered for so long is said to be silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Asks each of them once, all at the same time.
pub fn ask_each(
    addresses: &[Address],
    options: &SessionOptions,
) -> Vec<Result<StatusPage, NetError>> {
    let ask = |address| Observer::connect(address, options)?.status();
    std::thread::scope(|scope| {
        let asked: Vec<_> = addresses
            .iter()
            .map(|address| scope.spawn(move || ask(address)))
            .collect();
        let answers = asked.into_iter();
        answers
            .map(|answer| answer.join().expect("asking does not panic"))
            .collect()
    })
}

#[derive(Debug, Default)]
struct Told {
    newest: Option<ServerNow>,
    /// Since when an answer is waited for.
    asked: Option<Instant>,
    /// Wanted at once.
    now: bool,
    over: bool,
}

/// A server that is asked again and again, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    address: Address,
    shared: Arc<(Mutex<Told>, Condvar)>,
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    pub fn start(address: &Address, options: &SessionOptions, every: Duration) -> Watch {
        let shared = Arc::new((Mutex::<Told>::default(), Condvar::new()));
        let watch = Watch {
            address: address.clone(),
            shared: Arc::clone(&shared),
        };
        let (address, options) = (address.clone(), options.clone());
        std::thread::spawn(move || watch_over(&address, &options, every, &shared));
        watch
    }

    /// What the server said last, or that it says nothing.
    pub fn newest(&self) -> ServerNow {
        let told = lock(&self.shared.0);
        let silent = told.asked.map(|asked| asked.elapsed());
        let nothing = |error: String| ServerNow {
            address: self.address.to_string(),
            error: Some(error),
            ..ServerNow::default()
        };
        match (
            &told.newest,
            silent.filter(|silent| *silent >= SILENT_AFTER),
        ) {
            (_, Some(silent)) => {
                let seconds = Duration::from_secs(silent.as_secs());
                nothing(format!("no answer for {}", format_duration(seconds)))
            }
            (Some(newest), None) => newest.clone(),
            (None, None) => nothing("being asked".to_string()),
        }
    }

    /// Whether there is anything to be said of it yet.
    pub fn has_spoken(&self) -> bool {
        lock(&self.shared.0).newest.is_some()
    }

    pub fn hurry(&self) {
        lock(&self.shared.0).now = true;
        self.shared.1.notify_all();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.0).over = true;
        self.shared.1.notify_all();
    }
}

fn watch_over(
    address: &Address,
    options: &SessionOptions,
    every: Duration,
    shared: &(Mutex<Told>, Condvar),
) {
    let mut observer = None;
    loop {
        lock(&shared.0).asked = Some(Instant::now());
        let answer = ask(address, &mut observer, options).unwrap_or_else(|error| ServerNow {
            address: address.to_string(),
            error: Some(error),
            ..ServerNow::default()
        });
        let mut told = lock(&shared.0);
        told.newest = Some(answer);
        told.asked = None;
        let idle = |told: &mut Told| !told.now && !told.over;
        let waited = shared.1.wait_timeout_while(told, every, idle);
        told = waited.unwrap_or_else(PoisonError::into_inner).0;
        if told.over {
            return;
        }
        told.now = false;
    }
}

/// Connections are kept; one that fails is made anew.
fn ask(
    address: &Address,
    kept: &mut Option<Observer>,
    options: &SessionOptions,
) -> Result<ServerNow, String> {
    // A server that was started anew has closed the connection: that is no reason to call it silent.
    if let Some(mut observer) = kept.take()
        && let Ok(page) = observer.status()
    {
        *kept = Some(observer);
        return Ok(ServerNow::answered(address, page));
    }
    let mut observer = Observer::connect(address, options).map_err(|error| error.to_string())?;
    let page = observer.status().map_err(|error| error.to_string())?;
    *kept = Some(observer);
    Ok(ServerNow::answered(address, page))
}
