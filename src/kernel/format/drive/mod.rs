//! The loops around a block, written once for all formats: rows, tokens, blocks in ascending order.

#[cfg(target_arch = "x86_64")]
pub mod avx2;

use super::Matrix;
use crate::kernel::op::quantize::{Q8, Q8Row};
use crate::kernel::par::Cols;

/// Rows that are computed side by side, one in each lane. Threads get rows in multiples of it.
pub const LANES: usize = 8;

/// The int8 product of one format on AVX2.
#[cfg(target_arch = "x86_64")]
pub type Avx2Kernel = fn(crate::kernel::isa::Avx2, Matrix<'_>, &Q8<'_>, &mut Cols<'_, f32>, &mut Tile);

/// The f32 product of one format on AVX2: `x` is `[tokens][columns]`.
#[cfg(target_arch = "x86_64")]
pub type Avx2FloatKernel = fn(crate::kernel::isa::Avx2, Matrix<'_>, &[f32], &mut Cols<'_, f32>);

/// A worker's scratch for a tile of [`LANES`] rows, unpacked once and used for many tokens.
#[derive(Default)]
pub struct Tile {
    /// Codes, interleaved: for every 4 elements, 4 bytes of each of the rows.
    pub codes: Vec<[u8; 32]>,
    /// Integer scales of sub-blocks as i16, a row's scale in both halves of its lane.
    pub scales: Vec<[u8; 32]>,
    /// Integer minimums of two neighbouring sub-blocks as i16, side by side in the row's lane.
    pub mins: Vec<[u8; 32]>,
    /// f32 scales of blocks, a lane a row.
    pub factors: Vec<[f32; 8]>,
    /// f32 scales of the minimums.
    pub min_factors: Vec<[f32; 8]>,
}

/// The definition: every row by every token with the format's scalar dot.
pub fn scalar(dot: fn(&[u8], Q8Row<'_>) -> f32, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
    for t in 0..x.tokens() {
        let x = x.row(t);
        let range = out.range();
        for (y, r) in out.row(t).iter_mut().zip(range) {
            *y = dot(w.row(r), x);
        }
    }
}
