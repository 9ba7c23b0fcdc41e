//! `muninn doctor` on this machine.

use crate::common::place;
use serde_json::Value;

#[test]
fn every_check_says_what_it_found_and_what_to_do() {
    let ended = place().run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 30);
    let mut fails = false;
    for check in checks {
        let name = check["name"].as_str().unwrap();
        let (ok, needed) = (&check["ok"], &check["needed"]);
        let (ok, needed) = (ok.as_bool().unwrap(), needed.as_bool().unwrap());
        assert!(!check["found"].as_str().unwrap().is_empty(), "{name}");
        let advice = check["advice"].as_str().unwrap();
        assert_eq!(advice.is_empty(), ok, "{name}: {advice}");
        fails |= needed && !ok;
    }
    assert_eq!(report["ok"], !fails);
    assert_eq!(ended.code, Some(if fails { 5 } else { 0 }));
    let shown = place().run(&["doctor"]);
    assert_eq!(shown.code, ended.code);
    assert!(shown.out.contains("userfaultfd-MOVE"), "{}", shown.out);
}
