//! Q5_0: 32 weights, 5 bits each, one scale (22 bytes, 5.5 bits a weight).
//!
//! ```text
//! byte 0..2    f16 d
//! byte 2..6    fifth bits: bit i of the u32 = bit 4 of the code of element i
//! byte 6..22   codes' low bits: low nibble of byte j = element j, high nibble = element j + 16
//! value        d * (code - 16)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, f16_at, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 22;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q5_0,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::Q5_0>()),
    }),
};

/// The 32 codes less their offset, in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    std::array::from_fn(|i| {
        let low = if i < 16 { block[6 + i] & 15 } else { block[6 + i - 16] >> 4 };
        (low | ((high >> i) as u8 & 1) << 4) as i8 - 16
    })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = f16_at(block, 0);
        *out = codes(block).map(|q| d * f32::from(q));
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, x_scale) in blocks32::<BYTES>(row, x) {
        acc = step(acc, isum(&codes(block), xs), f16_at(block, 0), x_scale);
    }
    acc
}
