//! Changing models: what their weights are encoded in, and what errors of them count.

pub mod importance;
pub mod quantize;
