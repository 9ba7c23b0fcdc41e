//! Asking servers for memory: in which order, who is connected to, and what is believed of what they give.
//!
//! Servers that do not answer cost time, however many they are: each one that was waited for in vain halves what
//! the next one gets ([`patience_after`]), so that one extent takes a few seconds at most where half of a large
//! pool is silent.
//! Invariant: a grant is as large as it was asked to be, or it is given back. A server that gives crumbs would
//! otherwise have all extents cut as small as it likes, down to nothing.

use super::{Clerk, EXTENT_PAGES, Fresh};
use crate::extent::Holding;
use crate::roster::KNOCK_GLANCE;
use crate::{VolumeError, lock};
use muninn_net::{Answer, Control, NetError, Pool};
use muninn_policy::layout::candidates;
use muninn_policy::membership::patience_after;
use muninn_types::{Bytes, Nanos, PAGE_SIZE, ServerId};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Less is not worth a request.
const EXTENT_PAGES_MIN: u32 = 16;
/// What is asked for once a process forks: whatever is written after a fork goes to new extents, and
/// those from before are given back only when nothing is left in them.
const SMALL_EXTENT: Bytes = Bytes::mib(2);
/// Extents that fill a server's largest grant, at most: they are shared with one request.
const SMALL_PARTS: u64 = 32;
/// How long those who would be asked first may take to be connected to before others are tried, too; how
/// long all of them may; and how many at a time.
const KNOCK_GRACE: Duration = Duration::from_millis(100);
const KNOCK_PATIENCE: Duration = Duration::from_millis(600);
const KNOCKS_MAX: usize = 16;
/// Servers of which it is said why they gave nothing.
const REASONS_MAX: usize = 3;
/// What a server gets at least, however many before it did not answer.
pub(super) const PATIENCE_LEAST: Nanos = Nanos::millis(50);

/// Why a server gave nothing.
pub(super) enum Refused {
    Full(String),
    Away(String),
}

/// Why servers gave nothing, in a line that can be read however many there are.
pub(super) fn some_of(why: &[String]) -> String {
    let (shown, rest) = why.split_at(why.len().min(REASONS_MAX));
    let text = shown.join("; ");
    match rest.len() {
        0 => text,
        1 => format!("{text}; and one more gives nothing"),
        more => format!("{text}; and {more} more give nothing"),
    }
}

impl Clerk {
    /// Whom to ask, in order: those that do not answer come last, those that left never.
    pub(super) fn order(&self, taken: &[ServerId]) -> Vec<ServerId> {
        let placement = lock(&self.placement);
        let sequence: Vec<ServerId> = placement.sequence().collect();
        drop(placement);
        let sequence = sequence.into_iter().filter(|s| !self.roster.has_left(*s));
        let mut order = candidates(sequence, taken, |s| self.roster.domain(s));
        order.sort_by_key(|server| {
            let distrusted = self.roster.is_distrusted(*server);
            (self.is_out_of_reach(*server), distrusted)
        });
        order
    }

    pub(super) fn is_out_of_reach(&self, server: ServerId) -> bool {
        let roster = &self.roster;
        roster.is_suspected(server) || roster.is_away(server) || roster.is_knocking(server)
    }

    /// Who would be asked for so many members.
    pub(super) fn first_choices(&self, taken: &[ServerId], count: usize) -> Vec<ServerId> {
        let (mut taken, known) = (taken.to_vec(), taken.len());
        while taken.len() < known + count
            && let Some(next) = self.order(&taken).first()
        {
            taken.push(*next);
        }
        taken.split_off(known)
    }

