//! Few vectors of activations by formats of 256-element blocks: weights are read where they lie, eight rows side by side.
//!
//! This is what a token takes when text is generated. There is one product for every weight that is read, so what counts is
//! how few instructions reading takes: what a block has once is computed once, for all of it.

use super::block256::{Block256, of_part, step};
use super::{LANES, Prefetch, Rows, Vector, load, pairs, products, sums};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::{in_runs, put};
use crate::kernel::isa::{Aligned, Avx2, AvxVnni, Dots};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// How products with few vectors read the blocks of a grid format: points as they are stored, without signs.
pub struct Grid {
    /// All points.
    pub points: Table,
    /// What [`Points::words`] are.
    pub words: Words,
}

impl Grid {
    /// The codes of elements `64 * pair ..`, without signs.
    #[inline(always)]
    fn codes<D: Dots>(&self, isa: D, points: &Points, pair: usize) -> [__m256i; 2] {
        // SAFETY: the token proves the features, `pair` is below 4, and a format has points as its table has.
        unsafe {
            let codes = match self.points {
                Table::Eights(table) => isa.lookup8(table, points.eight(pair)),
                Table::Fours(table) => [
                    isa.lookup4(table, points.eight(2 * pair)),
                    isa.lookup4(table, points.eight(2 * pair + 1)),
                ],
            };
            match self.words {
                Words::Added => [
                    _mm256_add_epi8(codes[0], isa.spread(points.word(2 * pair))),
                    _mm256_add_epi8(codes[1], isa.spread(points.word(2 * pair + 1))),
                ],
                Words::Signs | Words::None => codes,
            }
        }
    }
}

/// The points of a grid: unsigned bytes below 64.
pub enum Table {
    /// Of eight elements each.
    Eights(&'static [u64]),
    /// Of four elements each.
    Fours(&'static [u32]),
}

/// What a word for each 32 elements says about them.
pub enum Words {
    /// There are no words.
    None,
    /// Bit `i` is set where element `i` is negative.
    Signs,
    /// Byte `i` is added to elements `8 * i .. 8 * i + 8`.
    Added,
}

/// A block of a grid format.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Points {
    /// The numbers of its points, as u16 in order. Of points of eight elements there are only two vectors.
    numbers: [MaybeUninit<__m256i>; 4],
    /// Its words, as u32 in order.
    words: __m256i,
}

impl Points {
    /// Of points of eight elements.
    #[inline(always)]
    pub fn eights([a, b]: [__m256i; 2], words: __m256i) -> Self {
        let none = MaybeUninit::uninit();
        Self { numbers: [MaybeUninit::new(a), MaybeUninit::new(b), none, none], words }
    }

    /// Of points of four elements.
    #[inline(always)]
    pub fn fours(numbers: [__m256i; 4], words: __m256i) -> Self {
        Self { numbers: numbers.map(MaybeUninit::new), words }
    }

    /// The eight numbers from `8 * i` on.
    ///
    /// # Safety
    /// `i` must be below 4 for points of eight elements, below 8 for those of four.
    #[inline(always)]
    unsafe fn eight(&self, i: usize) -> &[u16; 8] {
        // SAFETY: a vector is two times eight numbers, and so many vectors were written.
        unsafe { &*self.numbers.as_ptr().cast::<[u16; 8]>().add(i) }
    }

    /// Word `j`.
    #[inline(always)]
    fn word(&self, j: usize) -> u32 {
        debug_assert!(j < 8);
        // SAFETY: the vector is 8 words.
        unsafe { *(&raw const self.words).cast::<u32>().add(j) }
    }
}

/// A block's sums of 16 activation codes, arranged like [`Block256::scales`].
#[inline]
#[target_feature(enable = "avx2")]
fn arranged_sums(sums: &[i16; 16]) -> __m256i {
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    let natural = unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) };
    let split = _mm256_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11,
        14, 15,
    );
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(natural, split))
}

/// Of [arranged sums](arranged_sums), those of a part; 0 in place of the others.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_part<B: Block256>(sums: __m256i, part: usize) -> __m256i {
    match (B::PARTS, part) {
        (1, _) => sums,
        (_, 0) => _mm256_and_si256(sums, _mm256_setr_epi64x(-1, 0, -1, 0)),
        _ => _mm256_and_si256(sums, _mm256_setr_epi64x(0, -1, 0, -1)),
    }
}

/// For each 32 elements: bytes `2j` and `2j + 1` of each half, repeated, which picks the i16 scale of that half of them.
static PICKS: [[u8; 32]; 8] = {
    let mut picks = [[0; 32]; 8];
    let mut i = 0;
    while i < 8 * 32 {
        picks[i / 32][i % 32] = (2 * (i / 32) + i % 2) as u8;
        i += 1;
    }
    picks
};

/// Whether all scales are 1, so that products of codes need only be added up.
const fn unscaled<B: Block256>() -> bool {
    assert!(B::MAX_SCALE > 1 || !B::SIGNED);
    B::MAX_SCALE == 1
}

/// What a byte of a mask counts.
const MASK: i32 = 255;

