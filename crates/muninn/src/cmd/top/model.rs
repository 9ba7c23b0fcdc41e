//! What is on the screen, without a screen: pictures and keys in, rows and wishes out.

use crate::observe::{JobRow, Picture, Rates, Rows, ServerRow};
use muninn_types::Bytes;
use std::collections::VecDeque;

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
        let rows = Rows::between(self.last.as_ref(), &picture, &self.servers);
        (self.jobs, self.servers) = (rows.jobs, rows.servers);
        if rows.seconds > 0.0 {
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
