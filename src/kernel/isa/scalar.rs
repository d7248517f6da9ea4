//! Eight lanes in plain Rust: the definition the other instruction sets are held to.

use super::Simd;
use half::f16;

/// Plain Rust, for any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar;

#[inline(always)]
fn map(a: [f32; 8], f: impl Fn(f32) -> f32) -> [f32; 8] {
    a.map(f)
}

#[inline(always)]
fn zip(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Scalar {
    #[inline(always)]
    fn widen_i8(self, from: &[i8; 8]) -> [f32; 8] {
        from.map(f32::from)
    }
}

impl Simd for Scalar {
    type V = [f32; 8];

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 8]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> Self::V {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; 8]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        map(a, f32::abs)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2i(self, n: Self::V) -> Self::V {
        map(n, |n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn keep_nan(self, x: Self::V, v: Self::V) -> Self::V {
        zip(x, v, |x, v| if x.is_nan() { x } else { v })
    }
    #[inline(always)]
    fn widen(self, from: &[u16; 8]) -> Self::V {
        from.map(|h| f16::from_bits(h).to_f32())
    }
    #[inline(always)]
    fn narrow(self, v: Self::V, to: &mut [u16; 8]) {
        *to = v.map(|x| f16::from_f32(x).to_bits());
    }
    super::two_vectors!();
}
