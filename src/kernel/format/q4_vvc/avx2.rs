//! Q4_VVC as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct Q4_VVC;

impl Block256 for Q4_VVC {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 4;
    const MAX: i32 = 8;
    const SUB: usize = 32;
    const MAX_SCALE: i32 = 1;

    #[inline(always)]
    fn codes(_isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let [a, b, c] = [2, 6, 10].map(|at| read::word(block, at + 12 * j) as i32);
        // SAFETY: the token proves the features.
        unsafe {
            let bits = _mm256_broadcastsi128_si256(_mm_setr_epi32(a, b, c, 0));
            // Eight elements lie in three bytes, each in two neighbouring ones of them. Multiplying by a power of two
            // shifts each lane by its own amount: its code becomes the top 3 bits.
            let top = _mm256_setr_epi16(
                8192, 1024, 128, 4096, 512, 64, 2048, 256, 8192, 1024, 128, 4096, 512, 64, 2048, 256,
            );
            let eights = _mm256_setr_epi8(
                0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 2, 3, 2, 3, 6, 7, 6, 7, 6, 7, 7, 8, 7, 8, 7, 8, 8, 9, 8,
                9,
            );
            let first = _mm256_shuffle_epi8(bits, eights);
            let second = _mm256_shuffle_epi8(bits, _mm256_add_epi8(eights, _mm256_set1_epi8(3)));
            let first = _mm256_srli_epi16::<13>(_mm256_mullo_epi16(first, top));
            let second = _mm256_srli_epi16::<13>(_mm256_mullo_epi16(second, top));
            // The driver subtracts powers of two: 4 from a code that is 1 larger.
            _mm256_add_epi8(_mm256_packus_epi16(first, second), _mm256_set1_epi8(1))
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
