//! Q5_0 as AVX2 reads it.

use super::BYTES;
use crate::kernel::format::drive::avx2::block32::Block32;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

pub(super) struct Q5_0;

impl Block32 for Q5_0 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 16;
    const MAX: i32 = 31;

    #[inline(always)]
    fn codes(isa: Avx2, low: &Self::Bytes, high: &Self::Bytes) -> [__m256i; 2] {
        read::fives_two(isa, low, high, 6, 2)
    }
    #[inline(always)]
    fn scales(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
