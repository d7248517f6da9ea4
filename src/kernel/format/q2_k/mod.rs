//! Q2_K: 256 weights, 2 bits each, in 16 sub-blocks of 16 with 4-bit scales and minimums (84 bytes, 2.625 bits a
//! weight).
//!
//! ```text
//! byte 0..16    sub-block j: low nibble of byte j = scale, high nibble = minimum
//! byte 16..80   codes: 32 bytes for each 128 elements; bits 2k, 2k + 1 of byte l = element 32 * k + l of the 128
//! byte 80..82   f16 d        scale of the scales
//! byte 82..84   f16 dmin     scale of the minimums
//! value         d * scale * code - dmin * minimum
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 84;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q2_K,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q2_K>()),
    }),
};

/// The codes, in 32s.
fn codes(block: &[u8; BYTES]) -> [[i8; 32]; 8] {
    std::array::from_fn(|k| {
        std::array::from_fn(|l| ((block[16 + k / 4 * 32 + l] >> (2 * (k % 4))) & 3) as i8)
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, dmin, codes) = (f16_at(block, 80), f16_at(block, 82), codes(block));
        let subs = codes.as_flattened().as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0);
        for ((q, out), &packed) in subs.zip(block) {
            let (d, m) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            *out = q.map(|q| d * f32::from(q) - m);
        }
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, xsums, x_scale) in blocks256::<BYTES>(row, x) {
        let codes = codes(block);
        let (mut sum, mut msum) = (0, 0);
        let subs = codes.as_flattened().as_chunks::<16>().0.iter().zip(xs.as_chunks::<16>().0).zip(xsums);
        for (((q, xs), &xsum), &packed) in subs.zip(block) {
            sum += i32::from(packed & 15) * isum(q, xs);
            msum += i32::from(packed >> 4) * i32::from(xsum);
        }
        acc = step(acc, sum, f16_at(block, 80), x_scale);
        acc = step(acc, -msum, f16_at(block, 82), x_scale);
    }
    acc
}
