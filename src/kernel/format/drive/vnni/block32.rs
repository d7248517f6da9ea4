//! Formats of 32-element blocks with one scale (and perhaps one minimum) a block.
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use super::Tiled;
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::avx2::Vector;
use crate::kernel::format::drive::avx2::block32::{self, Block32};
use crate::kernel::format::drive::{LANES, Tile};
use crate::kernel::isa::{Avx2, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::marker::PhantomData;

/// Tiles of a format.
pub struct Tiles<B>(PhantomData<B>);

/// What the unsigned codes of a tile are too large by.
const fn offset<B: Block32>() -> i16 {
    if B::SIGNED { 128 } else { B::OFFSET as i16 }
}

impl<B: Block32> Tiled for Tiles<B> {
    fn few(isa: Avx2, w: Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>, tile: &mut Tile) {
        block32::matmul::<B>(isa, w, x, out, tile);
    }

    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize) {
        // SAFETY: the token proves the features.
        unsafe { block32::unpack::<B, true>(isa, w, first, tile, group, groups) }
    }

    #[inline(always)]
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, q8: &Q8<'_>, i: usize) -> [[[f32; LANES]; 2]; T] {
        let n = q8.n / 32;
        let x: [Vector<'_, 32, 2>; T] = std::array::from_fn(|t| Vector::new(q8.vector(i + t), n));
        assert!(tile.codes.len() == n * 8 * V::GROUPS && tile.factors.len() == n * V::GROUPS);
        let ones = v.two([1, 1]);
        let back = v.two([-offset::<B>(); 2]);
        let mut acc = [v.splat_f32(0.0); T];
        for b in 0..n {
            // SAFETY: `b < n`, and every part of a vector has `n` blocks.
            let parts: [(&[u8; 32], f32, [i16; 2]); T] = std::array::from_fn(|t| unsafe {
                (x[t].codes.get_unchecked(b), *x[t].scales.get_unchecked(b), *x[t].sums.get_unchecked(b))
            });
            let mut isum = [v.zero(); T];
            if offset::<B>() != 0 {
                for t in 0..T {
                    isum[t] = v.dot2(isum[t], v.two(parts[t].2), back);
                }
            }
            for g in 0..8 {
                let w = v.load_bytes(&tile.codes, b * 8 + g);
                for t in 0..T {
                    isum[t] = v.dot4(isum[t], w, v.four(&parts[t].0.as_chunks().0[g]));
                }
            }
            let ws = v.load_f32(&tile.factors, b);
            for t in 0..T {
                let (_, scale, sums) = parts[t];
                let scale = v.splat_f32(scale);
                acc[t] = v.add_f32(acc[t], v.mul_f32(v.to_f32(isum[t]), v.mul_f32(ws, scale)));
                if B::MINS {
                    let wm = v.load_f32(&tile.min_factors, b);
                    let xsum = v.dot2(v.zero(), v.two(sums), ones);
                    acc[t] = v.add_f32(acc[t], v.mul_f32(v.to_f32(xsum), v.mul_f32(wm, scale)));
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
