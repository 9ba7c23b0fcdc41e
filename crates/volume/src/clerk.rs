//! The clerk: everything that is asked of servers while pages are read and written.
//!
//! A thread of its own asks for extents ahead of need, gives back those no longer needed, renews the
//! leases, tries servers that were away again and copies what has too few copies ([`mover`](crate::mover)),
//! so that the data path never waits for a server that is slow to answer. Both sides talk through a
//! small locked list, the *desk*, which is never locked while a server is waited for.
//!
//! Invariant: every grant that a server counts as ours is in the map, on the desk or in the clerk's
//! hands, and there is nothing in its hands while it holds still.

use crate::extent::Holding;
use crate::heritage::Ticket;
use crate::mover::{Courier, Order, Stopped};
use crate::roster::{KNOCK_GLANCE, Roster};
use crate::{VolumeError, lock};
use muninn_net::{Answer, Beat, Control, NetError, Pool, Transport};
use muninn_policy::layout::{Layout, candidates};
use muninn_policy::placement::Placement;
use muninn_types::{Bytes, Extent, GrantId, Nanos, PAGE_SIZE, ServerId};
use muninn_wire::{ErrorCode, MAX_GRANTS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pages of an extent, at most: 16 MiB.
pub const EXTENT_PAGES: u32 = Extent::PAGES_MAX;
const EXTENT_PAGES_MIN: u32 = 16;
/// How long a server may take to give memory: where it is the only one, and where others can be asked.
const ONLY_DEADLINE: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(1);
/// What is asked for once a process forks: whatever is written after a fork goes to new extents, and
/// those from before are given back only when nothing is left in them.
const SMALL_EXTENT: Bytes = Bytes::mib(2);
/// Extents that fill a server's largest grant, at most: they are shared with one request.
const SMALL_PARTS: u64 = 32;
/// How long a beat may take: where there are others, and of one that is suspected.
const BEAT_MAX: Duration = Duration::from_millis(500);
const SUSPECT_BEAT: Duration = Duration::from_millis(50);
/// How often one that is suspected is asked, and the longest sleep.
const SUSPECT_PAUSE: Duration = Duration::from_millis(200);
const NAP: Duration = Duration::from_millis(100);
/// How often the writer is reminded of what is still to be moved.
const REMIND: Duration = Duration::from_secs(1);
/// How long those who would be asked first may take to be connected to before others are tried, too; how
/// long all of them may; and how many at a time.
const KNOCK_GRACE: Duration = Duration::from_millis(100);
const KNOCK_PATIENCE: Duration = Duration::from_millis(600);
const KNOCKS_MAX: usize = 16;
/// How long those who want the clerk to hold still wait for it.
const HOLD_PATIENCE: Duration = Duration::from_secs(5);

/// A new extent.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Of each member.
    pub pages: u32,
    /// In the order of their pieces.
    pub members: Vec<Holding>,
}

/// What became of an order.
#[derive(Debug)]
pub struct Moved {
    pub pages: u32,
    pub piece: u8,
    /// A member that had fallen behind, if it was not for a new one.
    pub behind: Option<Holding>,
    /// The member that was filled, or why there is none; `None` if the clerk was only interrupted.
    pub target: Result<Holding, Option<String>>,
}

#[derive(Debug, Default)]
struct Desk {
    wanted: bool,
    /// The clerk has something in its hands.
    busy: bool,
    held: bool,
    stop: bool,
    granted: Vec<Fresh>,
    to_release: Vec<Holding>,
    to_revoke: Vec<Ticket>,
    order: Option<Order>,
    moved: Option<Moved>,
    to_move: usize,
}

pub struct Clerk {
    roster: Arc<Roster>,
    layout: Layout,
    placement: Mutex<Placement>,
    desk: Mutex<Desk>,
    bell: Condvar,
    still: Condvar,
    small: AtomicBool,
    /// Extents with parity that were granted.
    turn: AtomicU32,
    /// Something has happened that the writer should look at.
    news: AtomicBool,
    said: Mutex<Option<String>>,
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clerk").finish_non_exhaustive()
    }
}

/// Why a server gave nothing.
enum Refused {
    Full(String),
    Away(String),
}