/// Its inverse modulo 2^32: by it, a multiple of 255 is divided exactly.
const PER_MASK: i32 = 0xfefe_feff_u32 as i32;
const _: () = assert!(MASK.wrapping_mul(PER_MASK) == 1);

/// Whether codes are read as masks, so that all sums are [`MASK`] times as large.
const fn masked<B: Block256, D: Dots>() -> bool {
    B::MASKS && D::FAST_DOT4
}

/// The product of at most a few vectors with the rows in `out.range()`.
pub fn few<B: Block256, D: Dots>(isa: D, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
    if B::GRID.is_some() {
        return match isa.gathering() {
            Some(isa) => passes::<B, D::Gathering>(isa, w, x, out),
            None => passes::<B, D>(isa, w, x, out),
        };
    }
    // Compiled for AVX-512, of which nothing is needed here, this was measured to be up to 15 % slower.
    match isa.avx_vnni() {
        Some(isa) => passes::<B, AvxVnni>(isa, w, x, out),
        None if B::MINS && D::AVX512 => passes::<B, Avx2>(isa.avx2(), w, x, out),
        None => passes::<B, D>(isa, w, x, out),
    }
}

/// Every vector by those rows.
fn passes<B: Block256, D: Dots>(isa: D, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
    isa.compiled(
        #[inline(always)]
        || {
            let mut v = 0;
            // The terms of a token take one pass.
            in_runs!(v of x.vectors(), [2, 1], RUN => pass::<B, D, RUN>(isa, w, x, v, out));
        },
    );
}

/// [`Rows::new`] as a function of its own: compiled for AVX-512 its loop scatters, and waits for that.
#[inline(never)]
fn rows_apart<'a, B: Block256>(w: &Matrix<'a>, first: usize, n: usize) -> Rows<'a, B::Bytes> {
    Rows::new(w, first, n)
}

/// A block of each of `T` vectors.
struct Activations<'a, const T: usize> {
    /// The codes, 32 at a time.
    codes: [&'a [[u8; 32]]; T],
    /// Sums of 16 codes, [arranged](arranged_sums); negated where they serve to take something back.
    sums: [__m256i; T],
}

/// One pass over the weights for `T` vectors from `v` on.
#[inline(always)]
fn pass<B: Block256, D: Dots, const T: usize>(
    isa: D,
    w: &Matrix<'_>,
    x: &Q8<'_>,
    v: usize,
    out: &mut Cols<'_, f32>,
) {
    let n = x.n / 256;
    let vectors: [Vector<'_, 256, 16>; T] = std::array::from_fn(|i| Vector::new(x.vector(v + i), n));
    // Hidden from the compiler, which knows shuffles by a constant that take two instructions instead of one.
    let picks = std::hint::black_box(&PICKS);
    let range = out.range();
    for first in range.clone().step_by(LANES) {
        let rows = if D::AVX512 { rows_apart::<B>(w, first, n) } else { Rows::new(w, first, n) };
        let mut next = Prefetch::rows(w, first + LANES);
        // SAFETY: the token proves the features.
        let mut acc = [unsafe { _mm256_setzero_ps() }; T];
        for b in 0..n {
            next.ask::<B::Bytes>(LANES);
            // SAFETY: `b < n`.
            let blocks = unsafe { rows.blocks(b) };
            // SAFETY: the token proves the features, and every part of the vectors has `n` blocks.
            unsafe {
                let zero = _mm256_setzero_si256();
                let mut x = Activations { codes: [&[]; T], sums: [zero; T] };
                for t in 0..T {
                    let sums = arranged_sums(vectors[t].sums.get_unchecked(b));
                    x.sums[t] = if B::MINS { sums } else { _mm256_sub_epi16(zero, sums) };
                    x.codes[t] = vectors[t].codes.get_unchecked(b).as_chunks().0;
                }
                for part in 0..B::PARTS {
                    let (isum, corr) = integers::<B, D, T>(isa, blocks, &x, part, picks);
                    let isa = isa.avx2();
                    let d = if part == 0 { B::d(isa, blocks) } else { B::d_second(isa, blocks) };
                    let dmin = if B::MINS { B::dmin(isa, blocks) } else { d };
                    for t in 0..T {
                        let corr = if B::MINS { sums(corr[t]) } else { zero };
                        let mut isum = sums(isum[t]);
                        if masked::<B, D>() {
                            isum = _mm256_mullo_epi32(isum, _mm256_set1_epi32(PER_MASK));
                        }
                        let xs = _mm256_set1_ps(*vectors[t].scales.get_unchecked(b));
                        acc[t] = step::<B>(acc[t], isum, corr, d, dmin, xs);
                    }
                }
            }
        }
        // SAFETY: the token proves the features.
        let products = unsafe { products(&acc) };
        let at = first - range.start;
        put(x, out, at..at + LANES, v, &products);
    }
}

/// For each vector and row eight lanes whose sum is the integer of a block's part, and as many for its minimums.
#[inline(always)]
fn integers<B: Block256, D: Dots, const T: usize>(
    isa: D,
    blocks: [&B::Bytes; LANES],
    x: &Activations<'_, T>,
    part: usize,
    picks: &[[u8; 32]; 8],
) -> ([[__m256i; LANES]; T], [[__m256i; LANES]; T]) {
    // SAFETY: the token proves the features.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (mut isum, mut corr) = ([[zero; LANES]; T], [[zero; LANES]; T]);
        let (mut xsums, mut start) = ([zero; T], [zero; T]);
        for t in 0..T {
            xsums[t] = sums_of_part::<B>(x.sums[t], part);
            if unscaled::<B>() {
                let offset = if masked::<B, D>() { MASK * B::OFFSET } else { B::OFFSET };
                start[t] = _mm256_madd_epi16(xsums[t], _mm256_set1_epi16(offset as i16));
            }
        }
        let mut points = Aligned([MaybeUninit::<Points>::uninit(); LANES]);
        if B::GRID.is_some() {
            for i in 0..LANES {
                points.0[i].write(B::points(isa.avx2(), blocks[i]));
            }
        }
        // In memory: the compiler would take the numbers out of vectors, which costs more than loads.
        let points = if B::GRID.is_some() { std::hint::black_box(&points) } else { &points };
        for i in 0..LANES {
            let mut row = start;
            if unscaled::<B>() {
                plain::<B, D, T>(isa, blocks[i], x, part, &mut row);
            } else {
                let scales = B::scales(isa.avx2(), blocks[i]);
                if let Some(back) = B::back(isa.avx2(), blocks[i], scales) {
                    for t in 0..T {
                        row[t] = isa.dot2(row[t], back, xsums[t]);
                    }
                }
                scaled::<B, D, T>(isa, (blocks[i], &points.0[i]), scales, x, part, picks, &mut row);
            }
            for t in 0..T {
                isum[t][i] = row[t];
                if B::MINS {
                    corr[t][i] = _mm256_madd_epi16(B::mins(isa.avx2(), blocks[i]), xsums[t]);
                }
            }
        }
        (isum, corr)
    }
}

