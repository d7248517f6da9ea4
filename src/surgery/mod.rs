//! Changing models: what their weights are encoded in.

pub mod quantize;
