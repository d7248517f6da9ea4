//! Formats of 32-element blocks with one scale (and perhaps one minimum) a block.

use super::{
    LANES, Prefetch, TILE_FROM, TOKENS, halves, load, load_f32, pairs, store, store_f32, sums4, transpose4,
    unsigned,
};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::Tile;
use crate::kernel::isa::Avx2;
use crate::kernel::op::quantize::{Q8, Q8Row};
use crate::kernel::par::Cols;
use std::arch::x86_64::*;

/// How AVX2 reads a format's blocks.
pub trait Block32: 'static {
    /// The bytes of a block.
    type Bytes: 'static;
    /// Whether [`codes`](Self::codes) are signed; unsigned ones must be below 32.
    const SIGNED: bool;
    /// What is subtracted from an unsigned code.
    const OFFSET: i32;
    /// The largest unsigned code.
    const MAX: i32;
    /// Whether blocks have a minimum.
    const MINS: bool;

    /// The blocks of a row.
    fn blocks(row: &[u8]) -> &[Self::Bytes];
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
    if x.tokens() < TILE_FROM {
        for t in 0..x.tokens() {
            let range = out.range();
            // SAFETY: the token proves the features.
            unsafe { one::<B>(isa, &w, x.row(t), range.start, out.row(t)) }
        }
    } else {
        // SAFETY: the token proves the features.
        unsafe { many::<B>(isa, &w, x, out, tile) }
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

/// One block of eight rows by one token.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step<B: Block32>(
    isa: Avx2,
    acc: __m256,
    blocks: [&B::Bytes; LANES],
    codes: &[u8; 32],
    x_scale: f32,
    x_sums: [i16; 2],
) -> __m256 {
    let ones = _mm256_set1_epi16(1);
    let x = halves(codes);
    let part: [__m256i; 4] = std::array::from_fn(|i| {
        let codes = B::codes(isa, blocks[i], blocks[i + 4]);
        let (p, q) = (pairs(B::SIGNED, codes[0], x[0]), pairs(B::SIGNED, codes[1], x[1]));
        if run::<B>() == 1 {
            _mm256_add_epi32(_mm256_madd_epi16(p, ones), _mm256_madd_epi16(q, ones))
        } else {
            _mm256_madd_epi16(_mm256_add_epi16(p, q), ones)
        }
    });
    let mins = if B::MINS { B::mins(isa, blocks) } else { _mm256_setzero_ps() };
    accumulate::<B>(acc, sums4(part), B::scales(isa, blocks), mins, x_scale, x_sums)
}

