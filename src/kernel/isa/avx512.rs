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
        prefetch(address: *const u8);
        prefetch_far(address: *const u8);
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
    fn load2(self, from: &[[f32; 8]; 2]) -> __m512 {
        op!(_mm512_loadu_ps(from.as_flattened().as_ptr()))
    }
    #[inline(always)]
    fn halves(self, w: __m512) -> [__m256; 2] {
        op!([_mm512_castps512_ps256(w), _mm512_extractf32x8_ps::<1>(w)])
    }
    #[inline(always)]
    fn sums<const N: usize>(self, v: [[__m512; 2]; N]) -> [[f32; 4]; N] {
        let mut sums = [[0.0; 4]; N];
        let ((fours, rest), (to, to_rest)) = (v.as_chunks::<4>(), sums.as_chunks_mut::<4>());
        for (to, four) in to.iter_mut().zip(fours) {
            op!(sums4(four, to));
        }
        for (to, &v) in to_rest.iter_mut().zip(rest) {
            *to = self.sum_halves(v);
        }
        sums
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

/// Four times the sums of the halves of two vectors: the same tree, in which four sums share a step.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums4(v: &[[__m512; 2]; 4], to: &mut [[f32; 4]; 4]) {
    // Of each pair the `s4` of its four halves, a quarter each.
    let mut s4 = [_mm512_setzero_ps(); 4];
    for (s4, [ab, cd]) in s4.iter_mut().zip(v) {
        *s4 = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(*ab, *cd),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(*ab, *cd),
        );
    }
    // Quarters of the `s2` of two pairs, then those of all four summed up.
    let mut s2 = [_mm512_setzero_ps(); 2];
    for (s2, [x, y]) in s2.iter_mut().zip(s4.as_chunks::<2>().0) {
        let (x, y) = (_mm512_castps_pd(*x), _mm512_castps_pd(*y));
        *s2 = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)),
        );
    }
    let sums = _mm512_add_ps(
        _mm512_shuffle_ps::<0b10_00_10_00>(s2[0], s2[1]),
        _mm512_shuffle_ps::<0b11_01_11_01>(s2[0], s2[1]),
    );
    // From halves of pairs to pairs of halves.
    let across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let sums = _mm512_permutexvar_ps(across, sums);
    // SAFETY: `to` has 16 floats; the instruction takes any alignment.
    unsafe { _mm512_storeu_ps(to.as_flattened_mut().as_mut_ptr(), sums) }
}
