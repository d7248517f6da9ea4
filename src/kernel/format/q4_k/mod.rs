//! Q4_K: 256 weights, 4 bits each, in 8 sub-blocks of 32 with 6-bit scales and minimums (144 bytes, 4.5 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d        scale of the scales
//! byte 2..4     f16 dmin     scale of the minimums
//! byte 4..16    8 scales and 8 minimums of 6 bits:
//!               sub-block j < 4: scale = byte j & 63, minimum = byte j + 4 & 63
//!               sub-block j > 3: scale = byte j + 4 & 15 | byte j - 4 >> 6 << 4
//!                                minimum = byte j + 4 >> 4 | byte j >> 6 << 4
//! byte 16..144  codes: 32 bytes for each two sub-blocks, low nibbles the first, high nibbles the second
//! value         d * scale * code - dmin * minimum
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 144;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_K,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q4_K>()),
    }),
};

/// The scale and minimum of sub-block `j` from the 12 packed bytes. Q5_K packs them the same way.
pub(super) fn scale_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), (packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
    }
}

/// The packed scales of a block that starts like Q4_K.
pub(super) fn packed_scales(block: &[u8]) -> &[u8; 12] {
    block[4..].first_chunk().expect("blocks are longer than 16 bytes")
}

/// Code of element `i`.
fn code(block: &[u8; BYTES], i: usize) -> u8 {
    let (j, l) = (i / 32, i % 32);
    (block[16 + j / 2 * 32 + l] >> (4 * (j % 2))) & 15
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scale_min(packed_scales(block), j);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            *out = std::array::from_fn(|l| d * f32::from(code(block, j * 32 + l)) - m);
        }
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0f32;
    for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
        let (xs, sums) = (&x.codes[b * 256..][..256], &x.sums[b * 16..][..16]);
        let (mut isum, mut msum) = (0i32, 0i32);
        for j in 0..8 {
            let (scale, min) = scale_min(packed_scales(block), j);
            let q = (j * 32..j * 32 + 32).map(|i| i32::from(code(block, i)) * i32::from(xs[i])).sum::<i32>();
            isum += i32::from(scale) * q;
            msum += i32::from(min) * (i32::from(sums[2 * j]) + i32::from(sums[2 * j + 1]));
        }
        acc += isum as f32 * (f16_at(block, 0) * x.scales[b]);
        acc -= msum as f32 * (f16_at(block, 2) * x.scales[b]);
    }
    acc
}
