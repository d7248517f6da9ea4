//! Q4_0S_PSY: 256 weights, 4 bits each, a scale for each half (132 bytes, 4.125 bits a weight). A format of our own, with a
//! code that ggml does not assign.
//!
//! ```text
//! byte 0..2     f16 d of elements 0..128
//! byte 2..4     f16 d of elements 128..256
//! byte 4..132   codes: 16 bytes for each 32 elements; low nibble of byte j = element j, high nibble = element j + 16
//! value         d * (code - 8)
//! ```
//!
//! A block is two steps of the accumulator, the first half's before the second's, with the same activation scale.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 132;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_0S_PSY,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q4_0S_PSY>()),
    }),
};

/// The codes less their offset, in halves.
fn codes(block: &[u8; BYTES]) -> [[i8; 128]; 2] {
    std::array::from_fn(|half| {
        std::array::from_fn(|i| {
            let (group, l) = (half * 4 + i / 32, i % 32);
            (block[4 + group * 16 + l % 16] >> (l / 16 * 4) & 15) as i8 - 8
        })
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        for (half, (codes, out)) in codes(block).iter().zip(out.as_chunks_mut::<128>().0).enumerate() {
            let d = f16_at(block, 2 * half);
            *out = codes.map(|q| d * f32::from(q));
        }
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, _, x_scale) in blocks256::<BYTES>(row, x) {
        for (half, (codes, xs)) in codes(block).iter().zip(xs.as_chunks::<128>().0).enumerate() {
            acc = step(acc, isum(codes, xs), f16_at(block, 2 * half), x_scale);
        }
    }
    acc
}
