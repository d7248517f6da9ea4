//! F16 as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use crate::kernel::format::drive::avx2::float::Float;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

pub(super) struct F16;

impl Float for F16 {
    type Bytes = [u8; 16];

    #[inline(always)]
    fn chunks(row: &[u8]) -> (&[Self::Bytes], &[u8]) {
        row.as_chunks()
    }
    #[inline(always)]
    fn widen(_isa: Avx2, bytes: &Self::Bytes) -> __m256 {
        // SAFETY: the token proves the features; the array has as many bytes as are read, at any alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }
    #[inline(always)]
    fn padded(rest: &[u8]) -> Self::Bytes {
        let mut bytes = [0; 16];
        bytes[..rest.len()].copy_from_slice(rest);
        bytes
    }
}
