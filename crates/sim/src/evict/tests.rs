use super::*;

fn small() -> Config {
    Config {
        pages: 600,
        accesses: 4_000,
        ..Config::default()
    }
}

fn row<'a>(rows: &'a [Row], trace: &str, local: f64, evict: &str, prefetch: &str) -> &'a Row {
    rows.iter()
        .find(|r| {
            r.trace == trace && r.local_ratio == local && r.evict == evict && r.prefetch == prefetch
        })
        .unwrap()
}

#[test]
fn the_same_seed_gives_the_same_rows_in_order() {
    let rows = run(&small(), &|| {}).unwrap();
    assert_eq!(rows, run(&small(), &|| {}).unwrap());
    assert_eq!(rows.len(), cells(&small()));
    assert_eq!(rows[0].trace, "sequential");
    assert_eq!(
        (rows[1].evict.as_str(), rows[1].prefetch.as_str()),
        ("fifo", "fixed")
    );
}

#[test]
fn counts_add_up_in_every_cell() {
    for r in run(&small(), &|| {}).unwrap() {
        let faults = r.misses + r.staged_hits + r.buffer_hits + r.first_touches;
        assert!((r.hit_rate - (1.0 - faults as f64 / r.accesses as f64)).abs() < 1e-9);
        assert_eq!(r.accesses, 4_000);
        let staged = &r.staged;
        let arrivals = staged.first_touch + staged.demand + staged.prefetch + staged.staged_hit;
        assert_eq!(arrivals, r.staged_hits, "{r:?}");
        assert!(staged.writes <= r.staged_hits);
        assert_eq!(staged.waited_median.is_some(), r.staged_hits > 0);
        // A staged page waits until as many others were staged as there is room for.
        let age = staged.waited_median.unwrap_or(0);
        assert!(age <= 2 * r.accesses, "{r:?}");
        assert!(r.lru_misses >= r.optimum_misses);
        assert!(r.prefetch_used <= r.prefetched + u64::from(r.local_pages));
        if r.prefetch == "none" {
            assert_eq!((r.prefetched, r.buffer_hits), (0, 0));
            // Staged and buffered pages take local memory too: nobody beats Belady.
            assert!(r.misses >= r.optimum_misses, "{r:?}");
        }
        assert!(
            r.pages_in >= r.optimum_misses,
            "prefetching moves pages too: {r:?}"
        );
    }
}

#[test]
fn with_all_memory_local_only_the_staging_area_is_felt() {
    let config = Config {
        local: vec![Percent::FULL],
        ..small()
    };
    for r in run(&config, &|| {}).unwrap() {
        assert_eq!((r.misses, r.pages_in, r.pages_out), (0, 0, 0), "{r:?}");
    }
}

#[test]
fn what_each_policy_is_for_shows() {
    let config = Config {
        pages: 2_000,
        accesses: 20_000,
        local: vec![Percent::from_ratio(0.5).unwrap()],
        ..Config::default()
    };
    let rows = run(&config, &|| {}).unwrap();
    let misses = |trace, evict| row(&rows, trace, 0.5, evict, "none").misses as f64;
    // A loop that does not fit: age-ordered eviction always misses, random does not.
    assert!(misses("loop", "random") < 0.8 * misses("loop", "fifo"));
    // Hot pages survive a scan.
    let plain = misses("scan-plus-hot", "fifo");
    for evict in ["segmented-fifo", "s3-fifo", "sieve"] {
        let kept = misses("scan-plus-hot", evict);
        assert!(kept < 0.97 * plain, "{evict}: {kept} of {plain}");
    }
    // Streams are found, in strides and per thread.
    for trace in ["sequential", "stride", "interleaved"] {
        let none = row(&rows, trace, 0.5, "fifo", "none").misses as f64;
        for prefetch in ["adaptive", "trend"] {
            let with = row(&rows, trace, 0.5, "fifo", prefetch).misses as f64;
            assert!(
                with < 0.15 * none,
                "{trace} with {prefetch}: {with} of {none}"
            );
        }
    }
    // An order without a step, but evicted together: only the slots know.
    let chase = |prefetch| row(&rows, "chase", 0.5, "fifo", prefetch).misses as f64;
    let (slot, none) = (chase("slot"), chase("none"));
    assert!(slot < 0.8 * none, "{slot} of {none}");
    assert!(chase("adaptive") > 0.9 * chase("none"));
    // Random access: whoever learns, stops.
    for prefetch in ["adaptive", "trend", "slot"] {
        let r = row(&rows, "random", 0.5, "fifo", prefetch);
        assert!(r.prefetched < r.misses, "{prefetch}: {r:?}");
    }
}

