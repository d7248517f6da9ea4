//! IQ3_S: 256 weights of 512 points of a grid, in 8 sub-blocks of 32 with 4-bit scales (110 bytes, 3.4375 bits a weight).
//!
//! ```text
//! byte 0..2      f16 d
//! byte 2..66     points' low 8 bits, a byte for each group of 4 elements
//! byte 66..74    points' ninth bits: bit i of byte j = group 8j + i
//! byte 74..106   signs: bit i of byte k = element 8k + i
//! byte 106..110  scales: low nibble of byte k = sub-block 2k, high nibble = sub-block 2k + 1
//! value          d * (2 * scale + 1) * element of the point * sign, the element odd and at most 15
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, grid};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 110;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ3_S,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ3_S>()),
    }),
};

/// The scale of sub-block `j`.
fn scale(block: &[u8; BYTES], j: usize) -> u8 {
    2 * (block[106 + j / 2] >> (4 * (j % 2)) & 15) + 1
}

fn read(block: &[u8; BYTES]) -> Scaled<8> {
    let mut codes = [0; 256];
    for (g, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let ninth = block[66 + g / 8] >> (g % 8) & 1;
        let point = usize::from(block[2 + g]) | usize::from(ninth) << 8;
        *codes = grid::IQ3_S[point].to_le_bytes().map(|e| e as i8);
        grid::negate(codes, u32::from(block[74 + g / 2] >> (g % 2 * 4)));
    }
    Scaled { d: f16_at(block, 0), scales: std::array::from_fn(|j| scale(block, j) as i8), codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
