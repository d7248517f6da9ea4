//! IQ3_XXS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::{Avx2, Dots};
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ3_XXS;

impl Block256 for IQ3_XXS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;
    const GRID: Option<Grid> = Some(Grid { points: Table::Fours(&grid::IQ3_XXS), words: Words::Signs });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let low = u64::from(read::word(block, 2 + 8 * j)) | u64::from(read::word(block, 6 + 8 * j)) << 32;
        let point = |i: usize| u64::from(grid::IQ3_XXS[(low >> (8 * i)) as usize & 255]);
        let two = |i: usize| point(i) | point(i + 1) << 32;
        let signs = grid::signs_of_sevens(read::word(block, 66 + 4 * j));
        isa.negate(read::quads(isa, [two(0), two(2), two(4), two(6)]), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        grid::avx2::odd_scales_of_words(isa, read::load(isa, block, 66))
    }
    #[inline(always)]
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let [a, b] = grid::avx2::halves(isa, read::load(isa, block, 2));
        let [c, d] = grid::avx2::halves(isa, read::load(isa, block, 34));
        Points::fours([a, b, c, d], grid::avx2::even_of_words(isa, read::load(isa, block, 66)))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.25)
    }
}
