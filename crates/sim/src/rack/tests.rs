use super::study::Source;
use super::*;
use muninn_policy::admission::Admission;
use muninn_policy::profile::Profile;
use muninn_policy::rebalance::Policy;
use muninn_types::{Bytes, Nanos, SplitMix64};
use proptest::prelude::*;

fn kind(name: &str, gib: u64, cores: u32, profile: Profile, min_ratio: f64) -> JobKind {
    JobKind {
        name: name.to_string(),
        memory: Bytes::gib(gib),
        cores,
        min_ratio,
        profile,
    }
}

fn flat(name: &str, gib: u64, cores: u32, seconds: f64) -> JobKind {
    kind(name, gib, cores, Profile::exempt(seconds).unwrap(), 1.0)
}

const SMALL: Rack = Rack {
    machines: 3,
    cores: 8,
    memory: Bytes::gib(16),
    reclaim_cores: 1,
};

fn run(kinds: &[JobKind], counts: &[u32], config: Config, setup: Setup) -> Run {
    let workload = Workload {
        counts: counts.to_vec(),
    };
    let shape = config.shape(&SMALL).unwrap();
    let mut engine = Engine::new(kinds, setup);
    engine.check(&workload, &shape, "test").unwrap();
    engine.run(&workload, &shape, 1)
}

#[test]
fn the_embedded_profiles_are_the_published_ones() {
    let kinds = published(Size::Rack);
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "quicksort",
            "linpack",
            "tf-inception",
            "kmeans",
            "spark",
            "memcached"
        ]
    );
    assert_eq!(kinds[0].memory, Bytes::mib(33000));
    assert_eq!((kinds[4].cores, kinds[4].min_ratio), (7, 0.9));
    assert_eq!(published(Size::Testbed)[5].memory, Bytes::mib(12288));
}

#[test]
fn machines_run_as_many_jobs_as_their_memory_holds() {
    // Four jobs of 4 GiB on each of three machines at once: 24 jobs take two rounds of 10 s.
    let jobs = [flat("a", 4, 1, 10.0)];
    let run = run(&jobs, &[24], Config::NOFAR, Setup::default());
    let rounds = run.makespan.as_secs_f64();
    assert!((20.0..20.0 + 10.0).contains(&rounds), "{rounds}");
    assert!(run.slowdowns.iter().all(|s| (s - 1.0).abs() < 1e-6));
    assert_eq!(run.jobs_far, 0);
}

#[test]
fn far_memory_lets_jobs_run_that_would_wait() {
    // Each machine has cores for seven jobs but memory for four; half of each job may be far.
    let profile = Profile::from_points(&[1.0, 0.5], &[100.0, 110.0]).unwrap();
    let jobs = [kind("a", 4, 1, profile, 0.5)];
    let near = run(&jobs, &[84], Config::NOFAR, Setup::default());
    let far = run(
        &jobs,
        &[84],
        Config::FarSize(Bytes::gib(64)),
        Setup::default(),
    );
    assert!(near.makespan > Nanos::secs(650), "{}", near.makespan);
    assert!(
        far.makespan < near.makespan,
        "{} {}",
        far.makespan,
        near.makespan
    );
    assert!(far.jobs_far > 0 && far.far_mean > Bytes::gib(8));
    assert!(far.slowdowns.iter().all(|&s| (0.999..1.101).contains(&s)));
}

#[test]
fn an_exempt_job_is_never_slowed_and_others_make_room_for_it() {
    let profile = Profile::from_points(&[1.0, 0.5], &[100.0, 110.0]).unwrap();
    let soft = kind("soft", 8, 1, profile, 0.5);
    let hard = soft.clone().exempted();
    let kinds = [soft, hard];
    let config = Config::FarSize(Bytes::gib(64));
    for policy in Policy::ALL {
        let setup = Setup {
            policy,
            alpha: 0.5,
            ..Setup::default()
        };
        let run = run(&kinds, &[30, 30], config, setup);
        let exempt = run.slowdowns.iter().filter(|s| (**s - 1.0).abs() < 1e-6);
        assert!(exempt.count() >= 30);
        assert!(run.jobs_far > 0, "{policy} used no far memory");
    }
}

