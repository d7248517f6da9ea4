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

impl Avx2 {
    #[inline(always)]
    fn widen_i8(self, from: &[i8; 8]) -> __m256 {
        op!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))))
    }
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
    fn prefetch(self, address: *const u8) {
        // It reads nothing.
        op!(_mm_prefetch::<_MM_HINT_T0>(address.cast()));
    }
    #[inline(always)]
    fn prefetch_far(self, address: *const u8) {
        // As above.
        op!(_mm_prefetch::<_MM_HINT_T1>(address.cast()));
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
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        op!({
            let s4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
            _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)))
        })
    }
    #[inline(always)]
    fn sum4(self, v: [__m256; 4]) -> [f32; 4] {
        op!({
            // Two vectors' `s4` side by side, then the lanes that are to meet below each other.
            let ab = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(v[0], v[1]),
                _mm256_permute2f128_ps::<0x31>(v[0], v[1]),
            );
            let cd = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(v[2], v[3]),
                _mm256_permute2f128_ps::<0x31>(v[2], v[3]),
            );
            let (even, odd) =
                (_mm256_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm256_shuffle_ps::<0b11_01_11_01>(ab, cd));
            // Each half: s4[0], s4[2] of one vector and of another in `even`, s4[1], s4[3] in `odd`.
            let even = _mm256_add_ps(even, _mm256_movehdup_ps(even));
            let odd = _mm256_add_ps(odd, _mm256_movehdup_ps(odd));
            let sums = _mm256_add_ps(even, odd);
            let (low, high) = (_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
            // Lanes 0 and 2 count: of `low` vectors 0 and 2, of `high` 1 and 3.
            [
                _mm_cvtss_f32(low),
                _mm_cvtss_f32(high),
                _mm_cvtss_f32(_mm_movehl_ps(low, low)),
                _mm_cvtss_f32(_mm_movehl_ps(high, high)),
            ]
        })
    }
    #[inline(always)]
    fn codes(self, v: [__m256; 2], to: &mut [i8; 16]) -> i16 {
        op!({
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
            // Bytes 128 larger are not negative, and their sums are one instruction.
            let sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
            let sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16::<4>(sums);
            (sum - 16 * 128) as i16
        })
    }
    super::two_vectors!();
}
