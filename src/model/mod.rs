//! A model: configuration, weights as views into the file, state, forward pass.

mod acts;
pub mod arch;
pub mod config;
mod error;
mod forward;
mod kv;
pub mod names;
mod outline;
mod pass;
mod repack;
pub mod state;
mod storage;
mod stream;
pub mod weights;

pub use config::Config;
pub use error::{EvalError, LoadError, StateError};
pub use forward::forward;
pub use kv::KvType;
pub use outline::Outline;
pub use state::{Plan, State, StateOptions};
pub use storage::{Place, room};
pub use stream::Parts;
pub use weights::Weights;

use crate::gguf;
use crate::kernel::format::Layout;
use crate::kernel::op::rope::Rope;

/// A model whose weights lie in the mapped file.
pub struct Model<'f> {
    /// Shape and switches.
    pub config: Config,
    /// Views of the weights.
    pub weights: Weights<'f>,
    /// What decides how much memory it takes.
    pub outline: Outline,
    /// Where they lie.
    file: &'f gguf::File,
    /// What of them does not stay in memory.
    stream: Option<stream::Stream>,
    /// Rotation of layers that see everything.
    pub(crate) rope: Rope,
    /// Rotation of sliding-window layers.
    pub(crate) rope_local: Option<Rope>,
    /// What the user should know: one line each.
    pub warnings: Vec<String>,
}

impl<'f> Model<'f> {
    /// Reads the configuration and checks every tensor against it. Costs as much as the header is long: weights stay
    /// where they are, only norms, biases and the like are copied.
    pub fn load(file: &'f gguf::File) -> Result<Self, LoadError> {
        let config = arch::config(file)?;
        let mut warnings = Vec::new();
        let weights = Weights::load(file, &config, &mut warnings)?;
        let rope = Rope::new(&config.rope, weights.rope_factors.as_deref());
        let rope_local = config.local.as_ref().map(|l| Rope::new(&l.rope, weights.rope_factors.as_deref()));
        let outline = Outline::new(config.clone(), &weights, file);
        Ok(Self { config, weights, outline, file, stream: None, rope, rope_local, warnings })
    }

    /// The open file that holds the output matrix, where in it, and in which order; `None` if the model is only in memory.
    pub fn output_in_file(&self) -> Option<(std::fs::File, u64, Layout)> {
        let tensor = names::head(self.file)?;
        Some((self.file.part_file(tensor)?, tensor.offset(), tensor.layout))
    }
}
