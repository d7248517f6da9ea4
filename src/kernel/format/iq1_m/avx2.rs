//! IQ1_M as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, d_bits, grid, scale_bits};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ1_M;

impl Block256 for IQ1_M {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;
    const GRID: Option<Grid> = Some(Grid { points: Table::Eights(&grid::IQ1), words: Words::Added });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) =
            (read::word(block, 4 * j) as usize, usize::from(read::half_word(block, 32 + 2 * j)));
        let point = |i: usize| grid::IQ1[(low >> (8 * i) & 255) | (high >> (4 * i) & 7) << 8];
        let points = read::quads(isa, [point(0), point(1), point(2), point(3)]);
        // Points are 8 too large; with a shift of 1 it is 7 that has to go, with one of -1 it is 9, which has other bits.
        let minus = |i: usize| 0u64.wrapping_sub((high >> (4 * i + 3) & 1) as u64);
        let shift = |i: usize| 0x0707_0707_0707_0707 ^ (minus(i) & 0x0e0e_0e0e_0e0e_0e0e);
        let shifts = read::quads(isa, [shift(0), shift(1), shift(2), shift(3)]);
        // SAFETY: the token proves the features.
        unsafe { _mm256_sub_epi8(points, shifts) }
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
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [first, last] = grid::avx2::halves(isa, read::load(isa, block, 0));
        let nibbles = read::load16(isa, block, 32);
        // SAFETY: the token proves the features.
        unsafe {
            // To bits 8 to 11.
            let by = _mm256_set1_epi32(256 | 16 << 16);
            let a = _mm256_mullo_epi16(grid::avx2::repeated::<1, 2, 0>(isa, nibbles), by);
            let b = _mm256_mullo_epi16(grid::avx2::repeated::<1, 2, 8>(isa, nibbles), by);
            let high = _mm256_set1_epi16(0x700);
            let first = _mm256_or_si256(first, _mm256_and_si256(a, high));
            let last = _mm256_or_si256(last, _mm256_and_si256(b, high));
            // 1 and its shift: 2 where bit 11 is not set, or nothing.
            let two = _mm256_set1_epi16(2);
            let a = _mm256_andnot_si256(_mm256_srli_epi16::<10>(a), two);
            let b = _mm256_andnot_si256(_mm256_srli_epi16::<10>(b), two);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(a, b));
            Points::eights([first, last], words)
        }
    }
    #[inline(always)]
    fn back(_isa: Avx2, _block: &Self::Bytes, scales: __m256i) -> Option<__m256i> {
        // SAFETY: the token proves the features. Points are 8 too large, and 1 was added.
        Some(unsafe { _mm256_add_epi16(_mm256_slli_epi16::<3>(scales), scales) })
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_mul_ps(read::widen(isa, blocks.map(d_bits)), _mm256_set1_ps(0.125)) }
    }
}
