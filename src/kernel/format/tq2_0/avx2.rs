//! TQ2_0 as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct TQ2_0;

impl Block256 for TQ2_0 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 1;
    const MAX: i32 = 3;
    const SUB: usize = 32;
    const MINS: bool = false;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Bytes] {
        row.as_chunks().0
    }
    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        read::bit_pair(isa, read::load(isa, block, j / 4 * 32), j % 4)
    }
    #[inline(always)]
    fn scales(_isa: Avx2, _block: &Self::Bytes) -> __m256i {
        // The block's scale is all there is.
        // SAFETY: the token proves the features.
        unsafe { _mm256_set1_epi16(1) }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 64)
    }
}
