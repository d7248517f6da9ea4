//! IQ2_XS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, grid};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ2_XS;

impl Block256 for IQ2_XS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const OFFSET: i32 = 0;
    const MAX: i32 = 127;
    const SUB: usize = 16;
    const MINS: bool = false;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Bytes] {
        row.as_chunks().0
    }
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
        // SAFETY: the token proves the features.
        unsafe { _mm256_mul_ps(read::f16_lanes(isa, blocks, 0), _mm256_set1_ps(0.125)) }
    }
}
