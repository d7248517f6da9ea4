//! Q4_0S: 256 weights, 4 bits each, one scale (130 bytes, 4.0625 bits a weight). A format of our own, with a code that
//! ggml does not assign: Q4_0 with one scale where that has eight, for heads that a GPU reads.
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..130   codes: 16 bytes for each 32 elements; low nibble of byte j = element j, high nibble = element j + 16
//! value         d * (code - 8)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 130;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_0S,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q4_0S>()),
    }),
};

/// The 256 codes less their offset, in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 256] {
    std::array::from_fn(|i| {
        let (group, l) = (i / 32, i % 32);
        (block[2 + group * 16 + l % 16] >> (l / 16 * 4) & 15) as i8 - 8
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let d = f16_at(block, 0);
        *out = codes(block).map(|q| d * f32::from(q));
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, _, x_scale) in blocks256::<BYTES>(row, x) {
        acc = step(acc, isum(&codes(block), xs), f16_at(block, 0), x_scale);
    }
    acc
}
