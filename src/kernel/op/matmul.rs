//! Matrix times vectors, on one of two paths.
//!
//! *Int8* (the default): activations quantised once, exact integer products inside a block, one f32
//! accumulator a row. *Exact*: every row decoded to f32 and multiplied in f32: the oracle. A weight format
//! that is f32 by nature (F32, F16, BF16) takes the exact path in both.
//!
//! A (row, token) pair is computed with the same arithmetic whatever the number of tokens, rows or threads.

use super::dot::dot;
use super::quantize::Q8;
use crate::kernel::format::{ActBlock, Dot, Matrix, drive};
use crate::kernel::isa::{Isa, Lanes, Simd};
use crate::kernel::par::Cols;

/// Rows are dealt to threads in multiples of this.
pub const ROW_UNIT: usize = drive::ROW_UNIT;

/// The inputs of a matrix product, in every form that one of its readers needs.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// `[tokens][n]`
    pub f32: &'a [f32],
    /// Elements of one token.
    pub n: usize,
    /// The same in blocks of 32.
    pub b32: Option<Q8<'a>>,
    /// The same in blocks of 256.
    pub b256: Option<Q8<'a>>,
}

/// A worker's own memory.
#[derive(Default)]
pub struct Scratch {
    /// One decoded row: the only f32 copy of weights a worker ever holds.
    pub row: Vec<f32>,
    /// Unpacked integer codes of a few rows, for products with many tokens.
    pub tile: drive::Tile,
}

impl Scratch {
    /// An upper bound of the bytes it grows to for rows of `n` elements and vectors of `all` together.
    pub fn bytes(n: usize, all: usize, exact: bool) -> usize {
        n * size_of::<f32>() + if exact { 0 } else { drive::Tile::bytes(n, all) }
    }
}

/// `out[t][r] = W[r] . x[t]` for the rows in `out.range()` and every token `t`.
///
/// `exact` multiplies in f32. Otherwise the form of the input that the format asks for
/// ([`Format::act`](crate::kernel::format::Format::act)) must be there.
///
/// # Panics
/// If shapes disagree or the needed form is missing: both are checked when a model is loaded.
pub fn matmul(
    isa: Isa,
    exact: bool,
    w: Matrix<'_>,
    x: &Input<'_>,
    out: &mut Cols<'_, f32>,
    scratch: &mut Scratch,
) {
    assert_eq!(w.cols(), x.n, "matrix columns and vector length");
    assert!(out.range().end <= w.rows(), "rows {:?} of {}", out.range(), w.rows());
    assert_eq!(out.height() * x.n, x.f32.len(), "as many outputs as tokens");
    match (isa.lanes(), &w.format().dot) {
        #[cfg(target_arch = "x86_64")]
        (Lanes::Avx2(token), Dot::F32 { avx2: Some(kernel) }) => kernel(token, w, x.f32, out),
        (_, Dot::Q8(q8)) if !exact => {
            let form = match q8.block {
                ActBlock::B32 => &x.b32,
                ActBlock::B256 => &x.b256,
            };
            let form =
                form.as_ref().unwrap_or_else(|| panic!("activations in blocks of {}", q8.block.elements()));
            q8.run(isa, w, form, out, &mut scratch.tile);
        }
        _ => {
            scratch.row.resize(w.cols(), 0.0);
            crate::simd!(isa, s => exact_rows(s, w, x.f32, out, &mut scratch.row));
        }
    }
}

#[inline(always)]
fn exact_rows<S: Simd>(s: S, w: Matrix<'_>, x: &[f32], out: &mut Cols<'_, f32>, row: &mut [f32]) {
    let range = out.range();
    for r in range.clone() {
        w.decode_row(r, row);
        for (t, x) in x.chunks_exact(w.cols()).enumerate() {
            out.row(t)[r - range.start] = dot(s, row, x);
        }
    }
}
