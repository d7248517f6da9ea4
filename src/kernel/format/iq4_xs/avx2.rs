//! IQ4_XS as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, VALUES};
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ4_XS;

impl Block256 for IQ4_XS {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;
    const SUB: usize = 32;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        read::lookup(isa, &VALUES, read::nibbles(isa, block, 8 + 16 * j))
    }
    #[inline(always)]
    fn scales(_isa: Avx2, block: &Self::Bytes) -> __m256i {
        let (high, low) = (read::half_word(block, 2), read::word(block, 4));
        // SAFETY: the token proves the features.
        unsafe {
            // Multiplying by a power of two shifts each lane by its own amount.
            let high = _mm_mullo_epi16(
                _mm_set1_epi16(high as i16),
                _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1),
            );
            let twice = _mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1);
            let low = _mm_mullo_epi16(
                _mm_shuffle_epi8(_mm_cvtsi32_si128(low as i32), twice),
                _mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1),
            );
            let low = _mm_and_si128(_mm_srli_epi16::<4>(low), _mm_set1_epi16(15));
            let stored = _mm_or_si128(low, _mm_slli_epi16::<4>(_mm_srli_epi16::<14>(high)));
            let scales = _mm_sub_epi16(stored, _mm_set1_epi16(32));
            _mm256_set_m128i(scales, scales)
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
