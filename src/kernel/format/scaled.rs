//! Decoding and dot product of formats whose blocks of 256 are one f32 scale, integer scales of sub-blocks, and signed
//! codes, however those are packed.

use super::step;
use crate::kernel::op::quantize::Q8Row;

/// A block, unpacked: element `i` is `d * scales[i / (256 / SUBS)] * codes[i]`.
pub(super) struct Scaled<const SUBS: usize> {
    pub d: f32,
    pub scales: [i8; SUBS],
    pub codes: [i8; 256],
}

/// Decodes whole blocks, which `read` unpacks.
///
/// Where `scales` and `codes` together have at most 13 bits, no product here is rounded: an f16 has 11 bits, an f32 has 24.
pub(super) fn decode<const BYTES: usize, const SUBS: usize>(
    row: &[u8],
    out: &mut [f32],
    read: impl Fn(&[u8; BYTES]) -> Scaled<SUBS>,
) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let Scaled { d, scales, codes } = read(block);
        let sub = 256 / SUBS;
        for ((out, codes), scale) in out.chunks_mut(sub).zip(codes.chunks(sub)).zip(scales) {
            let d = d * f32::from(scale);
            out.iter_mut().zip(codes).for_each(|(out, &q)| *out = d * f32::from(q));
        }
    }
}

/// A row by a vector: a block's integer sum is `sum over sub-blocks of scale * (sum of code products)`.
pub(super) fn dot<const BYTES: usize, const SUBS: usize>(
    row: &[u8],
    x: Q8Row<'_>,
    read: impl Fn(&[u8; BYTES]) -> Scaled<SUBS>,
) -> f32 {
    let mut acc = 0.0;
    for (block, xs, _, x_scale) in super::blocks256::<BYTES>(row, x) {
        let Scaled { d, scales, codes } = read(block);
        let sub = 256 / SUBS;
        let subs = codes.chunks(sub).zip(xs.chunks(sub)).zip(scales);
        let sum = subs.map(|((q, xs), scale)| i32::from(scale) * super::isum(q, xs)).sum();
        acc = step(acc, sum, d, x_scale);
    }
    acc
}
