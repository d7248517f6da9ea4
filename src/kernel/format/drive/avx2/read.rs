//! Reading codes and scales out of blocks: what several formats share.

use crate::kernel::isa::Avx2;
use std::arch::x86_64::*;

/// `N` bytes of a block from `at` on.
#[inline(always)]
fn bytes<const N: usize, const B: usize>(block: &[u8; B], at: usize) -> &[u8; N] {
    let all = block.as_ptr_range();
    debug_assert!(at + N <= B, "{at} + {N} of {B} bytes at {all:?}");
    // SAFETY: callers pass constants with `at + N <= B`; checked in debug builds by every test.
    unsafe { &*block.as_ptr().add(at).cast() }
}

/// The little-endian u16 at `at`.
#[inline(always)]
pub fn half_word<const B: usize>(block: &[u8; B], at: usize) -> u16 {
    u16::from_le_bytes(*bytes(block, at))
}

/// The little-endian u32 at `at`.
#[inline(always)]
pub fn word<const B: usize>(block: &[u8; B], at: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, at))
}

/// 16 bytes from `at` on as 32 codes of 4 bits: low nibbles first, then high ones.
#[inline(always)]
pub fn nibbles<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> __m256i {
    let from: &[u8; 16] = bytes(block, at);
    // SAFETY: the token proves the features; 16 bytes are readable.
    unsafe {
        let packed = _mm_loadu_si128(from.as_ptr().cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// 32 bytes from `at` on.
#[inline(always)]
pub fn load<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> __m256i {
    let from: &[u8; 32] = bytes(block, at);
    // SAFETY: the token proves the features; 32 bytes are readable.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes from `at` on.
#[inline(always)]
pub fn load16<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> __m128i {
    let from: &[u8; 16] = bytes(block, at);
    // SAFETY: the token proves the features; 16 bytes are readable.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The f16 at `at` of each of eight blocks, widened exactly.
#[inline(always)]
pub fn f16_lanes<const B: usize>(_isa: Avx2, blocks: [&[u8; B]; 8], at: usize) -> __m256 {
    let h = |i: usize| i16::from_le_bytes(*bytes(blocks[i], at));
    // SAFETY: the token proves the features.
    unsafe { _mm256_cvtph_ps(_mm_set_epi16(h(7), h(6), h(5), h(4), h(3), h(2), h(1), h(0))) }
}

/// The 8 scales and 8 minimums of 6 bits that Q4_K and Q5_K pack into 12 bytes at `at` (see `q4_k`), as i16, each set
/// in both halves of its vector.
#[inline(always)]
pub fn scales_mins_6bit<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> (__m256i, __m256i) {
    const LOW6: u32 = 0x3f3f_3f3f;
    let (s, m, high) = (word(block, at), word(block, at + 4), word(block, at + 8));
    // Four bytes at a time: the first four scales and minimums, then the last four, whose top bits are in s and m.
    let scales = u64::from(s & LOW6) | (u64::from((high & 0x0f0f_0f0f) | ((s >> 2) & 0x3030_3030)) << 32);
    let mins =
        u64::from(m & LOW6) | (u64::from(((high >> 4) & 0x0f0f_0f0f) | ((m >> 2) & 0x3030_3030)) << 32);
    // SAFETY: the token proves the features.
    unsafe {
        let both = _mm256_cvtepu8_epi16(_mm_set_epi64x(mins as i64, scales as i64));
        (_mm256_permute4x64_epi64::<0b01_00_01_00>(both), _mm256_permute4x64_epi64::<0b11_10_11_10>(both))
    }
}

/// The 32 bits from `at` on (element order, lowest first), each as a byte of all ones or zero.
#[inline(always)]
pub fn bits<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> __m256i {
    let word = word(block, at) as i32;
    // SAFETY: the token proves the features.
    unsafe {
        // Byte i of the vector gets byte i / 8 of the word, then keeps bit i % 8.
        let byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
        let bit = _mm256_set1_epi64x(0x8040201008040201_u64 as i64);
        let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), byte);
        _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit)
    }
}

/// Looks 4-bit codes up in a table of bytes.
#[inline(always)]
pub fn lookup(_isa: Avx2, table: &[i8; 16], codes: __m256i) -> __m256i {
    // SAFETY: the token proves the features; 16 bytes are readable.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, codes)
    }
}

/// Bits `2k` and `2k + 1` of every byte.
#[inline(always)]
pub fn bit_pair(_isa: Avx2, v: __m256i, k: usize) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe {
        let shifted = _mm256_srl_epi16(v, _mm_cvtsi32_si128(2 * k as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8(3))
    }
}

/// Bit `k` of every byte.
#[inline(always)]
pub fn bit(_isa: Avx2, v: __m256i, k: usize) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(k as i32)), _mm256_set1_epi8(1)) }
}

/// 16 signed bytes as i16: those of even index in the low half, those of odd index in the high half.
#[inline(always)]
pub fn split_signed(_isa: Avx2, v: __m128i) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { _mm256_set_m128i(_mm_srai_epi16::<8>(v), _mm_srai_epi16::<8>(_mm_slli_epi16::<8>(v))) }
}
