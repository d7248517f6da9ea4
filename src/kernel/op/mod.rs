//! Operations on slices, one a file.

pub mod activation;
pub mod attend;
pub mod dot;
pub mod element;
pub mod exp;
pub mod finite;
pub mod map;
pub mod matmul;
pub mod quantize;
pub mod read;
pub mod rmsnorm;
pub mod rope;
pub mod softmax;
