//! IQ2_XXS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::{Avx2, Dots};
use std::arch::x86_64::*;

/// The words of all sub-blocks: those of the points and those of signs and scale.
#[inline(always)]
fn words(isa: Avx2, block: &[u8; BYTES]) -> [__m256i; 2] {
    let (a, b) = (read::load(isa, block, 2), read::load(isa, block, 34));
    // SAFETY: the token proves the features.
    unsafe {
        let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
        let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
        [_mm256_permute4x64_epi64::<0b11_01_10_00>(even), _mm256_permute4x64_epi64::<0b11_01_10_00>(odd)]
    }
}

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_XXS;

impl Block256 for IQ2_XXS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;
    const GRID: Option<Grid> = Some(Grid { points: Table::Eights(&grid::IQ2_XXS), words: Words::Signs });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let points = read::word(block, 2 + 8 * j).to_le_bytes().map(|p| grid::IQ2_XXS[usize::from(p)]);
        let signs = grid::signs_of_sevens(read::word(block, 6 + 8 * j));
        isa.negate(read::quads(isa, points), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        grid::avx2::odd_scales_of_words(isa, words(isa, block)[1])
    }
    #[inline(always)]
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [points, words] = words(isa, block);
        let [first, last] = grid::avx2::halves(isa, points);
        Points::eights([first, last], grid::avx2::even_of_words(isa, words))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
