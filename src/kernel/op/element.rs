//! The two ways in which numbers of the KV cache are stored.

use crate::kernel::isa::Simd;

/// A stored number.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Eight of them, widened exactly.
    fn load<S: Simd>(s: S, from: &[Self; 8]) -> S::V;
    /// Twice eight of them, widened exactly.
    fn load2<S: Simd>(s: S, low: &[Self; 8], high: &[Self; 8]) -> S::W;
    /// Stores eight numbers, each rounded to nearest even.
    fn store<S: Simd>(s: S, v: S::V, to: &mut [Self; 8]);
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32; 8]) -> S::V {
        s.load(from)
    }
    #[inline(always)]
    fn load2<S: Simd>(s: S, low: &[f32; 8], high: &[f32; 8]) -> S::W {
        s.pair(s.load(low), s.load(high))
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, to: &mut [f32; 8]) {
        s.store(v, to);
    }
}

/// The bits of an f16.
impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u16; 8]) -> S::V {
        s.widen(from)
    }
    #[inline(always)]
    fn load2<S: Simd>(s: S, low: &[u16; 8], high: &[u16; 8]) -> S::W {
        s.widen2(low, high)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, to: &mut [u16; 8]) {
        s.narrow(v, to);
    }
}

/// Stores `x` as elements; both have the same length.
#[inline(always)]
pub fn store<S: Simd, E: Element>(s: S, x: &[f32], to: &mut [E]) {
    debug_assert_eq!(x.len(), to.len());
    let (x8, x_rest) = x.as_chunks::<8>();
    let (to8, to_rest) = to.as_chunks_mut::<8>();
    for (x, to) in x8.iter().zip(to8) {
        E::store(s, s.load(x), to);
    }
    if !x_rest.is_empty() {
        let (mut a, mut b) = ([0.0; 8], [E::default(); 8]);
        a[..x_rest.len()].copy_from_slice(x_rest);
        E::store(s, s.load(&a), &mut b);
        to_rest.copy_from_slice(&b[..to_rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;
    use crate::kernel::op::dot::dot;

    #[test]
    fn stored_numbers_come_back_and_dots_equal_the_f32_dot() {
        for n in 0..40 {
            // Multiples of 1/8 below 16 are exact in f16.
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 251) as f32 - 125.0) / 8.0).collect();
            let a: Vec<f32> = (0..n).map(|i| (i as f32 - 7.0) * 0.3).collect();
            for isa in Isa::all() {
                let (mut h, mut f) = (vec![0u16; n], vec![0f32; n]);
                crate::simd!(isa, s => store(s, &x, &mut h));
                crate::simd!(isa, s => store(s, &x, &mut f));
                assert_eq!(f, x);
                let want = crate::simd!(isa, s => dot(s, &a, &x));
                assert_eq!(crate::simd!(isa, s => dot(s, &a, &h)).to_bits(), want.to_bits());
                assert_eq!(crate::simd!(isa, s => dot(s, &a, &f)).to_bits(), want.to_bits());
            }
        }
    }
}
