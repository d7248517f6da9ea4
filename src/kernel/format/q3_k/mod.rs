//! Q3_K: 256 weights, 3 bits each, in 16 sub-blocks of 16 with signed 6-bit scales (110 bytes, 3.4375 bits a weight).
//!
//! ```text
//! byte 0..32     third bits: bit k of byte l = bit 2 of the code of element 32 * k + l
//! byte 32..96    codes' low bits: 32 bytes for each 128 elements; bits 2k, 2k + 1 of byte l = element 32 * k + l of the 128
//! byte 96..108   16 scales of 6 bits, stored plus 32:
//!                low 4 bits of scale j:  byte j % 8, low nibble for j < 8, high nibble for the rest
//!                high 2 bits:            byte 8 + j % 4, bits 2 * (j / 4) and the next
//! byte 108..110  f16 d
//! value          d * (scale - 32) * (code - 4)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 110;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q3_K,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q3_K>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<16> {
    let scales = std::array::from_fn(|j| {
        let low = (block[96 + j % 8] >> (4 * (j / 8))) & 15;
        let high = (block[104 + j % 4] >> (2 * (j / 4))) & 3;
        (low | high << 4) as i8 - 32
    });
    let codes = std::array::from_fn(|i| {
        let (k, l) = (i / 32, i % 32);
        let low = (block[32 + k / 4 * 32 + l] >> (2 * (k % 4))) & 3;
        (low | ((block[l] >> k) & 1) << 2) as i8 - 4
    });
    Scaled { d: f16_at(block, 108), scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
