//! Q4_VVC: 256 weights, 3 bits each, one scale (98 bytes, 3.0625 bits a weight). A format of our own, with a code that ggml
//! does not assign. The 4 in its name is history.
//!
//! ```text
//! byte 0..2     f16 d
//! byte 2..98    codes: bits 3i .. 3i + 3 of the little-endian number that these bytes are = element i
//! value         d * (code - 3)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::scaled::{self, Scaled};
use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, f16_at};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 98;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_VVC,
    decode: |row, out| scaled::decode(row, out, read),
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B256,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block256::<avx2::Q4_VVC>()),
    }),
};

fn read(block: &[u8; BYTES]) -> Scaled<1> {
    let packed = &block[2..];
    let codes = std::array::from_fn(|i| {
        let (byte, bit) = (3 * i / 8, 3 * i % 8);
        let two = [packed[byte], packed.get(byte + 1).copied().unwrap_or(0)];
        (u16::from_le_bytes(two) >> bit & 7) as i8 - 3
    });
    Scaled { d: f16_at(block, 0), scales: [1], codes }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    scaled::dot(row, x, read)
}