    /// Connects to those who will be asked, all at once; if they are slow to answer, or do not, to others
    /// as well. So however many servers are dead, it takes a moment to find some that are not.
    pub(super) fn knock_ahead(&self, taken: &[ServerId], count: usize) {
        let start = Instant::now();
        let mut asked = self.first_choices(taken, count);
        loop {
            let waiting = asked.iter().filter(|s| !self.roster.knock(**s)).count();
            let ready = |server: &&ServerId| {
                self.roster.is_ready(**server) && !self.is_out_of_reach(**server)
            };
            let enough = asked.iter().filter(ready).count() >= count;
            let waited = start.elapsed();
            if enough && (waiting == 0 || waited > KNOCK_GRACE) || waited > KNOCK_PATIENCE {
                return;
            }
            if waiting == 0 || waited > KNOCK_GRACE {
                let more = self.order(taken).into_iter();
                let more = more.filter(|server| !asked.contains(server));
                let more: Vec<ServerId> = more.take(count).collect();
                if more.is_empty() && waiting == 0 {
                    return;
                }
                if waiting < KNOCKS_MAX {
                    asked.extend(more);
                }
            }
            if waiting > 0 {
                std::thread::sleep(KNOCK_GLANCE);
            }
        }
    }

    /// Whether an extent would have too few members now, and servers are silent that may answer soon.
    pub(super) fn is_worth_waiting(&self) -> bool {
        let there =
            |server: &ServerId| !self.is_out_of_reach(*server) && !self.roster.has_left(*server);
        let soon =
            |server: ServerId| self.roster.is_suspected(server) && !self.roster.is_given_up(server);
        let few = self.roster.ids().filter(there).count() < self.layout.members();
        few && self.roster.ids().any(soon)
    }

    /// A member of at most so many pages at a server, and how many it has. So many servers were waited for in
    /// vain before.
    pub(super) fn grant_at(
        &self,
        server: ServerId,
        pages: u32,
        silent: u32,
    ) -> Result<(Holding, u32), Refused> {
        let within = |patience: Duration| -> Duration {
            patience_after(silent, patience.into(), PATIENCE_LEAST).into()
        };
        let opened = self.roster.open_within(server, within(self.deadline()));
        let (transport, generation) = opened.map_err(Refused::Away)?;
        let bytes = Bytes::pages(u64::from(pages)).min(transport.max_grant());
        if bytes < Bytes::pages(u64::from(pages.min(EXTENT_PAGES_MIN))) {
            let at = self.roster.address(server);
            let text = format!("the server at {at} gives no more than {bytes} at a time");
            return Err(Refused::Away(text));
        }
        match transport.call(Control::Grant { bytes: bytes.0 }, within(self.deadline())) {
            Ok(Answer::Granted(info)) => {
                self.roster.heard(server);
                let holding = Holding {
                    server,
                    generation,
                    grant: info.grant,
                };
                // It may be larger, as servers cut powers of two; that is not counted on.
                if info.bytes < bytes.0 {
                    self.release([holding]);
                    self.roster.distrust(server);
                    let (at, given) = (self.roster.address(server), Bytes(info.bytes));
                    return Err(Refused::Away(format!(
                        "the server at {at} gives {given} where {bytes} were asked for"
                    )));
                }
                Ok((holding, (bytes.0 / PAGE_SIZE as u64) as u32))
            }
            Ok(_) => unreachable!("a request for a grant is answered with one"),
            Err(error) if Pool::is_full(&error) => Err(Refused::Full(error.to_string())),
            Err(error) => {
                match &error {
                    NetError::Lost(_, why) => self.roster.lose(server, generation, why),
                    NetError::Timeout(..) => self.roster.suspect(server),
                    _ => {}
                }
                Err(Refused::Away(error.to_string()))
            }
        }
    }

    /// Asks for an extent, in the caller's thread.
    pub(crate) fn ask_now(&self) -> Result<Fresh, VolumeError> {
        let pages = match self.small.load(Relaxed) {
            true => self.small_pages(),
            false => EXTENT_PAGES,
        };
        // Servers cut powers of two: what lies between would be wasted.
        let mut pages = match self.layout.stripes() {
            Some(stripes) => 1 << (pages / stripes.data() as u32).ilog2(),
            None => pages,
        };
        loop {
            let (fresh, full, away) = self.gather(pages);
            let enough = fresh.members.len() >= self.layout.members();
            // A server with little left may still have a smaller piece.
            if !enough && !full.is_empty() && pages / 4 >= EXTENT_PAGES_MIN {
                self.release(fresh.members);
                pages /= 4;
                continue;
            }
            let mut why = some_of(&[full, away].concat());
            if self.order(&[]).is_empty() {
                why = "the pool has no servers".to_string();
            }
            if fresh.members.len() < self.layout.needed() {
                self.release(fresh.members);
                return Err(VolumeError::Full(format!(
                    "{why}; give the pool more memory (muninn serve), or the program more local memory"
                )));
            }
            match enough {
                true => *lock(&self.said) = None,
                false => self.say_once(&format!(
                    "what leaves now has {} of {} {}: {}",
                    fresh.members.len(),
                    self.layout.members(),
                    match self.layout.stripes() {
                        Some(_) => "pieces",
                        None => "copies",
                    },
                    match why.is_empty() {
                        true => "the pool has no more servers",
                        false => &why,
                    }
                )),
            }
            return Ok(fresh);
        }
    }

