//! TQ2_0 as AVX2 reads it.

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct TQ2_0;

impl Block256 for TQ2_0 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 1;
    const MAX: i32 = 3;
    const SUB: usize = 32;
    const MAX_SCALE: i32 = 1;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        read::bit_pair(isa, read::load(isa, block, j / 4 * 32), j % 4)
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 64)
    }
}
