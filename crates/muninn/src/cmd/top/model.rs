//! What is on the screen, without a screen: pictures and keys in, rows and wishes out.

use super::picture::{JobNow, Picture, ServerNow, Totals};
use muninn_types::{Bytes, Class};
use std::collections::{HashMap, VecDeque};

/// Points of a small chart; older ones are forgotten.
pub const HISTORY_MAX: usize = 120;
/// Letters that somebody may type at a question.
const ANSWER_MAX: usize = 24;

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Other,
    Enter,
    Escape,
    Backspace,
    Letter(char),
}

/// What the person wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Quit,
    Limit { pid: u32, job: String, size: Bytes },
    Drain { address: String },
    CancelDrain { address: String },
}

/// Which table the keys are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    #[default]
    Jobs,
    Servers,
}

/// By what jobs are sorted, the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Far,
    Faults,
    Waiting,
    Traffic,
    Name,
}

impl Sort {
    const ALL: [Sort; 5] = [
        Sort::Far,
        Sort::Faults,
        Sort::Waiting,
        Sort::Traffic,
        Sort::Name,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Far => "far memory",
            Sort::Faults => "faults",
            Sort::Waiting => "waiting",
            Sort::Traffic => "traffic",
            Sort::Name => "name",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// A question at the bottom of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Limit {
        pid: u32,
        job: String,
        typed: String,
    },
    Drain {
        address: String,
    },
}

/// What happens in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub faults: f64,
    pub far: f64,
    /// Part of the time in which somebody waited for a page; more than 1 with several processes.
    pub waiting: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
}

