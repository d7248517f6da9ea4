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

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 210;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q6_K,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q6_K>()),
    }),
};

/// The codes less their offset, in 32s.
fn codes(block: &[u8; BYTES]) -> [[i8; 32]; 8] {
    std::array::from_fn(|j| {
        let (half, k) = (j / 4, j % 4);
        std::array::from_fn(|l| {
            let low = (block[half * 64 + k % 2 * 32 + l] >> (4 * (k / 2))) & 15;
            let high = (block[128 + half * 32 + l] >> (2 * k)) & 3;
            (low | high << 4) as i8 - 32
        })
    })
}

/// The scale of sub-block `j`.
fn scale(block: &[u8; BYTES], j: usize) -> i8 {
    block[192 + j] as i8
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, codes) = (f16_at(block, 208), codes(block));
        let subs = codes.as_flattened().as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0);
        for (j, (q, out)) in subs.enumerate() {
            let d = d * f32::from(scale(block, j));
            *out = q.map(|q| d * f32::from(q));
        }
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, _, x_scale) in blocks256::<BYTES>(row, x) {
        let codes = codes(block);
        let subs = codes.as_flattened().as_chunks::<16>().0.iter().zip(xs.as_chunks::<16>().0);
        let sum = subs.enumerate().map(|(j, (q, xs))| i32::from(scale(block, j)) * isum(q, xs)).sum();
        acc = step(acc, sum, f16_at(block, 208), x_scale);
    }
    acc
}
