//! Operations on slices, one a file.

pub mod dot;
pub mod matmul;
pub mod quantize;
