//! What AVX2 reads of all points of a block at once, for the grid formats.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

/// 16 bytes as u16.
#[inline(always)]
fn widen(v: __m128i) -> __m256i {
    // SAFETY: called in functions that have the features.
    unsafe { _mm256_cvtepu8_epi16(v) }
}

/// 32 bytes as u16, in order.
#[inline(always)]
pub fn halves(_isa: Avx2, v: __m256i) -> [__m256i; 2] {
    // SAFETY: the token proves the features.
    unsafe { [widen(_mm256_castsi256_si128(v)), widen(_mm256_extracti128_si256::<1>(v))] }
}

/// Numbers of `BYTES` bytes (1 or 2) from number `FIRST` on as u16, each of them `TIMES` times: 16 in all.
#[inline(always)]
pub fn repeated<const BYTES: usize, const TIMES: usize, const FIRST: usize>(
    _isa: Avx2,
    v: __m128i,
) -> __m256i {
    const fn bytes(size: usize, times: usize, first: usize) -> [u8; 32] {
        let mut bytes = [0x80; 32];
        let mut i = 0;
        while i < 32 {
            if i % 2 < size {
                bytes[i] = (size * (first + i / 2 / times) + i % 2) as u8;
            }
            i += 1;
        }
        bytes
    }
    let bytes: &[u8; 32] = const { &bytes(BYTES, TIMES, FIRST) };
    // SAFETY: the token proves the features; 32 bytes are readable.
    unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(v), _mm256_loadu_si256(bytes.as_ptr().cast())) }
}

/// Signs from numbers of 7 bits, a byte each: the eighth makes the number of minuses even.
#[inline(always)]
pub fn even(_isa: Avx2, sevens: __m256i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe {
        // For each number of four bits the eighth sign.
        let odd = _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
        // Of four bits as many are 1 as of the seven, but for an even number.
        let four = _mm256_xor_si256(sevens, _mm256_srli_epi16::<4>(sevens));
        let four = _mm256_and_si256(four, _mm256_set1_epi8(15));
        _mm256_or_si256(sevens, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(odd), four))
    }
}

/// Signs from words of four numbers of 7 bits, the first lowest.
#[inline(always)]
pub fn even_of_words(isa: Avx2, words: __m256i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe {
        // Two numbers to each half of the word, then one to each byte.
        let low = _mm256_and_si256(words, _mm256_set1_epi32(0x3fff));
        let high = _mm256_and_si256(_mm256_slli_epi32::<2>(words), _mm256_set1_epi32(0x3fff_0000));
        let two = _mm256_or_si256(low, high);
        let low = _mm256_and_si256(two, _mm256_set1_epi16(0x007f));
        let high = _mm256_and_si256(_mm256_slli_epi16::<1>(two), _mm256_set1_epi16(0x7f00));
        even(isa, _mm256_or_si256(low, high))
    }
}

/// The scales of 8 sub-blocks of 32, the top 4 bits of a word each: twice that and 1 more, as i16 in both halves.
#[inline(always)]
pub fn odd_scales_of_words(_isa: Avx2, words: __m256i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe {
        let stored = _mm256_srli_epi32::<28>(words);
        let odd = _mm256_or_si256(_mm256_add_epi32(stored, stored), _mm256_set1_epi32(1));
        _mm256_permute4x64_epi64::<0b10_00_10_00>(_mm256_packs_epi32(odd, odd))
    }
}
