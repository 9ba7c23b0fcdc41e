//! Which processors a thread may run on.
//!
//! A fault handler belongs on the processor of the thread it serves. Invariant: [`allowed`] is what
//! the kernel will really use, after cgroups and `taskset`, not what the machine has. Known limit:
//! processors beyond number 1023 are not seen.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid};

/// Affinity could not be read or set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    #[error("cannot ask which processors thread {thread} may use: {source}")]
    Ask { thread: i32, source: Errno },
    #[error(
        "cannot let thread {thread} run on processors {cpus:?} only: {source}; \
         the cgroup or 'taskset' may allow others only"
    )]
    Set {
        thread: i32,
        cpus: Vec4,
        source: Errno,
    },
}

/// The first few of a list of processors, for messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Vec4([usize; 4], usize);

impl std::fmt::Debug for Vec4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.0[..self.1.min(4)]).finish()?;
        if self.1 > 4 {
            write!(f, " and {} more", self.1 - 4)?;
        }
        Ok(())
    }
}

impl Vec4 {
    fn of(cpus: &[usize]) -> Vec4 {
        let mut first = [0; 4];
        for (slot, &cpu) in first.iter_mut().zip(cpus) {
            *slot = cpu;
        }
        Vec4(first, cpus.len())
    }
}

/// A thread of this process, or the calling one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    Current,
    Id(i32),
}

impl Thread {
    fn pid(self) -> Option<Pid> {
        match self {
            Thread::Current => None,
            Thread::Id(id) => Pid::from_raw(id.max(0)),
        }
    }
    pub(crate) fn number(self) -> i32 {
        match self {
            Thread::Current => current_thread_id(),
            Thread::Id(id) => id,
        }
    }
}

/// Something that places threads on processors.
pub trait Placement {
    fn allowed(&self, thread: Thread) -> Result<Vec<usize>, AffinityError>;
    fn set(&self, thread: Thread, cpus: &[usize]) -> Result<(), AffinityError>;
}

/// The kernel's scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scheduler;

impl Placement for Scheduler {
    fn allowed(&self, thread: Thread) -> Result<Vec<usize>, AffinityError> {
        let set = rustix::thread::sched_getaffinity(thread.pid()).map_err(|source| {
            AffinityError::Ask {
                thread: thread.number(),
                source,
            }
        })?;
        Ok((0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect())
    }

    fn set(&self, thread: Thread, cpus: &[usize]) -> Result<(), AffinityError> {
        let failed = |source| AffinityError::Set {
            thread: thread.number(),
            cpus: Vec4::of(cpus),
            source,
        };
        let mut set = CpuSet::new();
        for &cpu in cpus {
            if cpu >= CpuSet::MAX_CPU {
                return Err(failed(Errno::INVAL));
            }
            set.set(cpu);
        }
        rustix::thread::sched_setaffinity(thread.pid(), &set).map_err(failed)
    }
}

/// Processors the calling thread may use, in order.
pub fn allowed() -> Result<Vec<usize>, AffinityError> {
    Scheduler.allowed(Thread::Current)
}

/// How many processors the calling thread may use; 1 where that cannot be asked.
pub fn allowed_count() -> usize {
    allowed().map_or(1, |cpus| cpus.len().max(1))
}

/// Keeps a thread on one processor.
pub fn pin(thread: Thread, cpu: usize) -> Result<(), AffinityError> {
    Scheduler.set(thread, &[cpu])
}

/// Lets a thread run on the processors listed.
pub fn allow(thread: Thread, cpus: &[usize]) -> Result<(), AffinityError> {
    Scheduler.set(thread, cpus)
}

/// The processor that a thread of the program ran on last; `None` when it has ended, or where `/proc`
/// lists it under another number.
pub fn last_cpu(thread: u32) -> Option<usize> {
    if crate::own::is_listed_otherwise() {
        return None;
    }
    let mut path = [0u8; 64];
    let mut rest = &mut path[..];
    let program = crate::own::program_pid();
    std::io::Write::write_fmt(
        &mut rest,
        format_args!("/proc/{program}/task/{thread}/stat"),
    )
    .ok()?;
    let used = 64 - rest.len();
    let path = std::str::from_utf8(&path[..used]).ok()?;
    let file = crate::proc::open(path).ok()?;
    let mut text = [0u8; 1024];
    let n = rustix::io::pread(&file, &mut text, 0).ok()?;
    // The name of the thread may hold anything, spaces too; it ends with the last bracket. The
    // processor is field 39 of the line, the 37th after the name.
    let after = text[..n].iter().rposition(|&b| b == b')')?;
    let mut fields = text[after + 1..n]
        .split(|&b| b == b' ')
        .filter(|f| !f.is_empty());
    std::str::from_utf8(fields.nth(36)?).ok()?.parse().ok()
}

/// The processor the calling thread runs on at this moment.
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// The kernel's number of the calling thread, as userfaultfd events carry it.
pub fn current_thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Remembers where threads were put.
#[derive(Debug, Default)]
pub struct FakePlacement {
    cpus: Vec<usize>,
    placed: Mutex<Vec<(Thread, Vec<usize>)>>,
}

impl FakePlacement {
    pub fn new(cpus: &[usize]) -> FakePlacement {
        FakePlacement {
            cpus: cpus.to_vec(),
            placed: Mutex::default(),
        }
    }

    /// All placements so far, in order.
    pub fn placed(&self) -> Vec<(Thread, Vec<usize>)> {
        self.placed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Placement for FakePlacement {
    fn allowed(&self, _: Thread) -> Result<Vec<usize>, AffinityError> {
        Ok(self.cpus.clone())
    }

    fn set(&self, thread: Thread, cpus: &[usize]) -> Result<(), AffinityError> {
        if !cpus.iter().any(|cpu| self.cpus.contains(cpu)) {
            return Err(AffinityError::Set {
                thread: thread.number(),
                cpus: Vec4::of(cpus),
                source: Errno::INVAL,
            });
        }
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        placed.push((thread, cpus.to_vec()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        let cpus = allowed().unwrap();
        assert_eq!(cpus.len(), allowed_count());
        let last = *cpus.last().unwrap();
        std::thread::spawn(move || {
            pin(Thread::Current, last).unwrap();
            assert_eq!(current_cpu(), last);
            assert_eq!(allowed().unwrap(), [last]);
            let by_id = Scheduler.allowed(Thread::Id(current_thread_id())).unwrap();
            assert_eq!(by_id, [last]);
        })
        .join()
        .unwrap();
        assert_eq!(allowed().unwrap(), cpus);
    }

    #[test]
    fn an_impossible_processor_is_refused_with_its_number() {
        let error = Scheduler
            .set(Thread::Id(current_thread_id()), &[1023, 1, 2, 3, 5000])
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("[1023, 1, 2, 3] and 1 more only"),
            "{error}"
        );
        let fake = FakePlacement::new(&[0, 1]);
        fake.set(Thread::Id(7), &[1]).unwrap();
        assert!(fake.set(Thread::Id(7), &[2]).is_err());
        assert_eq!(fake.placed(), [(Thread::Id(7), vec![1])]);
    }
}
