//! Formats of 256-element blocks whose sub-blocks of 16 or 32 have integer scales (and perhaps minimums).
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use super::TILE_FROM;
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::avx2::block256::{self, Block256, Vector, of_part};
use crate::kernel::format::drive::{LANES, Tile, put};
use crate::kernel::isa::Vnni;
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;

/// The product under the contract for the rows in `out.range()`.
pub fn matmul<V: Vnni, B: Block256>(
    v: V,
    w: Matrix<'_>,
    x: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    tile: &mut Tile,
) {
    if x.vectors() < TILE_FROM {
        return block256::matmul::<B>(v.avx2(), w, x, out, tile);
    }
    let range = out.range();
    for first in range.clone().step_by(LANES * V::GROUPS) {
        for group in 0..V::GROUPS {
            // SAFETY: the token proves the features.
            unsafe {
                block256::unpack::<B, true>(v.avx2(), &w, first + group * LANES, tile, group, V::GROUPS);
            }
        }
        v.run(
            #[inline(always)]
            || by_all::<V, B>(v, tile, x, out, first - range.start),
        );
    }
}

/// Every vector by the rows of the tile, which are rows `at..` of the output.
#[inline(always)]
fn by_all<V: Vnni, B: Block256>(v: V, tile: &Tile, x: &Q8<'_>, out: &mut Cols<'_, f32>, at: usize) {
    let mut i = 0;
    while i < x.vectors() {
        match x.vectors() - i {
            8.. if V::VECTORS >= 8 => {
                by::<V, B, 8>(v, tile, x, out, at, i);
                i += 8;
            }
            4.. => {
                by::<V, B, 4>(v, tile, x, out, at, i);
                i += 4;
            }
            2.. => {
                by::<V, B, 2>(v, tile, x, out, at, i);
                i += 2;
            }
            _ => {
                by::<V, B, 1>(v, tile, x, out, at, i);
                i += 1;
            }
        }
    }
}

/// What the unsigned codes of a tile are too large by: a power of two, or 0.
const fn offset<B: Block256>() -> i32 {
    if B::SIGNED { 128 } else { B::OFFSET }
}

/// `T` vectors from `i` on.
#[inline(always)]
fn by<V: Vnni, B: Block256, const T: usize>(
    v: V,
    tile: &Tile,
    q8: &Q8<'_>,
    out: &mut Cols<'_, f32>,
    at: usize,
    i: usize,
) {
    const { assert!(!B::MINS || offset::<B>() == 0) };
    let n = q8.n / 256;
    let subs = 256 / B::SUB;
    let sums = B::MINS || offset::<B>() != 0;
    let x: [Vector<'_>; T] = std::array::from_fn(|t| Vector::new(q8.vector(i + t), n));
    assert!(tile.codes.len() == n * 64 * V::GROUPS && tile.factors.len() == n * B::PARTS * V::GROUPS);
    assert!(tile.scales.len() == n * subs * V::GROUPS && (!sums || tile.mins.len() == n * 8 * V::GROUPS));
    let mut acc = [v.splat_f32(0.0); T];
    for b in 0..n {
        // SAFETY: `b < n`, and every part of a vector has `n` blocks.
        let parts: [(&[u8; 256], f32, &[i16; 16]); T] = std::array::from_fn(|t| unsafe {
            (x[t].codes.get_unchecked(b), *x[t].scales.get_unchecked(b), x[t].sums.get_unchecked(b))
        });
        for part in 0..B::PARTS {
            let mut isum = [v.zero(); T];
            for sub in of_part::<B>(part, subs) {
                let mut part = [v.zero(); T];
                for g in sub * B::SUB / 4..(sub + 1) * B::SUB / 4 {
                    let w = v.load_bytes(&tile.codes, b * 64 + g);
                    for t in 0..T {
                        part[t] = v.dot4(part[t], w, v.four(&parts[t].0.as_chunks().0[g]));
                    }
                }
                let scale = v.high(v.load_bytes(&tile.scales, b * subs + sub));
                for t in 0..T {
                    isum[t] = v.add_i32(isum[t], v.mul_i32(part[t], scale));
                }
            }
            let mut corr = [v.zero(); T];
            if sums {
                for k in of_part::<B>(part, 8) {
                    let m = v.load_bytes(&tile.mins, b * 8 + k);
                    for t in 0..T {
                        corr[t] = v.dot2(corr[t], m, v.two(parts[t].2.as_chunks().0[k]));
                    }
                }
            }
            let d = v.load_f32(&tile.factors, b * B::PARTS + part);
            for t in 0..T {
                let scale = v.splat_f32(parts[t].1);
                let isum = match offset::<B>() {
                    0 => isum[t],
                    offset => v.sub_i32(isum[t], v.shift_left(corr[t], offset.trailing_zeros())),
                };
                acc[t] = v.add_f32(acc[t], v.mul_f32(v.to_f32(isum), v.mul_f32(d, scale)));
                if B::MINS {
                    let dmin = v.load_f32(&tile.min_factors, b);
                    acc[t] = v.sub_f32(acc[t], v.mul_f32(v.to_f32(corr[t]), v.mul_f32(dmin, scale)));
                }
            }
        }
    }
    let mut products = [[[0.0; LANES]; 2]; T];
    for t in 0..T {
        v.store_f32(acc[t], &mut products[t]);
    }
    if V::GROUPS == 2 {
        put(q8, out, at, i, &products);
    } else {
        put(q8, out, at, i, &products.map(|[first, _]| [first]));
    }
}
