//! The AVX2 loops around a block, and the few shuffles they share.
//!
//! Eight weight rows sit in the eight lanes of a vector, so each row has one accumulator, as the contract
//! asks, and no horizontal sum of floats is ever needed.
#![allow(unsafe_code, reason = "calls CPU intrinsics under the proof of an Avx2 token")]

pub mod block256;
pub mod block32;
pub mod few;
pub mod float;
pub mod read;

use super::{LANES, Products};
use crate::kernel::format::{Layout, Matrix};
use crate::kernel::isa::Aligned;
use crate::kernel::op::quantize::Q8Row;
use std::arch::x86_64::*;
use std::ops::Range;

/// Vectors that share one pass over an unpacked tile.
const VECTORS: usize = 4;

/// The bytes of a block.
pub trait Block: Sized + 'static {
    /// The blocks of a row, or of a group of rows.
    fn all(bytes: &[u8]) -> &[Self];
}

impl<const N: usize> Block for [u8; N] {
    #[inline(always)]
    fn all(bytes: &[u8]) -> &[Self] {
        bytes.as_chunks().0
    }
}

/// The bytes at `at`, which must have 32 of them.
#[inline]
#[target_feature(enable = "avx2")]
fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(v: __m256i, to: &mut [u8; 32]) {
    // SAFETY: 32 writable bytes; the instruction takes any alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_f32(from: &[f32; 8]) -> __m256 {
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_f32(v: __m256, to: &mut [f32; 8]) {
    // SAFETY: 32 writable bytes; the instruction takes any alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
}

/// The products of eight rows with each of some vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn products<const T: usize>(acc: &[__m256; T]) -> Products<1, T> {
    let mut products = Aligned([[[0.0; LANES]; 1]; T]);
    for (to, &acc) in products.0.iter_mut().zip(acc) {
        store_f32(acc, &mut to[0]);
    }
    products
}

/// What the blocks of a vector are multiplied with: for each block its codes, a scale, and sums of codes.
pub struct Vector<'a, const CODES: usize, const SUMS: usize> {
    /// The codes as the bytes the instructions take.
    pub codes: &'a [[u8; CODES]],
    /// The scales.
    pub scales: &'a [f32],
    /// The sums of 16 codes.
    pub sums: &'a [[i16; SUMS]],
}

impl<'a, const CODES: usize, const SUMS: usize> Vector<'a, CODES, SUMS> {
    /// A vector that has `n` blocks.
    pub fn new(x: Q8Row<'a>, n: usize) -> Self {
        let (codes, sums) = (unsigned(x.codes).as_chunks().0, x.sums.as_chunks().0);
        assert!(codes.len() == n && x.scales.len() == n && sums.len() == n, "{n} blocks");
        Self { codes, scales: x.scales, sums }
    }
}

/// Codes as the bytes the instructions take.
#[inline(always)]
fn unsigned(codes: &[i8]) -> &[u8] {
    // SAFETY: i8 and u8 have the same size and alignment, and every bit pattern is valid for both.
    unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), codes.len()) }
}

/// Sums of the eight lanes of eight vectors: lane `i` of the result is the sum of `v[i]`.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(v: [__m256i; LANES]) -> __m256i {
    let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
}

/// Sums of four lanes: lane `i` of the result is the sum of the low half of `v[i]`, lane `4 + i` that of its high half.
#[inline]
#[target_feature(enable = "avx2")]
fn sums4(v: [__m256i; 4]) -> __m256i {
    _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]))
}

/// The first 16 bytes in both halves of a vector, and the last 16 in both halves of another.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(from: &[u8; 32]) -> [__m256i; 2] {
    let at = from.as_ptr().cast::<__m128i>();
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    let (low, high) = unsafe { (_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))) };
    [_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)]
}

/// Transposes a 4 x 4 matrix of 32-bit elements in each half: four bytes of each row side by side.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose4(r: [__m256i; 4]) -> [__m256i; 4] {
    let (a, b) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
    let (c, d) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}

/// Transposes an 8 x 8 matrix of 32-bit elements: four bytes of each row side by side.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(r: [__m256i; LANES]) -> [__m256i; LANES] {
    let lo = |a, b| _mm256_unpacklo_epi32(a, b);
    let hi = |a, b| _mm256_unpackhi_epi32(a, b);
    let t = [
        lo(r[0], r[1]),
        hi(r[0], r[1]),
        lo(r[2], r[3]),
        hi(r[2], r[3]),
        lo(r[4], r[5]),
        hi(r[4], r[5]),
        lo(r[6], r[7]),
        hi(r[6], r[7]),
    ];
    let lo = |a, b| _mm256_unpacklo_epi64(a, b);
    let hi = |a, b| _mm256_unpackhi_epi64(a, b);
    let u = [
        lo(t[0], t[2]),
        hi(t[0], t[2]),
        lo(t[1], t[3]),
        hi(t[1], t[3]),
        lo(t[4], t[6]),
        hi(t[4], t[6]),
        lo(t[5], t[7]),
        hi(t[5], t[7]),
    ];
    let lo = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
    let hi = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
    [
        lo(u[0], u[4]),
        lo(u[1], u[5]),
        lo(u[2], u[6]),
        lo(u[3], u[7]),
        hi(u[0], u[4]),
        hi(u[1], u[5]),
        hi(u[2], u[6]),
        hi(u[3], u[7]),
    ]
}

