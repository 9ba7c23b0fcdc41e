//! What was recorded, as a trace: whose faults count, in which order, on which page.
//!
//! A job has processes that are not the program's: the launcher, the server, and beside each program its
//! companion. All of them are called `muninn…`; the companion only after it was made, so a few of its first
//! faults may be counted as the program's. Pages of different programs are different pages, also of two that
//! one process executed one after the other.

use muninn_sys::perf::{Event, Record};
use muninn_types::PAGE_SHIFT;
use std::collections::HashMap;
use std::io::{self, Write};

/// Processes that are called so are not the program's.
const OWN: &str = "muninn";
/// A program's pages have numbers below this; its number stands above.
const SPACE_SHIFT: u32 = 47 - PAGE_SHIFT;
/// More programs than this cannot be told apart by a page's number, and are left out.
const SPACES_MAX: u64 = 1 << 20;
/// Names and births that are kept.
const TIDINGS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Fault {
    time_ns: u64,
    process: u32,
    thread: u32,
    page: u64,
    write: bool,
}

/// Everything, as it comes.
#[derive(Debug)]
pub struct Sheet {
    faults: Vec<Fault>,
    tidings: Vec<Record>,
    most: usize,
    /// Faults for which there was no room any more.
    pub dropped: u64,
}

/// A fault of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    pub page: u64,
    pub write: bool,
    pub thread: u16,
}

impl Sheet {
    /// Room for so many faults.
    pub fn new(most: usize) -> Sheet {
        Sheet {
            faults: Vec::new(),
            tidings: Vec::new(),
            most,
            dropped: 0,
        }
    }

    pub fn hear(&mut self, record: Record) {
        match record.event {
            Event::Fault { address, write } => {
                if self.faults.len() >= self.most {
                    self.dropped += 1;
                } else if address >> 47 == 0 {
                    self.faults.push(Fault {
                        time_ns: record.time_ns,
                        process: record.process,
                        thread: record.thread,
                        page: address >> PAGE_SHIFT,
                        write,
                    });
                }
            }
            _ if self.tidings.len() < TIDINGS_MAX => self.tidings.push(record),
            _ => self.dropped += 1,
        }
    }

    /// The program's faults in order.
    pub fn visits(mut self) -> Vec<Visit> {
        self.faults.sort_by_key(|fault| fault.time_ns);
        self.tidings.sort_by_key(|record| record.time_ns);
        let mut tidings = self.tidings.into_iter().peekable();
        let mut known = Known::default();
        let mut visits = Vec::new();
        for fault in self.faults {
            while let Some(record) = tidings.next_if(|record| record.time_ns <= fault.time_ns) {
                known.learn(&record);
            }
            visits.extend(known.visit(&fault));
        }
        visits
    }
}

/// Processes by what they are called, and what stands for them in a trace.
#[derive(Debug, Default)]
struct Known {
    own: HashMap<u32, bool>,
    spaces: HashMap<u32, u64>,
    spaces_made: u64,
    threads: HashMap<u32, u16>,
}

impl Known {
    fn learn(&mut self, record: &Record) {
        match &record.event {
            Event::Name { name, exec } => {
                if *exec {
                    self.spaces.remove(&record.process);
                }
                if record.thread == record.process {
                    self.own.insert(record.process, name.starts_with(OWN));
                }
            }
            Event::Born { parent } if *parent != record.process => {
                let own = self.own.get(parent).copied().unwrap_or(true);
                self.own.insert(record.process, own);
                self.spaces.remove(&record.process);
            }
            Event::Born { .. } | Event::Fault { .. } => {}
        }
    }

    fn visit(&mut self, fault: &Fault) -> Option<Visit> {
        // Until it is called something it is what started it: the launcher.
        if self.own.get(&fault.process).copied().unwrap_or(true) {
            return None;
        }
        let made = &mut self.spaces_made;
        let space = *self.spaces.entry(fault.process).or_insert_with(|| {
            *made += 1;
            *made - 1
        });
        let next = self.threads.len() as u16;
        let thread = *self.threads.entry(fault.thread).or_insert(next);
        (space < SPACES_MAX).then_some(Visit {
            page: space << SPACE_SHIFT | fault.page,
            write: fault.write,
            thread,
        })
    }
}

/// As `sim evict --trace` reads it.
pub fn write(visits: &[Visit], out: &mut impl Write) -> io::Result<()> {
    for visit in visits {
        let kind = if visit.write { 'w' } else { 'r' };
        writeln!(out, "{:#x} {kind} {}", visit.page, visit.thread)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, process: u32, event: Event) -> Record {
        Record {
            process,
            thread: process,
            time_ns,
            event,
        }
    }

    fn name(name: &str, exec: bool) -> Event {
        let name = name.to_string();
        Event::Name { name, exec }
    }

    fn fault(page: u64, write: bool) -> Event {
        let address = page << PAGE_SHIFT | 8;
        Event::Fault { address, write }
    }

    #[test]
    fn the_programs_faults_stand_in_order_and_nobody_elses() {
        let mut sheet = Sheet::new(100);
        // Each CPU hands over its own.
        for record in [
            record(1, 1, name("muninn", true)),
            record(2, 1, fault(900, true)),
            record(3, 2, Event::Born { parent: 1 }),
            record(4, 2, fault(901, true)),
            record(5, 2, name("java", true)),
            record(9, 2, fault(7, false)),
            record(10, 3, Event::Born { parent: 2 }),
            record(11, 3, name("muninn-steward", false)),
            record(12, 3, fault(7, true)),
            record(6, 2, fault(6, true)),
            record(13, 4, Event::Born { parent: 2 }),
            record(14, 4, fault(6, true)),
            record(15, 2, fault(1 << 40, true)),
            record(16, 2, name("sort", true)),
            record(17, 2, fault(6, false)),
        ] {
            sheet.hear(record);
        }
        let visits = sheet.visits();
        let of = |space: u64, page: u64, write, thread| Visit {
            page: space << SPACE_SHIFT | page,
            write,
            thread,
        };
        let wanted = [
            of(0, 6, true, 0),
            of(0, 7, false, 0),
            of(1, 6, true, 1),
            of(2, 6, false, 0),
        ];
        assert_eq!(visits, wanted);
        let mut text = Vec::new();
        write(&visits[..2], &mut text).unwrap();
        assert_eq!(text, b"0x6 w 0\n0x7 r 0\n");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut sheet = Sheet::new(1);
        sheet.hear(record(1, 2, fault(1, true)));
        sheet.hear(record(2, 2, fault(2, true)));
        assert_eq!(sheet.dropped, 1);
    }
}
