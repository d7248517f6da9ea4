//! IQ2_XS as AVX2 reads it.

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_XS;

impl Block256 for IQ2_XS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let groups = [0, 2, 4, 6].map(|i| usize::from(read::half_word(block, 2 + 8 * j + i)));
        let points = groups.map(|g| grid::IQ2_XS[g & 511]);
        let signs = u32::from_le_bytes(groups.map(|g| grid::SIGNS[g >> 9]));
        read::negate(isa, read::quads(isa, points), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::odd_scales_of_nibbles(isa, block, 66)
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
