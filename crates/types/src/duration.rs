//! Durations as people write them: `250ms`, `10s`, `2m`, `1h`, `90d`.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a duration: write a number and a unit, such as 250ms, 10s or 2m")]
pub struct ParseDurationError(String);

/// Reads `1.5s`, `250ms`, `20us`, `2m`, `1h`, `90d`. A unit is required, so that seconds and milliseconds
/// are never mixed up.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let refused = || ParseDurationError(text.to_string());
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .ok_or_else(refused)?;
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| refused())?;
    let seconds = match unit.trim() {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(refused()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| refused())
}

/// Prints a duration with two or three digits and the unit that fits: `1.25s`, `310ms`, `7.4µs`.
pub fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos() as f64;
    let (value, unit) = match ns {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n if n < 120e9 => (n / 1e9, "s"),
        n => (n / 60e9, "min"),
    };
    let digits = match (unit, value) {
        ("ns", _) => 0,
        (_, v) if v < 10.0 => 2,
        (_, v) if v < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print() {
        assert_eq!(parse_duration("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(parse_duration("1.5 m").unwrap(), Duration::from_secs(90));
        for bad in ["10", "s", "", "-1s", "1 fortnight", "1e400s", "..s"] {
            assert!(
                parse_duration(bad).is_err(),
                "{bad:?} was taken for a duration"
            );
        }
        assert_eq!(format_duration(Duration::from_secs(10)), "10s");
        assert_eq!(format_duration(Duration::from_micros(310_000)), "310ms");
        assert_eq!(format_duration(Duration::from_nanos(7_400)), "7.4µs");
        assert_eq!(format_duration(Duration::from_nanos(999)), "999ns");
        assert_eq!(
            parse_duration("soon").unwrap_err().to_string(),
            "'soon' is not a duration: write a number and a unit, such as 250ms, 10s or 2m"
        );
    }
}
