//! IQ3_S as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::{Avx2, Dots};
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ3_S;

impl Block256 for IQ3_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;
    const GRID: Option<Grid> = Some(Grid { points: Table::Fours(&grid::IQ3_S), words: Words::Signs });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let low = u64::from(read::word(block, 2 + 8 * j)) | u64::from(read::word(block, 6 + 8 * j)) << 32;
        let ninths = usize::from(block[66 + j]);
        let point =
            |i: usize| u64::from(grid::IQ3_S[(low >> (8 * i)) as usize & 255 | (ninths >> i & 1) << 8]);
        let two = |i: usize| point(i) | point(i + 1) << 32;
        let points = read::quads(isa, [two(0), two(2), two(4), two(6)]);
        isa.negate(points, read::word(block, 74 + 4 * j))
    }
    #[inline(always)]
    fn scales(_isa: Avx2, block: &Self::Bytes) -> __m256i {
        let nibbles = read::word(block, 106);
        // SAFETY: the token proves the features.
        unsafe {
            // Each byte for two sub-blocks, its nibble for one of them in bits 4 to 7.
            let twice = _mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1);
            let bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(nibbles as i32), twice);
            let moved = _mm_mullo_epi16(bytes, _mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1));
            let twice = _mm_and_si128(_mm_srli_epi16::<3>(moved), _mm_set1_epi16(30));
            _mm256_broadcastsi128_si256(_mm_or_si128(twice, _mm_set1_epi16(1)))
        }
    }
    #[inline(always)]
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [a, b] = grid::avx2::halves(isa, read::load(isa, block, 2));
        let [c, d] = grid::avx2::halves(isa, read::load(isa, block, 34));
        let ninths = read::load16(isa, block, 66);
        let ninths = [
            grid::avx2::repeated::<1, 8, 0>(isa, ninths),
            grid::avx2::repeated::<1, 8, 2>(isa, ninths),
            grid::avx2::repeated::<1, 8, 4>(isa, ninths),
            grid::avx2::repeated::<1, 8, 6>(isa, ninths),
        ];
        let mut numbers = [a, b, c, d];
        // SAFETY: the token proves the features.
        unsafe {
            // A power of two for each of eight groups moves its bit of their byte to bit 8.
            let by = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
            for (numbers, ninths) in numbers.iter_mut().zip(ninths) {
                let ninths = _mm256_and_si256(_mm256_mullo_epi16(ninths, by), _mm256_set1_epi16(256));
                *numbers = _mm256_or_si256(*numbers, ninths);
            }
        }
        Points::fours(numbers, read::load(isa, block, 74))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
