//! BF16: the upper half of an f32 (2 bytes a weight).
//!
//! ```text
//! byte 0..2    bits 16..32 of the f32
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{Dot, Format, GgmlType};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::BF16,
    decode,
    dot: Dot::F32 {
        #[cfg(target_arch = "x86_64")]
        x86: super::drive::FloatKernels::of::<avx2::BF16>(),
    },
};

fn decode(row: &[u8], out: &mut [f32]) {
    for (&bytes, out) in row.as_chunks::<2>().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}
