//! IQ1_M: 256 weights of 2048 points of a grid, in 16 sub-blocks of 16 with 3-bit scales (56 bytes, 1.75 bits a weight).
//!
//! ```text
//! byte 0..32    points' low 8 bits, a byte for each group of 8 elements
//! byte 32..48   a nibble for each group, low ones first: bits 0..3 = the point's high bits; bit 3 = the sign of the shift
//! byte 48..56   four u16: bits 3i .. 3i + 3 of number k = the scale of sub-block 4k + i; their bits 12..16 are the nibbles
//!               of the f16 d, the lowest first
//! value         d * (2 * scale + 1) * (element of the point + shift), with an element of -1, 0 or 1 and a shift of +-1/8
//! ```
//!
//! In integers, and exactly: `d / 8 * (2 * scale + 1) * (8 * element +- 1)`.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 56;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ1_M,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ1_M>()),
    }),
};

/// The four numbers that hold the scales, the first lowest.
fn scale_bits(block: &[u8; BYTES]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *block;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The bits of the f16 `d`.
fn d_bits(block: &[u8; BYTES]) -> u16 {
    let bits = scale_bits(block);
    let nibble = |k: u32| (bits >> (16 * k + 12) & 15) as u16;
    nibble(0) | nibble(1) << 4 | nibble(2) << 8 | nibble(3) << 12
}

fn read(block: &[u8; BYTES]) -> Scaled<16> {
    let mut codes = [0; 256];
    for (g, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let nibble = block[32 + g / 2] >> (g % 2 * 4) & 15;
        let point = usize::from(block[g]) | usize::from(nibble & 7) << 8;
        let shift = if nibble & 8 == 0 { 1 } else { -1 };
        *codes = grid::iq1(point).map(|e| e + shift);
    }
    let stored = scale_bits(block);
    let scales = std::array::from_fn(|s| 2 * (stored >> (16 * (s / 4) + 3 * (s % 4)) & 7) as i8 + 1);
    Scaled { d: half::f16::from_bits(d_bits(block)).to_f32() * 0.125, scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
