//! Formats that are floats by nature: rows are widened eight weights at a time and multiplied at once, with the
//! arithmetic of [`dot`](crate::kernel::op::dot::dot) and so its bits.
//!
//! One row's sum is a chain of dependent additions; several rows and tokens side by side hide their latency. Rows lie in
//! pairs, which AVX-512 has one register for.

use super::Prefetch;
use crate::kernel::format::Matrix;
use crate::kernel::isa::{Avx2, Simd};
use crate::kernel::par::Cols;
use std::arch::x86_64::*;

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

/// Rows side by side.
const ROWS: usize = 4;

/// The f32 product under the contract for the rows in `out.range()`; `x` is `[tokens][columns]`.
pub fn matmul<S: Simd<V = __m256>, F: Float>(
    s: S,
    isa: Avx2,
    w: Matrix<'_>,
    x: &[f32],
    out: &mut Cols<'_, f32>,
) {
    s.vectorize(
        #[inline(always)]
        || {
            // Some tokens by all rows, then the next: they stay in the first cache.
            let (mut t, count) = (0, x.len() / w.cols());
            while t < count {
                t += match count - t {
                    8.. if S::QUERIES == 8 => tokens::<S, F, 8>(s, isa, w, t, x, out),
                    4.. if S::QUERIES == 8 => tokens::<S, F, 4>(s, isa, w, t, x, out),
                    2.. => tokens::<S, F, 2>(s, isa, w, t, x, out),
                    _ => tokens::<S, F, 1>(s, isa, w, t, x, out),
                };
            }
        },
    );
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
    let (mut vectors, mut ends) = ([&[][..]; T], [[0.0; 8]; T]);
    for (i, x) in x[t * n..].chunks_exact(n).take(T).enumerate() {
        let (eights, rest) = x.as_chunks();
        vectors[i] = eights;
        // What is left, with zeros after it: those add +0, which changes nothing.
        ends[i][..rest.len()].copy_from_slice(rest);
    }
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

/// Adds the products of eight weights of each row with eight elements of a vector.
#[inline(always)]
fn add<S: Simd>(s: S, acc: &mut [S::W; ROWS / 2], w: [S::W; ROWS / 2], x: &[f32; 8]) {
    let x = s.load_both(x);
    acc[0] = s.add2(acc[0], s.mul2(w[0], x));
    acc[1] = s.add2(acc[1], s.mul2(w[1], x));
}
