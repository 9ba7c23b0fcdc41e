//! `muninn bench cluster`, so small that its figures say nothing: everything in it works, and every result is
//! right.

use crate::common::{far_memory_possible, place};
use muninn::slurm_rack;
use serde_json::Value;

#[test]
fn a_small_queue_is_right_in_each_way() {
    if !far_memory_possible() {
        return;
    }
    if let Some(why) = slurm_rack::missing() {
        muninn_testing::skip(why);
        return;
    }
    let place = place();
    let words = [
        "bench",
        "cluster",
        "--quick",
        "--jobs",
        "4",
        "--nodes",
        "2",
        "--size",
        "32MiB",
        "--programs",
        "sort-in-memory",
        "--local",
        "75%",
        "--ways",
        "alone,muninn",
        "--check",
        "--json",
        "--plot",
        "charts",
    ];
    // It has deadlines of its own for all that it waits for.
    let output = place.command(&words).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && complaints.contains("no cpu controller") {
        muninn_testing::skip(complaints);
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{complaints}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ways = results["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 2, "{results:#}");
    for way in ways {
        let jobs = way["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 4);
        assert!(jobs.iter().all(|job| job["right"] == true), "{way:#}");
        assert!(way["makespan_s"].as_f64() > Some(0.0));
        assert!(way["prediction"]["makespan_s"].as_f64() > Some(0.0));
        assert_eq!(way["left_behind"], 0);
        assert!(!way["moments"].as_array().unwrap().is_empty());
    }
    let targets = results["targets"].as_array().unwrap();
    let decision = targets
        .iter()
        .find(|target| target["what"].as_str().unwrap().starts_with("decision"));
    assert!(decision.is_some(), "{targets:#?}");
    for chart in ["makespan.svg", "memory.svg", "running.svg"] {
        let text = std::fs::read_to_string(place.path("charts").join(chart)).unwrap();
        assert!(text.contains("<svg"), "{chart}");
    }
}
