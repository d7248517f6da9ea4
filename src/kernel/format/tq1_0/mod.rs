//! TQ1_0: 256 weights of -1, 0 or 1, five to a byte (54 bytes, 1.6875 bits a weight).
//!
//! ```text
//! byte 0..32    elements 0..160: digit k of byte l = element 32 * k + l, k in 0..5
//! byte 32..48   elements 160..240: digit k of byte l = element 160 + 16 * k + l, k in 0..5
//! byte 48..52   elements 240..256: digit k of byte l = element 240 + 4 * k + l, k in 0..4
//! byte 52..54   f16 d
//! value         d * (digit - 1)
//! ```
//!
//! A byte is a fraction in base 3, its digits those behind the point: digit k of byte b is `(b * 3^k mod 256) * 3 / 256`.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 54;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::TQ1_0,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::TQ1_0>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<1> {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let codes = std::array::from_fn(|i| {
        let (byte, digit) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + i % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        };
        let fraction = block[byte].wrapping_mul(POWERS[digit]);
        ((u16::from(fraction) * 3) >> 8) as i8 - 1
    });
    Scaled { d: f16_at(block, 52), scales: [1], codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
