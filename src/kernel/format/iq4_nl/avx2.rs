//! IQ4_NL as AVX2 reads it.

use super::{BYTES, VALUES};
use crate::kernel::format::drive::avx2::block32::Block32;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::{__m256, __m256i};

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct IQ4_NL;

impl Block32 for IQ4_NL {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = true;

    #[inline(always)]
    fn codes(isa: Avx2, low: &Self::Bytes, high: &Self::Bytes) -> [__m256i; 2] {
        read::lookup_two(isa, &VALUES, low, high, 2)
    }
    #[inline(always)]
    fn scales(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 0)
    }
}
