//! Q3_K: 256 weights, 3 bits each, in 16 sub-blocks of 16 with signed 6-bit scales (110 bytes, 3.4375 bits a weight).
//!
//! ```text
//! byte 0..32     third bits: bit k of byte l = bit 2 of the code of element 32 * k + l
//! byte 32..96    codes' low bits: 32 bytes for each 128 elements; bits 2k, 2k + 1 of byte l = element 32 * k + l of the 128
//! byte 96..108   16 scales of 6 bits, stored plus 32:
//!                low 4 bits of scale j:  byte j % 8, low nibble for j < 8, high nibble for the rest
//!                high 2 bits:            byte 8 + j % 4, bits 2 * (j / 4) and the next
//! byte 108..110  f16 d
//! value          d * (scale - 32) * (code - 4)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 110;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q3_K,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q3_K>()),
    }),
};

/// The codes less their offset, in 32s.
fn codes(block: &[u8; BYTES]) -> [[i8; 32]; 8] {
    std::array::from_fn(|k| {
        std::array::from_fn(|l| {
            let low = (block[32 + k / 4 * 32 + l] >> (2 * (k % 4))) & 3;
            (low | ((block[l] >> k) & 1) << 2) as i8 - 4
        })
    })
}

/// The scale of sub-block `j`, less its offset.
fn scale(block: &[u8; BYTES], j: usize) -> i8 {
    let low = (block[96 + j % 8] >> (4 * (j / 8))) & 15;
    let high = (block[104 + j % 4] >> (2 * (j / 4))) & 3;
    (low | high << 4) as i8 - 32
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, codes) = (f16_at(block, 108), codes(block));
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
        acc = step(acc, sum, f16_at(block, 108), x_scale);
    }
    acc
}
