//! The modules of a server: who brought them, how far they are, and what their functions are called.
//!
//! A module arrives in parts, is translated on a thread of its own so that no event loop waits for it, and
//! then its functions can be called. What an operator pushes is there for everybody; what a client pushes,
//! for its identity. Invariant: modules, bytes of them, those that arrive and those that wait to be translated
//! are bounded, for each owner and for all. Known limit: they are kept in memory; a server that is started anew
//! has none, and one that takes another's place has none either.

use super::Pushed;
use super::module::{Module, hash_of};
use crate::registry::Registry;
use muninn_proto::server::Pusher;
use muninn_sys::clock;
use muninn_types::Nanos;
use muninn_wire::{
    ErrorCode, FIRST_PUSHED, MODULE_PART, ModuleHash, ModuleState, PushedInfo, Refusal, ShortText,
    WicsReply, WicsRequest,
};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Modules kept, and those of one client's identity.
const MODULES_MAX: usize = 1024;
const MODULES_OF_OWNER: usize = 128;
/// Bytes of all of them.
const BYTES_MAX: usize = 64 << 20;
/// Modules on their way, and those of one owner; how long one may take for its next part.
const ARRIVING_MAX: usize = 32;
const ARRIVING_OF_OWNER: usize = 8;
const ARRIVING_PATIENCE: Nanos = Nanos::secs(10);
/// Modules that wait to be translated.
const QUEUE_MAX: usize = 16;
/// How long it is remembered why one was refused.
const REFUSED_KEPT: Nanos = Nanos::secs(60);

/// Who may give a server functions to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// Nobody.
    Off,
    /// Operators, who has the shared key, and at the Unix socket root and the server's own user.
    #[default]
    Operators,
    /// Clients too, for themselves.
    Clients,
}

/// Whose a module is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Everybody,
    Own(ShortText),
}

impl Whose {
    fn may(&self, owner: &str) -> bool {
        match self {
            Whose::Everybody => true,
            Whose::Own(own) => own.as_str() == owner,
        }
    }
}

enum State {
    Arriving(Vec<u8>, usize, Nanos),
    Translating,
    Ready(Arc<Module>, Vec<u32>),
    Refused(ShortText, Nanos),
}

struct Listed {
    whose: Whose,
    function: Pushed,
}

#[derive(Default)]
struct Inner {
    modules: HashMap<(Whose, ModuleHash), State>,
    functions: BTreeMap<u32, Listed>,
    /// Numbers that were given out; none is used twice.
    numbered: u32,
    bytes: usize,
    work: Option<SyncSender<Job>>,
}

struct Job {
    whose: Whose,
    hash: ModuleHash,
    bytes: Vec<u8>,
}

/// All modules of a server.
pub struct Shelf {
    policy: Push,
    /// Functions that are built in, whose names are taken.
    built_in: Arc<Registry>,
    inner: Arc<Mutex<Inner>>,
    /// Changes with each module that comes or goes.
    changes: Arc<AtomicU64>,
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shelf({:?})", self.policy)
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(code: ErrorCode, detail: usize) -> Refusal {
    Refusal::with(code, detail as u64, 0)
}

impl Shelf {
    pub fn new(policy: Push, built_in: Arc<Registry>) -> Shelf {
        Shelf {
            policy,
            built_in,
            inner: Arc::default(),
            changes: Arc::default(),
        }
    }

    /// Changes when a function came or went.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    pub fn get(&self, number: u32) -> Option<Pushed> {
        let inner = lock(&self.inner);
        Some(inner.functions.get(&number)?.function.clone())
    }
    pub fn may_call(&self, number: u32, owner: &str) -> bool {
        let inner = lock(&self.inner);
        let listed = inner.functions.get(&number);
        listed.is_some_and(|listed| listed.whose.may(owner))
    }

