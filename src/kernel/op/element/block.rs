//! Numbers in blocks of 32 that share an f16 scale: the bytes are those of the weight formats of the same names, and
//! which bytes those are is what ggml's reference quantisers say.
//!
//! A block that holds a number that is not finite, or that has no scale among the f16 numbers, gets a scale that is NaN:
//! attention to it is not finite then, and that is noticed.

use super::Element;
use crate::kernel::isa::Simd;
use crate::kernel::op::finite::largest_magnitude;
use half::f16;

/// Numbers in a block.
pub const BLOCK: usize = 32;

/// Codes of 8 bits.
///
/// ```text
/// byte 0..2    f16 d
/// byte 2..34   codes, signed
/// value        d * code, which is exact in f32
/// ```
#[derive(Clone, Copy)]
pub struct Q8_0;

/// Codes of 4 bits.
///
/// ```text
/// byte 0..2    f16 d
/// byte 2..18   codes: low nibble of byte j = number j, high nibble = number j + 16
/// value        d * (code - 8), which is exact in f32
/// ```
#[derive(Clone, Copy)]
pub struct Q4_0;

/// What is the same for both: `$bytes` is the length of a block.
macro_rules! block {
    ($bytes:literal, $encode:path) => {
        type Raw = u8;
        type Unit = [u8; $bytes];
        const EIGHTS: usize = BLOCK / 8;

        #[inline(always)]
        fn raw(n: usize) -> usize {
            n / BLOCK * $bytes
        }
        #[inline(always)]
        fn units(row: &[u8]) -> &[[u8; $bytes]] {
            row.as_chunks().0
        }
        #[inline(always)]
        fn rest(row: &[u8]) -> [[u8; $bytes]; 2] {
            debug_assert!(row.is_empty());
            [[0; $bytes]; 2]
        }
        #[inline(always)]
        fn store<S: Simd>(s: S, x: &[f32], to: &mut [u8]) {
            for (x, to) in x.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
                *to = $encode(s, x);
            }
        }
    };
}

impl Element for Q8_0 {
    block!(34, q8_0);

    #[inline(always)]
    fn load2<S: Simd>(s: S, [(low, i), (high, j)]: [(&[u8; 34], usize); 2]) -> S::W {
        let codes = |block: &[u8; 34], i: usize| std::array::from_fn(|l| block[2 + 8 * i + l] as i8);
        s.mul2(s.widen2_i8(&codes(low, i), &codes(high, j)), scales(s, low, high))
    }
}

impl Element for Q4_0 {
    block!(18, q4_0);

    #[inline(always)]
    fn load2<S: Simd>(s: S, [(low, i), (high, j)]: [(&[u8; 18], usize); 2]) -> S::W {
        let codes = |block: &[u8; 18], i: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|l| block[2 + 8 * (i % 2) + l]);
            bytes.map(|b| (if i < 2 { b & 15 } else { b >> 4 }) as i8)
        };
        let codes = s.add2(s.widen2_i8(&codes(low, i), &codes(high, j)), s.splat2(-8.0));
        s.mul2(codes, scales(s, low, high))
    }
}

/// The scales of two blocks in all lanes of a half each.
#[inline(always)]
fn scales<S: Simd>(s: S, low: &[u8], high: &[u8]) -> S::W {
    let scale = |block: &[u8]| [u16::from_le_bytes([block[0], block[1]]); 8];
    s.widen2(&scale(low), &scale(high))
}

/// The largest magnitude, or NaN if a number is not finite.
#[inline(always)]
fn magnitude<S: Simd>(s: S, x: &[f32; BLOCK]) -> f32 {
    largest_magnitude(s, x).unwrap_or(f32::NAN)
}

/// What is stored of a scale, and what numbers are multiplied by for their codes.
#[inline(always)]
fn scale(d: f32) -> ([u8; 2], f32) {
    let stored = f16::from_f32(d);
    let stored = if stored.is_finite() { stored } else { f16::NAN };
    (stored.to_le_bytes(), if d == 0.0 { 0.0 } else { 1.0 / d })
}

#[inline(always)]
fn q8_0<S: Simd>(s: S, x: &[f32; BLOCK]) -> [u8; 34] {
    let (d, inverse) = scale(magnitude(s, x) / 127.0);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&d);
    for (code, x) in block[2..].iter_mut().zip(x) {
        // Halves away from zero.
        *code = (x * inverse).round() as i8 as u8;
    }
    block
}

