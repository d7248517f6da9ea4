//! F16: IEEE 754 binary16 (2 bytes a weight), widened exactly.
//!
//! ```text
//! byte 0..2    f16
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{Dot, Format, GgmlType};

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::F16,
    decode,
    dot: Dot::F32 {
        #[cfg(target_arch = "x86_64")]
        x86: super::drive::FloatKernels::of::<avx2::F16>(),
    },
};

fn decode(row: &[u8], out: &mut [f32]) {
    for (&bytes, out) in row.as_chunks::<2>().0.iter().zip(out) {
        *out = half::f16::from_le_bytes(bytes).to_f32();
    }
}