#[test]
fn progress_is_kept_when_memory_is_divided_anew() {
    // Alone for 50 s, then beside another with half the memory far: 50 s + 50 s × 1.5 in all.
    let profile = Profile::from_points(&[1.0, 0.5], &[100.0, 150.0]).unwrap();
    let kinds = [kind("a", 16, 1, profile, 0.5)];
    let rack = Rack {
        machines: 2,
        ..SMALL
    };
    let shape = Config::FarSize(Bytes::gib(16)).shape(&rack).unwrap();
    let mut engine = Engine::new(&kinds, Setup::default());
    let workload = Workload { counts: vec![2] };
    let run = engine.run(&workload, &shape, 3);
    // Both start within the arrival window on the one machine left and share its memory.
    let total: f32 = run.slowdowns.iter().sum();
    assert!((2.5..3.01).contains(&total), "{:?}", run.slowdowns);
    assert!(run.makespan < Nanos::secs(161));
}

#[test]
fn configurations_have_the_names_of_the_paper() {
    let rack = Rack::PUBLISHED;
    let name = |text: &str| text.parse::<Config>().unwrap().name(&rack);
    for text in ["nofar", "nofar+25", "far+0", "far+2.5", "far+17.5"] {
        assert_eq!(name(text), text);
    }
    assert_eq!(name("far=1536GiB"), "far+17.5");
    assert_eq!(name("far=192GiB"), "far+0");
    assert_eq!(name("far=96GiB"), "far-1.25");
    let shape = |text: &str| text.parse::<Config>().unwrap().shape(&rack).unwrap();
    assert_eq!(shape("far+17.5").far, Bytes::gib(1536));
    assert_eq!(shape("far+17.5").machines, 39);
    assert_eq!(shape("nofar+25").memory, Bytes::gib(240));
    assert_eq!(
        "more".parse::<Config>().unwrap_err().to_string(),
        "--configs: 'more' is not a configuration: write nofar, nofar+25, far+0, far+17.5 or far=1536GiB"
    );
    for bad in [
        "far", "far+", "far+x", "far+NaN", "far+-3", "nofar25", "far=", "far=lots",
    ] {
        assert!(bad.parse::<Config>().is_err(), "{bad} was taken");
    }
}

#[test]
fn bad_racks_name_their_flag() {
    let refused = |rack: Rack| rack.check().unwrap_err().to_string();
    let rack = Rack::PUBLISHED;
    assert_eq!(
        refused(Rack {
            machines: 0,
            ..rack
        }),
        "--machines is 0: a rack needs at least one machine"
    );
    assert_eq!(
        refused(Rack { cores: 0, ..rack }),
        "--cores is 0: a machine needs at least one core"
    );
    assert_eq!(
        refused(Rack {
            memory: Bytes::ZERO,
            ..rack
        }),
        "--memory is 0: a machine needs memory"
    );
    assert_eq!(
        refused(Rack {
            reclaim_cores: 48,
            ..rack
        }),
        "--reclaim-cores is 48: it must be below --cores, which is 48"
    );
    let one = Rack {
        machines: 1,
        ..rack
    };
    assert_eq!(
        Config::Far { more_pct: 0.0 }
            .shape(&one)
            .unwrap_err()
            .to_string(),
        "--machines is 1: with far memory one machine gives way to the memory server, so there must \
         be two"
    );
    assert_eq!(
        Config::FarSize(Bytes::ZERO)
            .shape(&rack)
            .unwrap_err()
            .to_string(),
        "--far is 0: far memory of no size is NOFAR; leave --far out, or use --configs nofar"
    );
}

#[test]
fn bad_mixes_name_their_flag() {
    let kinds = published(Size::Rack);
    let refused = |mix: &str, jobs| Workload::of_mix(mix, &kinds, jobs).unwrap_err().to_string();
    assert_eq!(
        refused("quicksort=67", 0),
        "--jobs is 0: there must be jobs to run, also to use far memory"
    );
    assert_eq!(
        refused("redis=1", 10),
        "--mix names 'redis', which is not among the profiles: quicksort, linpack, tf-inception, \
         kmeans, spark, memcached"
    );
    assert_eq!(
        refused("quicksort=NaN", 10),
        "--mix: 'quicksort=NaN' is not a share: write name=number, such as quicksort=67"
    );
    assert_eq!(
        refused("quicksort", 10),
        "--mix: 'quicksort' is not a share: write name=number, such as quicksort=67"
    );
    assert_eq!(
        refused("kmeans=1,kmeans=2", 10),
        "--mix names 'kmeans' twice"
    );
    assert_eq!(refused("", 10), "--mix is empty: all shares are 0");
    assert_eq!(
        refused("kmeans=1,spark=1", 1),
        "--jobs is 1: a mix of 2 kinds needs at least one job of each"
    );
}

