//! IQ4_XS: 256 weights, 4 bits each that choose one of IQ4_NL's 16 steps, in 8 sub-blocks of 32 with signed 6-bit
//! scales (136 bytes, 4.25 bits a weight).
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..4     scales' high 2 bits: bits 2j, 2j + 1 of the u16 = sub-block j
//! byte 4..8     scales' low 4 bits: low nibble of byte k = sub-block 2k, high nibble = sub-block 2k + 1
//! byte 8..136   indices: 16 bytes a sub-block; low nibble of byte l = element l, high nibble = element l + 16
//! value         d * (scale - 32) * VALUES[index]
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks256, f16_at, iq4_nl::VALUES, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 136;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ4_XS,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ4_XS>()),
    }),
};

/// The values from the table, in sub-blocks.
fn codes(block: &[u8; BYTES]) -> [[i8; 32]; 8] {
    std::array::from_fn(|j| {
        let packed = &block[8 + 16 * j..][..16];
        let index = |l: usize| if l < 16 { packed[l] & 15 } else { packed[l - 16] >> 4 };
        std::array::from_fn(|l| VALUES[usize::from(index(l))])
    })
}

/// The scale of sub-block `j`, less its offset.
fn scale(block: &[u8; BYTES], j: usize) -> i8 {
    let low = (block[4 + j / 2] >> (4 * (j % 2))) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * j)) as u8 & 3;
    (low | high << 4) as i8 - 32
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, codes) = (f16_at(block, 0), codes(block));
        let subs = codes.as_flattened().as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0);
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
        let subs = codes.as_flattened().as_chunks::<32>().0.iter().zip(xs.as_chunks::<32>().0);
        let sum = subs.enumerate().map(|(j, (q, xs))| i32::from(scale(block, j)) * isum(q, xs)).sum();
        acc = step(acc, sum, f16_at(block, 0), x_scale);
    }
    acc
}
