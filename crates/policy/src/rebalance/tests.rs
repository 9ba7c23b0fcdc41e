use super::*;
use crate::profile::Profile;
use muninn_types::SplitMix64;
use proptest::prelude::*;

/// The six published profiles: memory in MiB, minimum ratio, polynomial.
const PUBLISHED: [(u64, f64, &[f64]); 6] = [
    (
        33000,
        0.55,
        &[-1984.129, 4548.033, -3588.554, 1048.644, 252.997],
    ),
    (6000, 0.75, &[38.52, -77.88, 26.86, 36.70]),
    (6500, 0.5, &[-1617.416, 3789.953, -2993.734, 1225.477]),
    (
        8000,
        0.65,
        &[-8258.542, 25767.366, -28409.394, 12549.084, -1289.025],
    ),
    (10000, 0.9, &[4689.05, -10841.59, 7709.92, -1486.13]),
    (
        36000,
        0.6,
        &[-11626.894, 32733.914, -31797.375, 11484.578, 113.33],
    ),
];

fn published() -> Vec<Profile> {
    let profile = |poly: &[f64]| Profile::from_polynomial(poly, 0.5).unwrap();
    PUBLISHED.iter().map(|(_, _, poly)| profile(poly)).collect()
}

/// Random falling profiles, to leave the beaten path of the six.
fn random_profile(rng: &mut SplitMix64) -> Profile {
    let mut runtime = 20.0 + 500.0 * rng.unit();
    let mut points = vec![(1.0, runtime)];
    for i in 1..=6 {
        runtime *= 1.0 + 0.5 * rng.unit().powi(3);
        points.push((1.0 - 0.1 * f64::from(i), runtime));
    }
    let (ratio, runtime_s): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
    let lowest = 0.4 + 0.3 * rng.unit();
    let profile = Profile::from_points(&ratio, &runtime_s).unwrap();
    profile.not_below(lowest).unwrap()
}

/// Jobs that do not all fit, and a local memory that admission would have accepted.
fn random_case<'a>(rng: &mut SplitMix64, profiles: &'a [Profile]) -> (Vec<Job<'a>>, Bytes) {
    let count = match rng.below(10) {
        0 => 30 + rng.below(21),
        1..=3 => 10 + rng.below(10),
        _ => 1 + rng.below(9),
    };
    let mut jobs = Vec::new();
    for _ in 0..count {
        let kind = rng.below(profiles.len() as u64) as usize;
        let profile = &profiles[kind];
        let (memory, min_ratio) = match PUBLISHED.get(kind) {
            Some(&(mib, min_ratio, _)) => (Bytes::mib(mib), min_ratio),
            None => (
                Bytes::mib(1000 + rng.below(40_000)),
                profile.lowest() + (1.0 - profile.lowest()) * rng.unit(),
            ),
        };
        jobs.push(Job {
            profile,
            memory,
            min_ratio,
            progress: if rng.chance(0.2) { 0.0 } else { rng.unit() },
        });
    }
    let wanted: f64 = jobs.iter().map(|j| j.memory.0 as f64).sum();
    let floor: f64 = jobs.iter().map(|j| j.memory.0 as f64 * j.min_ratio).sum();
    let local = floor + (wanted - floor) * rng.unit();
    (jobs, Bytes(local.ceil() as u64))
}

fn check_bounds(jobs: &[Job<'_>], local: Bytes, ratios: &[f64]) {
    assert_eq!(jobs.len(), ratios.len());
    let mut sum = 0;
    for (job, &ratio) in jobs.iter().zip(ratios) {
        assert!(
            ratio >= job.profile.lowest() - 1e-12 && ratio <= 1.0,
            "ratio {ratio} of a job whose lowest is {}",
            job.profile.lowest()
        );
        sum += (job.memory.0 as f64 * ratio) as u64;
    }
    assert!(sum <= local.0, "{sum} bytes given out of {}", local.0);
    let wanted: u64 = jobs.iter().map(|j| j.memory.0).sum();
    let full = local.0.min(wanted) as f64;
    assert!(
        sum as f64 > full * (1.0 - 1e-6) - jobs.len() as f64,
        "local memory lies idle"
    );
}

#[test]
fn memory_time_is_within_a_thousandth_of_the_slow_optimum() {
    let mut rng = SplitMix64::new(3);
    let mut profiles = published();
    profiles.extend((0..12).map(|_| random_profile(&mut rng)));
    let mut solver = MemoryTime::default();
    let mut guess = Guess::default();
    let mut ratios = Vec::new();
    let mut worst: f64 = 0.0;
    for case in 0..1000 {
        let pool = if case % 2 == 0 {
            &profiles[..6]
        } else {
            &profiles[..]
        };
        let (jobs, local) = random_case(&mut rng, pool);
        if jobs.iter().map(|j| j.memory).sum::<Bytes>() <= local {
            continue;
        }
        solver
            .divide(&jobs, local, &mut guess, &mut ratios)
            .unwrap();
        check_bounds(&jobs, local, &ratios);
        let best = objective(&jobs, &reference::best(&jobs, local)).unwrap();
        let ours = objective(&jobs, &ratios).unwrap();
        let short = (best - ours) / best.abs().max(0.01);
        worst = worst.max(short);
        assert!(
            short <= 1e-3,
            "case {case}: {ours} is {short:.5} below {best}, {} jobs",
            jobs.len()
        );
    }
    println!("largest shortfall: {worst:.6}");
}

#[test]
fn policies_have_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
    }
    assert_eq!(
        "greedy".parse::<Policy>().unwrap_err().to_string(),
        "'greedy' is not a policy: use uniform, variable or memory-time"
    );
}

