//! `muninn serve` and `muninn nic`, with this crate's functions in them.

use own_functions as _;

fn main() -> std::process::ExitCode {
    muninn::server::main()
}
