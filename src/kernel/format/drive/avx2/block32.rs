//! Formats of 32-element blocks with one scale (and perhaps one minimum) a block.

use super::{
    Block, LANES, Prefetch, Rows, VECTORS, Vector, halves, load, load_f32, pairs, products, store, store_f32,
    sums4, transpose4,
};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::{Products, TILE_FROM, Tile, in_runs, put};
use crate::kernel::isa::{Avx2, Dots};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::arch::x86_64::*;

/// How AVX2 reads a format's blocks.
pub trait Block32: 'static {
    /// The bytes of a block.
    type Bytes: Block;
    /// Whether [`codes`](Self::codes) are signed; unsigned ones must be below 32.
    const SIGNED: bool;
    /// What is subtracted from an unsigned code.
    const OFFSET: i32 = 0;
    /// The largest unsigned code.
    const MAX: i32 = 127;
    /// Whether blocks have a minimum.
    const MINS: bool = false;

    /// The codes of two blocks, elements 0 to 15 and 16 to 31, each time of `low` in the low half of the vector and of
    /// `high` in its high half.
    fn codes(isa: Avx2, low: &Self::Bytes, high: &Self::Bytes) -> [__m256i; 2];
    /// The scales of eight rows' blocks.
    fn scales(isa: Avx2, blocks: [&Self::Bytes; LANES]) -> __m256;
    /// The minimums of eight rows' blocks (added, not subtracted); only called if [`MINS`](Self::MINS).
    fn mins(isa: Avx2, blocks: [&Self::Bytes; LANES]) -> __m256 {
        Self::scales(isa, blocks)
    }
}

/// The product under the contract for the rows in `out.range()`.
pub fn matmul<B: Block32>(isa: Avx2, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
    // SAFETY: the token proves the features.
    unsafe {
        if x.vectors() < TILE_FROM {
            few::<B, Avx2>(isa, &w, x, out);
        } else {
            many::<B>(isa, &w, x, out, tile);
        }
    }
}

/// One block step of eight rows: `acc + f32(isum) * (w_scale * x_scale)`, then the same with the minimum and the sum
/// of the activations' codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<B: Block32>(
    acc: __m256,
    isum: __m256i,
    ws: __m256,
    wm: __m256,
    x_scale: f32,
    x_sums: [i16; 2],
) -> __m256 {
    let xs = _mm256_set1_ps(x_scale);
    // In every lane: the sum of the block's activation codes, times the offset if there is one.
    let two = i32::from(x_sums[0] as u16) | (i32::from(x_sums[1]) << 16);
    let factor = if B::OFFSET == 0 { 1 } else { B::OFFSET as i16 };
    let xsum = _mm256_madd_epi16(_mm256_set1_epi32(two), _mm256_set1_epi16(factor));
    let isum = if B::OFFSET == 0 { isum } else { _mm256_sub_epi32(isum, xsum) };
    let acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(ws, xs)));
    if B::MINS {
        _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(xsum), _mm256_mul_ps(wm, xs)))
    } else {
        acc
    }
}

/// As many i16 sums of pairs as can be added and stay i16: a power of two.
const fn run<B: Block32>() -> usize {
    let mut run = if B::SIGNED { 1 } else { 8 };
    while run > 1 && B::MAX * 127 * 2 * run as i32 > i16::MAX as i32 {
        run /= 2;
    }
    run
}

/// Few vectors: weights are read where they lie.
pub fn few<B: Block32, D: Dots>(isa: D, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
    isa.compiled(
        #[inline(always)]
        || {
            let mut v = 0;
            // The terms of a token take one pass.
            in_runs!(v of x.vectors(), [2, 1], RUN => pass::<B, D, RUN>(isa, w, x, v, out));
        },
    );
}

