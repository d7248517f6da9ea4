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
    /// Whether [`compiled`](Self::compiled) is for AVX-512.
    const AVX512: bool;

    /// The same on CPUs that gather elements of a table as fast as they load them.
    type Gathering: Dots;

    /// Asks the CPU.
    fn gathering(self) -> Option<Self::Gathering>;
    /// What it includes.
    fn avx2(self) -> Avx2;
    /// The same instructions in their short encoding, if it or this CPU has them.
    fn avx_vnni(self) -> Option<AvxVnni>;
    /// Runs `f` compiled for this instruction set (its body must be inlined into it).
    fn compiled<R>(self, f: impl FnOnce() -> R) -> R;
    /// `acc + sum of two products` of i16.
    fn dot2(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i;
    /// `acc + sum of four products`: bytes of `u` unsigned, and below 128 unless that is one instruction, those of `s` signed.
    fn dot4(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i;
    /// Negates the bytes whose bit is set, the lowest for the first byte.
    fn negate(self, v: __m256i, signs: u32) -> __m256i;
    /// Byte `i / 8` of a word for every byte `i`.
    #[inline(always)]
    fn spread(self, word: u32) -> __m256i {
        // SAFETY: a token that includes AVX2 proves the features.
        unsafe {
            let eights =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            _mm256_shuffle_epi8(_mm256_set1_epi32(word as i32), eights)
        }
    }
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
    const AVX512: bool = false;
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
    fn avx_vnni(self) -> Option<AvxVnni> {
        None
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
            // Of its byte of the word only bit i % 8 counts for byte i.
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let own = _mm256_and_si256(self.spread(signs), bit);
            let minus = _mm256_cmpeq_epi8(own, bit);
            _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus)
        })
    }
}

dot2!(dot2_evex, __m256i, ymm_reg, "avx2,avx512vl,avx512vnni", "vpdpwssd {sum}, {a}, {b}");

impl Dots for AvxVnni {
    const FAST_DOT4: bool = true;
    const AVX512: bool = false;
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
    fn avx_vnni(self) -> Option<AvxVnni> {
        Some(self)
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
    const AVX512: bool = true;
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
    fn avx_vnni(self) -> Option<AvxVnni> {
        AvxVnni::detect()
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
    const AVX512: bool = true;
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
    fn avx_vnni(self) -> Option<AvxVnni> {
        self.0.avx_vnni()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(v: __m256i) -> [u8; 32] {
        // SAFETY: both have 32 bytes, and every pattern is valid.
        unsafe { std::mem::transmute(v) }
    }

    fn vector(bytes: [u8; 32]) -> __m256i {
        // SAFETY: as above.
        unsafe { std::mem::transmute(bytes) }
    }

    fn lanes(v: __m256i) -> [i32; 8] {
        // SAFETY: as above.
        unsafe { std::mem::transmute(v) }
    }

    /// What every operation has to give, from the definition of each.
    fn check<D: Dots>(isa: D, name: &str) {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let eights: Vec<u64> = (0..2048).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let fours: Vec<u32> = eights[..512].iter().map(|&e| (e >> 32) as u32).collect();
        for _ in 0..200 {
            let (a, b): ([u8; 32], [u8; 32]) =
                (std::array::from_fn(|_| random()), std::array::from_fn(|_| random()));
            let acc: [u8; 32] = std::array::from_fn(|i| if i % 4 < 2 { random() } else { 0 });
            let start = lanes(vector(acc));
            let signs = u32::from_le_bytes([a[0], b[0], a[1], b[1]]);
            // An activation's code is never -128.
            let codes = b.map(|b| if b == 128 { 129 } else { b });

            let pair = |v: &[u8; 32], i: usize| i32::from(i16::from_le_bytes([v[2 * i], v[2 * i + 1]]));
            let want: [i32; 8] = std::array::from_fn(|i| {
                start[i] + (2 * i..2 * i + 2).map(|k| pair(&a, k) * pair(&codes, k)).sum::<i32>()
            });
            let got = isa.compiled(
                #[inline(always)]
                || lanes(isa.dot2(vector(acc), vector(a), vector(codes))),
            );
            assert_eq!(got, want, "{name}: pairs");

            let u = if D::FAST_DOT4 { a } else { a.map(|a| a & 127) };
            let want: [i32; 8] = std::array::from_fn(|i| {
                let products = (4 * i..4 * i + 4).map(|k| i32::from(u[k]) * i32::from(codes[k] as i8));
                start[i] + products.sum::<i32>()
            });
            let got = isa.compiled(
                #[inline(always)]
                || lanes(isa.dot4(vector(acc), vector(u), vector(codes))),
            );
            assert_eq!(got, want, "{name}: fours");

            let want: [u8; 32] =
                std::array::from_fn(|i| if signs >> i & 1 == 1 { codes[i].wrapping_neg() } else { codes[i] });
            let got = isa.compiled(
                #[inline(always)]
                || bytes(isa.negate(vector(codes), signs)),
            );
            assert_eq!(got, want, "{name}: signs");

            let numbers: [u16; 8] = std::array::from_fn(|i| u16::from_le_bytes([a[i], b[i]]) % 2048);
            let got = isa.compiled(
                #[inline(always)]
                || isa.lookup8(&eights, &numbers).map(bytes),
            );
            let want = numbers.map(|n| eights[usize::from(n)].to_le_bytes());
            assert_eq!(got.as_flattened(), want.as_flattened(), "{name}: elements of eight bytes");

            let numbers = numbers.map(|n| n % 512);
            let got = isa.compiled(
                #[inline(always)]
                || bytes(isa.lookup4(&fours, &numbers)),
            );
            let want = numbers.map(|n| fours[usize::from(n)].to_le_bytes());
            assert_eq!(got, want.as_flattened(), "{name}: elements of four bytes");
        }
    }

    /// Of the two kinds of AVX-512 products take only the one that is faster on this CPU.
    #[test]
    fn every_instruction_set_gives_what_the_definition_gives() {
        if let Some(isa) = Avx2::detect() {
            check(isa, "AVX2");
        }
        if let Some(isa) = AvxVnni::detect() {
            check(isa, "AVX-VNNI");
        }
        if let Some(isa) = Avx512::detect() {
            check(isa, "AVX-512");
            if let Some(isa) = isa.gathering() {
                check(isa, "AVX-512, gathering");
            }
        }
    }
}
