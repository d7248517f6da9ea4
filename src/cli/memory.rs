//! The options about memory.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::budget::MB;
use super::options::positive;
use super::{Ui, Usage};
use crate::host::Host;

/// Where --swap keeps its file if neither its value nor TMPDIR says: on most systems a folder on a disk.
const SWAP_FOLDER: &str = "/var/tmp";

/// How much memory a model may take, where, and whether it stays.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryOptions {
    /// How much and where.
    #[command(flatten)]
    pub limits: Limits,

    /// Read the whole model file at the start and keep it in memory, if there is room and the system allows it
    #[arg(long)]
    pub mlock: bool,
}

/// How much memory a model may take, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct Limits {
    /// Take at most this many megabytes, pages of the model file included: if need be with the KV cache in 8 bits, a
    /// smaller context, weights that are read anew for every token, and smaller batches
    #[arg(long, value_name = "MB", value_parser = positive)]
    max_ram: Option<usize>,

    /// Keep the KV cache in a file without a name in this folder [default: TMPDIR, or /var/tmp]: the system writes it to
    /// disk when memory is short. Room for all of it is taken at the start
    #[arg(long, value_name = "FOLDER", num_args = 0..=1)]
    swap: Option<Option<PathBuf>>,

    /// Rearrange the weights of a GGUF file in memory as a packed file has them: takes as much memory as the matrices, in
    /// place of their pages of the file; the same text to the bit
    #[arg(long)]
    pub repack: bool,
}

impl MemoryOptions {
    /// Whether the options go together.
    pub fn check(&self) -> Result<(), Usage> {
        if self.mlock && self.limits.max_ram.is_some() {
            let why = "--mlock keeps the whole file in memory, --max-ram gives up what there is no room for: choose one";
            return Err(Usage(why.to_owned()));
        }
        Ok(())
    }
}

impl Limits {
    /// The most memory that may be taken, in bytes.
    pub fn max_ram(&self) -> Option<u64> {
        self.max_ram.map(|mb| (mb as u64).saturating_mul(MB))
    }

    /// The folder that holds the KV cache, if one shall.
    ///
    /// # Errors
    /// If it is none.
    pub fn swap(&self, ui: &Ui) -> anyhow::Result<Option<PathBuf>> {
        let Some(given) = &self.swap else { return Ok(None) };
        let folder = given.clone().unwrap_or_else(|| {
            let named = std::env::var_os("TMPDIR").filter(|name| !name.is_empty());
            named.map_or_else(|| PathBuf::from(SWAP_FOLDER), PathBuf::from)
        });
        check(&folder)?;
        if Host::in_memory(&folder) {
            ui.warn(format_args!(
                "{} is a file system in memory: --swap saves nothing there, name a folder on a disk",
                folder.display()
            ));
        }
        Ok(Some(folder))
    }
}

fn check(folder: &Path) -> anyhow::Result<()> {
    let name = folder.display();
    if name.to_string().is_empty() {
        return Err(Usage("--swap: the folder's name is empty".to_owned()).into());
    }
    match folder.metadata() {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => bail!("--swap {name}: not a folder, and nothing is written to it; name a folder"),
        Err(error) => {
            bail!("--swap {name}: {error}; name a folder that exists (what follows --swap is taken for one)")
        }
    }
}
