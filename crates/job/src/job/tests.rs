use super::*;
use crate::layout::{MESSAGE_MAX, Seat};
use crate::{Counters, PLACES_MAX, find_all, find_by_pid};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

/// A job whose file goes with it.
struct Temporary(Job);

impl Drop for Temporary {
    fn drop(&mut self) {
        self.0.remove();
    }
}

fn job() -> Temporary {
    let config = Config {
        name: "a test".to_string(),
        ..Config::default()
    };
    Temporary(Job::create(&config, Bytes::mib(256)).unwrap())
}

/// A process that does nothing until it is ended.
struct Idler(Child);

impl Idler {
    fn start() -> Idler {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn();
        Idler(child.unwrap())
    }
    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_one_writes_the_other_reads() {
    let made = job();
    let opened = Job::open(made.0.path()).unwrap();
    assert_eq!(opened.limit(), Bytes::mib(256));
    assert_eq!(opened.config().unwrap().name, "a test");
    assert_eq!(opened.launcher().unwrap().pid(), std::process::id());
    made.0.set_limit(Bytes::mib(64));
    assert_eq!(opened.limit(), Bytes::mib(64));

    assert_eq!(made.0.message(), None);
    opened.leave_message(42, "the server is gone");
    opened.leave_message(43, &"é".repeat(MESSAGE_MAX));
    let message = made.0.message().unwrap();
    assert_eq!(message.pid, 43);
    assert_eq!(message.text, "é".repeat(MESSAGE_MAX / 2));

    assert_eq!(made.0.advice(), None);
    opened.leave_advice("a small nursery");
    opened.leave_advice("another thing");
    assert_eq!(made.0.advice().as_deref(), Some("a small nursery"));
    let (start, len) = opened.range();
    assert!(start != 0 && len >= Shared::<Layout>::LEN);
}

#[test]
fn a_place_is_kept_by_its_process_and_counted_after_it() {
    let made = job();
    let job = &made.0;
    let mut idler = Idler::start();
    let own = job.take_place(std::process::id()).unwrap();
    let other = job.take_place(idler.0.id()).unwrap();
    assert_ne!(own.index(), other.index());
    own.counters().faults.store(5, Ordering::Relaxed);
    other.counters().faults.store(7, Ordering::Relaxed);
    other.counters().resident_bytes.store(99, Ordering::Relaxed);
    assert_eq!(job.total().faults, 12);
    assert_eq!(job.total().resident_bytes, 99);
    assert_eq!(job.note_footprint(), Bytes(99));

    let again = job.take_place(idler.0.id()).unwrap();
    assert_eq!((again.index(), job.attached()), (other.index(), 2));
    assert_eq!(again.counters().snapshot().faults, 7);
    assert_eq!(again.counters().snapshot().resident_bytes, 0, "a new image");
    other.counters().resident_bytes.store(99, Ordering::Relaxed);

    idler.end();
    assert!(own.is_alive() && !other.is_alive());
    assert_eq!((job.total().faults, job.total().resident_bytes), (12, 0));
    assert_eq!(job.places().count(), 2);
    own.release();
    own.release();
    assert_eq!(job.places().count(), 1);
    assert_eq!(job.total().faults, 12);
    assert_eq!(job.peaks().all, Bytes(99));
    assert!(job.take_place(idler.0.id()).is_none(), "it is dead");
}

#[test]
fn places_of_the_dead_are_used_again_and_never_those_of_the_living() {
    let made = job();
    let job = &made.0;
    let mut idler = Idler::start();
    let own = ProcessId::of(std::process::id()).unwrap();
    let dead = ProcessId::of(idler.0.id()).unwrap();
    idler.end();
    job.page
        .places_used
        .store(PLACES_MAX as u64, Ordering::Relaxed);
    for (seat, index) in job.page.places.iter().zip(0..) {
        let word = if index == 77 { dead } else { own }.word();
        job.page.owners[index].store(word, Ordering::Relaxed);
        seat.counters.evicted.store(1, Ordering::Relaxed);
    }
    let idler = Idler::start();
    let place = job.take_place(idler.0.id()).unwrap();
    assert_eq!(place.index(), 77);
    assert_eq!(place.counters().snapshot(), Snapshot::default());
    assert_eq!(job.total().evicted, PLACES_MAX as u64);
    let late = Idler::start();
    assert!(job.take_place(late.0.id()).is_none(), "all are taken");
    // One that died while it emptied a place, and one whose word is nonsense.
    for word in [crate::layout::CLEARING | dead.word(), 3] {
        job.page.owners[5].store(word, Ordering::Relaxed);
        let place = job.take_place(late.0.id()).unwrap();
        assert_eq!(place.index(), 5);
    }
}

#[test]
fn many_threads_never_share_a_place() {
    let made = job();
    let idlers: Vec<Idler> = (0..8).map(|_| Idler::start()).collect();
    let taken: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = idlers
            .iter()
            .map(|idler| scope.spawn(|| made.0.take_place(idler.0.id()).unwrap().index()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut distinct = taken.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), taken.len(), "{taken:?}");
}

#[test]
fn jobs_are_found_by_anybody_in_them() {
    let made = job();
    let idler = Idler::start();
    made.0.take_place(idler.0.id()).unwrap();
    let found = find_by_pid(idler.0.id()).unwrap();
    assert_eq!(found.path(), made.0.path());
    assert!(find_by_pid(1).is_none());
    let all = find_all();
    let this = all.iter().find(|found| found.job.path() == made.0.path());
    assert!(this.unwrap().launcher_alive);
}

#[test]
fn a_file_that_makes_no_sense_is_an_error() {
    let refusal = |path: &Path| Job::open(path).unwrap_err().to_string();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let shown = path.display().to_string();
    assert_eq!(
        refusal(&path),
        format!(
            "cannot open the job's page {shown}: No such file or directory (os error 2); its \
             launcher may have ended"
        )
    );
    std::fs::write(&path, "short").unwrap();
    let damaged = |why| format!("{shown} is not the page of a job, or is damaged ({why})");
    assert_eq!(refusal(&path), damaged("it is too short"));
    std::fs::write(&path, vec![7; size_of::<Layout>()]).unwrap();
    assert_eq!(refusal(&path), damaged("it does not begin as one does"));

    let made = job();
    let bytes = std::fs::read(made.0.path()).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[99], 8).unwrap();
    assert_eq!(
        refusal(&path),
        format!(
            "{shown} was made by another version of Muninn: use a launcher and a preload library \
             of one build"
        )
    );
    let long = Config {
        name: "n".repeat(CONFIG_MAX),
        ..Config::default()
    };
    assert_eq!(
        Job::create(&long, Bytes::PAGE).unwrap_err().to_string(),
        "the job's configuration is longer than 16384 bytes; name fewer servers"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever bytes a page holds, nothing in it makes a reader fail.
    #[test]
    fn a_damaged_page_does_no_harm(
        noise in proptest::collection::vec((32usize..150_000, any::<u64>()), 0..200),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let made = job();
        std::fs::copy(made.0.path(), &path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (offset, value) in noise {
            let offset = (offset / 8 * 8) as u64;
            file.write_all_at(&value.to_le_bytes(), offset.min(Shared::<Layout>::LEN.0 - 8)).unwrap();
        }
        if let Ok(job) = Job::open(&path) {
            let _ = (job.config(), job.message(), job.advice(), job.total(), job.launcher(), job.peaks());
            job.note_footprint();
            for place in job.places() {
                let _ = (place.pid(), place.is_alive(), place.counters().snapshot());
            }
            if let Some(place) = job.take_place(std::process::id()) {
                place.release();
            }
            job.leave_message(1, "words");
        }
    }
}

#[test]
fn the_page_is_small_and_counters_are_apart() {
    // The rest of the file is a hole.
    let ready = std::mem::offset_of!(Layout, places) + crate::PLACES_READY * size_of::<Seat>();
    assert!(ready < 192 << 10, "{ready}");
    let made = job();
    let file = std::fs::metadata(made.0.path()).unwrap();
    let taken = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
    assert!(taken < 256 << 10, "{taken}");
    assert_eq!(align_of::<Seat>(), 64);
    // And three histograms of how long faults took.
    let words = Counters::NAMES.len() + 3 * Spread::BUCKETS;
    assert_eq!(size_of::<Counters>(), 8 * words);
}
