//! Matrix times vectors, on one of two paths.
//!
//! *Int8* (the default): activations quantised once, exact integer products inside a block, one f32
//! accumulator a row. *Exact*: every row decoded to f32 and multiplied in f32: the oracle. A weight format
//! that is f32 by nature (F32, F16, BF16) takes the exact path in both.
//!
//! A (row, token) pair is computed with the same arithmetic whatever the number of tokens, rows or threads.

use super::dot::dot;
use super::quantize::Q8;
use crate::kernel::format::drive::panel::{Arrangement, Panel, VECTOR_UNIT};
use crate::kernel::format::{ActBlock, Dot, Matrix, Q8Dot, drive};
use crate::kernel::isa::{Isa, Simd};
use crate::kernel::par::{Cols, Tiles};
use std::ops::Range;

/// Rows are dealt to threads in multiples of this.
pub const ROW_UNIT: usize = drive::ROW_UNIT;

/// How many rows members take at a time of a product of `rows` rows with so many tokens: few enough that all end at about the
/// same time, enough that taking them costs nothing.
pub fn tile_rows(rows: usize, tokens: usize, members: usize) -> usize {
    let share = rows.div_ceil(members);
    let tile = match tokens {
        _ if members == 1 => rows.min(1 << 16),
        // Some microseconds' work at least, and of a head a small part.
        1 => (share / 4).clamp(share.min(256), 1024),
        _ => 1,
    };
    tile.next_multiple_of(drive::TILE_ROWS)
}

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

impl<'a> Input<'a> {
    /// The int8 form in such blocks.
    ///
    /// # Panics
    /// If it is missing: which forms are needed is known when a model is loaded.
    pub fn form(&self, block: ActBlock) -> &Q8<'a> {
        let form = match block {
            ActBlock::B32 => &self.b32,
            ActBlock::B256 => &self.b256,
        };
        form.as_ref().unwrap_or_else(|| panic!("activations in blocks of {}", block.elements()))
    }
}

/// How so many vectors are to be arranged to be multiplied by `w`, if at all.
pub fn arrangement(isa: Isa, exact: bool, w: Matrix<'_>, vectors: usize) -> Option<Arrangement> {
    match &w.format().dot {
        Dot::Q8(dot) if !exact => dot.arrangement(isa, vectors),
        _ => None,
    }
}

/// A worker's own memory.
#[derive(Default)]
pub struct Scratch {
    /// One decoded row: the only f32 copy of weights a worker ever holds.
    pub row: Vec<f32>,
    /// A few rows, unpacked for products with many tokens.
    pub tile: drive::Tile,
    /// Vectors that this worker arranged on its own.
    pub panel: Vec<[u8; 4]>,
}

impl Scratch {
    /// An upper bound of the bytes it grows to for rows of `n` elements, with vectors that others have arranged.
    pub fn bytes(n: usize, exact: bool) -> usize {
        n * size_of::<f32>() + drive::Tile::bytes(n, exact)
    }
}

/// An upper bound of the bytes of so many vectors of `n` elements when they are arranged.
pub fn panel_bytes(n: usize, vectors: usize) -> usize {
    panel_vectors(vectors) * Arrangement::most_words(n) * size_of::<[u8; 4]>()
}

/// So many vectors, and those that the last run may be too long by.
pub fn panel_vectors(vectors: usize) -> usize {
    vectors.next_multiple_of(VECTOR_UNIT)
}

/// A matrix and vectors that are about to be multiplied, in pieces of rows.
pub struct Product<'a, 's> {
    isa: Isa,
    w: Matrix<'a>,
    x: &'a Input<'a>,
    /// The int8 form of the vectors that the matrix is multiplied by; none on the exact path.
    form: Option<(&'a Q8Dot, &'a Q8<'a>)>,
    panel: Option<Panel<'s>>,
    row: &'s mut Vec<f32>,
    tile: &'s mut drive::Tile,
}

impl<'a, 's> Product<'a, 's> {
    /// `exact` multiplies in f32. Otherwise the form of the input that the format asks for
    /// ([`Format::act`](crate::kernel::format::Format::act)) must be there. Vectors that are to be [arranged](arrangement)
    /// are, if they do not come so.
    ///
    /// # Panics
    /// If shapes disagree or the needed form is missing: both are checked when a model is loaded.
    pub fn new(
        isa: Isa,
        exact: bool,
        w: Matrix<'a>,
        x: &'a Input<'a>,
        arranged: Option<Panel<'s>>,
        scratch: &'s mut Scratch,
    ) -> Self {
        assert_eq!(w.cols(), x.n, "matrix columns and vector length");
        let form = match &w.format().dot {
            Dot::Q8(dot) if !exact => Some((dot, x.form(dot.block))),
            _ => None,
        };
        let Scratch { row, tile, panel: own } = scratch;
        let wanted = form.and_then(|(dot, x)| Some((dot.arrangement(isa, x.vectors())?, x)));
        let panel = wanted.map(|(arrangement, x)| {
            arranged.unwrap_or_else(|| {
                let words = arrangement.words(x.n);
                own.resize(panel_vectors(x.vectors()) * words, [0; 4]);
                arrangement.fill(x, 0..x.vectors(), own, words);
                Panel::new(&arrangement, x.n, own, words)
            })
        });
        Self { isa, w, x, form, panel, row, tile }
    }

    /// Multiplies in tiles until all are done (by whoever took them), and gives each to `done`.
    pub fn all(&mut self, tiles: &mut Tiles<'_, f32>, mut done: impl FnMut(&mut Cols<'_, f32>)) {
        while let Some((mut out, then)) = tiles.advance() {
            self.rows(&mut out, then);
            done(&mut out);
        }
    }

    /// `out[t][r] = W[r] . x[t]` for the rows in `out.range()` and every token `t`. The rows of `then` are probably next.
    ///
    /// # Panics
    /// If `out` has more rows than the matrix or not one row a token.
    pub fn rows(&mut self, out: &mut Cols<'_, f32>, then: Range<usize>) {
        let (w, x) = (self.w, self.x);
        assert!(out.range().end <= w.rows(), "rows {:?} of {}", out.range(), w.rows());
        assert_eq!(out.height() * x.n, x.f32.len(), "as many outputs as tokens");
        if let Some((dot, form)) = self.form {
            return dot.run(self.isa, w, (form, self.panel), out, self.tile, then);
        }
        #[cfg(target_arch = "x86_64")]
        if let Dot::F32 { x86 } = &w.format().dot {
            use crate::kernel::isa::Lanes;
            match self.isa.lanes() {
                Lanes::Scalar => {}
                Lanes::Avx2(token) => return (x86.avx2)(token, w, x.f32, out, self.tile, then),
                Lanes::Avx512(token) => return (x86.avx512)(token, w, x.f32, out, self.tile, then),
            }
        }
        let row = &mut *self.row;
        row.resize(w.cols(), 0.0);
        crate::simd!(self.isa, s => exact_rows(s, w, x.f32, out, row));
    }
}

/// `out[t][r] = W[r] . x[t]` for the rows in `out.range()` and every token `t`: a [`Product`] in one piece.
pub fn matmul(
    isa: Isa,
    exact: bool,
    w: Matrix<'_>,
    x: &Input<'_>,
    out: &mut Cols<'_, f32>,
    scratch: &mut Scratch,
) {
    Product::new(isa, exact, w, x, None, scratch).rows(out, 0..0);
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
