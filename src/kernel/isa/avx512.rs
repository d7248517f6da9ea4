//! Eight lanes for CPUs with AVX-512: those of AVX2, and two times eight in one register.
#![allow(unsafe_code, reason = "calls CPU intrinsics; the token type proves that the CPU has them")]

use super::{Avx512, Simd};
use std::arch::x86_64::*;

/// Runs intrinsics. Inlined into [`Simd::vectorize`], each becomes a single instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: `self` is an Avx512 token, which exists only after `detect` found the features.
        unsafe { $e }
    };
}

/// What AVX2 has is taken from there.
macro_rules! as_avx2 {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) $(-> $result)? {
            self.avx2().$name($($arg),*)
        }
    )*};
}

impl Simd for Avx512 {
    type V = __m256;
    type W = __m512;
    const QUERIES: usize = 8;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        super::Vnni::run(self, f)
    }
    as_avx2! {
        splat(x: f32) -> __m256;
        load(from: &[f32; 8]) -> __m256;
        store(v: __m256, to: &mut [f32; 8]);
        add(a: __m256, b: __m256) -> __m256;
        sub(a: __m256, b: __m256) -> __m256;
        mul(a: __m256, b: __m256) -> __m256;
        div(a: __m256, b: __m256) -> __m256;
        max(a: __m256, b: __m256) -> __m256;
        min(a: __m256, b: __m256) -> __m256;
        abs(a: __m256) -> __m256;
        round(a: __m256) -> __m256;
        exp2i(n: __m256) -> __m256;
        keep_nan(x: __m256, v: __m256) -> __m256;
        widen(from: &[u16; 8]) -> __m256;
        narrow(v: __m256, to: &mut [u16; 8]);
        sum(v: __m256) -> f32;
        sum4(v: [__m256; 4]) -> [f32; 4];
        codes(v: [__m256; 2], to: &mut [i8; 16]) -> i16;
    }
    #[inline(always)]
    fn pair(self, a: __m256, b: __m256) -> __m512 {
        op!(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(a), b))
    }
    #[inline(always)]
    fn halves(self, w: __m512) -> [__m256; 2] {
        op!([_mm512_castps512_ps256(w), _mm512_extractf32x8_ps::<1>(w)])
    }
    #[inline(always)]
    fn load_both(self, from: &[f32; 8]) -> __m512 {
        op!(_mm512_broadcast_f32x8(_mm256_loadu_ps(from.as_ptr())))
    }
    #[inline(always)]
    fn splat2(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add2(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn mul2(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn widen2(self, low: &[u16; 8], high: &[u16; 8]) -> __m512 {
        op!({
            let (low, high) = (_mm_loadu_si128(low.as_ptr().cast()), _mm_loadu_si128(high.as_ptr().cast()));
            _mm512_cvtph_ps(_mm256_set_m128i(high, low))
        })
    }
    #[inline(always)]
    fn widen2_i8(self, low: &[i8; 8], high: &[i8; 8]) -> __m512 {
        op!({
            let (low, high) = (_mm_loadl_epi64(low.as_ptr().cast()), _mm_loadl_epi64(high.as_ptr().cast()));
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(low, high)))
        })
    }
}
