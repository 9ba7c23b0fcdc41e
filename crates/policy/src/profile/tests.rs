use super::catalogue::{self, Size};
use super::*;
use proptest::prelude::*;

const QUICKSORT: ([f64; 7], [f64; 7]) = (
    [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4],
    [277.16, 303.402, 310.482, 315.227, 311.71, 326.843, 338.10],
);
const SPARK_POLY: [f64; 4] = [4689.05, -10841.59, 7709.92, -1486.13];

fn refused(ratio: &[f64], runtime_s: &[f64]) -> String {
    Profile::from_points(ratio, runtime_s)
        .unwrap_err()
        .to_string()
}

#[test]
fn the_published_points_are_followed() {
    let profile = Profile::from_points(&QUICKSORT.0, &QUICKSORT.1).unwrap();
    for (&ratio, &runtime_s) in QUICKSORT.0.iter().zip(&QUICKSORT.1) {
        let off = (profile.seconds(ratio) - runtime_s).abs() / runtime_s;
        assert!(off < 0.03, "{off} off at {ratio}");
    }
}

#[test]
fn a_rise_of_the_published_polynomial_is_levelled_without_a_step() {
    let spark = Profile::from_polynomial(&SPARK_POLY, 0.5).unwrap();
    assert!((spark.seconds(0.8) - 144.0).abs() < 0.5);
    assert_eq!(spark.seconds(0.5), spark.seconds(0.55));
    assert_eq!(spark.slope(0.52), 0.0);
    assert!(spark.slope(0.8) < -500.0);
    let mut last = spark.seconds(1.0);
    for step in 0..=50_000 {
        let now = spark.seconds(1.0 - 0.5 * f64::from(step) / 50_000.0);
        assert!(now >= last && now - last < 0.05, "{last} then {now}");
        last = now;
    }
}

#[test]
fn a_bad_measurement_names_its_field() {
    assert_eq!(
        refused(&[1.0, 0.8, 0.6], &[100.0, 130.0, 110.0]),
        "runtime_s rises with memory: 110 s at ratio 0.6, but 130 s at ratio 0.8; measure again, \
         or leave that point out"
    );
    assert_eq!(
        refused(&[1.0, 0.5], &[100.0, f64::NAN]),
        "runtime_s[1] is NaN: a run time is a finite number above 0"
    );
    assert_eq!(
        refused(&[1.0, 0.5], &[0.0, 10.0]),
        "runtime_s[0] is 0: a run time is a finite number above 0"
    );
    assert_eq!(
        refused(&[1.0, f64::NAN], &[1.0, 2.0]),
        "ratio[1] is NaN: a ratio lies above 0 and is at most 1"
    );
    assert_eq!(
        refused(&[1.0, 0.0], &[1.0, 2.0]),
        "ratio[1] is 0: a ratio lies above 0 and is at most 1"
    );
    assert_eq!(
        refused(&[1.0, 0.5, 0.7], &[1.0, 2.0, 3.0]),
        "ratio is not in order at ratio[2]: write the ratios from 1.0 downwards, each once"
    );
    assert_eq!(
        refused(&[0.9, 0.5], &[1.0, 2.0]),
        "ratio must begin with 1.0 (all memory local), and begins with 0.9"
    );
    assert_eq!(
        refused(&[1.0, 0.5], &[1.0]),
        "ratio and runtime_s must be equally long: 2 ratios, 1 run times"
    );
    assert_eq!(
        refused(&[1.0], &[1.0]),
        "ratio needs from 2 to 64 points, and has 1"
    );
}

#[test]
fn a_bad_polynomial_names_its_field() {
    let refused = |poly: &[f64]| Profile::from_polynomial(poly, 0.5).unwrap_err().to_string();
    assert_eq!(
        refused(&[100.0, 100.0]),
        "poly rises with memory: 189.9 s at ratio 0.90, but 200.0 s at ratio 1.00"
    );
    assert_eq!(
        refused(&[f64::NAN, 1.0]),
        "poly[0] is NaN: a coefficient is a finite number"
    );
    assert_eq!(
        refused(&[-1.0]),
        "poly gives -1 s at ratio 1: a run time is a finite number above 0"
    );
    assert_eq!(
        refused(&[]),
        "poly needs from 1 to 7 coefficients, and has 0"
    );
}

fn read(text: &str) -> Result<Vec<catalogue::JobKind>, String> {
    catalogue::parse(text, Size::Rack).map_err(|error| error.to_string())
}

