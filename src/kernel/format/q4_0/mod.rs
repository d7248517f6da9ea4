//! Q4_0: 32 weights, 4 bits each, one scale (18 bytes, 4.5 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..18   codes: low nibble of byte j = element j, high nibble = element j + 16
//! value        d * (code - 8)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 18;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_0,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::Q4_0>()),
    }),
};

/// The 32 codes less their offset, in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    std::array::from_fn(|i| (if i < 16 { block[2 + i] & 15 } else { block[2 + i - 16] >> 4 }) as i8 - 8)
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = f16_at(block, 0);
        *out = codes(block).map(|q| d * f32::from(q));
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for ((block, xs), &x_scale) in
        row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<32>().0).zip(x.scales)
    {
        let isum = codes(block).iter().zip(xs).map(|(&q, &x)| i32::from(q) * i32::from(x)).sum();
        acc = step(acc, isum, f16_at(block, 0), x_scale);
    }
    acc
}
