//! Parse, run, exit code. The only place that prints an error.

use std::process::ExitCode;

use twinband::cli;

fn main() -> ExitCode {
    let cli = cli::parse();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::print_error(&error);
            cli::exit_code(&error)
        }
    }
}
