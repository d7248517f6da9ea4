//! IQ3_S as AVX2 reads it.

use super::{BYTES, grid, scale};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ3_S;

impl Block256 for IQ3_S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let low = u64::from(read::word(block, 2 + 8 * j)) | u64::from(read::word(block, 6 + 8 * j)) << 32;
        let ninths = usize::from(block[66 + j]);
        let point =
            |i: usize| u64::from(grid::IQ3_S[(low >> (8 * i)) as usize & 255 | (ninths >> i & 1) << 8]);
        let two = |i: usize| point(i) | point(i + 1) << 32;
        let points = read::quads(isa, [two(0), two(2), two(4), two(6)]);
        read::negate(isa, points, read::word(block, 74 + 4 * j))
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::scales_of_32(isa, |j| u32::from(scale(block, j)))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
