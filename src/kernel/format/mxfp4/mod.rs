//! MXFP4: 32 weights of 4-bit floats (E2M1), one power-of-two scale (17 bytes, 4.25 bits a weight).
//!
//! ```text
//! byte 0       e: the scale is 2^(e - 127)
//! byte 1..17   floats: low nibble of byte j = element j, high nibble = element j + 16
//! value        2^(e - 128) * VALUES[nibble]
//! ```
//!
//! The table holds twice the floats' values, which makes them integers, and the scale is halved in turn; so every
//! exponent gives a finite scale (255, a NaN in the OCP specification, is 2^127 here as in ggml) and code 8, the
//! negative zero, decodes to +0. Unlike an f16 scale, 2^(e - 128) may be so small that its product with an activation
//! scale (never below 2^-60) is an f32 denormal: possible for e < 62, weights below 2^-65, and so large that a sum
//! overflows. The CPU computes both as IEEE 754 says; a device that flushes denormals does not.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{ActBlock, Dot, Format, GgmlType, Q8Dot, blocks32, isum, step};
use crate::kernel::op::quantize::Q8Row;

const BYTES: usize = 17;

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::MXFP4,
    decode,
    dot: Dot::Q8(Q8Dot {
        block: ActBlock::B32,
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        x86: Some(super::drive::Kernels::block32::<avx2::MXFP4>()),
    }),
};

/// Twice the value of each 4-bit float.
pub(super) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The 32 values from the table, in element order.
fn codes(block: &[u8; BYTES]) -> [i8; 32] {
    let nibble = |i: usize| if i < 16 { block[1 + i] & 15 } else { block[1 + i - 16] >> 4 };
    std::array::from_fn(|i| VALUES[usize::from(nibble(i))])
}

/// `2^(e - 128)`, from the bits: the two smallest are f32 denormals.
fn scale(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

fn decode(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = scale(block[0]);
        *out = codes(block).map(|q| d * f32::from(q));
    }
}

fn dot(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0.0;
    for (block, xs, x_scale) in blocks32::<BYTES>(row, x) {
        acc = step(acc, isum(&codes(block), xs), scale(block[0]), x_scale);
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format::Matrix;
    use crate::kernel::isa::Isa;
    use crate::kernel::op::quantize::Q8;
    use crate::kernel::par::Cols;

    /// The files of reference values have none of the exponents at the ends.
    #[test]
    fn every_exponent_is_the_power_of_two_it_stands_for() {
        for e in 0..=u8::MAX {
            let mut block = [0x32; BYTES]; // low nibble 2: 1.0, high nibble 3: 1.5
            block[0] = e;
            let mut out = [0.0; 32];
            decode(&block, &mut out);
            let power = 2f64.powi(i32::from(e) - 127);
            // 2^128, at the very end, is past the largest f32.
            let want = |v: f64| if power * v > f64::from(f32::MAX) { f64::INFINITY } else { power * v };
            assert_eq!(f64::from(out[0]), want(1.0), "exponent {e}");
            assert_eq!(f64::from(out[16]), want(1.5), "exponent {e}");
        }
    }

    #[test]
    fn every_exponent_multiplies_alike_on_every_instruction_set() {
        let bytes: Vec<u8> = (0..=u8::MAX)
            .flat_map(|e| std::array::from_fn::<u8, BYTES, _>(|i| if i == 0 { e } else { 0x72 }))
            .collect();
        let w = Matrix::new(&FORMAT, &bytes, 256, 32).expect("256 rows of one block");
        let (codes, scales, sums) = ([100i8; 32], [0.75f32], [1600i16; 2]);
        let x = Q8::new(ActBlock::B32, 32, &codes, &scales, &sums);
        let Dot::Q8(q8) = &FORMAT.dot else { panic!("an int8 format") };
        let product = |isa| {
            let mut out = [f32::NAN; 256];
            q8.run(isa, w, (&x, None), &mut Cols::whole(&mut out, 256), &mut Default::default(), 0..0);
            out.map(f32::to_bits)
        };
        for isa in Isa::all() {
            assert_eq!(product(isa), product(Isa::Scalar), "{isa:?}");
        }
        assert_eq!(f32::from_bits(product(Isa::Scalar)[127]), (16.0 + 16.0 * 6.0) * 75.0);
    }
}