/// One pass over the weights for `T` vectors from `v` on.
#[inline(always)]
fn pass<B: Block32, D: Dots, const T: usize>(
    isa: D,
    w: &Matrix<'_>,
    x: &Q8<'_>,
    v: usize,
    out: &mut Cols<'_, f32>,
) {
    let n = x.n / 32;
    let vectors: [Vector<'_, 32, 2>; T] = std::array::from_fn(|i| Vector::new(x.vector(v + i), n));
    let range = out.range();
    for first in range.clone().step_by(LANES) {
        let rows = Rows::<B::Bytes>::new(w, first, n);
        let mut next = Prefetch::rows(w, first + LANES);
        // SAFETY: the token proves the features.
        let mut acc = [unsafe { _mm256_setzero_ps() }; T];
        for b in (0..n).step_by(2) {
            next.ask::<B::Bytes>(LANES);
            // SAFETY: `b < n`, and every part of the vectors has `n` blocks.
            unsafe { step::<B, D, T>(isa, &mut acc, rows.blocks(b), &vectors, b) }
            // Two at a time: there are more pointers than registers, and they are fetched once for both.
            if b + 1 < n {
                next.ask::<B::Bytes>(LANES);
                // SAFETY: as above.
                unsafe { step::<B, D, T>(isa, &mut acc, rows.blocks(b + 1), &vectors, b + 1) }
            }
        }
        let at = first - range.start;
        // SAFETY: the token proves the features.
        put(x, out, at..at + LANES, v, &unsafe { products(&acc) });
    }
}

/// Block `b` of eight rows by `T` vectors.
///
/// # Safety
/// The vectors must have more than `b` blocks.
#[inline(always)]
unsafe fn step<B: Block32, D: Dots, const T: usize>(
    isa: D,
    acc: &mut [__m256; T],
    blocks: [&B::Bytes; LANES],
    vectors: &[Vector<'_, 32, 2>; T],
    b: usize,
) {
    const { assert!(!B::MINS || B::OFFSET == 0) };
    // SAFETY: the token proves the features, and there is such a block, as the caller promises.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut x = [[zero; 2]; T];
        for t in 0..T {
            x[t] = halves(vectors[t].codes.get_unchecked(b));
        }
        let mut parts = [[zero; 4]; T];
        for i in 0..4 {
            let codes = B::codes(isa.avx2(), blocks[i], blocks[i + 4]);
            for t in 0..T {
                parts[t][i] = dot::<B, D>(isa, codes, x[t]);
            }
        }
        let scales = B::scales(isa.avx2(), blocks);
        let mins = if B::MINS { B::mins(isa.avx2(), blocks) } else { _mm256_setzero_ps() };
        for t in 0..T {
            let (x_scale, x_sums) = (*vectors[t].scales.get_unchecked(b), *vectors[t].sums.get_unchecked(b));
            acc[t] = accumulate::<B>(acc[t], sums4(parts[t]), scales, mins, x_scale, x_sums);
        }
    }
}

/// The products of two vectors of codes with activations, in lanes of four times two.
#[inline(always)]
fn dot<B: Block32, D: Dots>(isa: D, codes: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    // SAFETY: the token proves the features.
    unsafe {
        if D::FAST_DOT4 {
            let (mut u, mut s) = (codes, x);
            if B::SIGNED {
                for i in 0..2 {
                    (u[i], s[i]) = (_mm256_abs_epi8(codes[i]), _mm256_sign_epi8(x[i], codes[i]));
                }
            }
            return isa.dot4(isa.dot4(_mm256_setzero_si256(), u[0], s[0]), u[1], s[1]);
        }
        let ones = _mm256_set1_epi16(1);
        let (p, q) = (pairs(B::SIGNED, codes[0], x[0]), pairs(B::SIGNED, codes[1], x[1]));
        if run::<B>() == 1 {
            _mm256_add_epi32(_mm256_madd_epi16(p, ones), _mm256_madd_epi16(q, ones))
        } else {
            _mm256_madd_epi16(_mm256_add_epi16(p, q), ones)
        }
    }
}

/// Unpacks the eight rows from `first` on into group `group` of a tile of `groups`. Signed codes become unsigned ones, 128
/// larger, if `FLIP`.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn unpack<B: Block32, const FLIP: bool>(
    isa: Avx2,
    w: &Matrix<'_>,
    first: usize,
    tile: &mut Tile,
    group: usize,
    groups: usize,
) {
    let n = w.cols() / 32;
    tile.codes.resize(n * 8 * groups, [0; 32]);
    tile.factors.resize(n * groups, [0.0; 8]);
    tile.min_factors.resize(if B::MINS { n * groups } else { 0 }, [0.0; 8]);
    let flip = _mm256_set1_epi8(if FLIP && B::SIGNED { -128 } else { 0 });
    let rows = Rows::<B::Bytes>::new(w, first, n);
    for b in 0..n {
        // SAFETY: `b < n`.
        let blocks = unsafe { rows.blocks(b) };
        let mut codes = [[_mm256_setzero_si256(); 2]; 4];
        for (i, codes) in codes.iter_mut().enumerate() {
            *codes = B::codes(isa, blocks[i], blocks[i + 4]);
        }
        let to = &mut tile.codes[b * 8 * groups..][..8 * groups];
        for half in 0..2 {
            let fours = transpose4([codes[0][half], codes[1][half], codes[2][half], codes[3][half]]);
            for (k, v) in fours.into_iter().enumerate() {
                store(_mm256_xor_si256(v, flip), &mut to[(half * 4 + k) * groups + group]);
            }
        }
        store_f32(B::scales(isa, blocks), &mut tile.factors[b * groups + group]);
        if B::MINS {
            store_f32(B::mins(isa, blocks), &mut tile.min_factors[b * groups + group]);
        }
    }
}

