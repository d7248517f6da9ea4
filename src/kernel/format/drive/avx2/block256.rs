//! Formats of 256-element blocks whose sub-blocks of 16 or 32 have integer scales (and perhaps minimums).

use super::few::{Grid, Points, few};
use super::{
    Block, LANES, Rows, VECTORS, Vector, load, load_f32, pairs, products, store, store_f32, transpose,
};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::{Products, TILE_FROM, Tile, in_runs, put};
use crate::kernel::isa::Avx2;
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::arch::x86_64::*;

/// How AVX2 reads a format's blocks.
pub trait Block256: 'static {
    /// The bytes of a block.
    type Bytes: Block;
    /// Whether [`codes`](Self::codes) are signed; unsigned ones must be below 64.
    const SIGNED: bool;
    /// What is subtracted from an unsigned code: a power of two, or 0.
    const OFFSET: i32 = 0;
    /// The largest unsigned code.
    const MAX: i32 = 127;
    /// Elements in a sub-block: 16 or 32.
    const SUB: usize;
    /// The largest magnitude of an integer scale; 1 if all of them are 1.
    const MAX_SCALE: i32 = 128;
    /// Whether sub-blocks have minimums.
    const MINS: bool = false;
    /// The f32 scales of a block: one, or two for its halves. Each is a step of its own; minimums go with one scale only.
    const PARTS: usize = 1;

    /// Whether there are [`masks`](Self::masks).
    const MASKS: bool = false;

    /// The codes of elements `32 * j .. 32 * j + 32` in order; `j` is in `0..8`.
    fn codes(isa: Avx2, block: &Self::Bytes, j: usize) -> __m256i;
    /// All codes of a block, where that takes less than one [`codes`](Self::codes) after the other. Only called if all scales
    /// are 1.
    #[inline(always)]
    fn block(isa: Avx2, block: &Self::Bytes) -> [__m256i; 8] {
        // SAFETY: the token proves the features.
        let mut codes = [unsafe { _mm256_setzero_si256() }; 8];
        for (j, codes) in codes.iter_mut().enumerate() {
            *codes = Self::codes(isa, block, j);
        }
        codes
    }
    /// The same as two bytes for each code, which are 0 or 255 and whose sum is 255 times the code: less work where bytes up to
    /// 255 can be multiplied.
    #[inline(always)]
    fn masks(_isa: Avx2, _block: &Self::Bytes) -> [[__m256i; 2]; 8] {
        unreachable!("asked only where MASKS is set")
    }
    /// The codes of elements `64 * pair ..` of eight blocks, the first 32 and the others: lane `r` of vector `k` has the
    /// four codes from `4 * k` on of block `r`. Where bytes hold codes of both they may be transposed once for the two.
    #[inline(always)]
    fn lanes(isa: Avx2, blocks: [&Self::Bytes; LANES], pair: usize) -> [[__m256i; LANES]; 2] {
        // SAFETY: the token proves the features.
        unsafe {
            let mut codes = [[_mm256_setzero_si256(); LANES]; 2];
            // (Loops: what `map` calls is not always inlined, and then no instruction in it is.)
            for (i, codes) in codes.iter_mut().enumerate() {
                for (codes, block) in codes.iter_mut().zip(blocks) {
                    *codes = Self::codes(isa, block, 2 * pair + i);
                }
            }
            [transpose(codes[0]), transpose(codes[1])]
        }
    }
    /// The integer scales as i16: lane `k` of the low half is that of elements `32 * k ..`, lane `k` of the high half
    /// that of elements `32 * k + 16 ..`. All 1 where the block's own scale is all there is.
    #[inline(always)]
    fn scales(_isa: Avx2, _block: &Self::Bytes) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_set1_epi16(1) }
    }
    /// The grid that codes are points of. Products with few vectors take [`points`](Self::points) then.
    const GRID: Option<Grid> = None;
    /// What they take of a block; only called if there is a [`GRID`](Self::GRID).
    fn points(_isa: Avx2, _block: &Self::Bytes) -> Points {
        unreachable!("a format without a grid")
    }
    /// What the codes that products with few vectors take are too large by, times the scales and arranged like those.
    #[inline(always)]
    fn back(_isa: Avx2, _block: &Self::Bytes, scales: __m256i) -> Option<__m256i> {
        let shift = Self::OFFSET.trailing_zeros() as i32;
        // SAFETY: the token proves the features.
        (Self::OFFSET != 0).then_some(unsafe { _mm256_sll_epi16(scales, _mm_cvtsi32_si128(shift)) })
    }
    /// The integer minimums, arranged like the scales; only called if [`MINS`](Self::MINS).
    fn mins(isa: Avx2, block: &Self::Bytes) -> __m256i {
        Self::scales(isa, block)
    }
    /// The f32 scales of eight rows' blocks.
    fn d(isa: Avx2, blocks: [&Self::Bytes; LANES]) -> __m256;
    /// The f32 scales of the second halves; only called if [`PARTS`](Self::PARTS) is 2.
    fn d_second(isa: Avx2, blocks: [&Self::Bytes; LANES]) -> __m256 {
        Self::d(isa, blocks)
    }
    /// The f32 scales of the minimums (subtracted); only called if [`MINS`](Self::MINS).
    fn dmin(isa: Avx2, blocks: [&Self::Bytes; LANES]) -> __m256 {
        Self::d(isa, blocks)
    }
}