/// One token: weights are read once, where they lie.
#[target_feature(enable = "avx2,fma,f16c")]
fn one<B: Block32>(isa: Avx2, w: &Matrix<'_>, x: Q8Row<'_>, first_row: usize, out: &mut [f32]) {
    const { assert!(!B::MINS || B::OFFSET == 0) };
    let (codes, _) = unsigned(x.codes).as_chunks::<32>();
    let (x_sums, _) = x.sums.as_chunks::<2>();
    let n = codes.len();
    assert!(x.scales.len() == n && x_sums.len() == n);
    for (group, out) in out.chunks_mut(LANES).enumerate() {
        let first = first_row + group * LANES;
        let rows = super::lanes(w, first, B::blocks);
        assert!(rows.iter().all(|r| r.len() == n));
        let mut next = Prefetch::rows(w, first + LANES);
        let mut acc = _mm256_setzero_ps();
        let mut block = |b: usize| {
            next.ask::<B::Bytes>();
            // SAFETY: every row and every part of `x` has `n` blocks, asserted above, and `b` is below it.
            unsafe {
                let blocks = std::array::from_fn(|i| rows[i].get_unchecked(b));
                let (codes, scale, sums) =
                    (codes.get_unchecked(b), x.scales.get_unchecked(b), x_sums.get_unchecked(b));
                acc = step::<B>(isa, acc, blocks, codes, *scale, *sums);
            }
        };
        // Two at a time: there are more pointers than registers, and they are fetched once for both.
        for b in (1..n).step_by(2) {
            block(b - 1);
            block(b);
        }
        if n % 2 == 1 {
            block(n - 1);
        }
        let mut lanes = [0.0; LANES];
        store_f32(acc, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Many tokens: eight rows are unpacked and interleaved once, then used for every token.
#[target_feature(enable = "avx2,fma,f16c")]
fn many<B: Block32>(isa: Avx2, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
    let n_blocks = x.n / 32;
    tile.codes.resize(n_blocks * 8, [0; 32]);
    tile.factors.resize(n_blocks, [0.0; 8]);
    tile.min_factors.resize(if B::MINS { n_blocks } else { 0 }, [0.0; 8]);
    let range = out.range();
    for first in range.clone().step_by(LANES) {
        let rows = super::lanes(w, first, B::blocks);
        for b in 0..n_blocks {
            let blocks: [&B::Bytes; LANES] = std::array::from_fn(|i| &rows[i][b]);
            let codes: [[__m256i; 2]; 4] = std::array::from_fn(|i| B::codes(isa, blocks[i], blocks[i + 4]));
            for half in 0..2 {
                let fours = transpose4(codes.map(|c| c[half]));
                for (to, v) in tile.codes[b * 8 + half * 4..][..4].iter_mut().zip(fours) {
                    store(v, to);
                }
            }
            store_f32(B::scales(isa, blocks), &mut tile.factors[b]);
            if B::MINS {
                store_f32(B::mins(isa, blocks), &mut tile.min_factors[b]);
            }
        }
        let at = first - range.start;
        let width = LANES.min(range.end - first);
        let mut t = 0;
        while t < x.tokens() {
            let take = (x.tokens() - t).min(TOKENS);
            let acc: [__m256; TOKENS] = match take {
                4 => tokens::<B, 4>(tile, x, t),
                3 => tokens::<B, 3>(tile, x, t),
                2 => tokens::<B, 2>(tile, x, t),
                _ => tokens::<B, 1>(tile, x, t),
            };
            for (i, acc) in acc.into_iter().enumerate().take(take) {
                let mut lanes = [0.0; LANES];
                store_f32(acc, &mut lanes);
                out.row(t + i)[at..at + width].copy_from_slice(&lanes[..width]);
            }
            t += take;
        }
    }
}

/// `T` tokens from `t` on by the eight rows of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tokens<B: Block32, const T: usize>(tile: &Tile, x: &Q8<'_>, t: usize) -> [__m256; TOKENS] {
    let x: [Q8Row<'_>; T] = std::array::from_fn(|i| x.row(t + i));
    let codes: [&[[u8; 32]]; T] = std::array::from_fn(|i| unsigned(x[i].codes).as_chunks::<32>().0);
    let x_sums: [&[[i16; 2]]; T] = std::array::from_fn(|i| x[i].sums.as_chunks().0);
    let n = tile.factors.len();
    assert!(codes.iter().all(|c| c.len() == n) && x_sums.iter().all(|s| s.len() == n));
    assert!(x.iter().all(|x| x.scales.len() == n));
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); TOKENS];
    let (tile_codes, _) = tile.codes.as_chunks::<8>();
    for (b, (w, ws)) in tile_codes.iter().zip(&tile.factors).enumerate() {
        // SAFETY: `b < n`, and each of these has `n` elements, asserted above.
        let xq: [&[u8; 32]; T] = std::array::from_fn(|i| unsafe { codes[i].get_unchecked(b) });
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
            let (x_scale, x_sums) = unsafe { (*x[i].scales.get_unchecked(b), *x_sums[i].get_unchecked(b)) };
            acc[i] = accumulate::<B>(acc[i], isum[i], ws, wm, x_scale, x_sums);
        }
    }
    acc
}