/// Many vectors: eight rows are unpacked and interleaved once, then used for every vector.
#[target_feature(enable = "avx2,fma,f16c")]
fn many<B: Block32>(isa: Avx2, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
    let range = out.range();
    for first in range.clone().step_by(LANES) {
        unpack::<B, false>(isa, w, first, tile, 0, 1);
        let at = first - range.start;
        let mut v = 0;
        in_runs!(v of x.vectors(), [VECTORS, 2, 1], RUN => {
            put(x, out, at..at + LANES, v, &vectors::<B, RUN>(tile, x, v));
        });
    }
}

/// `T` vectors from `v` on by the eight rows of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vectors<B: Block32, const T: usize>(tile: &Tile, x: &Q8<'_>, v: usize) -> Products<1, T> {
    let n = tile.factors.len();
    let x: [Vector<'_, 32, 2>; T] = std::array::from_fn(|i| Vector::new(x.vector(v + i), n));
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); T];
    let (tile_codes, _) = tile.codes.as_chunks::<8>();
    for (b, (w, ws)) in tile_codes.iter().zip(&*tile.factors).enumerate() {
        // SAFETY: `b < n`, and every part of a vector has `n` blocks.
        let xq: [&[u8; 32]; T] = std::array::from_fn(|i| unsafe { x[i].codes.get_unchecked(b) });
        let mut isum = [_mm256_setzero_si256(); T];
        for g0 in (0..8).step_by(run::<B>()) {
            let mut narrow = [_mm256_setzero_si256(); T];
            for g in g0..g0 + run::<B>() {
                let w = load(&w[g]);
                for i in 0..T {
                    let four = [xq[i][4 * g], xq[i][4 * g + 1], xq[i][4 * g + 2], xq[i][4 * g + 3]];
                    let p = pairs(B::SIGNED, w, _mm256_set1_epi32(i32::from_le_bytes(four)));
                    narrow[i] = if g == g0 { p } else { _mm256_add_epi16(narrow[i], p) };
                }
            }
            for i in 0..T {
                let wide = _mm256_madd_epi16(narrow[i], ones);
                isum[i] = if g0 == 0 { wide } else { _mm256_add_epi32(isum[i], wide) };
            }
        }
        let ws = load_f32(ws);
        let wm = if B::MINS { load_f32(&tile.min_factors[b]) } else { _mm256_setzero_ps() };
        for i in 0..T {
            // SAFETY: as above.
            let (x_scale, x_sums) = unsafe { (*x[i].scales.get_unchecked(b), *x[i].sums.get_unchecked(b)) };
            acc[i] = accumulate::<B>(acc[i], isum[i], ws, wm, x_scale, x_sums);
        }
    }
    products(&acc)
}