/// Products of 32 codes and 32 activations, summed in pairs (i16). `signed` tells how to read the codes; unsigned
/// codes are below 128, so no pair exceeds 2 * 127 * 128 and nothing saturates.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(signed: bool, codes: __m256i, x: __m256i) -> __m256i {
    if signed {
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Eight rows of `n` blocks each: slices from their first block on, in which the next is `stride` further.
struct Rows<'a, B> {
    from: [&'a [B]; LANES],
    stride: usize,
    n: usize,
}

impl<'a, B: Block> Rows<'a, B> {
    /// Rows `first..first + 8` of a matrix, which begin a group or all lie in one. Lanes past the last row repeat it; their
    /// results are dropped.
    #[inline(always)]
    fn new(w: &Matrix<'a>, first: usize, n: usize) -> Self {
        let mut from: [&[B]; LANES] = [&[]; LANES];
        let mut stride = 1;
        if w.layout() == Layout::Rows && first + LANES <= w.rows() {
            // The usual case, in few instructions: they count for short rows.
            let rows = &w.bytes()[first * w.row_bytes()..(first + LANES) * w.row_bytes()];
            for (from, row) in from.iter_mut().zip(rows.chunks_exact(w.row_bytes())) {
                *from = B::all(row);
            }
        } else {
            let row = |i: usize| w.blocks((first + i).min(w.rows() - 1));
            stride = row(0).1;
            for (i, from) in from.iter_mut().enumerate() {
                let (bytes, same) = row(i);
                assert!(same == stride, "rows of one group");
                *from = B::all(bytes);
            }
        }
        assert!(n > 0 && from.iter().all(|from| from.len() > (n - 1) * stride), "eight rows of {n} blocks");
        Self { from, stride, n }
    }

    /// Block `b` of each.
    ///
    /// # Safety
    /// `b` must be below the number of blocks.
    #[inline(always)]
    unsafe fn blocks(&self, b: usize) -> [&'a B; LANES] {
        debug_assert!(b < self.n);
        let [r0, r1, r2, r3, r4, r5, r6, r7] = self.from;
        let at = b * self.stride;
        // SAFETY: `b < n`, and every slice has more than `(n - 1) * stride` blocks, asserted in `new`. (A closure would not
        // always be inlined into functions that need CPU features.)
        unsafe {
            [
                r0.get_unchecked(at),
                r1.get_unchecked(at),
                r2.get_unchecked(at),
                r3.get_unchecked(at),
                r4.get_unchecked(at),
                r5.get_unchecked(at),
                r6.get_unchecked(at),
                r7.get_unchecked(at),
            ]
        }
    }
}

/// Asks for the memory of the next rows while these are computed, so that it is there when their turn comes: eight short
/// streams at once are more than the hardware's own prefetcher follows.
pub struct Prefetch(*const u8);

impl Prefetch {
    /// How far ahead of what is asked for next memory is moved to the second-level cache, in bytes.
    const FAR: usize = 16 << 10;

    /// From row `first` on (past the end does no harm). Eight rows take the same memory in every layout.
    #[inline(always)]
    pub fn rows(w: &Matrix<'_>, first: usize) -> Self {
        Self(w.bytes().as_ptr().wrapping_add(first * w.row_bytes()))
    }

    /// The rows that follow those up to `done`: up to `most` of what is left of a piece that ends with row `end`, or of the piece
    /// that is probably next. Also how many bytes to ask for in each of so many `steps`, to have asked for all of them.
    #[inline(always)]
    pub fn following(
        w: &Matrix<'_>,
        (done, end): (usize, usize),
        then: &Range<usize>,
        most: usize,
        steps: usize,
    ) -> (Self, usize) {
        let rest = if done < end { done..end } else { then.clone() };
        let bytes = rest.len().min(most) * w.row_bytes();
        (Self::rows(w, rest.start), bytes.div_ceil(steps).next_multiple_of(64))
    }

    /// The memory that a block of each of so many rows takes; and, for the second-level cache, as much [`FAR`](Self::FAR) behind it.
    /// The first-level cache waits for too few lines at once to take all of memory's speed.
    #[inline(always)]
    fn ask<Block>(&mut self, rows: usize) {
        for line in (0..rows * size_of::<Block>()).step_by(64) {
            // SAFETY: a prefetch reads nothing; any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.0.wrapping_add(line).cast()) };
        }
        // (Lines come in pairs.)
        for line in (Self::FAR..Self::FAR + rows * size_of::<Block>()).step_by(2 * 64) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.0.wrapping_add(line).cast()) };
        }
        self.0 = self.0.wrapping_add(rows * size_of::<Block>());
    }

    /// Some bytes, for the cache of the second level: what has a while until it is used.
    #[inline(always)]
    pub fn ahead(&mut self, bytes: usize) {
        for line in (0..bytes).step_by(64) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.0.wrapping_add(line).cast()) };
        }
        self.0 = self.0.wrapping_add(bytes);
    }
}