    /// The number of a function, or the latest version that is here instead. One's own come first.
    pub fn find(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>> {
        let inner = lock(&self.inner);
        let named = || {
            let all = inner.functions.iter();
            all.filter(|(_, l)| l.whose.may(owner) && l.function.exported().name == name)
        };
        let of_version = named().filter(|(_, l)| l.function.exported().version == version);
        match of_version.max_by_key(|(_, l)| l.whose != Whose::Everybody) {
            Some((number, _)) => Ok(*number),
            None => Err(named().map(|(_, l)| l.function.exported().version).max()),
        }
    }

    /// Answers what somebody asks about pushed functions.
    pub fn handle(&self, by: &Pusher<'_>, request: &WicsRequest) -> Result<WicsReply, Refusal> {
        let own = Whose::Own(ShortText::lossy(by.owner, muninn_wire::MAX_NAME));
        let whose = match by.is_operator {
            true => Whose::Everybody,
            false => own.clone(),
        };
        if request.is_change() {
            self.permits(by)?;
        }
        match request {
            WicsRequest::Part {
                hash,
                len,
                offset,
                bytes,
            } => self
                .take_in(&whose, hash, *len as usize, *offset as usize, bytes)
                .map(WicsReply::State),
            WicsRequest::State { hash } => {
                let inner = lock(&self.inner);
                let places = [(own, *hash), (Whose::Everybody, *hash)];
                let found = places.iter().find_map(|place| inner.modules.get(place));
                Ok(WicsReply::State(
                    found.map_or(ModuleState::Missing, state_of),
                ))
            }
            WicsRequest::List { after } => {
                let inner = lock(&self.inner);
                let mine = (inner.functions)
                    .range(after.saturating_add(1)..)
                    .filter(|(_, l)| l.whose.may(by.owner) || by.is_operator)
                    .map(|(number, listed)| info_of(*number, listed));
                Ok(WicsReply::List(mine.take(WicsReply::LIST_MAX).collect()))
            }
            WicsRequest::Remove { hash } => {
                self.remove(by, &own, hash)?;
                Ok(WicsReply::State(ModuleState::Missing))
            }
            WicsRequest::Find {
                owner,
                name,
                version,
            } => {
                let owner = match by.is_server {
                    true => owner.as_str(),
                    false => by.owner,
                };
                let missing = |here: Option<u32>| {
                    let (here, asked) = (u64::from(here.unwrap_or(0)), u64::from(*version));
                    Refusal::with(ErrorCode::NoWic, here, asked).remark(name.as_str())
                };
                let number = self.find(owner, name.as_str(), *version).map_err(missing)?;
                let inner = lock(&self.inner);
                let listed = inner.functions.get(&number).ok_or_else(|| missing(None))?;
                Ok(WicsReply::Found(info_of(number, listed)))
            }
            WicsRequest::Fetch { hash, offset } => {
                let inner = lock(&self.inner);
                let mine = |l: &&Listed| {
                    l.function.module.hash() == hash
                        && (l.whose.may(by.owner) || by.is_server || by.is_operator)
                };
                let listed = inner.functions.values().find(mine);
                let listed = listed.ok_or(Refusal::new(ErrorCode::NoWic))?;
                let bytes = listed.function.module.bytes();
                let rest = bytes.get(*offset as usize..).unwrap_or(&[]);
                let part = &rest[..rest.len().min(MODULE_PART)];
                Ok(WicsReply::Part(part.to_vec()))
            }
        }
    }

    fn permits(&self, by: &Pusher<'_>) -> Result<(), Refusal> {
        let (permitted, why) = match self.policy {
            Push::Off => (
                false,
                "this server takes no functions: see serve --wic-push",
            ),
            Push::Operators => (
                by.is_operator,
                "only operators may push functions to this server: see serve --wic-push",
            ),
            Push::Clients => (by.is_operator || by.may_own, "a server's identity may not"),
        };
        match permitted {
            true => Ok(()),
            false => Err(Refusal::new(ErrorCode::NotPermitted).remark(why)),
        }
    }

    fn take_in(
        &self,
        whose: &Whose,
        hash: &ModuleHash,
        len: usize,
        offset: usize,
        bytes: &[u8],
    ) -> Result<ModuleState, Refusal> {
        let now = clock::now();
        let mut inner = lock(&self.inner);
        let place = (whose.clone(), *hash);
        let again = match inner.modules.get(&place) {
            None => true,
            // Whoever sends it once more wants it looked at once more.
            Some(State::Refused(..)) => offset == 0,
            Some(State::Arriving(_, known, _)) => *known != len,
            Some(_) => false,
        };
        if again {
            inner.make_room(whose, now)?;
            let state = State::Arriving(Vec::new(), len, now);
            inner.modules.insert(place.clone(), state);
        }
        let Some(State::Arriving(arrived, _, touched)) = inner.modules.get_mut(&place) else {
            return Ok(inner
                .modules
                .get(&place)
                .map_or(ModuleState::Missing, state_of));
        };
        *touched = now;
        // What was sent twice is here already; what is too far on is asked for again.
        if let Some(known) = arrived.len().checked_sub(offset)
            && let Some(fresh) = bytes.get(known..)
        {
            arrived.extend_from_slice(fresh);
        }
        if arrived.len() < len {
            return Ok(ModuleState::Receiving(arrived.len() as u32));
        }
        let bytes = std::mem::take(arrived);
        if hash_of(&bytes) != *hash {
            inner.modules.remove(&place);
            let why = ShortText::lossy("its bytes do not have the hash that was said", 255);
            return Ok(ModuleState::Refused(why));
        }
        if inner.bytes + len > BYTES_MAX {
            inner.modules.remove(&place);
            return Err(
                refusal(ErrorCode::TooManyModules, BYTES_MAX).remark("bytes of all of them")
            );
        }
        let job = Job {
            whose: whose.clone(),
            hash: *hash,
            bytes,
        };
        if self.translator(&mut inner).try_send(job).is_err() {
            inner.modules.remove(&place);
            return Err(refusal(ErrorCode::TooManyModules, QUEUE_MAX));
        }
        inner.bytes += len;
        inner.modules.insert(place, State::Translating);
        Ok(ModuleState::Translating)
    }

    /// The thread that translates, which ends when the shelf is gone.
    fn translator(&self, inner: &mut Inner) -> SyncSender<Job> {
        let start = || {
            let (work, jobs) = sync_channel(QUEUE_MAX);
            let shared = Arc::downgrade(&self.inner);
            let (built_in, changes) = (Arc::clone(&self.built_in), Arc::clone(&self.changes));
            let thread = std::thread::Builder::new().name("muninn-modules".to_string());
            // Without one the queue's other end is gone, and what is pushed is refused.
            let _ = thread.spawn(move || {
                for job in &jobs as &Receiver<Job> {
                    let translated = translate(job.bytes);
                    let Some(shared) = shared.upgrade() else {
                        return;
                    };
                    let mut inner = lock(&shared);
                    inner.put(job.whose, job.hash, translated, &built_in);
                    changes.fetch_add(1, Relaxed);
                }
            });
            work
        };
        inner.work.get_or_insert_with(start).clone()
    }

    /// Translates a module here and now, for those whose own thread may wait.
    pub(crate) fn add(&self, owner: &str, common: bool, bytes: Vec<u8>) -> Result<(), Refusal> {
        let whose = match common {
            true => Whose::Everybody,
            false => Whose::Own(ShortText::lossy(owner, muninn_wire::MAX_NAME)),
        };
        let hash = hash_of(&bytes);
        lock(&self.inner).make_room(&whose, clock::now())?;
        lock(&self.inner).bytes += bytes.len();
        let translated = translate(bytes);
        lock(&self.inner).put(whose, hash, translated, &self.built_in);
        self.changes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Modules that are here, for whoever looks whether they still are elsewhere.
    pub(crate) fn hashes(&self) -> Vec<ModuleHash> {
        lock(&self.inner)
            .modules
            .keys()
            .map(|(_, hash)| *hash)
            .collect()
    }

    /// Whoever has them, they are gone.
    pub(crate) fn forget(&self, hash: &ModuleHash) {
        let mut inner = lock(&self.inner);
        let places: Vec<_> = inner
            .modules
            .keys()
            .filter(|(_, h)| h == hash)
            .cloned()
            .collect();
        for place in places {
            inner.take_out(&place);
        }
        self.changes.fetch_add(1, Relaxed);
    }

    fn remove(&self, by: &Pusher<'_>, own: &Whose, hash: &ModuleHash) -> Result<(), Refusal> {
        let mut inner = lock(&self.inner);
        let places: Vec<_> = inner
            .modules
            .keys()
            .filter(|(whose, of)| of == hash && (by.is_operator || whose == own))
            .cloned()
            .collect();
        // One that is being translated is removed once it is.
        let translating = |place: &(Whose, ModuleHash)| {
            matches!(inner.modules.get(place), Some(State::Translating))
        };
        if places.iter().any(translating) {
            return Err(Refusal::new(ErrorCode::TryAgain).remark("it is being translated"));
        }
        if places.is_empty() {
            return Err(Refusal::new(ErrorCode::NoWic));
        }
        for place in places {
            inner.take_out(&place);
        }
        self.changes.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn translate(bytes: Vec<u8>) -> Result<Module, ShortText> {
    let loaded = catch_unwind(AssertUnwindSafe(|| Module::load(bytes)));
    match loaded {
        Ok(Ok(module)) => Ok(module),
        Ok(Err(error)) => Err(ShortText::lossy(&error.to_string(), ShortText::MAX)),
        Err(_) => Err(ShortText::lossy("translating it failed", ShortText::MAX)),
    }
}

impl Inner {
    /// Whether one more may arrive; those that nobody goes on with make room.
    fn make_room(&mut self, whose: &Whose, now: Nanos) -> Result<(), Refusal> {
        self.modules.retain(|_, state| match state {
            State::Arriving(_, _, touched) => now < *touched + ARRIVING_PATIENCE,
            State::Refused(_, at) => now < *at + REFUSED_KEPT,
            _ => true,
        });
        let (mut arriving, mut arriving_of_owner, mut of_owner) = (0, 0, 0);
        for ((of, _), state) in &self.modules {
            let own = usize::from(of == whose);
            let arrives = usize::from(matches!(state, State::Arriving(..) | State::Translating));
            arriving += arrives;
            arriving_of_owner += arrives * own;
            of_owner += own;
        }
        let most_of_owner = match whose {
            Whose::Everybody => MODULES_MAX,
            Whose::Own(_) => MODULES_OF_OWNER,
        };
        let full = [
            (self.modules.len(), MODULES_MAX),
            (of_owner, most_of_owner),
            (arriving, ARRIVING_MAX),
            (arriving_of_owner, ARRIVING_OF_OWNER),
        ];
        match full.iter().find(|(count, max)| count >= max) {
            Some((_, max)) => Err(refusal(ErrorCode::TooManyModules, *max)),
            None => Ok(()),
        }
    }

    /// A module was translated, or could not be.
    fn put(
        &mut self,
        whose: Whose,
        hash: ModuleHash,
        translated: Result<Module, ShortText>,
        built_in: &Registry,
    ) {
        let taken = |name: &str, version: u32| {
            let same = |l: &Listed| {
                let f = l.function.exported();
                l.whose == whose && f.name == name && f.version == version
            };
            built_in.find(name, version).is_ok() || self.functions.values().any(same)
        };
        let fits = translated.and_then(|module| {
            let all = module.functions().iter();
            match all.clone().find(|f| taken(&f.name, f.version)) {
                None => Ok(module),
                Some(f) => {
                    let why = format!(
                        "{}@{} is there already: remove it, or push a new version",
                        f.name, f.version
                    );
                    Err(ShortText::lossy(&why, ShortText::MAX))
                }
            }
        });
        let state = match fits {
            Ok(module) => {
                let module = Arc::new(module);
                let mut numbers = Vec::new();
                for function in Pushed::all(&module) {
                    let number = FIRST_PUSHED + self.numbered;
                    self.numbered += 1;
                    numbers.push(number);
                    let whose = whose.clone();
                    self.functions.insert(number, Listed { whose, function });
                }
                State::Ready(module, numbers)
            }
            Err(why) => State::Refused(why, clock::now()),
        };
        self.modules.insert((whose, hash), state);
        self.count();
    }

    fn take_out(&mut self, place: &(Whose, ModuleHash)) {
        if let Some(State::Ready(module, numbers)) = self.modules.remove(place) {
            for number in numbers {
                self.functions.remove(&number);
            }
            module.remove();
        }
        self.count();
    }

    /// Bytes of those that are kept. What is being translated is counted when it is done.
    fn count(&mut self) {
        let bytes = self.modules.values().map(|state| match state {
            State::Ready(module, _) => module.bytes().len(),
            _ => 0,
        });
        self.bytes = bytes.sum();
    }
}

fn state_of(state: &State) -> ModuleState {
    match state {
        State::Arriving(bytes, _, _) => ModuleState::Receiving(bytes.len() as u32),
        State::Translating => ModuleState::Translating,
        State::Ready(_, numbers) => ModuleState::Ready(numbers.len() as u32),
        State::Refused(why, _) => ModuleState::Refused(why.clone()),
    }
}

fn info_of(number: u32, listed: &Listed) -> PushedInfo {
    let exported = listed.function.exported();
    let owner = match &listed.whose {
        Whose::Everybody => ShortText::default(),
        Whose::Own(owner) => owner.clone(),
    };
    PushedInfo {
        number,
        hash: *listed.function.module.hash(),
        module_len: listed.function.module.bytes().len() as u32,
        version: exported.version,
        idempotent: exported.idempotent,
        common: listed.whose == Whose::Everybody,
        owner,
        name: ShortText::lossy(&exported.name, muninn_wire::MAX_WIC_NAME),
        calls: exported.calls.load(Relaxed),
    }
}

#[cfg(test)]
mod tests;
