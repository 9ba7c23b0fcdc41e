//! The launcher's door: what a runtime cannot reach by itself it is handed there.
//!
//! A process of the job may have become another user, have changed its root, or live among other
//! numbers of processes. Then it can open neither the job's page nor `/proc` nor the userfaultfd device,
//! and does not know its own number as the launcher knows it; and after a change of user its own memory is closed to it,
//! as a file, and what its program has open. It knocks at a door whose name is in no file system with the number
//! of its program as it knows it, and is answered if it descends from the launcher: with open files, and that
//! number as the launcher knows it. Or it asks who may still write to its program's memory ([`ask_late_writes`]).
//!
//! Memory is given away by a launcher that may be root: only to a companion, which has that memory already. One
//! who executed another program meanwhile, which may have more rights, shares memory with nobody
//! ([`Porter::memory_of`]).
//!
//! There a companion leaves a copy of the device that answers for its program's memory, too. Were it the
//! only one who has it, and were it killed, absent pages would read as zeros; so the launcher has it as well,
//! and ends a program whose companion is gone without a word. It has those of children that the companion
//! answers for ([`leave_ward`]): one of them that touches an absent page is ended when it does.
//!
//! Known limit: a process in a network namespace of its own does not find the door.

use crate::JobError;
use muninn_sys::epoll::wait_any;
use muninn_sys::pagemap::Pagemap;
use muninn_sys::proc::{LateWrites, ProcessId};
use muninn_sys::reap;
use muninn_sys::signal::PidFd;
use muninn_sys::socket::{Door, Link};
use muninn_sys::uffd::{
    Cause, Event, EventBuffer, FaultDevice, FaultKind, Features, PageRange, Userfaultfd, Wake,
};
use muninn_sys::{own, proc, rand, uffd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How an answer begins; the number of the process follows.
const WELCOME: &[u8; 8] = b"welcome ";
/// How often, and after which pauses, it is looked whether the memory of a program is in use.
const MEMORY_LOOKS: u32 = 10;
const MEMORY_PAUSE: Duration = Duration::from_millis(2);
/// What else a visitor may ask, after the number of its program, and how that is answered.
const WHO_WRITES: u8 = b'w';
const WRITES: [(u8, LateWrites); 4] = [
    (b'n', LateWrites::Nobody),
    (b't', LateWrites::Thread),
    (b'd', LateWrites::Device),
    (b'h', LateWrites::Hidden),
];
/// A device was kept; it is needed no more.
const KEPT: &[u8] = b"kept";
const BYE: &[u8] = b"bye";
/// The device of a ward, and its end as a ward; a number follows by which they belong together.
const WARD: &[u8; 8] = b"ward of ";
const WARD_GONE: &[u8; 8] = b"wardgone";
/// Between two looks at wards that nobody answers for.
const ORPHAN_LOOK: Duration = Duration::from_millis(100);
/// Between two looks at those who have left something here.
const LOOK: Duration = Duration::from_secs(60);
/// How long a launcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long somebody may stand at the door without a word: others wait behind.
const PATIENCE_WITH_VISITORS: Duration = Duration::from_secs(1);

/// Those who knock that are looked at before others are attended to: anybody on the machine may knock.
const VISITORS_A_TURN: usize = 16;

/// A name that nobody has. It is no secret: the kernel shows it to all users of the machine.
pub fn new_name() -> String {
    let word = || u64::from_le_bytes(rand::bytes());
    format!("muninn-job-{:016x}{:016x}", word(), word())
}

/// The launcher's side.
#[derive(Debug)]
pub struct Porter {
    door: Door,
    job: File,
    root: File,
    device: Option<OwnedFd>,
}

/// A program whose companion left its device with us.
#[derive(Debug)]
struct Kept {
    link: Link,
    /// `None` once it has ended, and its companion stays for its wards alone.
    program: Option<ProcessId>,
    device: Userfaultfd,
    wards: Vec<(u64, Userfaultfd)>,
}

/// What a companion's silence or word means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Something,
    /// It has ended.
    End,
}