#[test]
fn nonsense_is_refused_by_field() {
    let message = |config: Config| run(&config, &|| {}).unwrap_err().to_string();
    let tiny = Percent::from_ratio(0.0).unwrap();
    assert_eq!(
        message(Config {
            pages: 0,
            ..small()
        }),
        "--pages: 0 is not between 1 and 16777216"
    );
    assert_eq!(
        message(Config {
            accesses: 0,
            ..small()
        }),
        "--accesses: 0 is not between 1 and 268435456"
    );
    assert_eq!(
        message(Config {
            local: vec![tiny],
            ..small()
        }),
        "--local: 0% of 600 pages is less than one page"
    );
    assert_eq!(
        message(Config {
            evict: vec![],
            ..small()
        }),
        "--evict: give at least one"
    );
    assert_eq!(
        message(Config {
            staging: Percent::FULL,
            ..small()
        }),
        "--staging: 100% leaves nothing for the program: give at most 90%"
    );
}

#[test]
fn memory_of_a_few_pages_works() {
    for pages in [1, 2, 3, 17] {
        let config = Config {
            pages,
            accesses: 300,
            local: vec![Percent::FULL],
            ..small()
        };
        assert!(run(&config, &|| {}).is_ok());
        let half = Percent::from_ratio(0.5).unwrap();
        let config = Config {
            local: vec![half],
            ..config
        };
        if pages > 1 {
            assert!(run(&config, &|| {}).is_ok());
        }
    }
}

#[test]
fn charts_are_written() {
    let folder = std::env::temp_dir().join(format!("muninn-evict-charts-{}", std::process::id()));
    let rows = run(&small(), &|| {}).unwrap();
    let written = charts::write(&rows, &folder).unwrap();
    assert_eq!(written.len(), TraceKind::ALL.len() + 3);
    assert!(written.iter().all(|path| path.exists()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_staged_hit_is_known_by_where_its_page_came_from() {
    use super::pager::{Division, Pager};
    use super::trace::Access;
    let division = Division {
        local_pages: 4,
        staging_pages: 2,
        buffer_pages: 0,
    };
    let (evict, none) = (EvictPolicy::Fifo, PrefetchPolicy::None);
    let mut pager = Pager::new(8, division, evict.build(8, 1), none.build());
    let mut touch = |page: u32, write| {
        pager.access(Access {
            page,
            thread: 0,
            write,
        });
        pager.counts().clone()
    };
    // 0 is staged when 2 comes, as the oldest of two.
    for page in 0..3 {
        assert_eq!(touch(page, true).staged_hits, 0);
    }
    let counts = touch(0, true);
    assert_eq!(counts.staged_hits, 1);
    assert_eq!(counts.staged.by_arrival, [1, 0, 0, 0]);
    assert_eq!(counts.staged.writes, 1);
    // Staged at the third access and wanted at the fourth; it had come at the first.
    assert_eq!(StagedHits::median(&counts.staged.waited), Some(1));
    assert_eq!(StagedHits::median(&counts.staged.stayed), Some(3));
    assert_eq!(StagedHits::median(&StagedHits::default().waited), None);
}
