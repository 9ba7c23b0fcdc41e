//! What a person sees: tables, progress, JSON.

mod progress;
mod table;

pub use progress::{Progress, progress};
pub use table::Table;

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
