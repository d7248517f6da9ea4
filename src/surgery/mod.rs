//! Changing models: which types their tensors get, how weights are encoded, and what errors of them count.

pub mod importance;
pub mod mix;
pub mod quantize;
