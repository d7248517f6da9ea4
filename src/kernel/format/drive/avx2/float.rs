//! Formats that are floats by nature, with the arithmetic of [`dot`](crate::kernel::op::dot::dot) and so its bits.
//!
//! For few tokens, rows are widened eight weights at a time and multiplied at once. For many, some rows are widened once and
//! kept for all of them: then the loop has nothing but multiplications, additions and loads from one stream of weights.
//!
//! One row's sum is a chain of dependent additions; several rows and tokens side by side hide their latency. Rows lie in
//! pairs, which AVX-512 has one register for.

use super::Prefetch;
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::{FLOAT_ROWS, Tile};
use crate::kernel::isa::{Avx2, Simd};
use crate::kernel::par::Cols;
use std::arch::x86_64::*;
use std::ops::Range;

/// How AVX2 reads a float format.
pub trait Float: 'static {
    /// The bytes of eight weights.
    type Bytes: 'static;

    /// A row in eights, and what is left.
    fn chunks(row: &[u8]) -> (&[Self::Bytes], &[u8]);
    /// Eight weights, widened exactly.
    fn widen(isa: Avx2, bytes: &Self::Bytes) -> __m256;
    /// Fewer than eight weights, and zeros after them.
    fn padded(rest: &[u8]) -> Self::Bytes;
}

/// Rows side by side, of which two tiles make [`FLOAT_ROWS`].
const ROWS: usize = 4;

/// From this many tokens on, widening rows once for all of them pays for itself.
const WIDEN_FROM: usize = 24;

/// The f32 product under the contract for the rows in `out.range()`; `x` is `[tokens][columns]`.
pub fn matmul<S: Simd<V = __m256>, F: Float>(
    s: S,
    isa: Avx2,
    w: Matrix<'_>,
    x: &[f32],
    out: &mut Cols<'_, f32>,
    tile: &mut Tile,
    then: Range<usize>,
) {
    let count = x.len() / w.cols();
    s.vectorize(
        #[inline(always)]
        || match count {
            // As many sums as there are registers for.
            WIDEN_FROM.. if S::QUERIES == 8 => widened::<S, F, 2, 4>(s, isa, w, x, out, tile, then),
            WIDEN_FROM.. => widened::<S, F, 1, 2>(s, isa, w, x, out, tile, then),
            _ => {
                // Some tokens by all rows, then the next: they stay in the first cache.
                let mut t = 0;
                while t < count {
                    t += match count - t {
                        8.. if S::QUERIES == 8 => tokens::<S, F, 8>(s, isa, w, t, x, out),
                        4.. if S::QUERIES == 8 => tokens::<S, F, 4>(s, isa, w, t, x, out),
                        2.. => tokens::<S, F, 2>(s, isa, w, t, x, out),
                        _ => tokens::<S, F, 1>(s, isa, w, t, x, out),
                    };
                }
            }
        },
    );
}

/// `H` times [`ROWS`] rows, widened, by all tokens, `T` at a time; then the next.
#[inline(always)]
fn widened<S: Simd<V = __m256>, F: Float, const H: usize, const T: usize>(
    s: S,
    isa: Avx2,
    w: Matrix<'_>,
    x: &[f32],
    out: &mut Cols<'_, f32>,
    tile: &mut Tile,
    then: Range<usize>,
) {
    const { assert!(H * ROWS <= FLOAT_ROWS) };
    let (range, n) = (out.range(), w.cols());
    tile.floats.resize(H * ROWS * n.div_ceil(8), [0.0; 8]);
    for first in range.clone().step_by(H * ROWS) {
        let (mut rows, mut rests) = ([[&[][..]; ROWS]; H], [[&[][..]; ROWS]; H]);
        for i in 0..H * ROWS {
            // A row past the last repeats it; its sums are dropped.
            let row = w.blocks((first + i).min(w.rows() - 1)).0;
            let (chunks, rest) = F::chunks(row);
            (rows[i / ROWS][i % ROWS], rests[i / ROWS][i % ROWS]) = (&chunks[..n / 8], rest);
        }
        let mut to = tile.floats.as_chunks_mut::<ROWS>().0.as_chunks_mut::<H>().0.iter_mut();
        for (k, to) in (0..n / 8).zip(&mut to) {
            for (to, row) in to.as_flattened_mut().iter_mut().zip(rows.as_flattened()) {
                s.store(F::widen(isa, &row[k]), to);
            }
        }
        if let Some(to) = to.next() {
            for (to, rest) in to.as_flattened_mut().iter_mut().zip(rests.as_flattened()) {
                s.store(F::widen(isa, &F::padded(rest)), to);
            }
        }
        let (steps, done) = (out.height().div_ceil(T), first + H * ROWS);
        let (mut next, ahead) = Prefetch::following(&w, (done, range.end), &then, H * ROWS, steps);
        let at = first - range.start;
        let mut t = 0;
        while t < out.height() {
            next.ahead(ahead);
            t += match out.height() - t {
                left if left >= T => by_widened::<S, H, T>(s, &tile.floats, n, t, x, out, at),
                _ => by_widened::<S, H, 1>(s, &tile.floats, n, t, x, out, at),
            };
        }
    }
}

