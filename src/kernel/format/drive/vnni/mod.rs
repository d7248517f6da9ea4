//! The loops around a block for instruction sets that multiply bytes and add the products to i32 lanes ([`Vnni`](crate::kernel::isa::Vnni)).
//!
//! One operand of their products is unsigned. Weights take that side: signed codes are made unsigned by adding 128 when a
//! tile is unpacked, and that times the sum of the activations' codes is taken back, exactly.

pub mod block256;
pub mod block32;

/// From this many vectors on, unpacking a tile of rows once pays for itself.
const TILE_FROM: usize = 4;
