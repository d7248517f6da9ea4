//! Q3_K as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct Q3_K;

impl Block256 for Q3_K {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 4;
    const MAX: i32 = 7;
    const SUB: usize = 16;
    const MAX_SCALE: i32 = 32;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        let low = read::bit_pair(isa, read::load(isa, block, 32 + j / 4 * 32), j % 4);
        let high = read::bit(isa, read::load(isa, block, 0), j);
        // SAFETY: the token proves the features.
        unsafe { _mm256_or_si256(low, _mm256_slli_epi16::<2>(high)) }
    }
    #[inline(always)]
    fn scales(isa: Avx2, block: &Self::Bytes) -> __m256i {
        let [a, b, high] = [96, 100, 104].map(|at| read::word(block, at));
        // Four scales at a time, a byte each: 0..4, 4..8, 8..12, 12..16.
        let four = |low: u32, k: u32| (low & 0x0f0f_0f0f) | (((high >> (2 * k)) & 0x0303_0303) << 4);
        let half = |first: u32, second: u32| (u64::from(second) << 32 | u64::from(first)) as i64;
        // SAFETY: the token proves the features.
        unsafe {
            let stored = _mm_set_epi64x(half(four(a >> 4, 2), four(b >> 4, 3)), half(four(a, 0), four(b, 1)));
            read::split_signed(isa, _mm_sub_epi8(stored, _mm_set1_epi8(32)))
        }
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 108)
    }
}
