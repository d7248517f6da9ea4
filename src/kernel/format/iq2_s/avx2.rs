//! IQ2_S as AVX2 reads it.

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_S;

impl Block256 for IQ2_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 16;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let (low, high) = (read::word(block, 2 + 4 * j) as usize, usize::from(block[66 + j]));
        let point = |i: usize| grid::IQ2_S[(low >> (8 * i) & 255) | (high >> (2 * i) & 3) << 8];
        let points = [point(0), point(1), point(2), point(3)];
        read::negate(isa, read::quads(isa, points), read::word(block, 34 + 4 * j))
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::odd_scales_of_nibbles(isa, block, 74)
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_by(isa, blocks, 0, 0.125)
    }
}
