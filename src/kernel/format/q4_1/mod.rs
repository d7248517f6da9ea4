//! Q4_1: 32 weights, 4 bits each, one scale and one minimum (20 bytes, 5 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..4    f16 m
//! byte 4..20   codes: low nibble of byte j = element j, high nibble = element j + 16
//! value        d * code + m
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, f16_at, isum, step, xsum};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 20;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_1,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::Q4_1>()),
    }),
};

/// The 32 codes in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    std::array::from_fn(|i| (if i < 16 { block[4 + i] & 15 } else { block[4 + i - 16] >> 4 }) as i8)
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        // The product is exact (11 + 4 bits), so a fused multiply-add would give the same.
        *out = codes(block).map(|q| d * f32::from(q) + m);
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, x_scale) in blocks32::<BYTES>(row, x) {
        acc = step(acc, isum(&codes(block), xs), f16_at(block, 0), x_scale);
        acc = step(acc, xsum(xs), f16_at(block, 2), x_scale);
    }
    acc
}
