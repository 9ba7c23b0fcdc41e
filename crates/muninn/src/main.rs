use std::process::ExitCode;

fn main() -> ExitCode {
    muninn::cli::main()
}
