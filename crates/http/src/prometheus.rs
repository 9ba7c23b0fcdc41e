//! Prometheus' text format: families of metrics, explained, typed, in base units.

use muninn_types::Spread;
use std::fmt::{Display, Write};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The kind of contents that Prometheus' text is.
pub const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes families of metrics: each with its explanation first, then its samples.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a family; the prefix `muninn_` is added here and nowhere else.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP muninn_{name} {help}");
        let _ = writeln!(self.text, "# TYPE muninn_{name} {kind}");
    }

    /// A sample of the family that was begun last. Labels are as [`labels`] makes them.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "muninn_{name}{labels} {value}");
    }

    /// A family of one.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// One histogram of the family that was begun last, in seconds.
    pub fn histogram(&mut self, name: &str, own: &[(&str, &str)], spread: &Spread) {
        let mut sum = 0;
        for (bucket, count) in spread.counts.iter().enumerate() {
            sum += count;
            let end = match Spread::below(bucket) {
                Some(end) => seconds(end.0).to_string(),
                None => "+Inf".to_string(),
            };
            let mut all = own.to_vec();
            all.push(("le", &end));
            self.sample(&format!("{name}_bucket"), &labels(&all), sum);
        }
        let own = labels(own);
        self.sample(&format!("{name}_sum"), &own, seconds(spread.sum_ns));
        self.sample(&format!("{name}_count"), &own, sum);
    }

    /// Which release it is: part of every page.
    pub fn build_info(&mut self) {
        self.family("build_info", "gauge", "Which release this is; always 1.");
        self.sample("build_info", &labels(&[("version", VERSION)]), 1);
    }

    pub fn finish(self) -> String {
        self.text
    }
}

/// `{name="value",…}`, with values that may hold anything.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

/// Prometheus' unit of time.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::Nanos;

    #[test]
    fn labels_hold_anything() {
        assert_eq!(labels(&[]), "");
        assert_eq!(
            labels(&[("job", "a\"b\\c\nd"), ("x", "y")]),
            "{job=\"a\\\"b\\\\c\\nd\",x=\"y\"}"
        );
    }

    #[test]
    fn buckets_are_sums_of_those_before() {
        let mut spread = Spread::default();
        for ns in [10, 1500, 1600, 5_000_000_000] {
            spread.note(Nanos(ns));
        }
        let mut page = Page::default();
        page.histogram("x_seconds", &[("class", "demand")], &spread);
        let text = page.finish();
        for line in [
            "muninn_x_seconds_bucket{class=\"demand\",le=\"0.000001\"} 1",
            "muninn_x_seconds_bucket{class=\"demand\",le=\"0.000002\"} 3",
            "muninn_x_seconds_bucket{class=\"demand\",le=\"+Inf\"} 4",
            "muninn_x_seconds_sum{class=\"demand\"} 5.00000311",
            "muninn_x_seconds_count{class=\"demand\"} 4",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
    }
}
