use super::*;
use crate::cli::{Cli, Command};
use crate::cmd::sim::Sim;
use clap::Parser;

/// Through the whole command line, so that a flag that another command took is found here.
fn args(line: &str) -> Args {
    let words = ["muninn", "sim", "rack"].into_iter();
    let cli = Cli::parse_from(words.chain(line.split_whitespace()));
    let Command::Sim(sim) = cli.command else {
        panic!("{:?} is not sim", cli.command);
    };
    match *sim {
        Sim::Rack(args) => args,
        other => panic!("{other:?} is not sim rack"),
    }
}

fn refused(line: &str) -> String {
    let args = args(line);
    let outcome = kinds(&args).and_then(|kinds| {
        let plan = plan(&args, &kinds).map_err(Failure::usage)?;
        plan.run(&|| {}).map(|_| ()).map_err(Failure::usage)
    });
    let failure = outcome.expect_err("this line was taken");
    assert_eq!(failure.exit, Exit::Usage);
    failure.message
}

#[test]
fn bad_flags_name_themselves() {
    assert_eq!(
        refused("--machines 0"),
        "--machines is 0: a rack needs at least one machine"
    );
    assert_eq!(
        refused("--jobs 0 --far 1536GiB"),
        "--jobs is 0: there must be jobs to run, also to use far memory"
    );
    assert_eq!(
        refused("--mix kmeans=1 --jobs 0 --far 1536GiB"),
        "--jobs is 0: there must be jobs to run, also to use far memory"
    );
    assert_eq!(
        refused("--far much"),
        "--far: 'much' is neither a size nor more memory: write 1536GiB, or +17.5% of the rack's \
         memory"
    );
    assert_eq!(
        refused("--far +NaN%"),
        "--far: '+NaN%' is neither a size nor more memory: write 1536GiB, or +17.5% of the rack's \
         memory"
    );
    assert_eq!(
        refused("--m2c NaN"),
        "--m2c: 'NaN' is not a range: write a value such as 1.2, or two such as 1.15-1.25"
    );
    assert_eq!(
        refused("--alpha NaN --policy uniform"),
        "--alpha is NaN: a ratio lies above 0 and is at most 1"
    );
    assert_eq!(
        refused("--exempt redis"),
        "--exempt names 'redis', which is not among the profiles: quicksort, linpack, tf-inception, \
         kmeans, spark, memcached"
    );
    assert_eq!(
        refused("--profiles /nonexistent/profiles.toml"),
        "--profiles /nonexistent/profiles.toml: cannot be read: No such file or directory (os error \
         2)"
    );
}

#[test]
fn a_bad_profile_file_is_named_with_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let refused_file = |text: &str| {
        std::fs::write(&path, text).unwrap();
        refused(&format!("--profiles {}", path.display()))
    };
    let job = "[[job]]\nname = \"a\"\nmemory = \"1GiB\"\ncores = 1\nratio = [1.0, 0.8, 0.5]\n";
    assert_eq!(
        refused_file(&format!("{job}runtime_s = [100.0, 140.0, 110.0]\n")),
        format!(
            "--profiles {}: job 'a': runtime_s rises with memory: 110 s at ratio 0.5, but 140 s at \
             ratio 0.8; measure again, or leave that point out",
            path.display()
        )
    );
    assert_eq!(
        refused_file(&format!("{job}runtime_s = [nan, 140.0, 150.0]\n")),
        format!(
            "--profiles {}: job 'a': runtime_s[0] is NaN: a run time is a finite number above 0",
            path.display()
        )
    );
    assert!(refused_file("nonsense").contains("p.toml: not a profile file:"));
}

#[test]
fn one_mix_in_one_configuration_is_one_row() {
    let args = args("--mix quicksort=67,kmeans=1,spark=15 --far 1536GiB --jobs 600");
    let kinds = kinds(&args).unwrap();
    let study = plan(&args, &kinds).unwrap().run(&|| {}).unwrap();
    assert_eq!(study.rows.len(), 1);
    assert_eq!(study.rows[0].config, "far+17.5");
    assert_eq!(study.rows[0].policy, "memory-time");
}

#[test]
fn configurations_are_taken_by_name() {
    let args = args("--configs nofar,far+17.5 --m2c 1.2");
    let kinds = kinds(&args).unwrap();
    let plan = plan(&args, &kinds).unwrap();
    assert_eq!(
        plan.configs,
        [Config::NOFAR, Config::Far { more_pct: 17.5 }]
    );
}

#[test]
fn every_figure_has_a_plan() {
    for name in [
        "4.6",
        "4.7",
        "4.8",
        "4.9",
        "table-4.2",
        "policies",
        "admission",
    ] {
        let args = args(&format!(
            "--figure {name} --workloads 1 --trials 1 --jobs 60"
        ));
        let kinds = kinds(&args).unwrap();
        let study = plan(&args, &kinds).unwrap().run(&|| {}).unwrap();
        assert!(!study.rows.is_empty(), "figure {name} has no rows");
    }
    let args = args("--figure 4.7");
    let kinds = kinds(&args).unwrap();
    let plan = plan(&args, &kinds).unwrap();
    assert_eq!((plan.configs.len(), plan.trials), (8, 15));
    assert!(matches!(
        plan.source,
        Source::Drawn {
            workloads: 260,
            jobs: 6000,
            ..
        }
    ));
}
