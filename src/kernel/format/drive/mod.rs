//! The loops around a block, written once for all formats: rows, vectors, blocks in ascending order.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
mod lines;
pub mod panel;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::Matrix;
#[cfg(target_arch = "x86_64")]
use crate::kernel::isa::{Aligned, Avx2, Avx512, AvxVnni};
use crate::kernel::op::quantize::{Q8, Q8Row};
use crate::kernel::par::Cols;
use lines::Lines;
use std::ops::Range;

/// Rows that are computed side by side, one in each lane of eight.
pub const LANES: usize = 8;

/// Threads get rows in multiples of this: the most that any driver computes side by side.
pub const ROW_UNIT: usize = 16;

/// The int8 product of one format for ranges of rows and all tokens.
#[cfg(target_arch = "x86_64")]
pub struct Kernel<Token> {
    /// How many vectors that are [`TILE_FROM`] or more want to be arranged: how many go together, what is needed of them.
    pub arrangement: Option<(usize, panel::Needs)>,
    /// The product for the rows in the output's range, of vectors that were arranged if that is wanted. The rows of the last
    /// operand are probably next.
    pub multiply: Multiply<Token>,
}

/// Rows by vectors, which also come arranged, into columns of the output.
#[cfg(target_arch = "x86_64")]
pub type Multiply<Token> =
    fn(Token, Matrix<'_>, (&Q8<'_>, Option<panel::Panel<'_>>), &mut Cols<'_, f32>, &mut Tile, Range<usize>);

/// The int8 product of one format on each instruction set. All give the bits of the scalar definition.
#[cfg(target_arch = "x86_64")]
pub struct Kernels {
    /// AVX2.
    pub avx2: Kernel<Avx2>,
    /// AVX-VNNI.
    pub avxvnni: Kernel<AvxVnni>,
    /// AVX-512 with VNNI.
    pub avx512: Kernel<Avx512>,
}

#[cfg(target_arch = "x86_64")]
impl Kernels {
    /// Of a format of 32-element blocks.
    pub(super) const fn block32<B: avx2::block32::Block32>() -> Self {
        Self {
            avx2: Kernel {
                arrangement: None,
                multiply: |isa, w, (x, _), out, tile, _| avx2::block32::matmul::<B>(isa, w, x, out, tile),
            },
            avxvnni: vnni::kernel::<AvxVnni, vnni::block32::Tiles<B>>(),
            avx512: vnni::kernel::<Avx512, vnni::block32::Tiles<B>>(),
        }
    }

    /// Of a format of 256-element blocks.
    pub(super) const fn block256<B: avx2::block256::Block256>() -> Self {
        Self {
            avx2: Kernel {
                arrangement: None,
                multiply: |isa, w, (x, _), out, tile, _| avx2::block256::matmul::<B>(isa, w, x, out, tile),
            },
            avxvnni: vnni::kernel::<AvxVnni, vnni::block256::Tiles<B>>(),
            avx512: vnni::kernel::<Avx512, vnni::block256::Tiles<B>>(),
        }
    }
}

/// The f32 product of one format by `[tokens][columns]` on one instruction set. The rows of the last operand are probably next.
#[cfg(target_arch = "x86_64")]
pub type FloatKernel<Token> = fn(Token, Matrix<'_>, &[f32], &mut Cols<'_, f32>, &mut Tile, Range<usize>);

/// The f32 product of one format on each instruction set. All give the bits of the definition.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub struct FloatKernels {
    /// AVX2.
    pub avx2: FloatKernel<Avx2>,
    /// AVX-512.
    pub avx512: FloatKernel<Avx512>,
}

#[cfg(target_arch = "x86_64")]
impl FloatKernels {
    /// Of a format.
    pub(super) const fn of<F: avx2::float::Float>() -> Self {
        Self {
            avx2: |isa, w, x, out, tile, then| {
                avx2::float::matmul::<Avx2, F>(isa, isa, w, x, out, tile, then)
            },
            avx512: |isa, w, x, out, tile, then| {
                avx2::float::matmul::<Avx512, F>(isa, isa.avx2(), w, x, out, tile, then)
            },
        }
    }
}

