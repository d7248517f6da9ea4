//! IQ1_S: 256 weights of 2048 points of a grid, in 8 sub-blocks of 32 with 3-bit scales (50 bytes, 1.5625 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..34    points' low 8 bits, a byte for each group of 8 elements
//! byte 34..50   a u16 a sub-block: bits 3i .. 3i + 3 = the high bits of the point of group i; bits 12..15 = the scale;
//!               bit 15 = the sign of the shift
//! value         d * (2 * scale + 1) * (element of the point + shift), with an element of -1, 0 or 1 and a shift of +-1/8
//! ```
//!
//! In integers, and exactly: `d / 8 * (2 * scale + 1) * (8 * element +- 1)`.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 50;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ1_S,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ1_S>()),
    }),
};

/// The high bits of the points, the scale and the shift of sub-block `j`.
fn half_word(block: &[u8; BYTES], j: usize) -> u16 {
    u16::from_le_bytes([block[34 + 2 * j], block[35 + 2 * j]])
}

fn read(block: &[u8; BYTES]) -> Scaled<8> {
    let mut codes = [0; 256];
    for (g, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (h, i) = (half_word(block, g / 4), g % 4);
        let point = usize::from(block[2 + g]) | usize::from(h >> (3 * i) & 7) << 8;
        let shift = if h >> 15 == 0 { 1 } else { -1 };
        *codes = grid::iq1(point).map(|e| e + shift);
    }
    let scales = std::array::from_fn(|j| 2 * (half_word(block, j) >> 12 & 7) as i8 + 1);
    Scaled { d: f16_at(block, 0) * 0.125, scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