#[test]
fn the_form_that_profile_writes_is_read() {
    let kinds = read(
        "[[job]]\nname = \"a\"\nmemory = \"3GiB\"\ncores = 2\nratio = [1.0, 0.75, 0.5]\n\
         runtime_s = [10.0, 11.0, 14.0]\n\
         [[job]]\nname = \"b\"\nmemory = 4096\ncores = 1\nratio = [1.0, 0.5]\n\
         runtime_s = [10.0, 11.0]\nfar = false\n",
    )
    .unwrap();
    assert_eq!(kinds[0].memory, muninn_types::Bytes::gib(3));
    assert!((kinds[0].profile.slowdown(kinds[0].min_ratio) - 1.2).abs() < 0.01);
    assert!(kinds[1].profile.is_exempt());
    assert_eq!(kinds[1].floor(), kinds[1].memory);
}

#[test]
fn a_bad_file_names_its_field() {
    let job = "[[job]]\nname = \"a\"\nratio = [1.0, 0.5]\nruntime_s = [1.0, 2.0]\n";
    let cases = [
        ("".to_string(), "job: the file holds no [[job]]"),
        (
            "[[job]]\ncores = 1\n".to_string(),
            "job[0].name is missing or empty",
        ),
        (job.to_string(), "job 'a': memory is missing"),
        (format!("{job}memory = 1\n"), "job 'a': cores is missing"),
        (
            format!("{job}memory = 1\ncores = 0\n"),
            "job 'a': cores must be above 0",
        ),
        (
            format!("{job}memory = 0\ncores = 1\n"),
            "job 'a': memory must be above 0",
        ),
        (
            format!("{job}memory = 1\ncores = 1\nmin_ratio = nan\n"),
            "job 'a': min_ratio is NaN: it lies from the lowest ratio, 0.5, to 1",
        ),
        (
            format!("{job}memory = 1\ncores = 1\n{job}"),
            "job 'a' is there twice: give each [[job]] a name of its own",
        ),
        (
            format!("{job}memory = 1\ncores = 1\npoly = [5.0]\n"),
            "job 'a': poly does not follow runtime_s: 5.0 s instead of 1.0 s at ratio 1",
        ),
        (
            format!("[rack]\nmin_ratio_20pct = {{ z = 0.5 }}\n{job}memory = 1\ncores = 1\n"),
            "rack.min_ratio_20pct names 'z', which is no [[job]]",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(read(&text).unwrap_err(), message);
    }
    assert!(
        read("[[job]\n")
            .unwrap_err()
            .starts_with("not a profile file:")
    );
}

proptest! {
    #[test]
    fn a_fit_never_rises_and_stays_near(
        steps in prop::collection::vec(0.0..40.0f64, 2..9),
        noise in prop::collection::vec(0.99..1.0f64, 9),
    ) {
        let mut runtime = 50.0;
        let mut points = vec![(1.0, runtime)];
        for (i, step) in steps.iter().enumerate() {
            runtime += step;
            points.push((1.0 - 0.08 * (i + 1) as f64, runtime * noise[i]));
        }
        let (ratio, runtime_s): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        let profile = Profile::from_points(&ratio, &runtime_s).unwrap();
        let lowest = profile.lowest();
        let mut last = f64::MAX;
        for i in 0..=200 {
            let r = lowest + (1.0 - lowest) * f64::from(i) / 200.0;
            let seconds = profile.seconds(r);
            prop_assert!(seconds <= last * (1.0 + 1e-12));
            prop_assert!(seconds > 0.0 && profile.slope(r) <= 0.0);
            last = seconds;
        }
        let range = runtime_s.iter().fold(0.0f64, |a, &b| a.max(b));
        for (&r, &s) in ratio.iter().zip(&runtime_s) {
            prop_assert!((profile.seconds(r) - s).abs() < 0.25 * range);
        }
        let at = profile.ratio_at_slowdown(1.2);
        prop_assert!(profile.slowdown(at) <= 1.2 + 1e-9);
    }

    #[test]
    fn any_numbers_are_taken_or_refused_without_a_panic(
        ratio in prop::collection::vec(prop::num::f64::ANY, 0..5),
        runtime_s in prop::collection::vec(prop::num::f64::ANY, 0..5),
    ) {
        let _ = Profile::from_points(&ratio, &runtime_s);
        let _ = Profile::from_polynomial(&runtime_s, 0.5);
    }
}
