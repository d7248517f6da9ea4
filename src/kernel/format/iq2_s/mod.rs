//! IQ2_S: 256 weights of 1024 points of a grid, in 16 sub-blocks of 16 with 4-bit scales (82 bytes, 2.5625 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..34    points' low 8 bits, a byte for each group of 8 elements
//! byte 34..66   signs: bit i of byte g = element i of group g
//! byte 66..74   points' high 2 bits: bits 2i, 2i + 1 of byte j = group 4j + i
//! byte 74..82   scales: low nibble of byte k = sub-block 2k, high nibble = sub-block 2k + 1
//! value         d * (scale + 1/2) / 4 * element of the point * sign
//! ```
//!
//! In integers, and exactly: `d / 8 * (2 * scale + 1) * element`, with a signed element of 8, 25 or 43.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 82;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ2_S,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ2_S>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<16> {
    let mut codes = [0; 256];
    for (g, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = block[66 + g / 4] >> (2 * (g % 4)) & 3;
        let point = usize::from(block[2 + g]) | usize::from(high) << 8;
        *codes = grid::IQ2_S[point].to_le_bytes().map(|e| e as i8);
        grid::negate(codes, u32::from(block[34 + g]));
    }
    let scales = std::array::from_fn(|s| 2 * (block[74 + s / 2] >> (4 * (s % 2)) & 15) as i8 + 1);
    Scaled { d: f16_at(block, 0) * 0.125, scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
