//! IQ4_NL: 32 weights, 4 bits each that choose one of 16 uneven steps, one scale (18 bytes, 4.5 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..18   indices: low nibble of byte j = element j, high nibble = element j + 16
//! value        d * VALUES[index]
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 18;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ4_NL,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::IQ4_NL>()),
    }),
};

/// The steps, finer near zero: where the weights are.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The 32 values from the table, in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    let index = |i: usize| if i < 16 { block[2 + i] & 15 } else { block[2 + i - 16] >> 4 };
    std::array::from_fn(|i| VALUES[usize::from(index(i))])
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = f16_at(block, 0);
        *out = codes(block).map(|q| d * f32::from(q));
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, x_scale) in blocks32::<BYTES>(row, x) {
        acc = step(acc, isum(&codes(block), xs), f16_at(block, 0), x_scale);
    }
    acc
}
