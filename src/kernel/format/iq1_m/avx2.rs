//! IQ1_M as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, d_bits, grid, scale_bits};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ1_M;

impl Block256 for IQ1_M {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) =
            (read::word(block, 4 * j) as usize, usize::from(read::half_word(block, 32 + 2 * j)));
        let point = |i: usize| grid::IQ1[(low >> (8 * i) & 255) | (high >> (4 * i) & 7) << 8];
        let points = read::quads(isa, [point(0), point(1), point(2), point(3)]);
        // All bits of a byte where its group's shift is negative: -1 and 1 differ in all but the lowest.
        let shift = |i: usize| 0x0101_0101_0101_0101 | 0u64.wrapping_sub((high >> (4 * i + 3) & 1) as u64);
        let shifts = read::quads(isa, [shift(0), shift(1), shift(2), shift(3)]);
        // SAFETY: the token proves the features.
        unsafe { _mm256_add_epi8(points, shifts) }
    }
    #[inline(always)]
    fn scales(_isa: Avx2, block: &Self::Bytes) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe {
            // Each of the four numbers, once for every scale of an even sub-block (low half) and of an odd one.
            let stored = _mm256_set1_epi64x(scale_bits(block) as i64);
            let twice = _mm256_setr_epi8(
                0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6,
                7,
            );
            let stored = _mm256_shuffle_epi8(stored, twice);
            // Multiplying by a power of two shifts each lane by its own amount: its scale becomes bits 9..12.
            let (even, odd) = (1 << 9 | 1 << 19, 1 << 6 | 1 << 16);
            let by = _mm256_setr_epi32(even, even, even, even, odd, odd, odd, odd);
            let shifted = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(stored, by));
            let twice = _mm256_and_si256(shifted, _mm256_set1_epi16(14));
            _mm256_or_si256(twice, _mm256_set1_epi16(1))
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_mul_ps(read::widen(isa, blocks.map(d_bits)), _mm256_set1_ps(0.125)) }
    }
}
