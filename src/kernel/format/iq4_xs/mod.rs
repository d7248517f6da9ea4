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

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at, iq4_nl::VALUES};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 136;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ4_XS,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::IQ4_XS>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<8> {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let scales = std::array::from_fn(|j| {
        let low = (block[4 + j / 2] >> (4 * (j % 2))) & 15;
        (low | ((high >> (2 * j)) as u8 & 3) << 4) as i8 - 32
    });
    let codes = std::array::from_fn(|i| {
        let (packed, l) = (&block[8 + 16 * (i / 32)..][..16], i % 32);
        VALUES[usize::from(if l < 16 { packed[l] & 15 } else { packed[l - 16] >> 4 })]
    });
    Scaled { d: f16_at(block, 0), scales, codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
