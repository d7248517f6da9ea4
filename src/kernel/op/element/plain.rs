//! Numbers that are stored one by one.

use super::Element;
use crate::kernel::isa::Simd;

/// As they are.
#[derive(Clone, Copy)]
pub struct F32;

/// Rounded to f16, to nearest even; too large ones are infinite.
#[derive(Clone, Copy)]
pub struct F16;

/// What is the same for both: `$raw` is what a number is stored as.
macro_rules! plain {
    ($raw:ty) => {
        type Raw = $raw;
        type Unit = [$raw; 8];
        const EIGHTS: usize = 1;

        #[inline(always)]
        fn raw(n: usize) -> usize {
            n
        }
        #[inline(always)]
        fn units(row: &[$raw]) -> &[[$raw; 8]] {
            row.as_chunks().0
        }
        #[inline(always)]
        fn rest(row: &[$raw]) -> [[$raw; 8]; 2] {
            let mut units = [[Default::default(); 8]; 2];
            units.as_flattened_mut()[..row.len()].copy_from_slice(row);
            units
        }
        #[inline(always)]
        fn store<S: Simd>(s: S, x: &[f32], to: &mut [$raw]) {
            let (x8, x_rest) = x.as_chunks::<8>();
            let (to8, to_rest) = to.as_chunks_mut::<8>();
            for (x, to) in x8.iter().zip(to8) {
                Self::eight(s, s.load(x), to);
            }
            if !x_rest.is_empty() {
                let (mut a, mut b) = ([0.0; 8], [Default::default(); 8]);
                a[..x_rest.len()].copy_from_slice(x_rest);
                Self::eight(s, s.load(&a), &mut b);
                to_rest.copy_from_slice(&b[..to_rest.len()]);
            }
        }
    };
}

impl F32 {
    #[inline(always)]
    fn eight<S: Simd>(s: S, x: S::V, to: &mut [f32; 8]) {
        s.store(x, to);
    }
}

impl F16 {
    #[inline(always)]
    fn eight<S: Simd>(s: S, x: S::V, to: &mut [u16; 8]) {
        s.narrow(x, to);
    }
}

impl Element for F32 {
    plain!(f32);

    #[inline(always)]
    fn load2<S: Simd>(s: S, [(low, _), (high, _)]: [(&[f32; 8], usize); 2]) -> S::W {
        s.pair(s.load(low), s.load(high))
    }
}

impl Element for F16 {
    plain!(u16);

    #[inline(always)]
    fn load2<S: Simd>(s: S, [(low, _), (high, _)]: [(&[u16; 8], usize); 2]) -> S::W {
        s.widen2(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use crate::kernel::isa::Isa;

    #[test]
    fn stored_numbers_come_back() {
        for n in 0..40 {
            // Multiples of 1/8 below 16 are exact in f16.
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 251) as f32 - 125.0) / 8.0).collect();
            for isa in Isa::all() {
                let (mut h, mut f) = (vec![0u16; n], vec![0f32; n]);
                crate::simd!(isa, s => F16::store(s, &x, &mut h));
                crate::simd!(isa, s => F32::store(s, &x, &mut f));
                assert_eq!(f, x);
                assert_eq!(crate::simd!(isa, s => read::<_, F32>(s, &f, n)), x);
                assert_eq!(crate::simd!(isa, s => read::<_, F16>(s, &h, n)), x);
            }
        }
    }
}
