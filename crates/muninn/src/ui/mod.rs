//! What a person sees: tables, progress, JSON.

mod progress;
mod table;
mod waiting;

pub use progress::{Progress, progress};
pub use table::Table;
pub use waiting::{Waiting, waiting};

/// A time of day, in seconds since 1970, as people write it: `2027-02-16 09:30 UTC`.
pub fn date(unix: u64) -> String {
    // Days are counted from a first of March, so that leap days come last in their year.
    let days = unix / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let (year, minutes) = (era * 400 + year + next, unix % 86_400 / 60);
    let (hour, minute) = (minutes / 60, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Prints a value as pretty JSON on standard output.
pub fn print_json(value: &impl serde::Serialize) {
    // Serialising our own plain structs cannot fail; a closed pipe ends the program quietly.
    let text = serde_json::to_string_pretty(value).expect("plain data serialises");
    print_out(&text);
}

/// Prints a line on standard output; a reader that went away (`| head`) is not an error.
pub fn print_out(text: &str) {
    use std::io::Write;
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_those_of_the_calendar() {
        let dates = [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_795_028_791, "2026-11-18 19:06 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ];
        for (unix, date) in dates {
            assert_eq!(super::date(unix), date);
        }
    }
}
