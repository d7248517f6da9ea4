//! The loops around a block for instruction sets that multiply bytes and add the products to i32 lanes ([`Vnni`]).
//!
//! One operand of their products is unsigned. Weights take that side: signed codes are made unsigned by adding 128 when a
//! tile is unpacked, and that times the sum of the activations' codes is taken back, exactly.
//!
//! What limits such a loop is loads: every product needs four bytes of weights and four of activations. So a few vectors
//! of rows meet a few vectors of activations, each is loaded once for all products of both, and both come as one stream:
//! rows from a [`Tile`], activations from a [`Panel`]. Streams of their own would need more pointers than there are
//! registers.

pub mod block256;
pub mod block32;
mod paired;

use super::avx2::Prefetch;
use super::panel::{Needs, Panel, Run, Runs};
use super::{Kernel, LANES, Tile};
use crate::kernel::format::{Matrix, drive};
use crate::kernel::isa::{Aligned, Avx2, Dots, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::ops::Range;

/// Vectors of rows in most tiles, and the most.
const WIDE: usize = 2;
/// The most groups of [`LANES`] rows in a tile.
const GROUPS: usize = WIDE * 2;

/// What the kinds of blocks differ in.
pub trait Tiled {
    /// The product with few vectors, for which the weights are read where they lie.
    fn few<V: Vnni + Dots>(v: V, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>);

    /// Unpacks the eight rows from `first` on into group `group` of a tile of `groups`, with unsigned codes.
    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize);

    /// Vectors of rows in a tile.
    const WIDE: usize;

    /// What it needs of activations.
    const NEEDS: Needs;

    /// The products of a tile's rows with `T` vectors: of the results only [`WIDE`](Self::WIDE) have a meaning.
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, x: Run<'_>) -> [[V::F; T]; WIDE];
}

/// The product of one kind of blocks.
pub const fn kernel<V: Vnni + Dots, K: Tiled>() -> Kernel<V> {
    Kernel { arrangement: Some((vectors::<V, K>(), K::NEEDS)), multiply: multiply::<V, K> }
}

/// The most vectors of activations that meet a tile together.
const fn vectors<V: Vnni, K: Tiled>() -> usize {
    if K::NEEDS.paired.is_some() { V::PAIRED_VECTORS } else { V::VECTORS }
}

/// The product under the contract for the rows in `out.range()`.
fn multiply<V: Vnni + Dots, K: Tiled>(
    v: V,
    w: Matrix<'_>,
    (x, panel): (&Q8<'_>, Option<Panel<'_>>),
    out: &mut Cols<'_, f32>,
    tile: &mut Tile,
    then: Range<usize>,
) {
    let Some(panel) = panel else { return K::few(v, &w, x, out) };
    let groups = K::WIDE * V::GROUPS;
    let range = out.range();
    for first in range.clone().step_by(groups * LANES) {
        for (group, first) in (first..range.end).step_by(LANES).take(groups).enumerate() {
            K::unpack(Vnni::avx2(v), &w, first, tile, group, groups);
        }
        let (rows, steps) = (groups * LANES, x.vectors().div_ceil(const { vectors::<V, K>() }));
        let next = Prefetch::following(&w, (first + rows, range.end), &then, rows, steps);
        v.run(
            #[inline(always)]
            || by_all::<V, K>(v, tile, panel, x, out, first - range.start, next),
        );
    }
}

/// Every vector by the rows of the tile, which are rows `at..` of the output. Meanwhile the next rows come from memory, so many bytes
/// with each run of vectors.
#[inline(always)]
fn by_all<V: Vnni, K: Tiled>(
    v: V,
    tile: &Tile,
    panel: Panel<'_>,
    x: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    at: usize,
    (mut next, ahead): (Prefetch, usize),
) {
    let (vectors, most) = (x.vectors(), const { vectors::<V, K>() });
    let rows = at..(at + K::WIDE * V::GROUPS * LANES).min(out.range().len());
    for (i, length) in Runs::new(vectors, most) {
        let run = panel.run(i, length);
        next.ahead(ahead);
        let those = i..vectors.min(i + length);
        match length {
            8 if most == 8 => put::<V, K, 8>(v, x, out, rows.clone(), those, K::by(v, tile, run)),
            6 => put::<V, K, 6>(v, x, out, rows.clone(), those, K::by(v, tile, run)),
            3 => put::<V, K, 3>(v, x, out, rows.clone(), those, K::by(v, tile, run)),
            2 => put::<V, K, 2>(v, x, out, rows.clone(), those, K::by(v, tile, run)),
            _ => unreachable!("runs of {length}"),
        }
    }
}

/// Puts the products with some vectors into the columns `rows` of the output. The terms of a token are added.
#[inline(always)]
fn put<V: Vnni, K: Tiled, const T: usize>(
    v: V,
    x: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    rows: Range<usize>,
    vectors: Range<usize>,
    products: [[V::F; T]; WIDE],
) {
    for (t, i) in (0..T).zip(vectors) {
        let (token, term) = x.place(i);
        let (groups, _) = out.row(token)[rows.clone()].as_chunks_mut();
        if groups.len() == K::WIDE * V::GROUPS {
            // All rows of a tile: the usual case, in which nothing is called.
            for r in 0..K::WIDE {
                let (to, product) = (&mut groups[r * V::GROUPS..], products[r][t]);
                v.store_f32(if term == 0 { product } else { v.add_f32(v.load_f32(to, 0), product) }, to);
            }
            continue;
        }
        let mut all = [[0.0; LANES]; GROUPS];
        for r in 0..K::WIDE {
            v.store_f32(products[r][t], &mut all[r * V::GROUPS..]);
        }
        drive::put(x, out, rows.clone(), i, &Aligned([all]));
    }
}
