//! F32: IEEE 754 binary32 (4 bytes a weight).
//!
//! ```text
//! byte 0..4    f32
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{Dot, Format, GgmlType};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::F32,
    decode,
    dot: Dot::F32 {
        #[cfg(target_arch = "x86_64")]
        x86: super::drive::FloatKernels::of::<avx2::F32>(),
    },
};

fn decode(row: &[u8], out: &mut [f32]) {
    for (&bytes, out) in row.as_chunks::<4>().0.iter().zip(out) {
        *out = f32::from_le_bytes(bytes);
    }
}
