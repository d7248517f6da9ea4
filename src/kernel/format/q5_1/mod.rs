//! Q5_1: 32 weights, 5 bits each, one scale and one minimum (24 bytes, 6 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..4    f16 m
//! byte 4..8    fifth bits: bit i of the u32 = bit 4 of the code of element i
//! byte 8..24   codes' low bits: low nibble of byte j = element j, high nibble = element j + 16
//! value        d * code + m
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, f16_at, isum, step, xsum};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 24;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q5_1,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::Q5_1>()),
    }),
};

/// The 32 codes in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    std::array::from_fn(|i| {
        let low = if i < 16 { block[8 + i] & 15 } else { block[8 + i - 16] >> 4 };
        (low | ((high >> i) as u8 & 1) << 4) as i8
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        // The product is exact (11 + 5 bits), so a fused multiply-add would give the same.
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
