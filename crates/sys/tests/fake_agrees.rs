//! The fake userfaultfd against the real one: the same requests, in random order, must get the
//! same answers and leave the same pages behind.

mod common;

use common::{Area, open};
use muninn_sys::pagemap::{Categories, PageScan, Pagemap, PagemapEntry, Query, Region};
use muninn_sys::uffd::fake::{FakeFaultDevice, FakeSpace};
use muninn_sys::uffd::{
    CopyMode, FaultDevice, Features, MoveMode, PageRange, Partial, RegisterMode, RequestError,
    Userfaultfd, Wake,
};
use muninn_types::{PAGE_SIZE, PageNo};
use proptest::prelude::*;

/// Pages of each of the two areas: a program and its staging area.
const PAGES: u64 = 6;

#[derive(Clone, Copy, Debug)]
struct Span {
    staging: bool,
    first: u64,
    pages: u64,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Copy(Span, u8, bool),
    Zero(Span),
    Move {
        out: bool,
        from: u64,
        to: u64,
        pages: u64,
        holes: bool,
    },
    Protect(Span, bool),
    Poison(Span),
    Discard(Span),
    /// A write by the program, done only where it does not block.
    Store(u64, u8),
    /// A scan for written pages, where they are tracked.
    TakeWritten(Span),
}

fn spans() -> impl Strategy<Value = Span> {
    (any::<bool>(), 0..PAGES, 1..=PAGES).prop_map(|(staging, first, pages)| Span {
        staging,
        first,
        pages: pages.min(PAGES - first),
    })
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => (spans(), 1u8.., any::<bool>()).prop_map(|(s, v, wp)| Request::Copy(s, v, wp)),
        2 => spans().prop_map(Request::Zero),
        4 => (any::<bool>(), 0..PAGES, 0..PAGES, 1..=PAGES, any::<bool>()).prop_map(
            |(out, from, to, pages, holes)| Request::Move {
                out, from, to, pages: pages.min(PAGES - from.max(to)), holes,
            }
        ),
        2 => (spans(), any::<bool>()).prop_map(|(s, on)| Request::Protect(s, on)),
        1 => spans().prop_map(Request::Poison),
        2 => spans().prop_map(Request::Discard),
        2 => (0..PAGES, 1u8..).prop_map(|(page, value)| Request::Store(page, value)),
        2 => spans().prop_map(Request::TakeWritten),
    ]
}

/// Two areas, each with a descriptor of its own.
struct Sides<D> {
    program: PageNo,
    stage: PageNo,
    of_program: D,
    of_stage: D,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Pages(Result<(), Partial>),
    Whole(Result<(), muninn_sys::uffd::Cause>),
}

impl<D: FaultDevice> Sides<D> {
    fn range(&self, span: Span) -> PageRange {
        let base = if span.staging {
            self.stage
        } else {
            self.program
        };
        PageRange::new(PageNo(base.0 + span.first), span.pages)
    }

    fn device(&self, span: Span) -> &D {
        if span.staging {
            &self.of_stage
        } else {
            &self.of_program
        }
    }

    /// Sends a request of the device; `None` for what the program does itself.
    fn send(&self, request: Request) -> Option<Answer> {
        let whole = |r: Result<(), RequestError>| Answer::Whole(r.map_err(|error| error.cause));
        Some(match request {
            Request::Copy(span, value, write_protected) => {
                let range = self.range(span);
                let source = vec![value; range.len_bytes() as usize];
                let mode = CopyMode {
                    wake: Wake::Now,
                    write_protected,
                };
                // SAFETY: the source is as long as the range.
                let done = unsafe { self.device(span).copy(range, source.as_ptr(), mode) };
                Answer::Pages(done)
            }
            Request::Zero(span) => {
                Answer::Pages(self.device(span).zero(self.range(span), Wake::Now))
            }
            Request::Move {
                out,
                from,
                to,
                pages,
                holes,
            } => {
                let (from_base, to_base, device) = if out {
                    (self.program, self.stage, &self.of_stage)
                } else {
                    (self.stage, self.program, &self.of_program)
                };
                let from = PageRange::new(PageNo(from_base.0 + from), pages);
                let mode = MoveMode {
                    wake: Wake::Now,
                    allow_holes: holes,
                };
                // SAFETY: both sides lie in areas of the test.
                let done = unsafe { device.move_pages(PageNo(to_base.0 + to), from, mode) };
                Answer::Pages(done)
            }
            Request::Protect(span, on) => {
                let range = self.range(span);
                whole(self.device(span).write_protect(range, on, Wake::Now))
            }
            Request::Poison(span) => {
                Answer::Pages(self.device(span).poison(self.range(span), Wake::Now))
            }
            Request::Discard(_) | Request::Store(..) | Request::TakeWritten(_) => return None,
        })
    }

    fn register(&self) {
        for staging in [false, true] {
            let span = Span {
                staging,
                first: 0,
                pages: PAGES,
            };
            let mode = RegisterMode::MISSING_AND_WRITE_PROTECT;
            // SAFETY: the areas belong to the test.
            unsafe { self.device(span).register(self.range(span), mode) }.unwrap();
        }
    }
}

/// Pages under one page table of the kernel.
const TABLE_PAGES: u64 = 512;

/// Pages at the start of a page table that is there: whether a hole is a page or a whole table
/// makes a difference to the kernel which the fake does not know.
struct Aligned {
    area: Area,
    base: u64,
}