impl Clerk {
    /// `node` and `process` give the order in which servers are asked.
    pub fn new(roster: Arc<Roster>, layout: Layout, node: u64, process: u64) -> Clerk {
        let servers: Vec<ServerId> = roster.ids().collect();
        Clerk {
            placement: Mutex::new(Placement::new(node, process, &servers)),
            roster,
            layout,
            desk: Mutex::default(),
            bell: Condvar::new(),
            still: Condvar::new(),
            small: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            news: AtomicBool::new(false),
            said: Mutex::default(),
        }
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// While somebody else reads what there is, it cannot be written over: small pieces waste less.
    pub fn want_small(&self, small: bool) {
        self.small.store(small, Relaxed);
    }

    /// Whether there is something for [`Volume::attend`](crate::Volume::attend) to look at, said once.
    pub fn take_news(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, Relaxed)
    }

    /// An extent is wanted ahead of need.
    pub(crate) fn want(&self) {
        lock(&self.desk).wanted = true;
        self.bell.notify_one();
    }

    pub(crate) fn take_granted(&self) -> Option<Fresh> {
        lock(&self.desk).granted.pop()
    }

    pub(crate) fn release(&self, holdings: impl IntoIterator<Item = Holding>) {
        lock(&self.desk).to_release.extend(holdings);
        self.bell.notify_one();
    }

    /// Nobody will use these any more.
    pub fn revoke(&self, tickets: impl Iterator<Item = Ticket>) {
        lock(&self.desk).to_revoke.extend(tickets);
        self.bell.notify_one();
    }

    pub(crate) fn give_order(&self, order: Order) {
        lock(&self.desk).order = Some(order);
        self.bell.notify_one();
    }
    pub(crate) fn take_moved(&self) -> Option<Moved> {
        lock(&self.desk).moved.take()
    }
    /// So many extents wait to be moved.
    pub(crate) fn note_to_move(&self, extents: usize) {
        lock(&self.desk).to_move = extents;
    }

    /// Tells people, unless it was the last thing they were told.
    pub(crate) fn say_once(&self, text: &str) {
        let mut said = lock(&self.said);
        if said.as_deref() != Some(text) {
            self.roster.tell(text);
            *said = Some(text.to_string());
        }
    }

