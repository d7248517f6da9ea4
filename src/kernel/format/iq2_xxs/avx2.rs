//! IQ2_XXS as AVX2 reads it.

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_XXS;

impl Block256 for IQ2_XXS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let points = read::word(block, 2 + 8 * j).to_le_bytes().map(|p| grid::IQ2_XXS[usize::from(p)]);
        let signs = grid::signs_of_sevens(read::word(block, 6 + 8 * j));
        read::negate(isa, read::quads(isa, points), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::scales_of_32(isa, |j| 2 * (read::word(block, 6 + 8 * j) >> 28) + 1)
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