/// The product under the contract for the rows in `out.range()`.
pub fn matmul<B: Block256>(isa: Avx2, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
    if x.vectors() < TILE_FROM {
        few::<B, Avx2>(isa, &w, x, out);
    } else {
        // SAFETY: the token proves the features.
        unsafe { many::<B>(isa, &w, x, out, tile) }
    }
}

/// Whether sums of activation codes are needed: for minimums, or to take an offset back.
const fn needs_sums<B: Block256>() -> bool {
    B::MINS || B::OFFSET != 0
}

/// One block step of eight rows. `corr` is `sum over sub-blocks of (minimum or scale) * (sum of activation codes)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<B: Block256>(
    acc: __m256,
    isum: __m256i,
    corr: __m256i,
    d: __m256,
    dmin: __m256,
    xs: __m256,
) -> __m256 {
    let isum = match B::OFFSET {
        0 => isum,
        offset => {
            let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
            _mm256_sub_epi32(isum, _mm256_sll_epi32(corr, shift))
        }
    };
    step::<B>(acc, isum, corr, d, dmin, xs)
}

/// The same of integers from which the offset is taken already; `corr` counts only if there are minimums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn step<B: Block256>(
    acc: __m256,
    isum: __m256i,
    corr: __m256i,
    d: __m256,
    dmin: __m256,
    xs: __m256,
) -> __m256 {
    let acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(d, xs)));
    if B::MINS {
        _mm256_sub_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(corr), _mm256_mul_ps(dmin, xs)))
    } else {
        acc
    }
}

/// Those of `n` equal pieces of a block that are in part `part` of it.
pub const fn of_part<B: Block256>(part: usize, n: usize) -> std::ops::Range<usize> {
    const { assert!(B::PARTS == 1 || (B::PARTS == 2 && !B::MINS)) };
    part * n / B::PARTS..(part + 1) * n / B::PARTS
}

/// Eight rows' i16 values (arranged like [`Block256::scales`]) as eight vectors: in vector `k`, lane `r`, the values
/// of row `r` for elements `32 * k ..` and `32 * k + 16 ..`.
#[inline]
#[target_feature(enable = "avx2")]
fn by_pair(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let mut pairs = rows;
    for v in &mut pairs {
        let (lo, hi) = (_mm256_castsi256_si128(*v), _mm256_extracti128_si256::<1>(*v));
        *v = _mm256_set_m128i(_mm_unpackhi_epi16(lo, hi), _mm_unpacklo_epi16(lo, hi));
    }
    transpose(pairs)
}

/// The integer scales of eight blocks, [by pair](by_pair).
#[inline]
#[target_feature(enable = "avx2")]
fn scales_by_pair<B: Block256>(isa: Avx2, blocks: [&B::Bytes; LANES]) -> [__m256i; LANES] {
    let mut scales = [_mm256_setzero_si256(); LANES];
    for (scales, block) in scales.iter_mut().zip(blocks) {
        *scales = B::scales(isa, block);
    }
    by_pair(scales)
}

/// Their integer minimums, in the same way.
#[inline]
#[target_feature(enable = "avx2")]
fn mins_by_pair<B: Block256>(isa: Avx2, blocks: [&B::Bytes; LANES]) -> [__m256i; LANES] {
    let mut mins = [_mm256_setzero_si256(); LANES];
    for (mins, block) in mins.iter_mut().zip(blocks) {
        *mins = B::mins(isa, block);
    }
    by_pair(mins)
}

/// Stores values that were arranged [by pair](by_pair): all of them, or of sub-blocks of 32, whose two values are the same,
/// those of two neighbours side by side, which are half as many.
#[inline]
#[target_feature(enable = "avx2")]
fn store_pairs(values: [__m256i; LANES], to: &mut [[u8; 32]], group: usize, groups: usize) {
    let n = to.len() / groups;
    for k in 0..n {
        let v = match n {
            4 => _mm256_blend_epi16::<0xaa>(values[2 * k], values[2 * k + 1]),
            _ => values[k],
        };
        store(v, &mut to[k * groups + group]);
    }
}

