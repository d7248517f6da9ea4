//! Q4_K as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct Q4_K;

impl Block256 for Q4_K {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const MAX: i32 = 15;
    const SUB: usize = 32;
    const MAX_SCALE: i32 = 63;
    const MINS: bool = true;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let packed = read::load(isa, block, 16 + j / 2 * 32);
        // SAFETY: the token proves the features.
        unsafe {
            let shifted = if j.is_multiple_of(2) { packed } else { _mm256_srli_epi16::<4>(packed) };
            _mm256_and_si256(shifted, _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn lanes(isa: Avx2, blocks: [&Self::Bytes; 8], pair: usize) -> [[__m256i; 8]; 2] {
        read::nibble_lanes(isa, blocks, 16 + pair * 32)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::scales_mins_6bit(isa, block, 4).0
    }
    #[inline(always)]
    fn mins(isa: Avx2, block: &Self::Bytes) -> __m256i {
        read::scales_mins_6bit(isa, block, 4).1
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
    #[inline(always)]
    fn dmin(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 2)
    }
}