impl Kept {
    /// Listens to the companion once.
    fn hear(&mut self) -> Heard {
        let mut word = [0; 16];
        let (len, fds) = match self.link.receive(&mut word, Duration::ZERO) {
            Ok(None) => return Heard::Nothing,
            Ok(Some((0, _))) | Err(_) => return Heard::End,
            Ok(Some(message)) => message,
        };
        if word[..len] == *BYE {
            self.program = None;
            return Heard::Something;
        }
        let [what, token] = [0, 8].map(|at| word[at..at + 8].try_into().unwrap_or([0; 8]));
        let token = u64::from_le_bytes(token);
        match (&what, fds.into_iter().next()) {
            (WARD, Some(device)) => {
                let device = Userfaultfd::from_fd(device, Features::NONE);
                self.wards.push((token, device));
            }
            (WARD_GONE, _) => self.wards.retain(|(known, _)| *known != token),
            // There was no room for another descriptor; or nobody of ours.
            _ => {}
        }
        Heard::Something
    }
}

/// A child that its parent's companion answered for, which was killed.
#[derive(Debug)]
struct Orphan(Userfaultfd);

impl Orphan {
    /// Ends it when it touches a page that is not there; whether it lives.
    fn attend(&self, job: Option<&crate::Job>) -> bool {
        let mut events = EventBuffer::new();
        let _ = self.0.read_events(&mut events);
        while let Some(event) = events.pop() {
            let Event::Fault(fault) = event else { continue };
            let page = PageRange::one(fault.page());
            if fault.kind == FaultKind::WriteProtected {
                let _ = self.0.write_protect(page, false, Wake::Now);
                let _ = self.0.wake(page);
                continue;
            }
            match self
                .0
                .poison(page, Wake::Now)
                .map_err(|partial| partial.cause)
            {
                Ok(()) => {}
                // It is there by now, or its address space changes: it will come again.
                Err(Cause::Exists | Cause::Again) => {
                    let _ = self.0.wake(page);
                    continue;
                }
                // An older kernel.
                Err(_) if reap::is_descendant(fault.thread) => own::end_other(fault.thread),
                Err(_) => continue,
            }
            if let Some(job) = job {
                job.leave_message(fault.thread, ORPHANED);
            }
        }
        self.0.has_process()
    }
}

const ORPHANED: &str = "the companion of its parent was killed, which answered for its memory";

impl Porter {
    /// Opens the door of a job whose page is in a file.
    pub fn new(name: &str, job: &Path) -> io::Result<Porter> {
        let both = File::options().read(true).write(true).open(job)?;
        Ok(Porter {
            door: Door::open(name.as_bytes())?,
            job: both,
            root: File::open("/")?,
            device: uffd::open_device().ok(),
        })
    }

    /// Answers whoever knocks, and ends programs without companions; for ever.
    pub fn serve(&self) -> ! {
        let job = crate::Job::of_file(&self.job, PathBuf::new()).ok();
        let mut kept: Vec<Kept> = Vec::new();
        let mut orphans: Vec<Orphan> = Vec::new();
        loop {
            let links = kept.iter().map(|kept| kept.link.as_fd());
            let alone = orphans.iter().map(|orphan| orphan.0.as_fd());
            let door = std::iter::once(self.door.as_fd());
            let fds: Vec<_> = door.chain(links).chain(alone).collect();
            let patience = if orphans.is_empty() {
                LOOK
            } else {
                ORPHAN_LOOK
            };
            wait_any(&fds, patience);
            kept.retain_mut(|kept| {
                loop {
                    match kept.hear() {
                        Heard::Something => {}
                        Heard::Nothing => return true,
                        Heard::End => break,
                    }
                }
                if let Some(program) = kept.program {
                    end(program, &kept.device, job.as_ref());
                }
                let left = kept.wards.drain(..).map(|(_, device)| Orphan(device));
                orphans.extend(left);
                false
            });
            orphans.retain(|orphan| orphan.attend(job.as_ref()));
            for link in std::iter::from_fn(|| self.door.accept()).take(VISITORS_A_TURN) {
                kept.extend(self.answer(link));
            }
        }
    }

