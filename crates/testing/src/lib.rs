//! Skips that are counted.
//!
//! A test that cannot run on a machine says so and passes, and what a passing test prints nobody
//! sees. So it is also written to the file that [`VARIABLE`] names, one line for each skip: the test,
//! a tab, the reason. `./test` sets the variable and prints the counts. A skip is for a certain thing
//! that was looked for and is not there, never for a failure.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that skips are added to.
pub const VARIABLE: &str = "MUNINN_SKIPS";

/// Says that the test (or a part of it) cannot run here.
pub fn skip(reason: impl Display) {
    let reason = one_line(&reason.to_string());
    println!("skipped: {reason}");
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    let thread = std::thread::current();
    let line = format!("{}\t{reason}\n", thread.name().unwrap_or("?"));
    // In one write, so that lines of several tests do not mix.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("cannot count a skip in {}: {error}", path.display()));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn reasons_are_one_line() {
        assert_eq!(one_line(" a\tb\n c "), "a b c");
    }

    /// Run by the test below, in a process with the variable set.
    #[test]
    #[ignore = "a part of another test"]
    fn skips() {
        skip("no such\nthing");
    }

    #[test]
    fn a_skip_is_counted_with_the_name_of_its_test() {
        let name = format!("muninn-testing-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "tests::skips"])
            .env(VARIABLE, &path)
            .output()
            .unwrap()
            .status;
        let text = std::fs::read_to_string(&path);
        let _ = std::fs::remove_file(&path);
        assert!(status.success());
        assert_eq!(text.unwrap(), "tests::skips\tno such thing\n");
    }
}