#[test]
fn a_job_that_can_never_run_is_refused() {
    let kinds = [flat("big", 17, 1, 1.0), flat("wide", 1, 9, 1.0)];
    let shape = Config::NOFAR.shape(&SMALL).unwrap();
    let engine = Engine::new(&kinds, Setup::default());
    let refused = |counts: Vec<u32>| {
        let workload = Workload { counts };
        engine
            .check(&workload, &shape, "nofar")
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(vec![1, 0]),
        "job 'big' needs 17.0GiB of memory, and cannot have it in configuration nofar"
    );
    assert_eq!(
        refused(vec![0, 1]),
        "job 'wide' needs 9 cores, and a machine has 8 in configuration nofar"
    );
}

#[test]
fn ranges_of_m2c() {
    let range = |text: &str| text.parse::<Range>();
    assert_eq!(
        range("1.15-1.25").unwrap(),
        Range {
            from: 1.15,
            to: 1.25
        }
    );
    let value = range("1.4").unwrap();
    assert!((value.from - 1.38).abs() < 1e-12 && (value.to - 1.42).abs() < 1e-12);
    for bad in ["", "x", "1.2-", "-1", "2-1", "NaN", "1-inf"] {
        assert_eq!(
            range(bad).unwrap_err().to_string(),
            format!(
                "--m2c: '{bad}' is not a range: write a value such as 1.2, or two such as 1.15-1.25"
            )
        );
    }
    let kinds = published(Size::Rack);
    let generator = workload::Generator::new(&kinds, &Rack::PUBLISHED);
    let mut rng = SplitMix64::new(1);
    let far = Range { from: 7.0, to: 8.0 };
    let refused = generator.draw(far, 6000, &mut rng).unwrap_err().to_string();
    assert!(
        refused.starts_with(
            "--m2c: no mix of these profiles has an m2c from 7 to 8; they reach from 0."
        ),
        "{refused}"
    );
}

#[test]
fn generated_workloads_have_their_m2c_and_every_kind() {
    let kinds = published(Size::Rack);
    let rack = Rack::PUBLISHED;
    let generator = workload::Generator::new(&kinds, &rack);
    let mut rng = SplitMix64::new(9);
    for range in Range::FIGURE_4_7 {
        for _ in 0..20 {
            let workload = generator.draw(range, 6000, &mut rng).unwrap();
            assert_eq!(workload.jobs(), 6000);
            assert!(workload.counts.iter().all(|&count| count > 0));
            let m2c = workload.m2c(&kinds, &rack);
            assert!(
                (range.from..=range.to).contains(&m2c),
                "{m2c} is not in {range}"
            );
        }
    }
    // The paper's example: all of the memory and half of the cores is an m2c of 2.
    let half = [flat("half", 192, 24, 1.0)];
    let m2c = Workload { counts: vec![7] }.m2c(&half, &rack);
    assert!((m2c - 2.0).abs() < 1e-12);
}

fn plan(kinds: &[JobKind], threads: usize, seed: u64) -> Plan<'_> {
    Plan {
        rack: Rack {
            machines: 6,
            ..Rack::PUBLISHED
        },
        kinds,
        configs: Config::figure_4_9(),
        setups: Admission::ALL
            .map(|admission| Setup {
                admission,
                ..Setup::default()
            })
            .to_vec(),
        source: Source::Drawn {
            ranges: vec![Range { from: 1.1, to: 1.6 }],
            workloads: 5,
            jobs: 300,
        },
        trials: 2,
        seed,
        threads,
        packability: true,
    }
}