    /// Answers one who knocks: with what is ours, or, if it brings a device, by keeping that.
    fn answer(&self, link: Link) -> Option<Kept> {
        let peer = link.peer().filter(|&pid| reap::is_descendant(pid))?;
        let mut asked = [0; 5];
        let (len, fds) = link.receive(&mut asked, PATIENCE_WITH_VISITORS).ok()??;
        let (number, question) = asked[..len].split_first_chunk::<4>()?;
        let pid = proc::number_here(peer, u32::from_le_bytes(*number))?;
        if let Some(device) = fds.into_iter().next() {
            link.send(KEPT, &[]).ok()?;
            return Some(Kept {
                link,
                program: Some(ProcessId::of(pid)?),
                device: Userfaultfd::from_fd(device, Features::NONE),
                wards: Vec::new(),
            });
        }
        // One that is gone again needs no answer.
        let _ = match question {
            [] => self.welcome(&link, peer, pid),
            [WHO_WRITES] => link
                .send(&[self.who_writes(peer, pid)], &[])
                .map_err(io::Error::from),
            _ => return None,
        };
        None
    }

    fn welcome(&self, link: &Link, peer: u32, program: u32) -> io::Result<()> {
        let (pagemap, memory) = Porter::memory_of(peer, program).unzip();
        let gifts = [
            self.device.as_ref().map(AsFd::as_fd),
            pagemap.as_ref().map(AsFd::as_fd),
            memory.as_ref().map(AsFd::as_fd),
        ];
        let mut message = WELCOME.to_vec();
        message.extend(program.to_le_bytes());
        let given = gifts.iter().enumerate();
        message.push(given.map(|(at, gift)| u8::from(gift.is_some()) << at).sum());
        let always = [self.job.as_fd(), self.root.as_fd()];
        let fds: Vec<_> = always
            .into_iter()
            .chain(gifts.into_iter().flatten())
            .collect();
        Ok(link.send(&message, &fds)?)
    }

    /// The memory of a companion and its program, as files: what changed its user is not the owner of these
    /// any more.
    fn memory_of(companion: u32, program: u32) -> Option<(OwnedFd, OwnedFd)> {
        let process = ProcessId::of(program)?;
        let pagemap = Pagemap::file_for_others(companion).ok()?;
        let memory = File::open(format!("/proc/{companion}/mem")).ok()?;
        // Whoever has executed another program by now shares no memory, and never will with a process that was
        // there before.
        (is_companion(companion, program) && process.is_alive()).then(|| (pagemap, memory.into()))
    }

    fn who_writes(&self, peer: u32, program: u32) -> u8 {
        let seen = proc::late_writes(program).unwrap_or(LateWrites::Hidden);
        let answer = match is_companion(peer, program) {
            true => seen,
            false => LateWrites::Hidden,
        };
        let found = WRITES.iter().find(|(_, writes)| *writes == answer);
        found.expect("all answers are in the table").0
    }
}

fn is_companion(one: u32, program: u32) -> bool {
    one != program && proc::has_memory_of(one, program) == Some(true)
}

/// A program whose companion was killed must not go on: nobody answers for what is far.
fn end(program: ProcessId, device: &Userfaultfd, job: Option<&crate::Job>) {
    let Ok(handle) = PidFd::open(program.pid() as i32) else {
        return;
    };
    // One that executed another program has other memory, with a companion of its own. Somebody who looks at
    // the old may keep it a moment longer.
    for _ in 0..MEMORY_LOOKS {
        if !device.has_process() {
            return;
        }
        std::thread::sleep(MEMORY_PAUSE);
    }
    // One that executes another program leaves its companion without a word, too, and its memory.
    if !program.is_alive() || !proc::is_registered(program.pid()) {
        return;
    }
    if let Some(job) = job {
        job.leave_message(
            program.pid(),
            "its companion was killed, which answered for its memory",
        );
    }
    if handle.kill().is_ok() {
        let _ = handle.wait_end(Some(PATIENCE));
    }
}

/// Leaves a device with the launcher, for as long as the link lives or until [`take_back`].
pub fn leave(name: &str, program: u32, device: BorrowedFd<'_>) -> Option<Link> {
    let link = Link::connect(name.as_bytes()).ok()?;
    link.send(&program.to_le_bytes(), &[device]).ok()?;
    let mut answer = [0; 8];
    let (len, _) = link.receive(&mut answer, PATIENCE).ok()??;
    (answer[..len] == *KEPT).then_some(link)
}

