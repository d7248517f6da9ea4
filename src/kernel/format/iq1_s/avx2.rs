//! IQ1_S as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ1_S;

impl Block256 for IQ1_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;
    const GRID: Option<Grid> = Some(Grid { points: Table::Eights(&grid::IQ1), words: Words::None });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) =
            (read::word(block, 2 + 4 * j) as usize, usize::from(read::half_word(block, 34 + 2 * j)));
        let point = |i: usize| grid::IQ1[(low >> (8 * i) & 255) | (high >> (3 * i) & 7) << 8];
        let points = read::quads(isa, [point(0), point(1), point(2), point(3)]);
        // SAFETY: the token proves the features.
        unsafe { _mm256_sub_epi8(points, _mm256_set1_epi8(if high >> 15 == 0 { 7 } else { 9 })) }
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
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [first, last] = grid::avx2::halves(isa, read::load(isa, block, 2));
        let high = read::load16(isa, block, 34);
        let high = [grid::avx2::repeated::<2, 4, 0>(isa, high), grid::avx2::repeated::<2, 4, 4>(isa, high)];
        // SAFETY: the token proves the features.
        unsafe {
            // A power of two for each of four groups moves its three bits to the top.
            let by = _mm256_set1_epi64x(1 << 13 | 1 << (16 + 10) | 1 << (32 + 7) | 1 << (48 + 4));
            let top = |v| _mm256_and_si256(_mm256_srli_epi16::<5>(v), _mm256_set1_epi16(0x700));
            let first = _mm256_or_si256(first, top(_mm256_mullo_epi16(high[0], by)));
            let last = _mm256_or_si256(last, top(_mm256_mullo_epi16(high[1], by)));
            Points::eights([first, last], last)
        }
    }
    #[inline(always)]
    fn back(isa: Avx2, block: &Self::Bytes, scales: __m256i) -> Option<__m256i> {
        // SAFETY: the token proves the features.
        unsafe {
            // Points are 8 too large, less a shift of 1 or -1.
            let minus = _mm_srai_epi16::<15>(read::load16(isa, block, 34));
            let less = _mm_sub_epi16(_mm_set1_epi16(7), _mm_add_epi16(minus, minus));
            Some(_mm256_mullo_epi16(scales, _mm256_broadcastsi128_si256(less)))
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