/// Vectors of minimums for a block in a tile for VNNI, which takes two sub-blocks of 32 together. None where all scales are
/// 1: the sums need no weights then.
pub const fn tile_mins<B: Block256>() -> usize {
    let needed = needs_sums::<B>() || B::SIGNED;
    if !needed || B::MAX_SCALE == 1 { 0 } else { 128 / B::SUB }
}

/// Unpacks the eight rows from `first` on into group `group` of a tile of `groups`. For VNNI signed codes become unsigned ones,
/// 128 larger, and there are [`tile_mins`].
#[target_feature(enable = "avx2,fma,f16c")]
pub fn unpack<B: Block256, const VNNI: bool>(
    isa: Avx2,
    w: &Matrix<'_>,
    first: usize,
    tile: &mut Tile,
    group: usize,
    groups: usize,
) {
    let n = w.cols() / 256;
    let subs = 256 / B::SUB;
    let n_mins = match VNNI {
        true => tile_mins::<B>(),
        false if needs_sums::<B>() => 8,
        false => 0,
    };
    let with_scales = !VNNI || B::MAX_SCALE > 1;
    tile.codes.resize(n * 64 * groups, [0; 32]);
    tile.scales.resize(if with_scales { n * subs * groups } else { 0 }, [0; 32]);
    tile.mins.resize(n * n_mins * groups, [0; 32]);
    tile.factors.resize(n * B::PARTS * groups, [0.0; 8]);
    tile.min_factors.resize(if B::MINS { n * groups } else { 0 }, [0.0; 8]);
    let flip = _mm256_set1_epi8(if VNNI && B::SIGNED { -128 } else { 0 });
    let rows = Rows::<B::Bytes>::new(w, first, n);
    for b in 0..n {
        // SAFETY: `b < n`.
        let blocks = unsafe { rows.blocks(b) };
        for pair in 0..4 {
            let to = &mut tile.codes[(b * 64 + pair * 16) * groups..][..16 * groups];
            for (k, &v) in B::lanes(isa, blocks, pair).as_flattened().iter().enumerate() {
                store(_mm256_xor_si256(v, flip), &mut to[k * groups + group]);
            }
        }
        if with_scales {
            let scales = scales_by_pair::<B>(isa, blocks);
            for (k, &v) in scales.iter().enumerate() {
                let low = _mm256_blend_epi16::<0xaa>(v, _mm256_slli_epi32::<16>(v));
                let high = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(v), v);
                if B::SUB == 32 {
                    store(low, &mut tile.scales[(b * 8 + k) * groups + group]);
                } else {
                    store(low, &mut tile.scales[(b * 16 + 2 * k) * groups + group]);
                    store(high, &mut tile.scales[(b * 16 + 2 * k + 1) * groups + group]);
                }
            }
            let mins = if B::MINS { mins_by_pair::<B>(isa, blocks) } else { scales };
            store_pairs(mins, &mut tile.mins[b * n_mins * groups..][..n_mins * groups], group, groups);
        }
        store_f32(B::d(isa, blocks), &mut tile.factors[b * B::PARTS * groups + group]);
        if B::PARTS == 2 {
            store_f32(B::d_second(isa, blocks), &mut tile.factors[(b * 2 + 1) * groups + group]);
        }
        if B::MINS {
            store_f32(B::dmin(isa, blocks), &mut tile.min_factors[b * groups + group]);
        }
    }
}

