//! Formats of 32-element blocks with one scale (and perhaps one minimum) a block.
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use super::{Tiled, WIDE};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::Tile;
use crate::kernel::format::drive::avx2::block32::{self, Block32};
use crate::kernel::format::drive::panel::{Needs, Run, Word};
use crate::kernel::isa::{Avx2, AvxVnni, Dots, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::marker::PhantomData;

/// Tiles of a format.
pub struct Tiles<B>(PhantomData<B>);

/// What the unsigned codes of a tile are too large by.
const fn offset<B: Block32>() -> i32 {
    if B::SIGNED { 128 } else { B::OFFSET }
}

impl<B: Block32> Tiled for Tiles<B> {
    const WIDE: usize = WIDE;
    /// The sum times the offset, to be added to a block's products; for formats with minimums the sum as f32.
    const NEEDS: Needs = Needs {
        sums: 32,
        word: if B::MINS { Word::Float } else { Word::Times(-offset::<B>()) },
        paired: None,
    };

    fn few<V: Vnni + Dots>(v: V, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
        // (As for blocks of 256, nothing here needs AVX-512.)
        match v.avx_vnni() {
            Some(isa) => block32::few::<B, AvxVnni>(isa, w, x, out),
            None => block32::few::<B, Avx2>(Vnni::avx2(v), w, x, out),
        }
    }

    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize) {
        // SAFETY: the token proves the features.
        unsafe { block32::unpack::<B, true>(isa, w, first, tile, group, groups) }
    }

    #[inline(always)]
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, x: Run<'_>) -> [[V::F; T]; WIDE] {
        const { assert!(!B::MINS || offset::<B>() == 0) };
        let n = x.scales.len() / T;
        assert!(x.codes.len() == n * 8 * T && x.words.len() == n * T && x.scales.len() == n * T);
        assert!(tile.codes.len() == n * 8 * WIDE * V::GROUPS && tile.factors.len() == n * WIDE * V::GROUPS);
        assert!(!B::MINS || tile.min_factors.len() == n * WIDE * V::GROUPS);
        let mut acc = [[v.splat_f32(0.0); T]; WIDE];
        for b in 0..n {
            let (codes, words) = (&x.codes[b * 8 * T..][..8 * T], &x.words[b * T..][..T]);
            let scales = &x.scales[b * T..][..T];
            let mut isum = [[v.zero(); T]; WIDE];
            if offset::<B>() != 0 {
                for t in 0..T {
                    let back = v.four(&words[t]);
                    for isum in &mut isum {
                        isum[t] = back;
                    }
                }
            }
            for g in 0..8 {
                let w: [V::I; WIDE] = [0, 1].map(|r| v.load_bytes(&tile.codes, (b * 8 + g) * WIDE + r));
                for t in 0..T {
                    let x = v.four(&codes[g * T + t]);
                    for r in 0..WIDE {
                        isum[r][t] = v.dot4(isum[r][t], w[r], x);
                    }
                }
            }
            for r in 0..WIDE {
                let ws = v.load_f32(&tile.factors, b * WIDE + r);
                for t in 0..T {
                    let scale = v.splat_f32(f32::from_ne_bytes(scales[t]));
                    let step = v.mul_f32(v.to_f32(isum[r][t]), v.mul_f32(ws, scale));
                    acc[r][t] = v.add_f32(acc[r][t], step);
                    if B::MINS {
                        let wm = v.load_f32(&tile.min_factors, b * WIDE + r);
                        let sum = v.splat_f32(f32::from_ne_bytes(words[t]));
                        acc[r][t] = v.add_f32(acc[r][t], v.mul_f32(sum, v.mul_f32(wm, scale)));
                    }
                }
            }
        }
        acc
    }
}
