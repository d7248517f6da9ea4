//! `twinband completions`: a shell's completion script from the command line's own definition.

use std::io::{self, Write as _};

use super::Ui;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: twinband completions bash > ~/.local/share/bash-completion/completions/twinband"
)]
pub struct Args {
    /// The shell to write for
    shell: clap_complete::Shell,
}

/// Writes the script to standard output.
pub fn run(args: &Args, _ui: &Ui) -> anyhow::Result<()> {
    // The generator panics on a failed write, so it fills a buffer.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::definition(), "twinband", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(())
}
