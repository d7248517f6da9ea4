//! AVX2 with FMA and F16C (every x86-64 CPU since 2013 has the three together).
#![allow(unsafe_code, reason = "calls CPU intrinsics; the token type proves that the CPU has them")]

use super::Simd;
use std::arch::x86_64::*;

/// Proof that the running CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the CPU.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// Runs one intrinsic. Inlined into [`Simd::vectorize`], it becomes a single instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: `self` is an Avx2 token, which exists only after `detect` found the features.
        unsafe { $e }
    };
}

impl Simd for Avx2 {
    type V = __m256;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        op!(inner(f))
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> __m256 {
        op!(_mm256_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m256, to: &mut [f32; 8]) {
        op!(_mm256_storeu_ps(to.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        op!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn exp2i(self, n: __m256) -> __m256 {
        op!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn keep_nan(self, x: __m256, v: __m256) -> __m256 {
        op!(_mm256_blendv_ps(v, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)))
    }
    #[inline(always)]
    fn widen(self, from: &[u16; 8]) -> __m256 {
        op!(_mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn narrow(self, v: __m256, to: &mut [u16; 8]) {
        op!({
            let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(to.as_mut_ptr().cast(), h);
        });
    }
}