fn divide(policy: Policy, jobs: &[Job<'_>], local: Bytes) -> Result<Vec<f64>, TooLittle> {
    let mut ratios = Vec::new();
    let mut guess = Guess::default();
    Rebalancer::new(policy).divide(jobs, local, &mut guess, &mut ratios)?;
    Ok(ratios)
}

#[test]
fn no_far_memory_is_used_while_all_jobs_fit() {
    let profiles = published();
    let jobs: Vec<Job<'_>> = profiles
        .iter()
        .map(|profile| Job {
            profile,
            memory: Bytes::gib(4),
            min_ratio: 0.5,
            progress: 0.0,
        })
        .collect();
    for policy in Policy::ALL {
        assert_eq!(divide(policy, &jobs, Bytes::gib(24)).unwrap(), vec![1.0; 6]);
        assert!(divide(policy, &[], Bytes::ZERO).unwrap().is_empty());
        assert!(divide(policy, &jobs, Bytes::gib(11)).is_err());
    }
}

#[test]
fn the_papers_worked_cases() {
    let half = Profile::from_points(&[1.0, 0.5], &[100.0, 150.0]).unwrap();
    let job = |min_ratio: f64, memory: u64| Job {
        profile: &half,
        memory: Bytes::gib(memory),
        min_ratio,
        progress: 0.0,
    };
    // Uniform: jobs of 16 on 12 all go to three quarters, whatever their size.
    let ratios = divide(
        Policy::Uniform,
        &[job(0.75, 4), job(0.75, 12)],
        Bytes::gib(12),
    )
    .unwrap();
    assert!(ratios.iter().all(|r| (r - 0.75).abs() < 1e-6), "{ratios:?}");
    // Variable: with minima 0.5 and 0.75 of equal jobs, the first gives up twice as much.
    let ratios = divide(
        Policy::Variable,
        &[job(0.5, 8), job(0.75, 8)],
        Bytes::gib(13),
    )
    .unwrap();
    assert!(
        ((1.0 - ratios[0]) / (1.0 - ratios[1]) - 2.0).abs() < 1e-6,
        "{ratios:?}"
    );
    // Memory-time: r = 0.5 with f(0.5) < 2·f(1) saves local memory-time, so A − B > 0.
    let ratios = divide(Policy::MemoryTime, &[job(0.5, 8)], Bytes::gib(4)).unwrap();
    assert!((ratios[0] - 0.5).abs() < 1e-6);
    assert!(objective(&[job(0.5, 8)], &ratios).unwrap() > 0.0);
}

#[test]
fn memory_time_spares_the_job_that_suffers_and_the_exempt_one() {
    let tough = Profile::from_points(&[1.0, 0.5], &[100.0, 105.0]).unwrap();
    let tender = Profile::from_points(&[1.0, 0.5], &[100.0, 300.0]).unwrap();
    let exempt = Profile::exempt(100.0).unwrap();
    let job = |profile, min_ratio| Job {
        profile,
        memory: Bytes::gib(8),
        min_ratio,
        progress: 0.0,
    };
    let jobs = [job(&tough, 0.5), job(&tender, 0.5), job(&exempt, 1.0)];
    let ratios = divide(Policy::MemoryTime, &jobs, Bytes::gib(21)).unwrap();
    assert!(
        ratios[0] < 0.7 && ratios[1] > 0.99 && ratios[2] == 1.0,
        "{ratios:?}"
    );
    for policy in [Policy::Uniform, Policy::Variable] {
        assert_eq!(divide(policy, &jobs, Bytes::gib(21)).unwrap()[2], 1.0);
    }
}

proptest! {
    #[test]
    fn bounds_are_kept_and_more_memory_never_hurts(seed: u64) {
        let mut rng = SplitMix64::new(seed);
        let mut profiles = published();
        profiles.push(random_profile(&mut rng));
        profiles.push(Profile::exempt(50.0).unwrap());
        profiles.push(Profile::constant(50.0).unwrap().not_below(0.5).unwrap());
        let (mut jobs, mut local) = random_case(&mut rng, &profiles);
        for job in &mut jobs {
            job.min_ratio = job.min_ratio.max(job.profile.lowest());
        }
        let floor: f64 = jobs.iter().map(|j| j.memory.0 as f64 * j.min_ratio).sum();
        local = local.max(Bytes(floor.ceil() as u64));
        for policy in Policy::ALL {
            let ratios = divide(policy, &jobs, local).unwrap();
            check_bounds(&jobs, local, &ratios);
            if policy != Policy::MemoryTime {
                let more = divide(policy, &jobs, Bytes(local.0 + local.0 / 50)).unwrap();
                let grew = ratios.iter().zip(&more).all(|(a, b)| *b >= a - 1e-9);
                prop_assert!(grew, "a ratio fell when memory was added");
            }
            if policy == Policy::Variable {
                for (ratio, job) in ratios.iter().zip(&jobs) {
                    prop_assert!(*ratio >= job.min_ratio - 1e-12);
                }
            }
        }
    }
}