#[inline(always)]
fn q4_0<S: Simd>(s: S, x: &[f32; BLOCK]) -> [u8; 18] {
    // The first number of the largest magnitude has code 0. None equals a NaN; a zero counts as +0.
    let magnitude = magnitude(s, x);
    let extreme = x.iter().copied().find(|x| x.abs() == magnitude).unwrap_or(f32::NAN);
    let (d, inverse) = scale((extreme + 0.0) / -8.0);
    let codes: [u8; BLOCK] = x.map(|x| ((x * inverse + 8.5) as u8).min(15));
    let mut block = [0; 18];
    block[..2].copy_from_slice(&d);
    for (l, byte) in block[2..].iter_mut().enumerate() {
        *byte = codes[l] | codes[l + 16] << 4;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use crate::kernel::check::{data, floats};
    use crate::kernel::format::{self, GgmlType};
    use crate::kernel::isa::Isa;

    /// What ggml made of `input.f32`, see the folder's README.
    fn golden(name: &str) -> Vec<u8> {
        data(&format!("quantize/{name}"))
    }

    fn stored<E: Element<Raw = u8>>(isa: Isa, x: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; E::raw(x.len())];
        crate::simd!(isa, s => E::store(s, x, &mut bytes));
        bytes
    }

    #[test]
    fn bytes_are_those_of_ggml_and_are_read_as_the_weight_format() {
        fn check<E: Element<Raw = u8>>(isa: Isa, ty: GgmlType, file: &str) {
            let x = floats(&golden("input.f32"));
            let bytes = golden(file);
            let wrong = stored::<E>(isa, &x).iter().zip(&bytes).position(|(g, w)| g != w);
            assert_eq!((wrong, bytes.len()), (None, E::raw(x.len())), "{ty} {isa:?}");
            let mut want = vec![0.0; x.len()];
            (format::of(ty).expect("a format").decode)(&bytes, &mut want);
            let got = crate::simd!(isa, s => read::<_, E>(s, &bytes, x.len()));
            assert!(got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()), "{ty} {isa:?}");
        }
        for isa in Isa::all() {
            check::<Q8_0>(isa, GgmlType::Q8_0, "q8_0.bytes");
            check::<Q4_0>(isa, GgmlType::Q4_0, "q4_0.bytes");
        }
    }

    #[test]
    fn every_code_of_every_kind_of_scale_is_read_exactly() {
        for isa in Isa::all() {
            for bits in [0x0001u16, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0x8001, 0xbc01, 0x0000] {
                let d = f64::from(f16::from_bits(bits).to_f32());
                let bytes: Vec<u8> = (0..=255).collect();
                let blocks = |len| -> Vec<u8> {
                    bytes.chunks(len).flat_map(|codes| [&bits.to_le_bytes(), codes].concat()).collect()
                };
                let eight = crate::simd!(isa, s => read::<_, Q8_0>(s, &blocks(32), 256));
                for (&code, x) in bytes.iter().zip(eight) {
                    assert_eq!(f64::from(x), d * f64::from(code as i8), "{isa:?} {bits:04x} {code}");
                }
                let four = crate::simd!(isa, s => read::<_, Q4_0>(s, &blocks(16), 512));
                for (codes, x) in bytes.chunks(16).zip(four.chunks(32)) {
                    for (byte, (&low, &high)) in codes.iter().zip(x.iter().zip(&x[16..])) {
                        let want = [byte & 15, byte >> 4].map(|code| d * (f64::from(code) - 8.0));
                        assert_eq!([low, high].map(f64::from), want, "{isa:?} {bits:04x} {byte}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_do_not_vanish() {
        fn check<E: Element<Raw = u8>>(isa: Isa) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                for at in [0, 13, 31] {
                    let mut x = [0.5; 64];
                    x[32 + at] = bad;
                    let back = crate::simd!(isa, s => read::<_, E>(s, &stored::<E>(isa, &x), 64));
                    assert!(back[..32].iter().all(|x| (x - 0.5).abs() < 0.07), "{isa:?} {bad}");
                    assert!(back[32..].iter().all(|x| x.is_nan()), "{isa:?} {bad}");
                }
            }
            assert_eq!(crate::simd!(isa, s => read::<_, E>(s, &stored::<E>(isa, &[0.0; 32]), 32)), [0.0; 32]);
        }
        for isa in Isa::all() {
            check::<Q8_0>(isa);
            check::<Q4_0>(isa);
        }
    }
}