/// Asks the launcher who may still write to the memory of a program that stands still, where the kernel does not
/// let its companion look. `None` when nobody answered.
pub fn ask_late_writes(name: &str, program: u32) -> Option<LateWrites> {
    let link = Link::connect(name.as_bytes()).ok()?;
    let mut question = program.to_le_bytes().to_vec();
    question.push(WHO_WRITES);
    link.send(&question, &[]).ok()?;
    let mut answer = [0];
    let (len, _) = link.receive(&mut answer, PATIENCE).ok()??;
    let known = WRITES.iter().find(|(code, _)| answer[..len] == [*code]);
    known.map(|(_, writes)| *writes)
}

/// The program needs its companion no more.
pub fn take_back(link: &Link) {
    let _ = link.send(BYE, &[]);
}

/// Leaves the device of a ward, under a number of its own, with the launcher that has the program's.
pub fn leave_ward(link: &Link, token: u64, device: BorrowedFd<'_>) {
    let _ = link.send_now(&ward_message(WARD, token), &[device]);
}

/// The ward needs nobody any more.
pub fn take_back_ward(link: &Link, token: u64) {
    let _ = link.send(&ward_message(WARD_GONE, token), &[]);
}

fn ward_message(what: &[u8; 8], token: u64) -> [u8; 16] {
    let mut message = [0; 16];
    message[..8].copy_from_slice(what);
    message[8..].copy_from_slice(&token.to_le_bytes());
    message
}

/// What a runtime was handed.
#[derive(Debug)]
pub struct Visit {
    /// The number of the program, as the launcher knows it.
    pub pid: u32,
    pub job: File,
    pub root: OwnedFd,
    pub device: Option<OwnedFd>,
    /// Of the memory of who knocked.
    pub pagemap: Option<OwnedFd>,
    pub memory: Option<OwnedFd>,
}

impl Visit {
    /// Knocks at the door of a job, for the process of this number.
    pub fn pay(name: &str, program: u32) -> Option<Visit> {
        let link = Link::connect(name.as_bytes()).ok()?;
        link.send(&program.to_le_bytes(), &[]).ok()?;
        let mut message = [0; 13];
        let (len, fds) = link.receive(&mut message, PATIENCE).ok()??;
        let (welcome, rest) = message.split_first_chunk::<8>()?;
        if len != message.len() || welcome != WELCOME {
            return None;
        }
        let (pid, gifts) = rest.split_first_chunk::<4>()?;
        let mut fds = fds.into_iter();
        let (job, root) = (fds.next()?.into(), fds.next()?);
        let mut gift = |at: u32| (gifts[0] >> at & 1 == 1).then(|| fds.next()).flatten();
        Some(Visit {
            pid: u32::from_le_bytes(*pid),
            job,
            root,
            device: gift(0),
            pagemap: gift(1),
            memory: gift(2),
        })
    }

    /// The job that this is the door of.
    pub fn job(&self) -> Result<crate::Job, JobError> {
        crate::Job::of_file(&self.job, PathBuf::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Job};
    use muninn_types::Bytes;

    #[test]
    fn who_descends_from_the_launcher_is_handed_the_job() {
        let job = Job::create(&Config::default(), Bytes::mib(64)).unwrap();
        let name = new_name();
        let porter = Porter::new(&name, job.path()).unwrap();
        job.remove();
        std::thread::spawn(move || porter.serve());
        let visit = Visit::pay(&name, std::process::id()).unwrap();
        assert_eq!(visit.pid, std::process::id());
        assert_eq!(visit.job().unwrap().limit(), Bytes::mib(64));
        // Not a companion: memory is for those who have it.
        assert!(visit.pagemap.is_none() && visit.memory.is_none());
        let hidden = ask_late_writes(&name, std::process::id());
        assert_eq!(hidden, Some(LateWrites::Hidden));
        assert!(Visit::pay("muninn-job-nobody", 1).is_none());
    }
}
