//! IQ3_XXS: 256 weights of 256 points of a grid, in 8 sub-blocks of 32 with 4-bit scales (98 bytes, 3.0625 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..66    points, a byte for each group of 4 elements
//! byte 66..98   a u32 a sub-block: bits 7i .. 7i + 7 = the signs of elements 8i .. 8i + 8, the eighth makes the minuses
//!               even; bits 28..32 = the scale
//! value         d * (scale + 1/2) / 2 * element of the point * sign
//! ```
//!
//! In integers, and exactly: `d / 4 * (2 * scale + 1) * element`, with a signed element of at most 62.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 98;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ3_XXS,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ3_XXS>()),
    }),
};

/// The signs and the scale of sub-block `j`.
fn word(block: &[u8; BYTES], j: usize) -> u32 {
    let at = 66 + 4 * j;
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn read(block: &[u8; BYTES]) -> Scaled<8> {
    let mut codes = [0; 256];
    for (j, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (i, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let point = usize::from(block[2 + 8 * j + i]);
            *codes = grid::IQ3_XXS[point].to_le_bytes().map(|e| e as i8);
        }
        grid::negate(codes, grid::signs_of_sevens(word(block, j)));
    }
    let scales = std::array::from_fn(|j| 2 * (word(block, j) >> 28) as i8 + 1);
    Scaled { d: f16_at(block, 0) * 0.25, scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
