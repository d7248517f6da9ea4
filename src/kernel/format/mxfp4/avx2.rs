//! MXFP4 as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::{BYTES, VALUES};
use crate::kernel::format::drive::avx2::block32::Block32;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

pub(super) struct MXFP4;

/// The table plus 12: unsigned and small, so that sums of pairs stay narrow for longer.
const SHIFTED: [i8; 16] = {
    let mut v = VALUES;
    let mut i = 0;
    while i < v.len() {
        v[i] += 12;
        i += 1;
    }
    v
};

impl Block32 for MXFP4 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 12;
    const MAX: i32 = 24;

    #[inline(always)]
    fn codes(isa: Avx2, low: &Self::Bytes, high: &Self::Bytes) -> [__m256i; 2] {
        read::lookup_two(isa, &SHIFTED, low, high, 1)
    }
    #[inline(always)]
    fn scales(_isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        let [e0, e1, e2, e3, e4, e5, e6, e7] = blocks.map(|b| b[0] as i8);
        // SAFETY: the token proves the features.
        unsafe {
            let e = _mm_setr_epi8(e0, e1, e2, e3, e4, e5, e6, e7, 0, 0, 0, 0, 0, 0, 0, 0);
            let e = _mm256_cvtepu8_epi32(e);
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
            _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, small))
        }
    }
}
