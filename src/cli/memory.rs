//! The options about memory.

use super::budget::MB;
use super::options::positive;

/// How much memory a model may take, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryOptions {
    /// Take at most this many megabytes, pages of the model file included: if need be with the KV cache in 8 bits, a
    /// smaller context, and weights that are read anew for every token
    #[arg(long, value_name = "MB", value_parser = positive)]
    max_ram: Option<usize>,
}

impl MemoryOptions {
    /// The most memory that may be taken, in bytes.
    pub fn max_ram(&self) -> Option<u64> {
        self.max_ram.map(|mb| (mb as u64).saturating_mul(MB))
    }
}