/// Unpacks the eight rows from `first` on into group `group` of a tile of `groups` whose sub-blocks are paired. For every four
/// elements of one and of the other there are two vectors: rows 0, 1, 4, 5 of each eight, then 2, 3, 6, 7, each lane of the
/// first sub-block beside that of the second. Packed together they are in order.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn unpack_pairs<B: Block256>(
    isa: Avx2,
    w: &Matrix<'_>,
    first: usize,
    tile: &mut Tile,
    group: usize,
    groups: usize,
) {
    let n = w.cols() / 256;
    let pairs = 128 / B::SUB;
    tile.codes.resize(n * 64 * groups, [0; 32]);
    tile.scales.resize(n * pairs * groups, [0; 32]);
    tile.mins.resize(if B::MINS { n * pairs * groups } else { 0 }, [0; 32]);
    tile.factors.resize(n * groups, [0.0; 8]);
    tile.min_factors.resize(if B::MINS { n * groups } else { 0 }, [0.0; 8]);
    let rows = Rows::<B::Bytes>::new(w, first, n);
    for b in 0..n {
        // SAFETY: `b < n`.
        let blocks = unsafe { rows.blocks(b) };
        for pair in 0..4 {
            let [low, high] = B::lanes(isa, blocks, pair);
            let to = &mut tile.codes[(b * 4 + pair) * 16 * groups..][..16 * groups];
            for i in 0..8 {
                let [one, other] = match (B::SUB, i) {
                    (32, _) => [low[i], high[i]],
                    (_, ..4) => [low[i], low[i + 4]],
                    _ => [high[i - 4], high[i]],
                };
                store(_mm256_unpacklo_epi32(one, other), &mut to[2 * i * groups + group]);
                store(_mm256_unpackhi_epi32(one, other), &mut to[(2 * i + 1) * groups + group]);
            }
        }
        let at = b * pairs * groups..(b + 1) * pairs * groups;
        store_pairs(scales_by_pair::<B>(isa, blocks), &mut tile.scales[at.clone()], group, groups);
        if B::MINS {
            store_pairs(mins_by_pair::<B>(isa, blocks), &mut tile.mins[at], group, groups);
            store_f32(B::dmin(isa, blocks), &mut tile.min_factors[b * groups + group]);
        }
        store_f32(B::d(isa, blocks), &mut tile.factors[b * groups + group]);
    }
}

/// Many vectors: eight rows are unpacked and interleaved once, then used for every vector.
#[target_feature(enable = "avx2,fma,f16c")]
fn many<B: Block256>(isa: Avx2, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
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

/// How many i16 sums of pairs can be added before they must be widened: within a sub-block, a power of two.
const fn run<B: Block256>() -> usize {
    let mut run = if B::SIGNED { 1 } else { B::SUB / 4 };
    while run > 1 && B::MAX * 127 * 2 * run as i32 > i16::MAX as i32 {
        run /= 2;
    }
    run
}

/// `T` vectors from `v` on by the eight rows of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vectors<B: Block256, const T: usize>(tile: &Tile, x: &Q8<'_>, v: usize) -> Products<1, T> {
    let n = tile.factors.len() / B::PARTS;
    let x: [Vector<'_, 256, 16>; T] = std::array::from_fn(|i| Vector::new(x.vector(v + i), n));
    let subs = 256 / B::SUB;
    let mut acc = [_mm256_setzero_ps(); T];
    let (tile_codes, _) = tile.codes.as_chunks::<64>();
    for (b, w) in tile_codes.iter().enumerate() {
        // SAFETY: `b < n`, and every part of a vector has `n` blocks.
        let (xq, xs): ([&[u8; 256]; T], [&[i16; 16]; T]) = unsafe {
            (
                std::array::from_fn(|i| x[i].codes.get_unchecked(b)),
                std::array::from_fn(|i| x[i].sums.get_unchecked(b)),
            )
        };
        let scales = &tile.scales[b * subs..][..subs];
        for part in 0..B::PARTS {
            let mut isum = [_mm256_setzero_si256(); T];
            for g0 in of_part::<B>(part, 64).step_by(run::<B>()) {
                let mut narrow = [_mm256_setzero_si256(); T];
                for g in g0..g0 + run::<B>() {
                    let w = load(&w[g]);
                    for i in 0..T {
                        let four = [xq[i][4 * g], xq[i][4 * g + 1], xq[i][4 * g + 2], xq[i][4 * g + 3]];
                        let p = pairs(B::SIGNED, w, _mm256_set1_epi32(i32::from_le_bytes(four)));
                        narrow[i] = if g == g0 { p } else { _mm256_add_epi16(narrow[i], p) };
                    }
                }
                let scale = load(&scales[g0 * 4 / B::SUB]);
                for i in 0..T {
                    isum[i] = _mm256_add_epi32(isum[i], _mm256_madd_epi16(narrow[i], scale));
                }
            }
            let mut corr = [_mm256_setzero_si256(); T];
            if needs_sums::<B>() {
                for k in of_part::<B>(part, 8) {
                    let m = load(&tile.mins[b * 8 + k]);
                    for i in 0..T {
                        let two = i32::from(xs[i][2 * k] as u16) | (i32::from(xs[i][2 * k + 1]) << 16);
                        corr[i] = _mm256_add_epi32(corr[i], _mm256_madd_epi16(m, _mm256_set1_epi32(two)));
                    }
                }
            }
            let d = load_f32(&tile.factors[b * B::PARTS + part]);
            let dmin = if B::MINS { load_f32(&tile.min_factors[b]) } else { _mm256_setzero_ps() };
            for i in 0..T {
                let xs = _mm256_set1_ps(x[i].scales[b]);
                acc[i] = accumulate::<B>(acc[i], isum[i], corr[i], d, dmin, xs);
            }
        }
    }
    products(&acc)
}
