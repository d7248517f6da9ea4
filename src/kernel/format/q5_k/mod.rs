//! Q5_K: 256 weights, 5 bits each, in 8 sub-blocks of 32 with 6-bit scales and minimums (176 bytes, 5.5 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d        scale of the scales
//! byte 2..4     f16 dmin     scale of the minimums
//! byte 4..16    8 scales and 8 minimums of 6 bits, packed as in Q4_K
//! byte 16..48   fifth bits: bit j of byte l = bit 4 of the code of element 32 * j + l
//! byte 48..176  codes' low bits: 32 bytes for each two sub-blocks, low nibbles the first, high nibbles the second
//! value         d * scale * code - dmin * minimum
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{
    ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum,
    q4_k::{packed_scales, scale_min},
    step,
};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 176;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q5_K,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q5_K>()),
    }),
};

/// The codes, in 32s.
fn codes(block: &[u8; BYTES]) -> [[i8; 32]; 8] {
    std::array::from_fn(|j| {
        std::array::from_fn(|l| {
            let low = (block[48 + j / 2 * 32 + l] >> (4 * (j % 2))) & 15;
            (low | ((block[16 + l] >> j) & 1) << 4) as i8
        })
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (j, (q, out)) in codes(block).iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
            let (scale, min) = scale_min(packed_scales(block), j);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            *out = q.map(|q| d * f32::from(q) - m);
        }
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, xsums, x_scale) in blocks256::<BYTES>(row, x) {
        let (mut sum, mut msum) = (0, 0);
        for (j, (q, xs)) in codes(block).iter().zip(xs.as_chunks::<32>().0).enumerate() {
            let (scale, min) = scale_min(packed_scales(block), j);
            sum += i32::from(scale) * isum(q, xs);
            msum += i32::from(min) * (i32::from(xsums[2 * j]) + i32::from(xsums[2 * j + 1]));
        }
        acc = step(acc, sum, f16_at(block, 0), x_scale);
        acc = step(acc, -msum, f16_at(block, 2), x_scale);
    }
    acc
}
