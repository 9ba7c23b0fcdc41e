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
        // First touches fill ahead, and room is made for more than there is.
        assert!(r.misses * 50 <= r.accesses, "{r:?}");
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
    // Hot pages, one in each chunk, keep their chunks, and so the cold ones beside them: nothing is won.
    let plain = misses("scan-plus-hot", "fifo");
    for evict in ["segmented-fifo", "s3-fifo", "sieve"] {
        let kept = misses("scan-plus-hot", evict);
        assert!(kept < 1.02 * plain, "{evict}: {kept} of {plain}");
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
    // An order without a step: pages leave in chunks, so those that are wanted after each other do not lie
    // together in far memory either, and not even the slots know.
    let chase = |prefetch| row(&rows, "chase", 0.5, "fifo", prefetch).misses as f64;
    assert!(chase("slot") > 0.9 * chase("none"));
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
            staging: Some(Percent::FULL),
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
    use super::replay::Replay;
    use super::trace::Access;
    let trace = TraceKind::Sequential.generate(128, 0, 1);
    let settings = Settings {
        evict: EvictPolicy::Fifo,
        prefetch: PrefetchPolicy::None,
        staging: Staging {
            one_in: 4,
            pages_min: 16,
            pages_max: 16,
        },
        ..Settings::default()
    };
    let mut replay = Replay::new(&trace, 64, &settings);
    let mut touch = |page: u32, write| {
        let access = Access {
            page,
            thread: 0,
            write,
        };
        replay.access(access).unwrap();
        replay.counts()
    };
    // First touches bring 1, 2, 4, 8, 16 and 32 pages; then there are too many, and the first chunk goes.
    for page in 0..62 {
        assert_eq!(touch(page, true).of(Count::FaultsStaged), 0);
    }
    let counts = touch(0, true);
    assert_eq!(counts.of(Count::FaultsStaged), 1);
    assert_eq!(counts.above, 0);
    let staged = &counts.tally.staged;
    assert_eq!(staged.by_arrival, [1, 0, 0, 0]);
    assert_eq!(staged.writes, 1);
    // It had come at the first access, was staged at the 32nd and wanted at the 63rd.
    assert_eq!(StagedHits::median(&staged.waited), Some(31));
    assert_eq!(StagedHits::median(&staged.stayed), Some(31));
    assert_eq!(StagedHits::median(&StagedHits::default().waited), None);
}

/// The engine's books against the fake kernel's, after every access.
#[test]
fn the_books_are_true() {
    use super::replay::Replay;
    let mut above = 0;
    for (n, kind) in TraceKind::ALL.into_iter().enumerate() {
        let trace = kind.generate(300, 500, 7);
        for prefetch in PrefetchPolicy::ALL {
            let settings = Settings {
                evict: EvictPolicy::ALL[n % EvictPolicy::ALL.len()],
                prefetch,
                ..Settings::default()
            };
            let mut replay = Replay::new(&trace, 150, &settings);
            for &access in &trace.accesses {
                replay.access(access).unwrap();
                replay.check_books();
            }
            above = above.max(replay.counts().above);
        }
    }
    assert_eq!(above, 0);
}
