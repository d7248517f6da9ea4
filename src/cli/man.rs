//! `twinband man`: manual pages from the command line's own definition.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;

use super::Ui;

/// Print a manual page, or write all of them to a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: twinband man run | man -l -")]
pub struct Args {
    /// The command whose page is wanted [default: the page of twinband itself]
    command: Option<String>,

    /// Write every page to this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// Writes roff to standard output, or one file a command into `--dir`.
pub fn run(args: &Args, _ui: &Ui) -> anyhow::Result<()> {
    let mut definition = super::definition();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        return clap_mangen::generate_to(definition, dir)
            .with_context(|| format!("cannot write manual pages to {}", dir.display()));
    }
    definition.build();
    let command = match &args.command {
        None => definition,
        Some(name) => definition.find_subcommand(name).cloned().with_context(|| {
            let names: Vec<&str> = definition.get_subcommands().map(clap::Command::get_name).collect();
            format!("there is no command {name:?}; the commands are {}", names.join(", "))
        })?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    io::stdout().lock().write_all(&page)?;
    Ok(())
}
