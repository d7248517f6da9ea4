//! Q4_0S as AVX2 reads it.

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct Q4_0S;

impl Block256 for Q4_0S {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 8;
    const MAX: i32 = 15;
    const SUB: usize = 32;
    const MAX_SCALE: i32 = 1;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        read::nibbles(isa, block, 2 + 16 * j)
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
