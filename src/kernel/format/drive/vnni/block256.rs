//! Formats of 256-element blocks whose sub-blocks of 16 or 32 have integer scales (and perhaps minimums).
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use super::{Tiled, WIDE, paired};
use crate::kernel::format::Matrix;
use crate::kernel::format::drive::Tile;
use crate::kernel::format::drive::avx2::block256::{self, Block256, of_part};
use crate::kernel::format::drive::avx2::few::few;
use crate::kernel::format::drive::panel::{Needs, Paired, Run, Word};
use crate::kernel::isa::{Avx2, Dots, Vnni};
use crate::kernel::op::quantize::Q8;
use crate::kernel::par::Cols;
use std::marker::PhantomData;

/// Tiles of a format.
pub struct Tiles<B>(PhantomData<B>);

/// What the unsigned codes of a tile are too large by: a power of two, or 0.
const fn offset<B: Block256>() -> i32 {
    if B::SIGNED { 128 } else { B::OFFSET }
}

/// How many sub-blocks' scaled sums add up to less than 2^24, so that f32 holds all of that exactly: a fused multiplication
/// and addition is faster than the multiplication of integers.
const fn exact<B: Block256>() -> usize {
    let largest = if B::SIGNED { 255 } else { B::MAX };
    ((1 << 24) - 1) / (B::SUB as i64 * largest as i64 * 127 * B::MAX_SCALE as i64) as usize
}

impl<B: Block256> Tiled for Tiles<B> {
    const WIDE: usize = if paired::centre::<B>().is_some() { 1 } else { WIDE };

    /// Two i16 to be multiplied by two scales or minimums; without any, the sum times the offset, to be added.
    const NEEDS: Needs = match (B::MAX_SCALE, paired::centre::<B>()) {
        (1, _) => Needs { sums: 256 / B::PARTS, word: Word::Times(-offset::<B>()), paired: None },
        (_, None) => Needs { sums: 2 * B::SUB, word: Word::Halves, paired: None },
        (_, Some(centre)) => Needs {
            sums: 2 * B::SUB,
            word: Word::Halves,
            paired: Some(Paired { sub: B::SUB, start: -centre }),
        },
    };

    fn few<V: Vnni + Dots>(v: V, w: &Matrix<'_>, x: &Q8<'_>, out: &mut Cols<'_, f32>) {
        few::<B, V>(v, w, x, out);
    }

    fn unpack(isa: Avx2, w: &Matrix<'_>, first: usize, tile: &mut Tile, group: usize, groups: usize) {
        // SAFETY: the token proves the features.
        unsafe {
            match Self::NEEDS.paired {
                Some(_) => block256::unpack_pairs::<B>(isa, w, first, tile, group, groups),
                None => block256::unpack::<B, true>(isa, w, first, tile, group, groups),
            }
        }
    }

