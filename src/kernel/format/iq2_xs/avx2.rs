//! IQ2_XS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::few::{Grid, Points, Table, Words};
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::{Avx2, Dots};
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_XS;

impl Block256 for IQ2_XS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;
    const GRID: Option<Grid> = Some(Grid { points: Table::Eights(&grid::IQ2_XS), words: Words::Signs });

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let groups = [0, 2, 4, 6].map(|i| usize::from(read::half_word(block, 2 + 8 * j + i)));
        let points = groups.map(|g| grid::IQ2_XS[g & 511]);
        let signs = u32::from_le_bytes(groups.map(|g| grid::SIGNS[g >> 9]));
        isa.negate(read::quads(isa, points), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::odd_scales_of_nibbles(isa, block, 66)
    }
    #[inline(always)]
    fn points(isa: Avx2, block: &Self::Bytes) -> Points {
        let (a, b) = (read::load(isa, block, 2), read::load(isa, block, 34));
        // SAFETY: the token proves the features.
        unsafe {
            let nine = _mm256_set1_epi16(511);
            let (first, last) = (_mm256_and_si256(a, nine), _mm256_and_si256(b, nine));
            let sevens = _mm256_packus_epi16(_mm256_srli_epi16::<9>(a), _mm256_srli_epi16::<9>(b));
            let signs = grid::avx2::even(isa, sevens);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(signs);
            Points::eights([first, last], words)
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