/// Adds the products of one row's block with a part of the activations, without scales.
#[inline(always)]
fn plain<B: Block256, D: Dots, const T: usize>(
    isa: D,
    block: &B::Bytes,
    x: &Activations<'_, T>,
    part: usize,
    isum: &mut [__m256i; T],
) {
    // SAFETY: the token proves the features.
    unsafe {
        if masked::<B, D>() {
            let masks = B::masks(isa.avx2(), block);
            // Sums of their own, as each product waits for the one before.
            let mut seconds = [_mm256_setzero_si256(); T];
            for j in of_part::<B>(part, 8) {
                for t in 0..T {
                    let x = load(&x.codes[t][j]);
                    isum[t] = isa.dot4(isum[t], masks[j][0], x);
                    seconds[t] = isa.dot4(seconds[t], masks[j][1], x);
                }
            }
            for t in 0..T {
                isum[t] = _mm256_add_epi32(isum[t], seconds[t]);
            }
            return;
        }
        let codes = B::block(isa.avx2(), block);
        if D::FAST_DOT4 {
            for j in of_part::<B>(part, 8) {
                for t in 0..T {
                    isum[t] = isa.dot4(isum[t], codes[j], load(&x.codes[t][j]));
                }
            }
            return;
        }
        // Pairs of the whole block fit into i16, so they are widened once.
        const { assert!(B::MAX_SCALE > 1 || B::MAX * 127 * 2 * (8 / B::PARTS as i32) <= i16::MAX as i32) };
        for t in 0..T {
            let mut narrow = _mm256_setzero_si256();
            for j in of_part::<B>(part, 8) {
                narrow = _mm256_add_epi16(narrow, pairs(false, codes[j], load(&x.codes[t][j])));
            }
            isum[t] = isa.dot2(isum[t], narrow, _mm256_set1_epi16(1));
        }
    }
}

/// Adds the products of one row's block with a part of the activations, times the scales of sub-blocks.
#[inline(always)]
fn scaled<B: Block256, D: Dots, const T: usize>(
    isa: D,
    (block, points): (&B::Bytes, &MaybeUninit<Points>),
    scales: __m256i,
    x: &Activations<'_, T>,
    part: usize,
    picks: &[[u8; 32]; 8],
    isum: &mut [__m256i; T],
) {
    // SAFETY: the token proves the features.
    unsafe {
        for pair in of_part::<B>(part, 4) {
            let codes = match &B::GRID {
                None => [B::codes(isa.avx2(), block, 2 * pair), B::codes(isa.avx2(), block, 2 * pair + 1)],
                Some(grid) => grid.codes(isa, points.assume_init_ref(), pair),
            };
            for i in 0..2 {
                let j = 2 * pair + i;
                let scale = _mm256_shuffle_epi8(scales, load(&picks[j]));
                for t in 0..T {
                    let mut x = load(&x.codes[t][j]);
                    if let Some(Grid { words: Words::Signs, .. }) = B::GRID {
                        x = isa.negate(x, points.assume_init_ref().word(j));
                    }
                    let p = pairs(B::SIGNED && B::GRID.is_none(), codes[i], x);
                    isum[t] = isa.dot2(isum[t], p, scale);
                }
            }
        }
    }
}
