//! Q8_0: 32 weights, 8 bits each, one scale (34 bytes, 8.5 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..34   codes, signed: byte 2 + i = element i
//! value        d * code
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 34;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q8_0,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::Q8_0>()),
    }),
};

/// The 32 codes.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    std::array::from_fn(|i| block[2 + i] as i8)
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
