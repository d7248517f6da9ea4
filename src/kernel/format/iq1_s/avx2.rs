//! IQ1_S as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ1_S;

impl Block256 for IQ1_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) =
            (read::word(block, 2 + 4 * j) as usize, usize::from(read::half_word(block, 34 + 2 * j)));
        let point = |i: usize| grid::IQ1[(low >> (8 * i) & 255) | (high >> (3 * i) & 7) << 8];
        let points = read::quads(isa, [point(0), point(1), point(2), point(3)]);
        // SAFETY: the token proves the features.
        unsafe { _mm256_add_epi8(points, _mm256_set1_epi8(if high >> 15 == 0 { 1 } else { -1 })) }
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let stored = read::load16(isa, block, 34);
        // SAFETY: the token proves the features.
        unsafe {
            let twice = _mm_and_si128(_mm_srli_epi16::<11>(stored), _mm_set1_epi16(14));
            let scales = _mm_or_si128(twice, _mm_set1_epi16(1));
            _mm256_set_m128i(scales, scales)
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