impl Rates {
    fn between(before: &Totals, now: &Totals, seconds: f64) -> Rates {
        // Less than before: it is another one by the same name.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            faults: rate(before.faults, now.faults),
            far: rate(before.far, now.far),
            waiting: rate(before.waited_ns, now.waited_ns) / 1e9,
            bytes_in: rate(before.bytes_in, now.bytes_in),
            bytes_out: rate(before.bytes_out, now.bytes_out),
        }
    }

    fn add(&mut self, other: &Rates) {
        self.faults += other.faults;
        self.far += other.far;
        self.waiting += other.waiting;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerRates {
    pub requests: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub classes: [f64; Class::COUNT],
}

/// A job with what it does, and the same for each of its processes.
#[derive(Clone, Debug)]
pub struct JobRow {
    pub job: JobNow,
    pub rates: Rates,
    pub processes: Vec<Rates>,
}

#[derive(Clone, Debug)]
pub struct ServerRow {
    pub server: ServerNow,
    pub rates: ServerRates,
}

#[derive(Debug, Default)]
pub struct Model {
    last: Option<Picture>,
    pub jobs: Vec<JobRow>,
    pub servers: Vec<ServerRow>,
    /// Of all jobs together, the newest last.
    pub history: VecDeque<Rates>,
    pub focus: Focus,
    pub sort: Sort,
    pub question: Option<Question>,
    pub help: bool,
    pub paused: bool,
    /// What came of the last wish.
    pub said: Option<String>,
    /// What is chosen keeps its place by what it is, not by its row.
    chosen_job: Option<u32>,
    chosen_server: Option<String>,
}

impl Model {
    pub fn handle_picture(&mut self, picture: Picture) {
        if self.paused {
            return;
        }
        let before = self.last.take();
        let seconds = before.as_ref().map_or(0.0, |before| {
            picture
                .taken
                .saturating_duration_since(before.taken)
                .as_secs_f64()
        });
        let known = before.as_ref().filter(|_| seconds > 0.0);
        let old_jobs: HashMap<u32, &JobNow> = known.map_or_else(HashMap::new, |p| {
            p.jobs.iter().map(|job| (job.launcher, job)).collect()
        });
        let old_servers: HashMap<&str, &ServerNow> = known.map_or_else(HashMap::new, |p| {
            p.servers
                .iter()
                .map(|server| (server.address.as_str(), server))
                .collect()
        });
        let jobs = picture.jobs.iter().map(|job| {
            let old = old_jobs.get(&job.launcher);
            job_row(job, old.copied(), seconds)
        });
        self.jobs = jobs.collect();
        let servers = picture.servers.iter().map(|server| {
            let old = old_servers.get(server.address.as_str());
            server_row(server, old.copied(), seconds)
        });
        self.servers = servers.collect();
        if known.is_some() {
            let mut all = Rates::default();
            self.jobs.iter().for_each(|row| all.add(&row.rates));
            self.history.push_back(all);
            if self.history.len() > HISTORY_MAX {
                self.history.pop_front();
            }
        }
        self.last = Some(picture);
        self.sort_jobs();
        if self.jobs.is_empty() && !self.servers.is_empty() {
            self.focus = Focus::Servers;
        }
    }

    fn sort_jobs(&mut self) {
        let sort = self.sort;
        self.jobs.sort_by(|a, b| {
            let by = |row: &JobRow| match sort {
                Sort::Far => row.job.far_bytes as f64,
                Sort::Faults => row.rates.faults,
                Sort::Waiting => row.rates.waiting,
                Sort::Traffic => row.rates.bytes_in + row.rates.bytes_out,
                Sort::Name => 0.0,
            };
            let most = by(b).total_cmp(&by(a));
            most.then_with(|| a.job.name.cmp(&b.job.name))
                .then(a.job.launcher.cmp(&b.job.launcher))
        });
    }

    /// The row of the job that is chosen, the first if it is gone.
    pub fn chosen_job(&self) -> usize {
        let at = self
            .jobs
            .iter()
            .position(|row| Some(row.job.launcher) == self.chosen_job);
        at.unwrap_or(0)
    }

    pub fn chosen_server(&self) -> usize {
        let chosen = self.chosen_server.as_deref();
        let at = self
            .servers
            .iter()
            .position(|row| Some(row.server.address.as_str()) == chosen);
        at.unwrap_or(0)
    }

    pub fn handle_key(&mut self, key: Key) -> Wish {
        if let Some(question) = self.question.take() {
            return self.answer(question, key);
        }
        if std::mem::take(&mut self.help) {
            return Wish::Nothing;
        }
        self.said = None;
        match key {
            Key::Letter('q') | Key::Escape => return Wish::Quit,
            Key::Letter('?' | 'h') => self.help = true,
            Key::Letter('p' | ' ') => self.paused = !self.paused,
            Key::Letter('s') => {
                self.sort = self.sort.next();
                self.sort_jobs();
            }
            Key::Up | Key::Letter('k') => self.choose(-1),
            Key::Down | Key::Letter('j') => self.choose(1),
            Key::Other => {
                self.focus = match self.focus {
                    Focus::Jobs => Focus::Servers,
                    Focus::Servers => Focus::Jobs,
                };
            }
            Key::Letter('l') => self.ask_limit(),
            Key::Letter('d') => self.ask_drain(),
            Key::Letter('D') => {
                if let Some(row) = self.servers.get(self.chosen_server()) {
                    let address = row.server.address.clone();
                    return Wish::CancelDrain { address };
                }
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn choose(&mut self, by: isize) {
        let moved = |at: usize, len: usize| at.saturating_add_signed(by).min(len.saturating_sub(1));
        match self.focus {
            Focus::Jobs => {
                let at = moved(self.chosen_job(), self.jobs.len());
                self.chosen_job = self.jobs.get(at).map(|row| row.job.launcher);
            }
            Focus::Servers => {
                let at = moved(self.chosen_server(), self.servers.len());
                self.chosen_server = self.servers.get(at).map(|row| row.server.address.clone());
            }
        }
    }

    fn ask_limit(&mut self) {
        let Some(row) = self.jobs.get(self.chosen_job()) else {
            self.said = Some("there is no job whose limit could be changed".to_string());
            return;
        };
        self.question = Some(Question::Limit {
            pid: row.job.launcher,
            job: row.job.name.clone(),
            typed: String::new(),
        });
    }

    fn ask_drain(&mut self) {
        let Some(row) = self.servers.get(self.chosen_server()) else {
            self.said = Some("there is no server that could be drained".to_string());
            return;
        };
        self.question = Some(Question::Drain {
            address: row.server.address.clone(),
        });
    }

    fn answer(&mut self, question: Question, key: Key) -> Wish {
        match (question, key) {
            (_, Key::Escape) => Wish::Nothing,
            (Question::Drain { address }, Key::Letter('y')) => Wish::Drain { address },
            (Question::Drain { .. }, _) => {
                self.said = Some("not drained".to_string());
                Wish::Nothing
            }
            (Question::Limit { pid, job, typed }, Key::Enter) => match typed.parse::<Bytes>() {
                Ok(size) => Wish::Limit { pid, job, size },
                Err(error) => {
                    self.said = Some(error.to_string());
                    Wish::Nothing
                }
            },
            (
                Question::Limit {
                    pid,
                    job,
                    mut typed,
                },
                key,
            ) => {
                match key {
                    Key::Backspace => _ = typed.pop(),
                    Key::Letter(letter)
                        if typed.len() < ANSWER_MAX && letter.is_ascii_graphic() =>
                    {
                        typed.push(letter);
                    }
                    _ => {}
                }
                self.question = Some(Question::Limit { pid, job, typed });
                Wish::Nothing
            }
        }
    }
}

fn job_row(job: &JobNow, before: Option<&JobNow>, seconds: f64) -> JobRow {
    let rates = before.map(|before| Rates::between(&before.totals, &job.totals, seconds));
    let processes = job.processes.iter().map(|process| {
        let before = before.and_then(|job| job.processes.iter().find(|one| one.pid == process.pid));
        let rates = before.map(|before| Rates::between(&before.totals, &process.totals, seconds));
        rates.unwrap_or_default()
    });
    JobRow {
        processes: processes.collect(),
        rates: rates.unwrap_or_default(),
        job: job.clone(),
    }
}

fn server_row(server: &ServerNow, before: Option<&ServerNow>, seconds: f64) -> ServerRow {
    let before = before.filter(|before| before.error.is_none() && server.error.is_none());
    let rates = before.map(|before| {
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        ServerRates {
            requests: rate(before.requests, server.requests),
            bytes_in: rate(before.bytes_in, server.bytes_in),
            bytes_out: rate(before.bytes_out, server.bytes_out),
            classes: std::array::from_fn(|at| rate(before.classes[at], server.classes[at])),
        }
    });
    ServerRow {
        rates: rates.unwrap_or_default(),
        server: server.clone(),
    }
}