    fn small_pages(&self) -> u32 {
        let first = self.order(&[]).into_iter().next();
        let session = first.and_then(|server| self.roster.open(server).ok());
        let largest = session.map_or(Bytes::ZERO, |(transport, _)| transport.max_grant());
        let bytes = SMALL_EXTENT.max(Bytes(largest.0 / SMALL_PARTS));
        ((bytes.0 / PAGE_SIZE as u64) as u32).min(EXTENT_PAGES)
    }

    /// Members of one size at as many servers as the layout wants, or as there are; who was full, and who
    /// was away.
    fn gather(&self, pages: u32) -> (Fresh, Vec<String>, Vec<String>) {
        let mut fresh = Fresh {
            pages,
            members: Vec::new(),
        };
        let (mut full, mut away) = (Vec::new(), Vec::new());
        let mut asked: Vec<ServerId> = Vec::new();
        let mut silent = 0;
        self.knock_ahead(&[], self.layout.members());
        while fresh.members.len() < self.layout.members() {
            let taken: Vec<ServerId> = fresh.members.iter().map(|m| m.server).collect();
            let order = self.order(&taken);
            let Some(&server) = order.iter().find(|server| !asked.contains(server)) else {
                break;
            };
            asked.push(server);
            // One that does not answer is waited for only if there is nobody else. Whether it is back is
            // tried elsewhere.
            if self.is_out_of_reach(server) && fresh.members.len() >= self.layout.needed() {
                away.push(format!(
                    "the server at {} does not answer",
                    self.roster.address(server)
                ));
                continue;
            }
            let began = self.roster.now();
            match self.grant_at(server, fresh.pages, silent) {
                Ok((holding, pages)) => {
                    lock(&self.placement).handle_room(server);
                    fresh.pages = fresh.pages.min(pages);
                    fresh.members.push(holding);
                }
                Err(Refused::Full(why)) => {
                    lock(&self.placement).handle_refusal(server);
                    full.push(why);
                }
                Err(Refused::Away(why)) => {
                    let took = self.roster.now().saturating_sub(began);
                    silent += u32::from(took >= PATIENCE_LEAST);
                    away.push(why);
                }
            }
        }
        self.gather_from_left(&mut fresh);
        // Parity is written whenever anything is, and read hardly ever: everybody gets a turn at it.
        if fresh.members.len() == self.layout.members() && self.layout.stripes().is_some() {
            let turn = self.turn.fetch_add(1, Relaxed) as usize;
            let by = turn % fresh.members.len();
            fresh.members.rotate_left(by);
        }
        (fresh, full, away)
    }

    /// If nobody on the list gives even what is needed (it may name none that runs), those that left and are
    /// still there are asked: what they get is moved away as soon as there is another place.
    fn gather_from_left(&self, fresh: &mut Fresh) {
        for server in self.roster.ids() {
            if fresh.members.len() >= self.layout.needed() {
                return;
            }
            let taken = fresh.members.iter().any(|at| at.server == server);
            let there = self.roster.has_left(server) && self.roster.generation(server) != 0;
            if taken || !there || self.roster.is_suspected(server) {
                continue;
            }
            if let Ok((holding, pages)) = self.grant_at(server, fresh.pages, 0) {
                fresh.pages = fresh.pages.min(pages);
                fresh.members.push(holding);
                self.say_once(
                    "no server that is in the pool gives memory: what leaves goes to one that left it",
                );
            }
        }
    }
}
