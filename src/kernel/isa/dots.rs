//! Dot products of bytes in vectors of 256 bits, for one token: AVX2, and what AVX-VNNI and AVX-512 do in fewer instructions.
//!
//! With few vectors of activations, weights are read where they lie and used at once, so reading them takes most of the
//! time, and that is written for 256 bits. Code over [`Dots`] is written once.
#![allow(unsafe_code, reason = "calls CPU intrinsics; the token types prove that the CPU has them")]

use super::vnni::{dot2, dot2_256};
use super::{Avx2, Avx512, AvxVnni, Simd, Vnni};
use std::arch::x86_64::*;

/// Vectors of 32 bytes and of eight i32 lanes.
pub trait Dots: Copy {
    /// Whether [`dot4`](Self::dot4) is one instruction.
    const FAST_DOT4: bool;

    /// The same on CPUs that gather elements of a table as fast as they load them.
    type Gathering: Dots;

    /// Asks the CPU.
    fn gathering(self) -> Option<Self::Gathering>;
    /// What it includes.
    fn avx2(self) -> Avx2;
    /// Runs `f` compiled for this instruction set (its body must be inlined into it).
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R;
    /// `acc + sum of two products` of i16.
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i;
    /// `acc + sum of four products`: bytes of `u` unsigned and below 128, those of `s` signed.
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i;
    /// Negates the bytes whose bit is set, the lowest for the first byte.
    fn negate(self, v: __m256i, signs: u32) -> __m256i;
    /// Eight elements of a table, in order. Their numbers must be below its length.
    #[inline(always)]
    fn lookup8(self, table: &[u64], numbers: &[u16; 8]) -> [__m256i; 2] {
        let at = |i: usize| element(table, numbers[i]) as i64;
        // SAFETY: a token that includes AVX2 proves the features.
        unsafe {
            [_mm256_setr_epi64x(at(0), at(1), at(2), at(3)), _mm256_setr_epi64x(at(4), at(5), at(6), at(7))]
        }
    }
    /// The same of a table of shorter elements.
    #[inline(always)]
    fn lookup4(self, table: &[u32], numbers: &[u16; 8]) -> __m256i {
        let at = |i: usize| element(table, numbers[i]) as i32;
        // SAFETY: a token that includes AVX2 proves the features.
        unsafe { _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)) }
    }
}

/// Element `number` of a table.
#[inline(always)]
fn element<T: Copy>(table: &[T], number: u16) -> T {
    debug_assert!(usize::from(number) < table.len());
    // SAFETY: callers pass numbers below the length; checked in debug builds by every test.
    unsafe { *table.get_unchecked(usize::from(number)) }
}

/// Runs intrinsics. Inlined into [`Dots::compiled`], each becomes a single instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: `self` is a token, which exists only after `detect` found the features.
        unsafe { $e }
    };
}

impl Dots for Avx2 {
    const FAST_DOT4: bool = false;
    type Gathering = Self;

    #[inline(always)]
    fn gathering(self) -> Option<Self> {
        None
    }
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        self
    }
    #[inline(always)]
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R {
        self.vectorize(f)
    }
    #[inline(always)]
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(acc, _mm256_madd_epi16(a, b)))
    }
    #[inline(always)]
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        op!(_mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1))))
    }
    #[inline(always)]
    fn negate(self, v: __m256i, signs: u32) -> __m256i {
        op!({
            // Byte i gets byte i / 8 of the word, of which only bit i % 8 counts.
            let spread =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(signs as i32), spread), bit);
            let minus = _mm256_cmpeq_epi8(own, bit);
            _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus)
        })
    }
}

dot2!(dot2_evex, __m256i, ymm_reg, "avx2,avx512vl,avx512vnni", "vpdpwssd {sum}, {a}, {b}");

impl Dots for AvxVnni {
    const FAST_DOT4: bool = true;
    type Gathering = Self;

    #[inline(always)]
    fn gathering(self) -> Option<Self> {
        None
    }
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        Vnni::avx2(self)
    }
    #[inline(always)]
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R {
        self.run(f)
    }
    #[inline(always)]
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(dot2_256(acc, a, b))
    }
    #[inline(always)]
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        op!(_mm256_dpbusd_avx_epi32(acc, u, s))
    }
    #[inline(always)]
    fn negate(self, v: __m256i, signs: u32) -> __m256i {
        Dots::avx2(self).negate(v, signs)
    }
}

impl Dots for Avx512 {
    const FAST_DOT4: bool = true;
    type Gathering = Gathering;

    #[inline(always)]
    fn gathering(self) -> Option<Gathering> {
        // Intel's from Sapphire Rapids on. Older ones gather slowly since a leak was closed (Downfall), others always did.
        is_x86_feature_detected!("avx512fp16").then_some(Gathering(self))
    }
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        Vnni::avx2(self)
    }
    #[inline(always)]
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R {
        self.run(f)
    }
    #[inline(always)]
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(dot2_evex(acc, a, b))
    }
    #[inline(always)]
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        op!(_mm256_dpbusd_epi32(acc, u, s))
    }
    #[inline(always)]
    fn negate(self, v: __m256i, signs: u32) -> __m256i {
        op!(_mm256_mask_sub_epi8(v, signs, _mm256_setzero_si256(), v))
    }
}

/// AVX-512 on a CPU that gathers as fast as it loads.
#[derive(Clone, Copy)]
pub struct Gathering(Avx512);

impl Dots for Gathering {
    const FAST_DOT4: bool = true;
    type Gathering = Self;

    #[inline(always)]
    fn gathering(self) -> Option<Self> {
        Some(self)
    }
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        Dots::avx2(self.0)
    }
    #[inline(always)]
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.compiled(f)
    }
    #[inline(always)]
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        Dots::dot2(self.0, acc, a, b)
    }
    #[inline(always)]
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        Dots::dot4(self.0, acc, u, s)
    }
    #[inline(always)]
    fn negate(self, v: __m256i, signs: u32) -> __m256i {
        self.0.negate(v, signs)
    }
    #[inline(always)]
    fn lookup8(self, table: &[u64], numbers: &[u16; 8]) -> [__m256i; 2] {
        debug_assert!(numbers.iter().all(|&n| usize::from(n) < table.len()));
        // SAFETY: the token proves the features; callers pass numbers below the length, checked in debug builds by every test.
        unsafe {
            let numbers = _mm256_cvtepu16_epi32(_mm_loadu_si128(numbers.as_ptr().cast()));
            let all = _mm512_i32gather_epi64::<8>(numbers, table.as_ptr().cast());
            [_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)]
        }
    }
    #[inline(always)]
    fn lookup4(self, table: &[u32], numbers: &[u16; 8]) -> __m256i {
        debug_assert!(numbers.iter().all(|&n| usize::from(n) < table.len()));
        // SAFETY: as above.
        unsafe {
            let numbers = _mm256_cvtepu16_epi32(_mm_loadu_si128(numbers.as_ptr().cast()));
            _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), numbers)
        }
    }
}
