//! Formats that are floats by nature: rows are widened eight weights at a time and multiplied at once, with the
//! arithmetic of [`dot`](crate::kernel::op::dot::dot) and so its bits.
//!
//! One row's sum is a chain of dependent additions; several rows and tokens side by side hide their latency.

use super::load_f32;
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
pub fn matmul<F: Float>(isa: Avx2, w: Matrix<'_>, x: &[f32], out: &mut Cols<'_, f32>) {
    let range = out.range();
    let n = w.cols();
    for first in range.clone().step_by(ROWS) {
        let rows: [&[u8]; ROWS] = std::array::from_fn(|i| w.blocks((first + i).min(w.rows() - 1)).0);
        let width = ROWS.min(range.end - first);
        let at = first - range.start;
        let mut put = |t: usize, sums: &[[f32; ROWS]]| {
            for (i, sums) in sums.iter().enumerate() {
                out.row(t + i)[at..at + width].copy_from_slice(&sums[..width]);
            }
        };
        let mut t = 0;
        let mut rest = x;
        while !rest.is_empty() {
            // SAFETY: the token proves the features.
            let take = unsafe {
                if rest.len() >= 2 * n {
                    put(t, &tile::<F, 2>(isa, rows, rest, n));
                    2
                } else {
                    put(t, &tile::<F, 1>(isa, rows, rest, n));
                    1
                }
            };
            t += take;
            rest = &rest[take * n..];
        }
    }
}

/// The first `T` vectors of `x` (`n` elements each) by four rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<F: Float, const T: usize>(isa: Avx2, rows: [&[u8]; ROWS], x: &[f32], n: usize) -> [[f32; ROWS]; T] {
    let rows = rows.map(F::chunks);
    let x: [(&[[f32; 8]], &[f32]); T] = std::array::from_fn(|t| x[t * n..][..n].as_chunks::<8>());
    let eights = n / 8;
    assert!(rows.iter().all(|r| r.0.len() == eights) && x.iter().all(|x| x.0.len() == eights));
    let mut acc = [[_mm256_setzero_ps(); ROWS]; T];
    for k in 0..eights {
        for r in 0..ROWS {
            // SAFETY: `k < eights`, the length of every row and vector, asserted above.
            let w = F::widen(isa, unsafe { rows[r].0.get_unchecked(k) });
            for t in 0..T {
                // SAFETY: as above.
                let x = load_f32(unsafe { x[t].0.get_unchecked(k) });
                acc[t][r] = _mm256_add_ps(acc[t][r], _mm256_mul_ps(w, x));
            }
        }
    }
    if !n.is_multiple_of(8) {
        for t in 0..T {
            let mut last = [0.0; 8];
            last[..x[t].1.len()].copy_from_slice(x[t].1);
            for r in 0..ROWS {
                let w = F::widen(isa, &F::padded(rows[r].1));
                acc[t][r] = _mm256_add_ps(acc[t][r], _mm256_mul_ps(w, load_f32(&last)));
            }
        }
    }
    acc.map(|acc| acc.map(|v| isa.sum(v)))
}
