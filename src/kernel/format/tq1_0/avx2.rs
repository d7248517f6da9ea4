//! TQ1_0 as AVX2 reads it.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use super::BYTES;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::avx2::read;
use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

/// For each 32 elements, what their bytes are multiplied by, two bytes at a time.
static POWERS: [[i16; 16]; 8] = [
    [1; 16],
    [3; 16],
    [9; 16],
    [27; 16],
    [81; 16],
    [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3],
    [9, 9, 9, 9, 9, 9, 9, 9, 27, 27, 27, 27, 27, 27, 27, 27],
    [81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27],
];

/// Of the last 16 elements, in the high half, what the bytes of each four are multiplied by.
static LAST: [i16; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3, 3, 9, 9, 27, 27];

/// Bytes as numbers that are 128 smaller, so that a comparison of signed numbers compares them. That remains so when they are
/// [tripled](triple).
#[inline(always)]
fn centred(_isa: Avx2, v: __m256i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) }
}

/// Three times each byte, without what is above the point.
#[inline(always)]
fn triple(_isa: Avx2, v: __m256i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { opaque(_mm256_add_epi8(_mm256_add_epi8(v, v), v)) }
}

/// A vector of which the compiler does not know what it is: it takes several sums for one multiplication, which is slow for
/// bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn opaque(mut v: __m256i) -> __m256i {
    // SAFETY: there is no instruction.
    unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

/// Of each [centred] byte, whether the first digit is above 0 (the byte above 85) and whether it is above 1 (above 170).
#[inline(always)]
fn above(_isa: Avx2, v: __m256i) -> [__m256i; 2] {
    // SAFETY: the token proves the features.
    unsafe { [_mm256_cmpgt_epi8(v, _mm256_set1_epi8(-43)), _mm256_cmpgt_epi8(v, _mm256_set1_epi8(42))] }
}

/// The bytes of a block, [centred], times the powers that make the digits of elements `32 * j ..` the first.
#[inline(always)]
fn multiples(isa: Avx2, block: &[u8; BYTES]) -> [__m256i; 8] {
    // SAFETY: the token proves the features.
    unsafe {
        let ones = centred(isa, read::load(isa, block, 0));
        let threes = triple(isa, ones);
        let nines = triple(isa, threes);
        let all = triple(isa, nines);
        // The next 16 bytes and, in the high half, three times those; then the powers above both.
        let fives = centred(isa, _mm256_broadcastsi128_si256(read::load16(isa, block, 32)));
        let fives = _mm256_blend_epi32::<0b1111_0000>(fives, triple(isa, fives));
        let fives_nines = triple(isa, triple(isa, fives));
        // The last four bytes, times a power each four lanes: two bytes at a time, of which the other is dropped.
        let fours = centred(isa, _mm256_set1_epi32(read::word(block, 48) as i32));
        let (powers, high) = (read::shorts(isa, &LAST), _mm256_set1_epi16(0xff00_u16 as i16));
        let (even, odd) = (_mm256_mullo_epi16(fours, powers), _mm256_and_si256(fours, high));
        let odd = _mm256_mullo_epi16(odd, powers);
        let fours = _mm256_or_si256(_mm256_andnot_si256(high, even), odd);
        let last = triple(isa, triple(isa, fives_nines));
        let last = _mm256_blend_epi32::<0b1111_0000>(last, fours);
        [ones, threes, nines, all, triple(isa, all), fives, fives_nines, last]
    }
}

#[allow(non_camel_case_types, reason = "the format's name")]
pub(super) struct TQ1_0;

impl Block256 for TQ1_0 {
    type Bytes = [u8; BYTES];
    const SIGNED: bool = false;
    const OFFSET: i32 = 1;
    const MAX: i32 = 2;
    const SUB: usize = 32;
    const MAX_SCALE: i32 = 1;
    const MASKS: bool = true;

    #[inline(always)]
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe {
            let fives = read::load16(isa, block, 32);
            let bytes = match j {
                0..5 => read::load(isa, block, 0),
                5 | 6 => _mm256_broadcastsi128_si256(fives),
                _ => _mm256_set_m128i(_mm_set1_epi32(read::word(block, 48) as i32), fives),
            };
            let powers = read::shorts(isa, &POWERS[j]);
            // As i16, with the fraction in the high byte: what is above the point falls off, as it must.
            let even = _mm256_mullo_epi16(_mm256_slli_epi16::<8>(bytes), powers);
            let odd =
                _mm256_mullo_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0xff00_u16 as i16)), powers);
            let three = _mm256_set1_epi16(3);
            let (even, odd) = (_mm256_mulhi_epu16(even, three), _mm256_mulhi_epu16(odd, three));
            _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
        }
    }
    #[inline(always)]
    fn block(isa: Avx2, block: &Self::Bytes) -> [__m256i; 8] {
        let mut codes = multiples(isa, block);
        for codes in &mut codes {
            let [one, two] = above(isa, *codes);
            // SAFETY: the token proves the features.
            *codes = unsafe { _mm256_abs_epi8(_mm256_add_epi8(one, two)) };
        }
        codes
    }
    #[inline(always)]
    fn masks(isa: Avx2, block: &Self::Bytes) -> [[__m256i; 2]; 8] {
        let multiples = multiples(isa, block);
        let mut masks = [[multiples[0]; 2]; 8];
        for (masks, multiples) in masks.iter_mut().zip(multiples) {
            *masks = above(isa, multiples);
        }
        masks
    }
    #[inline(always)]
    fn d(isa: Avx2, blocks: [&Self::Bytes; 8]) -> __m256 {
        read::f16_lanes(isa, blocks, 52)
    }
}
