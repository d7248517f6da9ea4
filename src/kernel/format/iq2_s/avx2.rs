//! IQ2_S as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::{Avx2, Dots};
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_S;

impl Block256 for IQ2_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;
    const GRID: Option<Grid> = Some(Grid { points: Table::Eights(&grid::IQ2_S), words: Words::Signs });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) = (read::word(block, 2 + 4 * j) as usize, usize::from(block[66 + j]));
        let point = |i: usize| grid::IQ2_S[(low >> (8 * i) & 255) | (high >> (2 * i) & 3) << 8];
        let points = [point(0), point(1), point(2), point(3)];
        isa.negate(read::quads(isa, points), read::word(block, 34 + 4 * j))
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::odd_scales_of_nibbles(isa, block, 74)
    }
    #[inline(always)]
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [mut first, mut last] = grid::avx2::halves(isa, read::load(isa, block, 2));
        // SAFETY: the token proves the features.
        unsafe {
            // A power of two for each of four groups moves its two bits of their byte to bits 8 and 9.
            let by = _mm256_set1_epi64x(0x0004_0010_0040_0100);
            let (high, mask) = (read::load16(isa, block, 66), _mm256_set1_epi16(0x300));
            let high =
                [grid::avx2::repeated::<1, 4, 0>(isa, high), grid::avx2::repeated::<1, 4, 4>(isa, high)];
            first = _mm256_or_si256(first, _mm256_and_si256(_mm256_mullo_epi16(high[0], by), mask));
            last = _mm256_or_si256(last, _mm256_and_si256(_mm256_mullo_epi16(high[1], by), mask));
        }
        Points::eights([first, last], read::load(isa, block, 34))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
