//! K-quants of so few bits that the products of a sub-block fit into 16 bits.
//!
//! A vector has the rows twice, each lane of the first sub-block of two beside that of the second. One instruction then brings
//! the sums of two such vectors, which have different rows, into 16 bits side by side, and one more multiplies both sub-blocks'
//! sums by their scales and adds them up. Converting and scaling each sub-block on its own takes twice as many.
#![allow(unsafe_code, reason = "calls functions that need CPU features under the proof of a token")]

use crate::kernel::format::drive::Tile;
use crate::kernel::format::drive::avx2::block256::Block256;
use crate::kernel::format::drive::panel::Run;
use crate::kernel::isa::Vnni;

/// What a code is to be made smaller by so that the products of a sub-block fit into 16 bits; none if there is no such number.
/// The offset of a format is that already; any other is added to the products again, times the scale.
pub const fn centre<B: Block256>() -> Option<i32> {
    const fn fits<B: Block256>(centre: i32) -> bool {
        let largest = if B::MAX - centre > centre { B::MAX - centre } else { centre };
        B::SUB as i32 * largest * 127 <= i16::MAX as i32
    }
    if B::SIGNED || B::MAX_SCALE == 1 || B::PARTS > 1 {
        return None;
    }
    match B::OFFSET {
        0 if fits::<B>(0) => Some(0),
        0 if fits::<B>((B::MAX + 1) / 2) => Some((B::MAX + 1) / 2),
        0 => None,
        offset if fits::<B>(offset) => Some(offset),
        _ => None,
    }
}

/// The products of a tile's rows with `T` vectors.
#[inline(always)]
pub fn by<B: Block256, V: Vnni, const T: usize>(v: V, tile: &Tile, x: Run<'_>) -> [V::F; T] {
    let n = x.scales.len() / T;
    let (pairs, fours, groups) = (128 / B::SUB, B::SUB / 4, V::GROUPS);
    let Some(centre) = centre::<B>() else { unreachable!("not a format of paired sub-blocks") };
    // What must be added again: a power of two.
    let added = centre - B::OFFSET;
    assert!(x.codes.len() == n * 64 * T && x.words.len() == n * pairs * T && x.starts.len() == n * pairs * T);
    assert!(tile.codes.len() == n * 64 * groups && tile.scales.len() == n * pairs * groups);
    assert!(tile.factors.len() == n * groups && (!B::MINS || tile.min_factors.len() == n * groups));
    assert!(!B::MINS || tile.mins.len() == n * pairs * groups);
    let (codes, _) = x.codes.as_chunks::<2>();
    let mut acc = [v.splat_f32(0.0); T];
    for b in 0..n {
        let mut isum = [v.zero(); T];
        for pair in b * pairs..(b + 1) * pairs {
            let (codes, starts) = (&codes[pair * fours * T..][..fours * T], &x.starts[pair * T..][..T]);
            let mut part = [[v.zero(); T]; 2];
            if centre != 0 {
                for t in 0..T {
                    part[0][t] = v.eight(&starts[t]);
                    part[1][t] = part[0][t];
                }
            }
            for g in 0..fours {
                let w: [V::I; 2] = [0, 1].map(|r| v.load_bytes(&tile.codes, (pair * fours + g) * 2 + r));
                for t in 0..T {
                    let x = v.eight(&codes[g * T + t]);
                    for r in 0..2 {
                        part[r][t] = v.dot4(part[r][t], w[r], x);
                    }
                }
            }
            let scales = v.load_bytes(&tile.scales, pair);
            for t in 0..T {
                isum[t] = v.dot2(isum[t], v.pack(part[0][t], part[1][t]), scales);
            }
        }
        let mut corr = [v.zero(); T];
        for pair in b * pairs..(b + 1) * pairs {
            let words = &x.words[pair * T..][..T];
            if added != 0 {
                // Scales are not negative here: shifting the pair shifts each of them.
                let scales = v.shift_left(v.load_bytes(&tile.scales, pair), added.trailing_zeros());
                for t in 0..T {
                    isum[t] = v.dot2(isum[t], v.four(&words[t]), scales);
                }
            }
            if B::MINS {
                let mins = v.load_bytes(&tile.mins, pair);
                for t in 0..T {
                    corr[t] = v.dot2(corr[t], mins, v.four(&words[t]));
                }
            }
        }
        let d = v.load_f32(&tile.factors, b);
        for t in 0..T {
            let scale = v.splat_f32(f32::from_ne_bytes(x.scales[b * T + t]));
            acc[t] = v.add_f32(acc[t], v.mul_f32(v.to_f32(isum[t]), v.mul_f32(d, scale)));
            if B::MINS {
                let dmin = v.load_f32(&tile.min_factors, b);
                acc[t] = v.sub_f32(acc[t], v.mul_f32(v.to_f32(corr[t]), v.mul_f32(dmin, scale)));
            }
        }
    }
    acc
}
