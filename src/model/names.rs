//! Names of the two tensors that may be one.

use crate::gguf::{File, TensorInfo};

/// The embedding: a row for each token.
pub const EMBEDDING: &str = "token_embd.weight";
/// The output head, where it is not the embedding.
pub const HEAD: &str = "output.weight";

/// Whether the embedding is the head too.
pub fn is_tied(file: &File) -> bool {
    file.tensor(HEAD).is_none()
}

/// The matrix that is the head; `None` if the file has neither.
pub fn head(file: &File) -> Option<&TensorInfo> {
    file.tensor(HEAD).or_else(|| file.tensor(EMBEDDING))
}
