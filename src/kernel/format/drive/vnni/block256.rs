//! Formats of 256-element blocks whose sub-blocks of 16 or 32 have integer scales (and perhaps minimums).
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use super::Tiled;
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::avx2::Vector;
use crate::kernel::format::drive::avx2::block256::{self, Block256, of_part};
use crate::kernel::format::drive::{LANES, Tile};
use crate::kernel::isa::{Avx2, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::marker::PhantomData;

/// Tiles of a format.
pub struct Tiles<B>(PhantomData<B>);

/// What the unsigned codes of a tile are too large by: a power of two, or 0.
const fn offset<B: Block256>() -> i32 {
    if B::SIGNED { 128 } else { B::OFFSET }
}

impl<B: Block256> Tiled for Tiles<B> {
    fn few(isa: Avx2, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
        block256::matmul::<B>(isa, w, x, out, tile);
    }

    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize) {
        // SAFETY: the token proves the features.
        unsafe { block256::unpack::<B, true>(isa, w, first, tile, group, groups) }
    }

    #[inline(always)]
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, q8: &Q8<'_>, i: usize) -> [[[f32; LANES]; 2]; T] {
        const { assert!(!B::MINS || offset::<B>() == 0) };
        let n = q8.n / 256;
        let subs = 256 / B::SUB;
        let sums = B::MINS || offset::<B>() != 0;
        let x: [Vector<'_, 256, 16>; T] = std::array::from_fn(|t| Vector::new(q8.vector(i + t), n));
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
        products
    }
}