impl Aligned {
    fn new() -> Aligned {
        let area = Area::new(2 * TABLE_PAGES);
        let base = area.page(0).0.wrapping_neg() % TABLE_PAGES;
        area.write(base + PAGES, 1);
        Aligned { area, base }
    }

    fn first(&self) -> PageNo {
        self.area.page(self.base)
    }
}

/// What one can see of a page.
#[derive(Debug, PartialEq)]
struct Seen {
    present: bool,
    protected: bool,
    byte: u8,
}

fn look(pages: &Aligned, pagemap: &Pagemap) -> Vec<Seen> {
    let mut entries = [PagemapEntry::default(); PAGES as usize];
    pagemap.read_entries(pages.first(), &mut entries).unwrap();
    (pages.base..)
        .zip(entries)
        .map(|(index, entry)| Seen {
            present: entry.is_present(),
            protected: entry.is_present() && entry.is_write_protected(),
            byte: if entry.is_present() {
                pages.area.read(index)
            } else {
                0
            },
        })
        .collect()
}

fn look_fake(space: &FakeSpace, first: u64) -> Vec<Seen> {
    (first..first + PAGES)
        .map(|index| {
            let page = space.page(index);
            let present = space.is_present(page);
            Seen {
                present,
                protected: present && space.is_write_protected(page),
                byte: space.load(page)[0],
            }
        })
        .collect()
}

/// With `tracking`, the kernel lifts write protection by itself and scans tell what was written.
fn features(tracking: bool) -> Features {
    let base =
        Features::MOVE | Features::WP_UNPOPULATED | Features::POISON | Features::PAGEFAULT_FLAG_WP;
    if tracking {
        base | Features::WP_ASYNC
    } else {
        base
    }
}

/// What a scan finds, as pages counted from the first.
fn scan(pages: &impl PageScan, range: PageRange, query: &Query) -> Vec<(u64, u64, Categories)> {
    let nothing = Region {
        range: PageRange::one(PageNo(0)),
        categories: Categories::NONE,
    };
    let mut found = [nothing; PAGES as usize];
    let scanned = pages.scan(range, query, &mut found).unwrap();
    assert_eq!(scanned.next, range.end());
    found[..scanned.regions]
        .iter()
        .map(|r| {
            (
                r.range.first().0 - range.first().0,
                r.range.pages(),
                r.categories,
            )
        })
        .collect()
}

const ALL: Query = {
    let told = Categories::PRESENT
        .union(Categories::WRITTEN)
        .union(Categories::SWAPPED)
        .union(Categories::WP_ALLOWED);
    Query {
        all_of: Categories::NONE,
        none_of: Categories::NONE,
        any_of: Categories::NONE,
        tell: told,
        protect: false,
        require_tracking: false,
        pages_max: 0,
    }
};

fn play(
    requests: &[Request],
    tracking: bool,
    pagemap: &Pagemap,
    devices: (Userfaultfd, Userfaultfd),
) {
    let (program, stage) = (Aligned::new(), Aligned::new());
    let real = Sides {
        program: program.first(),
        stage: stage.first(),
        of_program: devices.0,
        of_stage: devices.1,
    };
    let space = FakeSpace::new(2 * PAGES).unwrap();
    let fake: Sides<FakeFaultDevice> = Sides {
        program: space.page(0),
        stage: space.page(PAGES),
        of_program: space.open(features(tracking)),
        of_stage: space.open(features(tracking)),
    };
    real.register();
    fake.register();
    for (step, request) in requests.iter().enumerate() {
        match *request {
            Request::Discard(span) => {
                let pages = if span.staging { &stage } else { &program };
                pages.area.discard(pages.base + span.first, span.pages);
                space.remove(fake.range(span));
            }
            Request::Store(index, value) => {
                let page = space.page(index);
                if space.is_present(page) && (tracking || !space.is_write_protected(page)) {
                    space.store(1, page, &[value; PAGE_SIZE]);
                    // SAFETY: a page of the test, present and writable.
                    unsafe {
                        let start = program.area.ptr(program.base + index);
                        start.write_bytes(value, PAGE_SIZE);
                    }
                }
            }
            Request::TakeWritten(span) if tracking => assert_eq!(
                scan(pagemap, real.range(span), &Query::TAKE_WRITTEN),
                scan(&space, fake.range(span), &Query::TAKE_WRITTEN),
                "step {step} of {requests:?}: real first, fake second"
            ),
            request => assert_eq!(
                real.send(request),
                fake.send(request),
                "step {step} of {requests:?}: real first, fake second"
            ),
        }
        for (pages, first) in [(&program, 0), (&stage, PAGES)] {
            assert_eq!(
                look(pages, pagemap),
                look_fake(&space, first),
                "after step {step} of {requests:?}: real first, fake second"
            );
            assert_eq!(
                scan(pagemap, PageRange::new(pages.first(), PAGES), &ALL),
                scan(&space, PageRange::new(space.page(first), PAGES), &ALL),
                "scan after step {step} of {requests:?}: real first, fake second"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fake_answers_as_the_kernel_does(
        requests in prop::collection::vec(requests(), 1..25),
        tracking: bool,
    ) {
        let wanted = features(tracking);
        let (Some(first), Some(second)) = (open(wanted), open(wanted)) else {
            return Ok(());
        };
        play(&requests, tracking, &Pagemap::open().unwrap(), (first, second));
    }
}
