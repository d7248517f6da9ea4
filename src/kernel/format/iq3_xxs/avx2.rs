//! IQ3_XXS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ3_XXS;

impl Block256 for IQ3_XXS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const OFFSET: i32 = 0;
    const MAX: i32 = 127;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Bytes] {
        row.as_chunks().0
    }
    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let low = u64::from(read::word(block, 2 + 8 * j)) | u64::from(read::word(block, 6 + 8 * j)) << 32;
        let point = |i: usize| u64::from(grid::IQ3_XXS[(low >> (8 * i)) as usize & 255]);
        let two = |i: usize| point(i) | point(i + 1) << 32;
        let signs = grid::signs_of_sevens(read::word(block, 66 + 4 * j));
        read::negate(isa, read::quads(isa, [two(0), two(2), two(4), two(6)]), signs)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let scale = |j: usize| u64::from(2 * (read::word(block, 66 + 4 * j) >> 28) + 1) << (16 * (j % 4));
        let four = |j: usize| scale(j) | scale(j + 1) | scale(j + 2) | scale(j + 3);
        read::scales_of_32(isa, four(0), four(4))
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_mul_ps(read::f16_lanes(isa, blocks, 0), _mm256_set1_ps(0.25)) }
    }
}
