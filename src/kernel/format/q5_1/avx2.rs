//! Q5_1 as AVX2 reads it.

use super::BYTES;
use crate::kernel::format::drive::avx2::block32::Block32;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

pub(super) struct Q5_1;

impl Block32 for Q5_1 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const MAX: i32 = 31;
    const MINS: bool = true;

    #[inline(always)]
    fn codes(isa: Avx2, low: &Self::Bytes, high: &Self::Bytes) -> [__m256i; 2] {
        read::fives_two(isa, low, high, 8, 4)
    }
    #[inline(always)]
    fn scales(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_two(isa, blocks, 0)[0]
    }
    #[inline(always)]
    fn mins(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes_two(isa, blocks, 0)[1]
    }
}