    #[inline(always)]
    fn by<V: Vnni, const T: usize>(v: V, tile: &Tile, x: Run<'_>) -> [[V::F; T]; WIDE] {
        if const { Self::NEEDS.paired.is_some() } {
            return [paired::by::<B, V, T>(v, tile, x), [v.splat_f32(0.0); T]];
        }
        const { assert!(!B::MINS || (offset::<B>() == 0 && B::MAX_SCALE > 1)) };
        let n = x.scales.len() / T;
        let (subs, mins, groups) = (256 / B::SUB, block256::tile_mins::<B>(), WIDE * V::GROUPS);
        let (scaled, n_words) = (B::MAX_SCALE > 1, 256 / Self::NEEDS.sums);
        assert!(x.codes.len() == n * 64 * T && x.words.len() == n * n_words * T && x.scales.len() == n * T);
        assert!(tile.codes.len() == n * 64 * groups && tile.factors.len() == n * B::PARTS * groups);
        assert!(!scaled || tile.scales.len() == n * subs * groups);
        assert!(tile.mins.len() == n * mins * groups && (!B::MINS || tile.min_factors.len() == n * groups));
        let mut acc = [[v.splat_f32(0.0); T]; WIDE];
        for b in 0..n {
            let codes = &x.codes[b * 64 * T..][..64 * T];
            let words = &x.words[b * n_words * T..][..n_words * T];
            let scales = &x.scales[b * T..][..T];
            for part in 0..B::PARTS {
                let range = of_part::<B>(part, subs);
                let mut corr = [[v.zero(); T]; WIDE];
                for k in of_part::<B>(part, mins) {
                    let m: [V::I; WIDE] = [0, 1].map(|r| v.load_bytes(&tile.mins, (b * mins + k) * WIDE + r));
                    for t in 0..T {
                        let sums = v.four(&words[k * T + t]);
                        for r in 0..WIDE {
                            corr[r][t] = v.dot2(corr[r][t], m[r], sums);
                        }
                    }
                }
                let mut total = [[v.splat_f32(0.0); T]; WIDE];
                if scaled && exact::<B>() >= if offset::<B>() == 0 { subs / 2 } else { subs } {
                    // Whole numbers in f32: one rounding, at the end, as that of a conversion.
                    let most = range.len().min(exact::<B>());
                    for first in range.step_by(most) {
                        let mut exact = [[v.splat_f32(0.0); T]; WIDE];
                        for sub in first..first + most {
                            let mut part = [[v.zero(); T]; WIDE];
                            dots::<B, V, T>(v, &mut part, codes, tile, b * subs + sub);
                            for r in 0..WIDE {
                                let scale = v.to_f32(scale::<V>(v, tile, b * subs + sub, r));
                                for t in 0..T {
                                    exact[r][t] = v.fused(v.to_f32(part[r][t]), scale, exact[r][t]);
                                }
                            }
                        }
                        for r in 0..WIDE {
                            for t in 0..T {
                                let taken = match offset::<B>() {
                                    0 => exact[r][t],
                                    _ => v.sub_f32(exact[r][t], v.to_f32(back::<B, V>(v, corr[r][t]))),
                                };
                                total[r][t] = v.add_f32(total[r][t], taken);
                            }
                        }
                    }
                } else {
                    let mut isum = [[v.zero(); T]; WIDE];
                    if !scaled && offset::<B>() != 0 {
                        for t in 0..T {
                            let back = v.four(&words[part * T + t]);
                            for isum in &mut isum {
                                isum[t] = back;
                            }
                        }
                    }
                    for sub in range {
                        if !scaled {
                            dots::<B, V, T>(v, &mut isum, codes, tile, b * subs + sub);
                            continue;
                        }
                        let mut part = [[v.zero(); T]; WIDE];
                        dots::<B, V, T>(v, &mut part, codes, tile, b * subs + sub);
                        for r in 0..WIDE {
                            let scale = scale::<V>(v, tile, b * subs + sub, r);
                            for t in 0..T {
                                isum[r][t] = v.add_i32(isum[r][t], v.mul_i32(part[r][t], scale));
                            }
                        }
                    }
                    for r in 0..WIDE {
                        for t in 0..T {
                            let mut isum = isum[r][t];
                            if scaled && offset::<B>() != 0 {
                                isum = v.sub_i32(isum, back::<B, V>(v, corr[r][t]));
                            }
                            total[r][t] = v.to_f32(isum);
                        }
                    }
                }
                for r in 0..WIDE {
                    let d = v.load_f32(&tile.factors, (b * B::PARTS + part) * WIDE + r);
                    for t in 0..T {
                        let (scale, acc) = (v.splat_f32(f32::from_ne_bytes(scales[t])), &mut acc[r][t]);
                        *acc = v.add_f32(*acc, v.mul_f32(total[r][t], v.mul_f32(d, scale)));
                        if B::MINS {
                            let dmin = v.load_f32(&tile.min_factors, b * WIDE + r);
                            *acc = v.sub_f32(*acc, v.mul_f32(v.to_f32(corr[r][t]), v.mul_f32(dmin, scale)));
                        }
                    }
                }
            }
        }
        acc
    }
}

/// Adds the products of the tile's sub-block `sub` (of all of the row) to `sums`; `codes` are those of its block.
#[inline(always)]
fn dots<B: Block256, V: Vnni, const T: usize>(
    v: V,
    sums: &mut [[V::I; T]; WIDE],
    codes: &[[u8; 4]],
    tile: &Tile,
    sub: usize,
) {
    let fours = B::SUB / 4;
    let codes = &codes[sub % (256 / B::SUB) * fours * T..][..fours * T];
    for g in 0..fours {
        let w: [V::I; WIDE] = [0, 1].map(|r| v.load_bytes(&tile.codes, (sub * fours + g) * WIDE + r));
        for t in 0..T {
            let x = v.four(&codes[g * T + t]);
            for r in 0..WIDE {
                sums[r][t] = v.dot4(sums[r][t], w[r], x);
            }
        }
    }
}

/// The scales of a sub-block.
#[inline(always)]
fn scale<V: Vnni>(v: V, tile: &Tile, sub: usize, r: usize) -> V::I {
    v.high(v.load_bytes(&tile.scales, sub * WIDE + r))
}

/// What the offset of the codes has added.
#[inline(always)]
fn back<B: Block256, V: Vnni>(v: V, corr: V::I) -> V::I {
    v.shift_left(corr, offset::<B>().trailing_zeros())
}
