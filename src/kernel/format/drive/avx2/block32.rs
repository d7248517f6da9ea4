//! Formats of 32-element blocks with one scale (and perhaps one minimum) a block.

use super::{
    LANES, TILE_FROM, TOKENS, load, load_f32, pairs, prefetch_next, store, store_f32, sums, transpose,
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
    /// The 32 codes in element order.
    fn codes(isa: Avx2, block: &Self::Bytes) -> __m256i;
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
    xs: __m256,
    xsum: i32,
) -> __m256 {
    let isum =
        if B::OFFSET == 0 { isum } else { _mm256_sub_epi32(isum, _mm256_set1_epi32(B::OFFSET * xsum)) };
    let acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(ws, xs)));
    if B::MINS {
        let xsum = _mm256_set1_ps(xsum as f32);
        _mm256_add_ps(acc, _mm256_mul_ps(xsum, _mm256_mul_ps(wm, xs)))
    } else {
        acc
    }
}

/// The sum of a block's activation codes from the two stored sums of 16.
#[inline(always)]
fn block_sum(sums: &[i16], b: usize) -> i32 {
    i32::from(sums[2 * b]) + i32::from(sums[2 * b + 1])
}

/// One token: weights are read once, where they lie.
#[target_feature(enable = "avx2,fma,f16c")]
fn one<B: Block32>(isa: Avx2, w: &Matrix<'_>, x: Q8Row<'_>, first_row: usize, out: &mut [f32]) {
    let (xs, _) = unsigned(x.codes).as_chunks::<32>();
    let ones = _mm256_set1_epi16(1);
    for (group, out) in out.chunks_mut(LANES).enumerate() {
        let first = first_row + group * LANES;
        let rows = super::lanes(w, first, B::blocks);
        assert!(rows.iter().all(|r| r.len() == xs.len()));
        let mut acc = _mm256_setzero_ps();
        for (b, (xq, &x_scale)) in xs.iter().zip(x.scales).enumerate() {
            prefetch_next(w, first, b, size_of::<B::Bytes>());
            // SAFETY: every row has as many blocks as `xs`, asserted above.
            let blocks: [&B::Bytes; LANES] = std::array::from_fn(|i| unsafe { rows[i].get_unchecked(b) });
            let xq = load(xq);
            let mut part = [_mm256_setzero_si256(); LANES];
            for (part, block) in part.iter_mut().zip(blocks) {
                *part = _mm256_madd_epi16(pairs(B::SIGNED, B::codes(isa, block), xq), ones);
            }
            let mins = if B::MINS { B::mins(isa, blocks) } else { _mm256_setzero_ps() };
            let xsum = if B::MINS || B::OFFSET != 0 { block_sum(x.sums, b) } else { 0 };
            acc =
                accumulate::<B>(acc, sums(part), B::scales(isa, blocks), mins, _mm256_set1_ps(x_scale), xsum);
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
            let mut codes = [_mm256_setzero_si256(); LANES];
            for (codes, block) in codes.iter_mut().zip(blocks) {
                *codes = B::codes(isa, block);
            }
            for (to, v) in tile.codes[b * 8..][..8].iter_mut().zip(transpose(codes)) {
                store(v, to);
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
    let n = tile.factors.len();
    assert!(
        codes.iter().all(|c| c.len() == n) && x.iter().all(|x| x.scales.len() == n && x.sums.len() == 2 * n)
    );
    // As many i16 sums of pairs may be added as cannot exceed i16: then one multiplication widens them all.
    let widen_each = B::SIGNED || B::MAX * 127 * 2 * 8 > i16::MAX as i32;
    let run = if B::SIGNED { 1 } else { 4 };
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); TOKENS];
    let (tile_codes, _) = tile.codes.as_chunks::<8>();
    for (b, (w, ws)) in tile_codes.iter().zip(&tile.factors).enumerate() {
        let mut wide = [_mm256_setzero_si256(); T];
        let mut narrow = [_mm256_setzero_si256(); T];
        for (g, w) in w.iter().enumerate() {
            let w = load(w);
            for i in 0..T {
                // SAFETY: `b < n`, and every `codes[i]` has `n` blocks, asserted above.
                let block = unsafe { codes[i].get_unchecked(b) };
                let four = [block[4 * g], block[4 * g + 1], block[4 * g + 2], block[4 * g + 3]];
                let xq = _mm256_set1_epi32(i32::from_le_bytes(four));
                let p = pairs(B::SIGNED, w, xq);
                narrow[i] = if g % run == 0 && widen_each { p } else { _mm256_add_epi16(narrow[i], p) };
                if widen_each && g % run == run - 1 {
                    wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(narrow[i], ones));
                }
            }
        }
        let ws = load_f32(ws);
        let wm = if B::MINS { load_f32(&tile.min_factors[b]) } else { _mm256_setzero_ps() };
        for i in 0..T {
            let isum = if widen_each { wide[i] } else { _mm256_madd_epi16(narrow[i], ones) };
            // SAFETY: `b < n`; the lengths were asserted above.
            let (x_scale, s) =
                unsafe { (*x[i].scales.get_unchecked(b), x[i].sums.get_unchecked(2 * b..2 * b + 2)) };
            let xsum = i32::from(s[0]) + i32::from(s[1]);
            acc[i] = accumulate::<B>(acc[i], isum, ws, wm, _mm256_set1_ps(x_scale), xsum);
        }
    }
    acc
}
