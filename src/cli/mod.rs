//! The commands: one file each, holding its `Args` (clap derive) and `run(&Args, &Ui)`.
//!
//! A command writes results to standard output with `writeln!` on a lock and `?` (never `println!`, which panics
//! when the reader is gone); everything else it has to say goes to standard error through [`Ui`]. It returns its
//! errors: `main` prints them and turns them into an exit code.
//!
//! A new command is a file here, a `mod` line, a variant of `Command` and its line in [`Cli::run`].

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod bench;
mod budget;
mod chat;
mod completions;
mod fit;
mod gpu;
mod info;
pub mod interrupt;
mod load;
mod man;
mod memory;
mod needs;
pub mod options;
mod pack;
mod ppl;
mod report;
mod run;
mod synth;
mod tokenize;
mod ui;
mod unpack;
mod verify;
mod vkinfo;

pub use interrupt::Interrupted;
pub use ui::{Progress, Ui};

const AFTER_HELP: &str = "\
Exit codes:
  0    done; also when Ctrl-C ended an answer (what was said so far is printed) or the reader of a pipe left
  1    something failed: the message says what, where and what to do
  2    the command line is wrong
  130  Ctrl-C (or SIGTERM) before there was a result, or pressed twice";

/// Runs GGUF and G2BX language models on small machines: one answer for any thread count, instruction set
/// and GPU share.
#[derive(Debug, Parser)]
#[command(name = "twinband", version, after_help = AFTER_HELP, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Say more on standard error: memory sizes before they are allocated, timings
    #[arg(short, long, global = true)]
    verbose: bool,

    /// Say nothing on standard error but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Chat(chat::Args),
    Info(info::Args),
    Fit(fit::Args),
    Tokenize(tokenize::Args),
    Bench(bench::Args),
    Ppl(ppl::Args),
    Vkinfo(vkinfo::Args),
    Pack(pack::Args),
    Unpack(unpack::Args),
    Verify(verify::Args),
    Synth(synth::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Parses the process's command line; on a wrong one or on `--help` it prints and exits as clap does (2 or 0).
pub fn parse() -> Cli {
    Cli::parse()
}

/// The definition of the whole command line, from which completions and man pages are made.
pub fn definition() -> clap::Command {
    Cli::command()
}

impl Cli {
    /// Runs the chosen command to its end.
    pub fn run(&self) -> anyhow::Result<()> {
        let ui = Ui::new(self.verbose, self.quiet);
        match &self.command {
            Command::Run(args) => run::run(args, &ui),
            Command::Chat(args) => chat::run(args, &ui),
            Command::Info(args) => info::run(args, &ui),
            Command::Fit(args) => fit::run(args, &ui),
            Command::Tokenize(args) => tokenize::run(args, &ui),
            Command::Bench(args) => bench::run(args, &ui),
            Command::Ppl(args) => ppl::run(args, &ui),
            Command::Vkinfo(args) => vkinfo::run(args, &ui),
            Command::Pack(args) => pack::run(args, &ui),
            Command::Unpack(args) => unpack::run(args, &ui),
            Command::Verify(args) => verify::run(args, &ui),
            Command::Synth(args) => synth::run(args, &ui),
            Command::Completions(args) => completions::run(args, &ui),
            Command::Man(args) => man::run(args, &ui),
        }
    }
}

/// The command line is wrong in a way that only the command itself can tell: exit code 2, as for all others.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Whether the error is only that the reader of our output left (`twinband ... | head`): that is success.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
            || cause.downcast_ref::<serde_json::Error>().is_some_and(|json| {
                json.io_error_kind().is_some_and(|kind| kind == io::ErrorKind::BrokenPipe)
            })
    })
}

/// The exit code of a failed command, as listed in `--help`.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<Interrupted>() {
        ExitCode::from(interrupt::EXIT)
    } else if error.is::<Usage>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// Prints `error: ...` and the chain of causes on standard error.
pub fn print_error(error: &anyhow::Error) {
    // Nothing can be done when standard error itself is gone.
    let _ = io::Write::write_all(&mut io::stderr().lock(), format!("error: {}\n", message(error)).as_bytes());
}

/// The error and its causes in one line; a cause which its parent's text already repeats is left out.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn a_chain_is_one_line_without_repetition() {
        let inner = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = Err::<(), _>(inner).context("cannot open x.gguf: no such file").context("run");
        let error = error.expect_err("an error was put in");
        assert_eq!(message(&error), "run: cannot open x.gguf: no such file");
    }

    #[test]
    fn a_broken_pipe_is_found_anywhere_in_the_chain() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(pipe).context("writing")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }
}