#[test]
fn the_same_seed_gives_the_same_rows_on_any_number_of_threads() {
    let kinds = published(Size::Rack);
    let one = plan(&kinds, 1, 7).run(&|| {}).unwrap();
    let text = |study: &Study| serde_json::to_string(&study.rows).unwrap();
    for threads in [1, 2, 4] {
        let again = plan(&kinds, threads, 7).run(&|| {}).unwrap();
        assert_eq!(text(&one), text(&again));
    }
    let other = plan(&kinds, 2, 8).run(&|| {}).unwrap();
    assert_ne!(text(&one), text(&other));
    // Five workloads; seven far configurations and three without, each with two admissions.
    assert_eq!(one.rows.len(), 5 * 10 * 2);
    assert!(one.rows.iter().all(|row| row.makespan_s > 0.0));
    let packable = one.rows.iter().filter_map(|row| row.packability);
    assert!(packable.clone().count() == 100 && packable.clone().all(|p| p > 0.3 && p < 1.1));
}

#[test]
fn an_empty_plan_names_its_flag() {
    let kinds = published(Size::Rack);
    let refused = |plan: Plan<'_>| plan.run(&|| {}).unwrap_err().to_string();
    let base = || plan(&kinds, 1, 1);
    assert_eq!(
        refused(Plan {
            trials: 0,
            ..base()
        }),
        "--trials is 0: at least one run is needed"
    );
    let source = |workloads, jobs| Source::Drawn {
        ranges: vec![Range::FIGURE_4_7[1]],
        workloads,
        jobs,
    };
    assert_eq!(
        refused(Plan {
            source: source(0, 100),
            ..base()
        }),
        "--workloads is 0: at least one workload is needed"
    );
    assert_eq!(
        refused(Plan {
            source: source(1, 0),
            ..base()
        }),
        "--jobs is 0: there must be jobs to run, also to use far memory"
    );
    let alpha = Setup {
        alpha: f64::NAN,
        ..Setup::default()
    };
    assert_eq!(
        refused(Plan {
            setups: vec![alpha],
            ..base()
        }),
        "--alpha is NaN: a ratio lies above 0 and is at most 1"
    );
}

#[test]
fn figures_are_written_for_what_there_is() {
    let kinds = published(Size::Rack);
    let study = plan(&kinds, 2, 3).run(&|| {}).unwrap();
    let folder = std::env::temp_dir().join(format!("muninn-rack-{}", std::process::id()));
    let files = figures::write(&study, &Rack::PUBLISHED, &folder).unwrap();
    let names: Vec<String> = files
        .iter()
        .map(|file| file.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(
        names,
        [
            "slowdown-m2c-1.10-1.60.svg",
            "improvement-m2c-1.10-1.60.svg",
            "packability.svg",
            "memory.svg",
            "admission.svg"
        ]
    );
    for file in &files {
        assert!(std::fs::read_to_string(file).unwrap().starts_with("<svg"));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the jobs, every one runs, none faster than with all memory, and no makespan is
    /// shorter than the work allows. The engine asserts that nothing is promised twice.
    #[test]
    fn every_job_runs_and_no_work_is_lost(
        seed: u64,
        counts in prop::collection::vec(0u32..40, 6),
        far_gib in 1u64..400,
        policy in 0usize..3,
        admission in 0usize..2,
    ) {
        prop_assume!(counts.iter().sum::<u32>() > 0);
        let kinds = published(Size::Rack);
        let rack = Rack { machines: 3, ..Rack::PUBLISHED };
        let shape = Config::FarSize(Bytes::gib(far_gib)).shape(&rack).unwrap();
        let setup = Setup {
            policy: Policy::ALL[policy],
            admission: Admission::ALL[admission],
            ..Setup::default()
        };
        let workload = Workload { counts };
        let mut engine = Engine::new(&kinds, setup);
        let run = engine.run(&workload, &shape, seed);
        prop_assert_eq!(run.slowdowns.len() as u32, workload.jobs());
        prop_assert!(run.slowdowns.iter().all(|&s| (0.999..3.7).contains(&s)));
        prop_assert!(run.far_mean <= shape.far);
        let core_s: f64 = workload.counts.iter().zip(&kinds)
            .map(|(&n, k)| f64::from(n * k.cores) * k.profile.full_s()).sum();
        let least_s = core_s / f64::from(shape.cores * shape.machines);
        prop_assert!(run.makespan.as_secs_f64() >= least_s * 0.999);
        prop_assert_eq!(engine.run(&workload, &shape, seed), run, "a second run differs");
    }
}
