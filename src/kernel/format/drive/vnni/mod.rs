//! The loops around a block for instruction sets that multiply bytes and add the products to i32 lanes ([`Vnni`]).
//!
//! One operand of their products is unsigned. Weights take that side: signed codes are made unsigned by adding 128 when a
//! tile is unpacked, and that times the sum of the activations' codes is taken back, exactly.

pub mod block256;
pub mod block32;

use super::{LANES, TILE_FROM, Tile, in_runs, put};
use crate::kernel::format::Matrix;
use crate::kernel::isa::{Avx2, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;

/// What the kinds of blocks differ in.
pub trait Tiled {
    /// The product with few vectors, for which the weights are read where they lie.
    fn few(isa: Avx2, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile);

    /// Unpacks the eight rows from `first` on into group `group` of a tile of `groups`, with unsigned codes.
    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize);

    /// The products of a tile's rows with each of the `T` vectors from `i` on; of one group, the rest is 0.
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, x: &Q8<'_>, i: usize) -> [[[f32; LANES]; 2]; T];
}

/// The product under the contract for the rows in `out.range()`.
pub fn matmul<V: Vnni, K: Tiled>(v: V, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
    if x.vectors() < TILE_FROM {
        return K::few(v.avx2(), w, x, out, tile);
    }
    let range = out.range();
    for first in range.clone().step_by(LANES * V::GROUPS) {
        for group in 0..V::GROUPS {
            K::unpack(v.avx2(), &w, first + group * LANES, tile, group, V::GROUPS);
        }
        v.run(
            #[inline(always)]
            || by_all::<V, K>(v, tile, x, out, first - range.start),
        );
    }
}

/// Every vector by the rows of the tile, which are rows `at..` of the output.
#[inline(always)]
fn by_all<V: Vnni, K: Tiled>(v: V, tile: &Tile, x: &Q8<'_>, out: &mut Cols<'_, f32>, at: usize) {
    let rows = at..at + LANES * V::GROUPS;
    let mut i = 0;
    if V::VECTORS >= 8 {
        in_runs!(i of x.vectors(), [8], RUN => put(x, out, rows.clone(), i, &K::by::<V, RUN>(v, tile, x, i)));
    }
    in_runs!(i of x.vectors(), [4, 2, 1], RUN => put(x, out, rows.clone(), i, &K::by::<V, RUN>(v, tile, x, i)));
}
