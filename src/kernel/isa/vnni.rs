//! Dot products of bytes: VNNI, in vectors of 256 bits (AVX-VNNI) and of 512 bits (AVX-512).
//!
//! One instruction multiplies four unsigned bytes by four signed ones and adds all of it to an i32 lane, exactly. Code
//! that uses it is written once, over [`Vnni`].
#![allow(unsafe_code, reason = "calls CPU intrinsics; the token types prove that the CPU has them")]

use super::Avx2;
use std::arch::x86_64::*;

/// Vectors of `8 * GROUPS` lanes of 32 bits, and the products of bytes.
pub trait Vnni: Copy {
    /// Groups of eight lanes in a vector.
    const GROUPS: usize;
    /// Activation vectors whose products with two vectors of rows fit into the registers.
    const VECTORS: usize;
    /// The same where they are added up twice, block by block and in all.
    const PAIRED_VECTORS: usize;
    /// Integers.
    type I: Copy;
    /// Floats.
    type F: Copy;

    /// What it includes.
    fn avx2(self) -> Avx2;
    /// Runs `f` compiled for this instruction set (its body must be inlined into it).
    fn run<R>(self, f: impl FnOnce() -> R) -> R;

    /// The vector at `32 * GROUPS * i`. There must be that many bytes.
    fn load_bytes(self, from: &[[u8; 32]], i: usize) -> Self::I;
    /// The floats at `8 * GROUPS * i`. There must be as many.
    fn load_f32(self, from: &[[f32; 8]], i: usize) -> Self::F;
    /// The first `GROUPS` of `to`.
    fn store_f32(self, v: Self::F, to: &mut [[f32; 8]]);
    /// All lanes 0.
    fn zero(self) -> Self::I;
    /// All lanes `x`.
    fn splat_f32(self, x: f32) -> Self::F;
    /// Four bytes in every lane.
    fn four(self, bytes: &[u8; 4]) -> Self::I;
    /// `acc + sum of four products`: bytes of `u` unsigned, those of `s` signed.
    fn dot4(self, acc: Self::I, u: Self::I, s: Self::I) -> Self::I;
    /// `acc + sum of two products` of i16.
    fn dot2(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Eight bytes in every two lanes.
    fn eight(self, bytes: &[[u8; 4]; 2]) -> Self::I;
    /// Lanes of 16 bits: of every four lanes of `a` and `b`, those of `a`, then those of `b`. What does not fit becomes the
    /// nearest that does.
    fn pack(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a + b`.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`.
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// The low half of `a * b`.
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// The upper i16 of every lane, with its sign.
    fn high(self, v: Self::I) -> Self::I;
    /// `v << bits`.
    fn shift_left(self, v: Self::I, bits: u32) -> Self::I;
    /// To f32, rounded once.
    fn to_f32(self, v: Self::I) -> Self::F;
    /// `a + b`, rounded.
    fn add_f32(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`, rounded.
    fn sub_f32(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`, rounded.
    fn mul_f32(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once: only for numbers with which nothing has to be rounded.
    fn fused(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
}

/// Proof that the running CPU has AVX-VNNI and everything of [`Avx2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnni(Avx2);

impl AvxVnni {
    /// Asks the CPU.
    pub fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }

    /// What it includes.
    pub fn avx2(self) -> Avx2 {
        self.0
    }
}

/// Proof that the running CPU has AVX-512 F, BW, DQ, VL and VNNI and everything of [`Avx2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(Avx2);

impl Avx512 {
    /// Asks the CPU.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| has).map(Self)
    }

    /// What it includes.
    pub fn avx2(self) -> Avx2 {
        self.0
    }
}

/// Runs intrinsics. Inlined into [`Vnni::run`], each becomes a single instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: `self` is a token, which exists only after `detect` found the features.
        unsafe { $e }
    };
}

macro_rules! vnni {
    ($token:ty, $groups:literal, $vectors:literal, $paired:literal, $i:ty, $f:ty, $features:literal,
     { $($method:ident => $intrinsic:ident,)* }
     load: $load:ident, load_f32: $load_f32:ident, store: $store:ident, zero: $zero:ident, splat: $splat:ident,
     splat_i32: $splat_i32:ident, splat_i64: $splat_i64:ident, shift_right: $srai:ident, shift_left: $sll:ident,
     to_f32: $to_f32:ident) => {
        impl Vnni for $token {
            const GROUPS: usize = $groups;
            const VECTORS: usize = $vectors;
            const PAIRED_VECTORS: usize = $paired;
            type I = $i;
            type F = $f;

            #[inline(always)]
            fn avx2(self) -> Avx2 {
                self.0
            }
            #[inline(always)]
            fn run<R>(self, f: impl FnOnce() -> R) -> R {
                #[target_feature(enable = $features)]
                fn inner<R>(f: impl FnOnce() -> R) -> R {
                    f()
                }
                op!(inner(f))
            }
            #[inline(always)]
            fn load_bytes(self, from: &[[u8; 32]], i: usize) -> $i {
                debug_assert!(from.len() >= $groups * (i + 1));
                // SAFETY: callers stay within `from`, checked in debug builds by every test; any alignment will do.
                unsafe { $load(from.as_ptr().add($groups * i).cast()) }
            }
            #[inline(always)]
            fn load_f32(self, from: &[[f32; 8]], i: usize) -> $f {
                debug_assert!(from.len() >= $groups * (i + 1));
                // SAFETY: as for `load_bytes`.
                unsafe { $load_f32(from.as_ptr().add($groups * i).cast()) }
            }
            #[inline(always)]
            fn store_f32(self, v: $f, to: &mut [[f32; 8]]) {
                assert!(to.len() >= $groups);
                op!($store(to.as_mut_ptr().cast(), v));
            }
            #[inline(always)]
            fn zero(self) -> $i {
                op!($zero())
            }
            #[inline(always)]
            fn splat_f32(self, x: f32) -> $f {
                op!($splat(x))
            }
            #[inline(always)]
            fn four(self, bytes: &[u8; 4]) -> $i {
                op!($splat_i32(i32::from_le_bytes(*bytes)))
            }
            #[inline(always)]
            fn eight(self, bytes: &[[u8; 4]; 2]) -> $i {
                let &[[a, b, c, d], [e, f, g, h]] = bytes;
                op!($splat_i64(i64::from_le_bytes([a, b, c, d, e, f, g, h])))
            }
            #[inline(always)]
            fn high(self, v: $i) -> $i {
                op!($srai::<16>(v))
            }
            #[inline(always)]
            fn shift_left(self, v: $i, bits: u32) -> $i {
                op!($sll(v, _mm_cvtsi32_si128(bits as i32)))
            }
            #[inline(always)]
            fn to_f32(self, v: $i) -> $f {
                op!($to_f32(v))
            }
            vnni!(@methods $i, $f, $($method => $intrinsic,)*);
        }
    };
    (@methods $i:ty, $f:ty, dot4 => $dot4:ident, dot2 => $dot2:ident, pack => $pack:ident, add_i32 => $add_i32:ident,
     sub_i32 => $sub_i32:ident, mul_i32 => $mul_i32:ident, add_f32 => $add:ident, sub_f32 => $sub:ident, mul_f32 => $mul:ident, fused => $fused:ident,) => {
        #[inline(always)]
        fn dot4(self, acc: $i, u: $i, s: $i) -> $i {
            op!($dot4(acc, u, s))
        }
        #[inline(always)]
        fn dot2(self, acc: $i, a: $i, b: $i) -> $i {
            op!($dot2(acc, a, b))
        }
        #[inline(always)]
        fn pack(self, a: $i, b: $i) -> $i {
            op!($pack(a, b))
        }
        #[inline(always)]
        fn add_i32(self, a: $i, b: $i) -> $i {
            op!($add_i32(a, b))
        }
        #[inline(always)]
        fn sub_i32(self, a: $i, b: $i) -> $i {
            op!($sub_i32(a, b))
        }
        #[inline(always)]
        fn mul_i32(self, a: $i, b: $i) -> $i {
            op!($mul_i32(a, b))
        }
        #[inline(always)]
        fn add_f32(self, a: $f, b: $f) -> $f {
            op!($add(a, b))
        }
        #[inline(always)]
        fn sub_f32(self, a: $f, b: $f) -> $f {
            op!($sub(a, b))
        }
        #[inline(always)]
        fn mul_f32(self, a: $f, b: $f) -> $f {
            op!($mul(a, b))
        }
        #[inline(always)]
        fn fused(self, a: $f, b: $f, c: $f) -> $f {
            op!($fused(a, b, c))
        }
    };
}

/// `acc + sum of two products` of i16, in one instruction: of the intrinsic the compiler makes two, which have a shorter
/// latency, where a loop is limited by how many it has.
macro_rules! dot2 {
    ($name:ident, $v:ty, $register:ident, $features:literal, $instruction:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name(acc: $v, a: $v, b: $v) -> $v {
            let mut sum = acc;
            // SAFETY: the function's features include the instruction, which reads and writes these registers only.
            unsafe {
                std::arch::asm!($instruction, sum = inout($register) sum, a = in($register) a, b = in($register) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sum
        }
    };
}
dot2!(dot2_256, __m256i, ymm_reg, "avx2,avxvnni", "{{vex}} vpdpwssd {sum}, {a}, {b}");
dot2!(dot2_512, __m512i, zmm_reg, "avx512f,avx512vnni", "vpdpwssd {sum}, {a}, {b}");
pub(super) use dot2;

vnni! {
    AvxVnni, 1, 3, 3, __m256i, __m256, "avx2,fma,f16c,avxvnni",
    { dot4 => _mm256_dpbusd_avx_epi32, dot2 => dot2_256, pack => _mm256_packs_epi32, add_i32 => _mm256_add_epi32,
    sub_i32 => _mm256_sub_epi32, mul_i32 => _mm256_mullo_epi32, add_f32 => _mm256_add_ps, sub_f32 => _mm256_sub_ps,
    mul_f32 => _mm256_mul_ps, fused => _mm256_fmadd_ps, }
    load: _mm256_loadu_si256, load_f32: _mm256_loadu_ps, store: _mm256_storeu_ps, zero: _mm256_setzero_si256,
    splat: _mm256_set1_ps, splat_i32: _mm256_set1_epi32, splat_i64: _mm256_set1_epi64x, shift_right: _mm256_srai_epi32,
    shift_left: _mm256_sll_epi32, to_f32: _mm256_cvtepi32_ps
}

vnni! {
    Avx512, 2, 6, 8, __m512i, __m512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    { dot4 => _mm512_dpbusd_epi32, dot2 => dot2_512, pack => _mm512_packs_epi32, add_i32 => _mm512_add_epi32,
    sub_i32 => _mm512_sub_epi32, mul_i32 => _mm512_mullo_epi32, add_f32 => _mm512_add_ps, sub_f32 => _mm512_sub_ps,
    mul_f32 => _mm512_mul_ps, fused => _mm512_fmadd_ps, }
    load: _mm512_loadu_si512, load_f32: _mm512_loadu_ps, store: _mm512_storeu_ps, zero: _mm512_setzero_si512,
    splat: _mm512_set1_ps, splat_i32: _mm512_set1_epi32, splat_i64: _mm512_set1_epi64, shift_right: _mm512_srai_epi32,
    shift_left: _mm512_sll_epi32, to_f32: _mm512_cvtepi32_ps
}
