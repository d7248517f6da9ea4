//! The weight formats: geometry of every ggml type, decoding and dot products of those we run.

mod geometry;

pub use geometry::{Geometry, GgmlType};
