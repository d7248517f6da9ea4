//! Q6_K: 256 weights, 6 bits each, in 16 sub-blocks of 16 with signed 8-bit scales (210 bytes, 6.5625 bits a weight).
//!
//! ```text
//! byte 0..128    codes' low 4 bits: 64 bytes for each 128 elements; of the 128, byte l = elements l (low nibble) and
//!                l + 64 (high nibble)
//! byte 128..192  codes' high 2 bits: 32 bytes for each 128 elements; bits 2k, 2k + 1 of byte l = element 32 * k + l of
//!                the 128
//! byte 192..208  16 scales, signed
//! byte 208..210  f16 d
//! value          d * scale * (code - 32)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 210;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q6_K,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q6_K>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<16> {
    let codes = std::array::from_fn(|i| {
        let (half, k, l) = (i / 128, i / 32 % 4, i % 32);
        let low = (block[half * 64 + k % 2 * 32 + l] >> (4 * (k / 2))) & 15;
        let high = (block[128 + half * 32 + l] >> (2 * k)) & 3;
        (low | high << 4) as i8 - 32
    });
    Scaled { d: f16_at(block, 208), scales: std::array::from_fn(|j| block[192 + j] as i8), codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
