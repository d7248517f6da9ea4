//! TQ2_0: 256 weights of 2 bits, meant to be -1, 0 or 1 (66 bytes, 2.0625 bits a weight).
//!
//! ```text
//! byte 0..64    codes: 32 bytes for each 128 elements; bits 2k, 2k + 1 of byte l = element 32 * k + l of the 128
//! byte 64..66   f16 d
//! value         d * (code - 1)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 66;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::TQ2_0,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::TQ2_0>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<1> {
    let codes = std::array::from_fn(|i| (block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) as i8 - 1);
    Scaled { d: f16_at(block, 64), scales: [1], codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