/// Widened rows, which are rows `at..` of the output, by `T` tokens from number `t` on. Returns how many those are.
#[inline(always)]
fn by_widened<S: Simd<V = __m256>, const H: usize, const T: usize>(
    s: S,
    rows: &[[f32; 8]],
    n: usize,
    t: usize,
    x: &[f32],
    out: &mut Cols<'_, f32>,
    at: usize,
) -> usize {
    let (vectors, ends) = eights::<T>(&x[t * n..], n);
    let mut acc = [[[s.splat2(0.0); ROWS / 2]; T]; H];
    let mut rows = rows.as_chunks::<ROWS>().0.as_chunks::<H>().0.iter();
    for (k, w) in (0..n / 8).zip(&mut rows) {
        for (acc, w) in acc.iter_mut().zip(w) {
            let w = pairs(s, w);
            for (acc, x) in acc.iter_mut().zip(vectors) {
                add(s, acc, w, &x[k]);
            }
        }
    }
    if let Some(w) = rows.next() {
        for (acc, w) in acc.iter_mut().zip(w) {
            let w = pairs(s, w);
            for (acc, x) in acc.iter_mut().zip(&ends) {
                add(s, acc, w, x);
            }
        }
    }
    for (h, acc) in acc.into_iter().enumerate() {
        let at = (at + h * ROWS).min(out.range().len());
        for (i, sums) in s.sums(acc).iter().enumerate() {
            let to = out.row(t + i)[at..].iter_mut();
            to.zip(sums).for_each(|(y, sum)| *y = *sum);
        }
    }
    T
}

/// The first `T` vectors of `n` numbers in eights, and what is left of each with zeros after it: those add +0, which changes
/// nothing.
#[inline(always)]
fn eights<const T: usize>(x: &[f32], n: usize) -> ([&[[f32; 8]]; T], [[f32; 8]; T]) {
    let (mut vectors, mut ends) = ([&[][..]; T], [[0.0; 8]; T]);
    for (i, x) in x.chunks_exact(n).take(T).enumerate() {
        let (eights, rest) = x.as_chunks();
        vectors[i] = &eights[..n / 8];
        ends[i][..rest.len()].copy_from_slice(rest);
    }
    (vectors, ends)
}

/// All rows by `T` tokens from number `t` on. Returns how many those are.
#[inline(always)]
fn tokens<S: Simd<V = __m256>, F: Float, const T: usize>(
    s: S,
    isa: Avx2,
    w: Matrix<'_>,
    t: usize,
    x: &[f32],
    out: &mut Cols<'_, f32>,
) -> usize {
    let (range, n) = (out.range(), w.cols());
    let (vectors, ends) = eights::<T>(&x[t * n..], n);
    for first in range.clone().step_by(ROWS) {
        let (mut rows, mut rests) = ([&[][..]; ROWS], [&[][..]; ROWS]);
        for i in 0..ROWS {
            // A row past the last repeats it; its sums are dropped.
            (rows[i], rests[i]) = F::chunks(w.blocks((first + i).min(w.rows() - 1)).0);
        }
        // With several tokens there is time enough.
        let next = (T <= 2).then(|| Prefetch::rows(&w, first + ROWS));
        let sums = tile::<S, F, T>(s, isa, (rows, rests), (vectors, &ends), next);
        let at = first - range.start;
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut out.row(t + i)[at..(at + ROWS).min(range.len())];
            to.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum);
        }
    }
    T
}

/// Some vectors by some rows: eight weights at a time, and what is left of each row. Meanwhile the next rows come from memory.
#[inline(always)]
fn tile<S: Simd<V = __m256>, F: Float, const T: usize>(
    s: S,
    isa: Avx2,
    (mut rows, rests): ([&[F::Bytes]; ROWS], [&[u8]; ROWS]),
    (mut x, ends): ([&[[f32; 8]]; T], &[[f32; 8]; T]),
    mut next: Option<Prefetch>,
) -> [[f32; ROWS]; T] {
    let eights = rows[0].len();
    for row in &mut rows {
        *row = &row[..eights];
    }
    for x in &mut x {
        *x = &x[..eights];
    }
    let mut acc = [[s.splat2(0.0); ROWS / 2]; T];
    for k in 0..eights {
        if let Some(next) = &mut next {
            next.ask::<F::Bytes>(ROWS);
        }
        let [r0, r1, r2, r3] = rows;
        let pairs = [
            s.pair(F::widen(isa, &r0[k]), F::widen(isa, &r1[k])),
            s.pair(F::widen(isa, &r2[k]), F::widen(isa, &r3[k])),
        ];
        for (acc, x) in acc.iter_mut().zip(x) {
            add(s, acc, pairs, &x[k]);
        }
    }
    if !rests[0].is_empty() {
        let mut w = [s.splat(0.0); ROWS];
        for (w, rest) in w.iter_mut().zip(rests) {
            *w = F::widen(isa, &F::padded(rest));
        }
        for (acc, x) in acc.iter_mut().zip(ends) {
            add(s, acc, [s.pair(w[0], w[1]), s.pair(w[2], w[3])], x);
        }
    }
    s.sums(acc)
}

/// Eight weights of each row, two rows in each pair of vectors.
#[inline(always)]
fn pairs<S: Simd>(s: S, w: &[[f32; 8]; ROWS]) -> [S::W; ROWS / 2] {
    let (w, _) = w.as_chunks();
    [s.load2(&w[0]), s.load2(&w[1])]
}

/// Adds the products of eight weights of each row with eight elements of a vector.
#[inline(always)]
fn add<S: Simd>(s: S, acc: &mut [S::W; ROWS / 2], w: [S::W; ROWS / 2], x: &[f32; 8]) {
    let x = s.load_both(x);
    acc[0] = s.add2(acc[0], s.mul2(w[0], x));
    acc[1] = s.add2(acc[1], s.mul2(w[1], x));
}