    /// While set, nothing is asked for ahead of need, given back or moved. False if the clerk could
    /// not be reached in time.
    pub fn hold_still(&self, hold: bool) -> bool {
        let mut desk = lock(&self.desk);
        desk.held = hold;
        if !hold {
            self.bell.notify_one();
            return true;
        }
        let ends = Instant::now() + HOLD_PATIENCE;
        while desk.busy {
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                desk.held = false;
                return false;
            }
            let waited = self.still.wait_timeout(desk, left);
            desk = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Grants that are to be given back, and those of extents that nobody has taken yet.
    pub(crate) fn on_the_desk(&self) -> Vec<Holding> {
        let desk = lock(&self.desk);
        let granted = desk.granted.iter().flat_map(|fresh| &fresh.members);
        granted.chain(&desk.to_release).copied().collect()
    }

    fn deadline(&self) -> Duration {
        match self.roster.is_alone() {
            true => ONLY_DEADLINE,
            false => DEADLINE,
        }
    }

    /// Does as the list of servers says, if it has changed. What is on the desk for a server that left goes
    /// back; under the desk's lock, so that nobody takes it in between.
    pub(crate) fn follow_list(&self) {
        let mut desk = lock(&self.desk);
        if !self.roster.follow() {
            return;
        }
        let mut placement = lock(&self.placement);
        self.roster.ids().for_each(|id| placement.handle_join(id));
        let left = |fresh: &Fresh| {
            let mut members = fresh.members.iter();
            members.any(|at| self.roster.has_left(at.server))
        };
        let (back, kept): (Vec<Fresh>, Vec<Fresh>) = desk.granted.drain(..).partition(left);
        desk.granted = kept;
        let back = back.into_iter().flat_map(|fresh| fresh.members);
        desk.to_release.extend(back);
    }

    /// Whom to ask, in order: those that do not answer come last, those that left never.
    fn order(&self, taken: &[ServerId]) -> Vec<ServerId> {
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

    fn is_out_of_reach(&self, server: ServerId) -> bool {
        let roster = &self.roster;
        roster.is_suspected(server) || roster.is_away(server) || roster.is_knocking(server)
    }

    /// Who would be asked for so many members.
    fn first_choices(&self, taken: &[ServerId], count: usize) -> Vec<ServerId> {
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
    fn knock_ahead(&self, taken: &[ServerId], count: usize) {
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
    fn is_worth_waiting(&self) -> bool {
        let there =
            |server: &ServerId| !self.is_out_of_reach(*server) && !self.roster.has_left(*server);
        let soon =
            |server: ServerId| self.roster.is_suspected(server) && !self.roster.is_given_up(server);
        let few = self.roster.ids().filter(there).count() < self.layout.members();
        few && self.roster.ids().any(soon)
    }

    fn grant_at(&self, server: ServerId, pages: u32) -> Result<(Holding, u32), Refused> {
        let (transport, generation) = self.roster.open(server).map_err(Refused::Away)?;
        let bytes = Bytes::pages(u64::from(pages)).min(transport.max_grant());
        match transport.call(Control::Grant { bytes: bytes.0 }, self.deadline()) {
            Ok(Answer::Granted(info)) => {
                self.roster.heard(server);
                let pages = (info.bytes / PAGE_SIZE as u64) as u32;
                let holding = Holding {
                    server,
                    generation,
                    grant: info.grant,
                };
                Ok((holding, pages.min(EXTENT_PAGES)))
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
            let mut why = [full, away].concat().join("; ");
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
            match self.grant_at(server, fresh.pages) {
                Ok((holding, pages)) => {
                    lock(&self.placement).handle_room(server);
                    fresh.pages = fresh.pages.min(pages);
                    fresh.members.push(holding);
                }
                Err(Refused::Full(why)) => {
                    lock(&self.placement).handle_refusal(server);
                    full.push(why);
                }
                Err(Refused::Away(why)) => away.push(why),
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
            if let Ok((holding, pages)) = self.grant_at(server, fresh.pages) {
                fresh.pages = fresh.pages.min(pages);
                fresh.members.push(holding);
                self.say_once(
                    "no server that is in the pool gives memory: what leaves goes to one that left it",
                );
            }
        }
    }

    /// Lets [`Clerk::run`] return.
    pub fn stop(&self) {
        lock(&self.desk).stop = true;
        self.bell.notify_one();
    }

    /// The clerk's thread, until [`Clerk::stop`].
    pub fn run(&self) {
        let mut courier = Courier::new(Arc::clone(&self.roster));
        let mut rounds = Rounds::new();
        // The first ones it will need, before anybody waits for them.
        self.knock_ahead(&[], self.layout.members());
        for server in self.first_choices(&[], self.layout.members()) {
            if self.roster.is_ready(server) {
                let _ = self.roster.open(server);
            }
        }
        let mut news = self.roster.news();
        while !lock(&self.desk).stop {
            self.work(&mut courier, &mut rounds);
            rounds.go(self);
            self.follow_list();
            self.roster.take_leave();
            self.roster.retry();
            let now = self.roster.news();
            if std::mem::replace(&mut news, now) != now {
                self.news.store(true, Relaxed);
            }
        }
    }

    /// Does one thing that is to be done, or waits for one.
    fn work(&self, courier: &mut Courier, rounds: &mut Rounds) {
        let mut desk = lock(&self.desk);
        if let Some((server, ticket)) = desk.to_revoke.pop() {
            // Nothing changes that the desk tells of.
            drop(desk);
            if let Some((transport, _)) = self.roster.session(server)
                && !self.roster.is_suspected(server)
            {
                let _ = transport.call(Control::Revoke { ticket }, self.deadline());
            }
            return;
        }
        let release = self.next_release(&mut desk);
        let wanted = desk.wanted && !self.is_worth_waiting();
        let nothing = !wanted && release.is_none() && desk.order.is_none();
        if desk.held || nothing {
            if let Some(list) = release {
                desk.to_release.extend(list);
            }
            let wait = rounds
                .left(self.roster.now())
                .min(NAP)
                .max(Duration::from_millis(1));
            match self.roster.simulated() {
                None => drop(self.bell.wait_timeout(desk, wait)),
                Some(pass) => {
                    drop(desk);
                    pass(wait);
                }
            }
            return;
        }
        desk.busy = true;
        desk.wanted &= !wanted;
        let order = match wanted || release.is_some() {
            true => None,
            false => desk.order.take(),
        };
        drop(desk);
        let mut kept = Vec::new();
        let (mut fresh, mut moved) = (None, None);
        if wanted {
            // A refusal is met again, and reported, when the extent is really needed.
            fresh = self.ask_now().ok();
        }
        if let Some(list) = release {
            kept = self.give_back(list);
        }
        if let Some(order) = order {
            let (result, stray) = self.carry_out(&order, courier, rounds);
            kept.extend(stray);
            moved = Some(Moved {
                pages: order.pages,
                piece: order.piece,
                behind: order.target,
                target: result,
            });
        }
        let mut desk = lock(&self.desk);
        desk.granted.extend(fresh);
        desk.to_release.extend(kept);
        if moved.is_some() {
            desk.moved = moved;
            self.news.store(true, Relaxed);
        }
        desk.busy = false;
        drop(desk);
        self.still.notify_all();
    }

    /// Grants at one server that answers, to be given back with one request. Those of sessions that are
    /// lost are forgotten.
    fn next_release(&self, desk: &mut Desk) -> Option<Vec<Holding>> {
        desk.to_release
            .retain(|holding| self.roster.counts(holding));
        let first = desk
            .to_release
            .iter()
            .find(|holding| !self.roster.is_suspected(holding.server))?;
        let server = first.server;
        let mut list = Vec::new();
        desk.to_release.retain(|holding| {
            let now = holding.server == server && list.len() < MAX_GRANTS;
            if now {
                list.push(*holding);
            }
            !now
        });
        Some(list)
    }

    /// Gives grants back; those that are still to be given back.
    fn give_back(&self, list: Vec<Holding>) -> Vec<Holding> {
        let Some((transport, generation)) = self.roster.session(list[0].server) else {
            return Vec::new();
        };
        let ids: Vec<GrantId> = list.iter().map(|holding| holding.grant).collect();
        if list[0].generation != generation {
            return Vec::new();
        }
        match transport.call(Control::Release(ids), self.deadline()) {
            Err(error) if error.is_refusal(ErrorCode::NoGrant) && list.len() > 1 => {
                // All of them or none: one that is gone must not keep the others.
                list.into_iter()
                    .flat_map(|holding| self.give_back(vec![holding]))
                    .collect()
            }
            Ok(_) | Err(NetError::Refused(..)) => Vec::new(),
            Err(NetError::Lost(_, why)) => {
                self.roster.lose(list[0].server, generation, &why);
                Vec::new()
            }
            Err(_) => {
                self.roster.suspect(list[0].server);
                list
            }
        }
    }

    /// Makes a copy: the member that has it or why there is none, and a grant that is to be given back.
    fn carry_out(
        &self,
        order: &Order,
        courier: &mut Courier,
        rounds: &mut Rounds,
    ) -> (Result<Holding, Option<String>>, Option<Holding>) {
        let mut pulse = || {
            rounds.go(self);
            !lock(&self.desk).held
        };
        if let Some(target) = order.target {
            let copied = courier.copy(order, target, &mut pulse);
            let copied = copied.map_err(|stopped| match stopped {
                Stopped::Asked => None,
                Stopped::Failed(why) => Some(why),
            });
            return (copied.map(|()| target), None);
        }
        let mut why = Vec::new();
        self.knock_ahead(&order.taken, 1);
        let to = match order.to {
            Some(server) => vec![server],
            None => self.order(&order.taken),
        };
        for server in to {
            let gives_back = self.roster.is_draining(server) || self.roster.asked(server) > 0;
            if self.is_out_of_reach(server) || gives_back {
                continue;
            }
            pulse();
            let target = match self.grant_at(server, order.pages) {
                Ok((target, pages)) if pages >= order.pages => target,
                Ok((target, _)) => {
                    self.release([target]);
                    continue;
                }
                Err(Refused::Full(text) | Refused::Away(text)) => {
                    why.push(text);
                    continue;
                }
            };
            return match courier.copy(order, target, &mut pulse) {
                Ok(()) => (Ok(target), None),
                Err(Stopped::Asked) => (Err(None), Some(target)),
                Err(Stopped::Failed(text)) => (Err(Some(text)), Some(target)),
            };
        }
        let why = match why.is_empty() {
            true => "no other server answers".to_string(),
            false => why.join("; "),
        };
        let what = match order.degraded {
            true => "there is no room for another copy of what has too few",
            false => "there is no other place for what servers want to be rid of",
        };
        (Err(Some(format!("{what}: {why}"))), None)
    }

    fn beat(&self, server: ServerId, patience: Duration) {
        let Some((transport, generation)) = self.roster.session(server) else {
            return;
        };
        match transport.beat(patience) {
            Beat::Answered => self.roster.heard(server),
            Beat::Silent => self.roster.suspect(server),
            Beat::Lost => {
                let why = transport.lost().unwrap_or_default();
                self.roster.lose(server, generation, &why);
                return;
            }
        }
        let draining = transport.drain_left().is_some();
        self.roster.note_draining(server, draining);
        self.roster.note_asked(server, transport.asked_back().0);
    }
}

/// When leases are renewed, each four times as often as it runs out.
struct Rounds {
    next: HashMap<ServerId, Nanos>,
    remind_at: Nanos,
}

impl Rounds {
    fn new() -> Rounds {
        Rounds {
            next: HashMap::new(),
            remind_at: Nanos::ZERO,
        }
    }

    fn left(&self, now: Nanos) -> Duration {
        let first = self.next.values().min();
        first.map_or(NAP, |at| at.saturating_sub(now).into())
    }

    fn go(&mut self, clerk: &Clerk) {
        for server in clerk.roster.ids() {
            let Some((transport, _)) = clerk.roster.session(server) else {
                self.next.remove(&server);
                continue;
            };
            let pause = transport.lease() / 4;
            let now = clerk.roster.now();
            let due = *self.next.entry(server).or_insert(now + pause.into());
            let suspected = clerk.roster.is_suspected(server);
            if now < due {
                continue;
            }
            let alone = clerk.roster.is_alone();
            let (patience, pause) = match suspected {
                _ if alone => (pause, pause),
                true => (SUSPECT_BEAT.min(pause), SUSPECT_PAUSE.min(pause)),
                false => (BEAT_MAX.min(pause), pause),
            };
            clerk.beat(server, patience);
            self.next.insert(server, clerk.roster.now() + pause.into());
        }
        let now = clerk.roster.now();
        if now >= self.remind_at {
            self.remind_at = now + REMIND.into();
            let desk = lock(&clerk.desk);
            let to_move = desk.to_move > 0 && desk.order.is_none();
            if to_move || clerk.roster.has_leaving() || clerk.roster.has_fresh() {
                clerk.news.store(true, Relaxed);
            }
        }
    }
}

/// Lists of grants for requests of their own, with those in one that are mapped together: a server
/// shares what it has mapped together only together.
pub(crate) fn together(transport: &dyn Transport, grants: &[GrantId]) -> Vec<Vec<GrantId>> {
    let place = |id: GrantId| match transport.mapped(id) {
        Some(mapped) => (mapped.map.addr(), 0),
        None => (0, id.0),
    };
    let mut placed: Vec<((u64, u64), GrantId)> =
        grants.iter().map(|id| (place(*id), *id)).collect();
    placed.sort_unstable();
    placed.dedup();
    let mut lists: Vec<Vec<GrantId>> = Vec::new();
    for group in placed.chunk_by(|a, b| a.0 == b.0) {
        let ids = group.iter().map(|(_, id)| *id);
        match lists.last_mut() {
            Some(last) if last.len() + group.len() <= MAX_GRANTS => last.extend(ids),
            _ => lists.push(ids.collect()),
        }
    }
    lists
}