/// The most rows of a [`Tile`].
pub const TILE_ROWS: usize = 4 * LANES;

/// The most rows of a float format that are widened for many tokens.
pub const FLOAT_ROWS: usize = LANES;

/// A worker's scratch for a tile of a few groups of [`LANES`] rows, unpacked once and used for many vectors. For
/// every place in a row there is one element of each group, side by side.
#[derive(Default)]
pub struct Tile {
    /// Codes, interleaved: for every 4 elements, 4 bytes of each of the rows.
    pub codes: Lines<[u8; 32]>,
    /// Integer scales of sub-blocks as i16, a row's scale in both halves of its lane.
    pub scales: Lines<[u8; 32]>,
    /// Integer minimums of two neighbouring sub-blocks as i16, side by side in the row's lane.
    pub mins: Lines<[u8; 32]>,
    /// f32 scales of blocks, a lane a row.
    pub factors: Lines<[f32; 8]>,
    /// f32 scales of the minimums.
    pub min_factors: Lines<[f32; 8]>,
    /// Of float formats, weights: for every 8 elements, 8 of each of the rows.
    pub floats: Lines<[f32; 8]>,
    /// A row whose blocks do not lie together.
    pub row: Vec<u8>,
}

impl Tile {
    /// An upper bound of the bytes it grows to for rows of `n` elements. (`exact` products have float formats only.)
    pub fn bytes(n: usize, exact: bool) -> usize {
        let floats = FLOAT_ROWS * n.next_multiple_of(LANES) * size_of::<f32>();
        // The most rows of a tile: their codes, and for every 16 elements scales and minimums in three kinds of numbers.
        let codes = TILE_ROWS * (n + 3 * n / 16 * size_of::<f32>());
        floats + if exact { 0 } else { codes }
    }
}

/// From this many vectors on, unpacking a tile of rows once pays for itself.
pub const TILE_FROM: usize = 4;

/// Does `$body` for runs of vectors from number `$v` on until all `$count` are done; `$run` is the constant length of a run, the
/// first of the list that is not more than what is left. (A macro, since a closure has neither constant parameters nor the
/// CPU features of the function around it.)
#[cfg(target_arch = "x86_64")]
macro_rules! in_runs {
    ($v:ident of $count:expr, [$($length:expr),+], $run:ident => $body:expr) => {$(
        while $count - $v >= $length {
            const $run: usize = $length;
            $body;
            $v += $run;
        }
    )+};
}
#[cfg(target_arch = "x86_64")]
use in_runs;

/// The definition: every row by every vector with the format's scalar dot, and the terms of a token added.
pub fn scalar(
    dot: fn(&[u8], Q8Row<'_>) -> f32,
    w: Matrix<'_>,
    x: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    tile: &mut Tile,
) {
    for (i, r) in out.range().enumerate() {
        let row = w.row(r, &mut tile.row);
        for v in 0..x.vectors() {
            let ((token, term), product) = (x.place(v), dot(row, x.vector(v)));
            let y = &mut out.row(token)[i];
            *y = if term == 0 { product } else { *y + product };
        }
    }
}

/// The products of `N` groups of rows with each of `T` vectors.
#[cfg(target_arch = "x86_64")]
type Products<const N: usize, const T: usize> = Aligned<[[[f32; LANES]; N]; T]>;

/// Puts the products of consecutive vectors, from number `first` on, into the columns `rows` of the output (as far as it has
/// them). The terms of a token are added.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn put<const N: usize, const T: usize>(
    x: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    rows: Range<usize>,
    first: usize,
    products: &Products<N, T>,
) {
    let rows = rows.start..rows.end.min(out.range().len());
    for (v, products) in (first..x.vectors()).zip(&products.0) {
        let ((token, term), products) = (x.place(v), products.as_flattened());
        let to = &mut out.row(token)[rows.clone()];
        if term > 0 {
            to.iter_mut().zip(products).for_each(|(y, p)| *y += p);
        } else {
            to.copy_from_slice(&products[..to.len()]);
        }
    }
}
