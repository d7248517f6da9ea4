//! Reading codes and scales out of blocks: what several formats share.

use super::transpose;
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

/// 16 bytes from `at` on of two blocks, one in each half.
#[inline(always)]
pub fn load_two<const B: usize>(isa: Avx2, low: &[u8; B], high: &[u8; B], at: usize) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { _mm256_set_m128i(load16(isa, high, at), load16(isa, low, at)) }
}

/// 16 bytes from `at` on of two blocks as codes of 4 bits: low nibbles first, then high ones.
#[inline(always)]
pub fn nibbles_two<const B: usize>(isa: Avx2, low: &[u8; B], high: &[u8; B], at: usize) -> [__m256i; 2] {
    let packed = load_two(isa, low, high, at);
    // SAFETY: the token proves the features.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        [_mm256_and_si256(packed, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask)]
    }
}

/// 32 bytes from `at` on of eight blocks, four of a block in each lane, as codes of 4 bits: low nibbles and high ones.
#[inline(always)]
pub fn nibble_lanes<const B: usize>(isa: Avx2, blocks: [&[u8; B]; 8], at: usize) -> [[__m256i; 8]; 2] {
    // SAFETY: the token proves the features.
    unsafe {
        let mut rows = [_mm256_setzero_si256(); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = load(isa, block, at);
        }
        let (mut low, mut high, mask) = (transpose(rows), [_mm256_setzero_si256(); 8], _mm256_set1_epi8(15));
        for (low, high) in low.iter_mut().zip(&mut high) {
            *high = _mm256_and_si256(_mm256_srli_epi16::<4>(*low), mask);
            *low = _mm256_and_si256(*low, mask);
        }
        [low, high]
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
    let h = |i: usize| half_word(blocks[i], at) as i16;
    // SAFETY: the token proves the features.
    unsafe { _mm256_cvtph_ps(_mm_set_epi16(h(7), h(6), h(5), h(4), h(3), h(2), h(1), h(0))) }
}

/// The same times a power of two, which is exact.
#[inline(always)]
pub fn f16_lanes_by<const B: usize>(isa: Avx2, blocks: [&[u8; B]; 8], at: usize, by: f32) -> __m256 {
    // SAFETY: the token proves the features.
    unsafe { _mm256_mul_ps(f16_lanes(isa, blocks, at), _mm256_set1_ps(by)) }
}

/// The f16 at `at` of each of eight blocks and the one after it, read together.
#[inline(always)]
pub fn f16_lanes_two<const B: usize>(_isa: Avx2, blocks: [&[u8; B]; 8], at: usize) -> [__m256; 2] {
    let w = |i: usize| word(blocks[i], at) as i32;
    // SAFETY: the token proves the features.
    unsafe {
        let (even, odd) = (_mm_setr_epi32(w(0), w(2), w(4), w(6)), _mm_setr_epi32(w(1), w(3), w(5), w(7)));
        [
            _mm256_cvtph_ps(_mm_blend_epi16::<0b1010_1010>(even, _mm_slli_epi32::<16>(odd))),
            _mm256_cvtph_ps(_mm_blend_epi16::<0b1010_1010>(_mm_srli_epi32::<16>(even), odd)),
        ]
    }
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

/// 5-bit codes of two blocks: low bits as [`nibbles_two`] reads them at `at`, fifth bits from the u32 at `fifths`
/// (element order, lowest first).
#[inline(always)]
pub fn fives_two<const B: usize>(
    isa: Avx2,
    low: &[u8; B],
    high: &[u8; B],
    at: usize,
    fifths: usize,
) -> [__m256i; 2] {
    let nibbles = nibbles_two(isa, low, high, at);
    let words = load_two(isa, low, high, fifths);
    // SAFETY: the token proves the features.
    unsafe {
        // Byte i gets byte i / 8 of its word, of which only bit i % 8 counts: where it is not set, all others are 1.
        let spread = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
        let others = _mm256_set1_epi64x(0x7fbfdfeff7fbfdfe);
        let ones = _mm256_set1_epi8(-1);
        let sixteen = _mm256_set1_epi8(16);
        let first = _mm256_or_si256(_mm256_shuffle_epi8(words, spread), others);
        let last = _mm256_shuffle_epi8(words, _mm256_add_epi8(spread, _mm256_set1_epi8(2)));
        let last = _mm256_or_si256(last, others);
        let first = _mm256_and_si256(_mm256_cmpeq_epi8(first, ones), sixteen);
        let last = _mm256_and_si256(_mm256_cmpeq_epi8(last, ones), sixteen);
        [_mm256_or_si256(nibbles[0], first), _mm256_or_si256(nibbles[1], last)]
    }
}

/// Looks the 4-bit codes of two blocks at `at` up in a table of bytes.
#[inline(always)]
pub fn lookup_two<const B: usize>(
    isa: Avx2,
    table: &[i8; 16],
    low: &[u8; B],
    high: &[u8; B],
    at: usize,
) -> [__m256i; 2] {
    let [first, last] = nibbles_two(isa, low, high, at);
    [lookup(isa, table, first), lookup(isa, table, last)]
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

/// Four times eight bytes, the first lowest.
#[inline(always)]
pub fn quads(_isa: Avx2, [a, b, c, d]: [u64; 4]) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe { _mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64) }
}

/// 16 numbers of 16 bits.
#[inline(always)]
pub fn shorts(_isa: Avx2, from: &[i16; 16]) -> __m256i {
    // SAFETY: the token proves the features; 32 bytes are readable.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 numbers of 4 bits from `at` on, twice each and 1 more, as i16: the low nibbles of 8 bytes in the low half, their high
/// nibbles in the high half.
#[inline(always)]
pub fn odd_scales_of_nibbles<const B: usize>(_isa: Avx2, block: &[u8; B], at: usize) -> __m256i {
    let from: &[u8; 8] = bytes(block, at);
    // SAFETY: the token proves the features; 8 bytes are readable.
    unsafe {
        let bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(from.as_ptr().cast()));
        let twice = _mm256_set_m128i(_mm_srli_epi16::<3>(bytes), _mm_slli_epi16::<1>(bytes));
        _mm256_or_si256(_mm256_and_si256(twice, _mm256_set1_epi16(30)), _mm256_set1_epi16(1))
    }
}

/// Eight f16 numbers, widened exactly.
#[inline(always)]
pub fn widen(_isa: Avx2, bits: [u16; 8]) -> __m256 {
    // SAFETY: the token proves the features; 16 bytes are readable.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bits.as_ptr().cast())) }
}
