//! Why a model cannot be loaded or a token not be computed.

use std::path::PathBuf;

use crate::gguf;
use crate::kernel::format::{GgmlType, MatrixError};

/// Why a file is no model we can run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// An architecture we do not have.
    #[error("architecture '{name}' is not supported: this program runs {known}")]
    Architecture {
        /// `general.architecture`
        name: String,
        /// The names we know.
        known: String,
    },
    /// A key without which nothing can be computed.
    #[error("metadata key {key} is missing: the file is no complete model")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value that cannot be.
    #[error("metadata key {key} is {value}: {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// A key that asks for arithmetic we do not have. To run the model without it would give wrong text.
    #[error(
        "metadata key {key} is {value}, which asks for arithmetic this program does not have for '{arch}'"
    )]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The architecture.
        arch: &'static str,
    },
    /// Tensors that the architecture needs are not in the file.
    #[error("missing tensor {names}: the file is incomplete or of another architecture than it says")]
    MissingTensors {
        /// Their names; many are shortened.
        names: String,
    },
    /// A tensor of another shape than the metadata says.
    #[error("tensor {tensor} has shape {found}, must be {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: String,
        /// The shape it must have.
        expected: String,
    },
    /// A tensor of a type we cannot compute with.
    #[error("tensor {tensor} has type {ty}, which cannot be computed with: supported are {supported}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
        /// The types that can.
        supported: String,
    },
    /// A tensor's bytes are no matrix.
    #[error("tensor {tensor}: {source}")]
    Matrix {
        /// The tensor.
        tensor: String,
        /// Why.
        source: MatrixError,
    },
    /// A small tensor that is kept as f32 has a number that cannot be computed with.
    #[error("tensor {tensor}: element {index} is {value}")]
    Element {
        /// The tensor.
        tensor: String,
        /// Which element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// There is no memory for a copy of the weights.
    #[error("no memory for {bytes} bytes of rearranged weights: leave out --repack")]
    Memory {
        /// What it takes.
        bytes: usize,
    },
    /// The system starts no thread for that.
    #[error("no thread to rearrange weights: {0}")]
    Thread(std::io::Error),
    /// The tokenizer has ids without an embedding.
    #[error("tensor token_embd.weight has {rows} rows for a vocabulary of {tokens} tokens")]
    Vocabulary {
        /// Rows of the embedding.
        rows: usize,
        /// Tokens of the tokenizer.
        tokens: usize,
    },
}

/// Why memory for a model's state cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// A context without a token, or larger than can be counted.
    #[error("a context of {ctx} tokens is not possible: choose 1 to {max}")]
    Context {
        /// The context asked for.
        ctx: usize,
        /// The largest possible.
        max: usize,
    },
    /// Heads are no whole blocks of the cache's type.
    #[error(
        "heads of {len} numbers are no whole blocks of {block}, which --kv q8 and k8v4 need: choose --kv f16"
    )]
    Heads {
        /// Numbers of a head.
        len: usize,
        /// Numbers of a block.
        block: usize,
    },
    /// The system has not that much.
    #[error("no memory for {bytes} bytes of {what}: choose a smaller --ctx")]
    Memory {
        /// Bytes.
        bytes: usize,
        /// What they are for.
        what: &'static str,
    },
    /// The file in which they would be kept cannot be had.
    #[error("no room for {bytes} bytes of {what} in a file in {}: {reason}; choose another --swap folder or a smaller --ctx", folder.display())]
    Swap {
        /// Where the file would be.
        folder: PathBuf,
        /// Bytes.
        bytes: usize,
        /// What they are for.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

/// Why tokens could not be evaluated.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum EvalError {
    /// The context is full.
    #[error("{asked} tokens do not fit behind the {position} already in a context of {ctx}")]
    ContextFull {
        /// Tokens to be added.
        asked: usize,
        /// Tokens there are.
        position: usize,
        /// Tokens there can be.
        ctx: usize,
    },
    /// An id without an embedding.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Ids are below this.
        vocab: usize,
    },
    /// Nothing was evaluated that could have logits.
    #[error("there are no logits before the first token")]
    NoToken,
    /// A number is infinite or NaN: weights are damaged, or the activations overflow.
    #[error("{place} of position {position}{} is not finite: the weights are damaged or too large", in_layer(*layer))]
    NonFinite {
        /// The position of the token, from 0.
        position: usize,
        /// The block, if it is in one.
        layer: Option<usize>,
        /// What is not finite.
        place: &'static str,
    },
}

fn in_layer(layer: Option<usize>) -> String {
    layer.map(|l| format!(" in layer {l}")).unwrap_or_default()
}
