//! Q5_0 as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block32::Block32;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

pub(super) struct Q5_0;

impl Block32 for Q5_0 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 16;
    const MAX: i32 = 31;
    const MINS: bool = false;

    #[inline(always)]
    fn blocks(row: &[u8]) -> &[Self::Bytes] {
        row.as_chunks().0
    }
    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let high = read::bits(isa, block, 2);
        // SAFETY: the token proves the features.
        unsafe {
            let high = _mm256_and_si256(high, _mm256_set1_epi8(16));
            _mm256_or_si256(read::nibbles(isa, block, 6), high)
        }
    }
    #[inline(always)]
    fn scales(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
