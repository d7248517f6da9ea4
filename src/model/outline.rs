//! What decides how much memory a model takes: its shape and the forms in which its weights want their inputs.

use super::acts::Blocks;
use super::weights::{Layer, Weights};
use super::{Config, LoadError, arch, names, repack};
use crate::gguf::{File, TensorInfo};
use crate::kernel::format::{ActBlock, Matrix};

/// The matrices of a layer.
const MATRICES: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// A model without its weights. Everything that is allocated to run it follows from this and the options, so that what
/// a file needs can be told from its header.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Shape and switches.
    pub config: Config,
    /// The int8 forms of the inputs.
    pub(super) forms: Forms,
    /// The blocks in which the head wants its input; `None` if it multiplies in f32.
    pub head: Option<ActBlock>,
    /// Bytes of norms, biases and the like, which are copied out of the file as f32.
    pub vector_bytes: usize,
    /// Bytes of the copy that [`Model::repack`](super::Model::repack) makes.
    pub repack_bytes: u64,
    /// Bytes of the matrices of each layer.
    pub(super) layer_bytes: Vec<u64>,
    /// Bytes of the head.
    pub(super) head_bytes: u64,
}

/// The int8 forms of each input.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forms {
    pub x: Blocks,
    /// Those with a second term, for values and for the feed-forward block's output.
    pub x_refined: Blocks,
    pub att: Blocks,
    pub h: Blocks,
    pub h_refined: Blocks,
}

impl Outline {
    /// Reads the header of a file and checks every tensor's name, type and shape; data need not be there.
    pub fn read(file: &File) -> Result<Self, LoadError> {
        let config = arch::config(file)?;
        let weights = Weights::without_data(file, &config)?;
        Ok(Self::new(config, &weights, file))
    }

    pub(super) fn new(config: Config, weights: &Weights<'_>, file: &File) -> Self {
        fn readers<'f>(w: &Weights<'f>, of: impl Fn(&Layer<'f>) -> Vec<Matrix<'f>>) -> Blocks {
            Weights::forms(w.layers.iter().flat_map(of))
        }
        let forms = Forms {
            x: readers(weights, |l| vec![l.q.w, l.k.w, l.v.w, l.gate.w, l.up.w]),
            x_refined: readers(weights, |l| vec![l.v.w]),
            att: readers(weights, |l| vec![l.o.w]),
            h: readers(weights, |l| vec![l.down.w]),
            // A scale shared by 256 numbers with a few large ones among them loses too much; one shared by 32 does not.
            h_refined: readers(weights, |l| vec![l.down.w])
                .map(|block| block.filter(|&block| block == ActBlock::B256)),
        };
        let bytes = |name: &str| file.tensor(name).and_then(|tensor| tensor.bytes());
        let layer =
            |l: usize| MATRICES.iter().filter_map(|part| bytes(&format!("blk.{l}.{part}.weight"))).sum();
        let copy = |(l, layer): (usize, &Layer<'_>)| -> u64 {
            let matrices =
                MATRICES.iter().zip(layer.matrices()).filter(|(_, matrix)| repack::is_apart(matrix));
            let bytes = matrices.filter_map(|(part, _)| bytes(&format!("blk.{l}.{part}.weight")));
            bytes.map(|bytes| repack::padded(bytes as usize) as u64).sum()
        };
        Self {
            repack_bytes: weights.layers.iter().enumerate().map(copy).sum(),
            forms,
            head: weights.output.w.format().act(),
            vector_bytes: weights.vector_bytes,
            layer_bytes: (0..config.n_layers).map(layer).collect(),
            head_bytes: names::head(file).and_then(TensorInfo::bytes).unwrap_or(0),
            config,
        }
    }
}
