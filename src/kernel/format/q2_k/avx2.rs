//! Q2_K as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct Q2_K;

impl Block256 for Q2_K {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const MAX: i32 = 3;
    const SUB: usize = 16;
    const MAX_SCALE: i32 = 15;
    const MINS: bool = true;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        read::bit_pair(isa, read::load(isa, block, 16 + j / 4 * 32), j % 4)
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let packed = read::load16(isa, block, 0);
        // SAFETY: the token proves the features.
        unsafe {
            let low = _mm_set1_epi16(15);
            // Seen as i16, each holds an even sub-block's byte and, above it, the odd one's.
            _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16::<8>(packed), low), _mm_and_si128(packed, low))
        }
    }
    #[inline(always)]
    fn mins(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let packed = read::load16(isa, block, 0);
        // SAFETY: the token proves the features.
        unsafe {
            let low = _mm_set1_epi16(15);
            _mm256_set_m128i(_mm_srli_epi16::<12>(packed), _mm_and_si128(_mm_srli_epi16::<4>(packed), low))
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 80)
    }
    #[inline(always)]
    fn dmin(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 82)
    }
}
