//! IQ2_XS: 256 weights of 512 points of a grid, in 16 sub-blocks of 16 with 4-bit scales (74 bytes, 2.3125 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..66    a u16 for each group of 8 elements: bits 0..9 = the point, bits 9..16 = the signs, the eighth makes the
//!               minuses even
//! byte 66..74   scales: low nibble of byte k = sub-block 2k, high nibble = sub-block 2k + 1
//! value         d * (scale + 1/2) / 4 * element of the point * sign
//! ```
//!
//! In integers, and exactly: `d / 8 * (2 * scale + 1) * element`, with a signed element of 8, 25 or 43.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 74;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ2_XS,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ2_XS>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<16> {
    let mut codes = [0; 256];
    for (g, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let group = usize::from(u16::from_le_bytes([block[2 + 2 * g], block[3 + 2 * g]]));
        *codes = grid::IQ2_XS[group & 511].to_le_bytes().map(|e| e as i8);
        grid::negate(codes, u32::from(grid::SIGNS[group >> 9]));
    }
    let scales = std::array::from_fn(|s| 2 * (block[66 + s / 2] >> (4 * (s % 2)) & 15) as i8 + 1);
    Scaled { d: f16_at(block, 0) * 0.125, scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
