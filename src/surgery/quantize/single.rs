//! Blocks with one scale (our own formats, IQ4_NL; Q4_0 and Q5_0 with importance data), or one and a minimum (Q4_1 and Q5_1
//! with importance data): what leaves the least squared error is searched.
//!
//! Codes are chosen against the scale as an f16 holds it, to the nearest, and none is left out. The error as a function of
//! the scale has many small valleys. A coarse search finds a good place among all of them, with scales of either sign,
//! since codes are not symmetric. From there two moves alternate while they help: to the scale that is best for the codes
//! chosen, and to a neighbouring f16.

use super::block::Unit;
use super::codes::{Codes, choose, moments, rest};
use super::ranged::{self, Ranged};
use crate::kernel::isa::Simd;
use half::f16;

/// Ratio of neighbouring scales in the coarse search.
const RATIO: f32 = 1.03;
/// The first scale, as a multiple of that at which the largest element just fits: an outlier is best put on a small code.
const FIRST: f32 = 2.6;
/// How many scales there are. With the last one, elements are cut off at 0.4 of the largest.
const STEPS: usize = 63;
/// The best so many of these are followed further.
const FOLLOWED: usize = 4;

/// What codes explain of `sum w x x` with the scale that is best for them, and that scale.
#[derive(Clone, Copy)]
struct Place {
    explained: f32,
    scale: f16,
}

/// The best scale so far, what it leaves, and the scale that would suit its codes best.
#[derive(Clone, Copy)]
struct Best {
    rest: f32,
    scale: f16,
    ideal: f32,
}

/// Replaces the best if `scale` leaves less.
#[inline(always)]
fn attempt<S: Simd, C: Codes, const N: usize>(
    s: S,
    x: &[f32; N],
    w: &[f32; N],
    unit: Unit,
    scale: f16,
    best: &mut Best,
) -> bool {
    if !scale.is_finite() {
        return false;
    }
    let d = unit.value(scale.to_f32());
    let rest = rest::<S, C, N>(s, x, w, d);
    let better = rest < best.rest;
    if better {
        let (xq, qq) = moments::<S, C, N>(s, x, w, super::inverse(d));
        *best = Best { rest, scale, ideal: if qq > 0.0 { xq / qq } else { d } };
    }
    better
}

/// The scale of least weighted squared error that was found, and the codes; `None` if the elements are too large. `x` is
/// in `unit`.
#[inline(always)]
pub(super) fn search<S: Simd, C: Codes, const N: usize>(
    s: S,
    x: &[f32; N],
    w: &[f32; N],
    unit: Unit,
) -> Option<(f16, [u8; N])> {
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let mut followed = [Place { explained: f32::NEG_INFINITY, scale: f16::NAN }; FOLLOWED];
    let mut d = FIRST * largest / C::HIGH.max(-C::LOW);
    for _ in 0..STEPS {
        for d in [d, -d] {
            let (xq, qq) = moments::<S, C, N>(s, x, w, super::inverse(d));
            // Of elements so small that no f16 is a scale for them every code is 0.
            let ideal = if qq > 0.0 { xq / qq } else { d };
            let mut one = Place { explained: xq * ideal, scale: unit.rounded(ideal) };
            // Places in the same valley are one.
            if !one.scale.is_finite()
                || followed.iter().any(|place| place.scale == one.scale && place.explained >= one.explained)
            {
                continue;
            }
            for place in &mut followed {
                if one.explained > place.explained {
                    std::mem::swap(place, &mut one);
                }
            }
        }
        d /= RATIO;
    }
    let mut best = Best { rest: f32::INFINITY, scale: f16::NAN, ideal: 0.0 };
    for place in followed {
        let mut one = Best { rest: f32::INFINITY, ..best };
        let mut better = attempt::<S, C, N>(s, x, w, unit, place.scale, &mut one);
        while better {
            let bits = one.scale.to_bits();
            let near = [bits.saturating_sub(1), bits.saturating_add(1)].map(f16::from_bits);
            better = false;
            for scale in [unit.rounded(one.ideal), near[0], near[1]] {
                better = better || attempt::<S, C, N>(s, x, w, unit, scale, &mut one);
            }
        }
        best = if one.rest < best.rest { one } else { best };
    }
    if best.scale.is_nan() {
        return None;
    }
    let d = unit.value(best.scale.to_f32());
    Some((best.scale, choose::<S, C, N>(s, x, d)))
}

/// How scale and minimum are searched that are f16 numbers of their own.
const FREE: Ranged =
    Ranged { most: 1, ends: &[-1.0, -0.3, 0.0, 0.3, 0.6, 1.0, 1.5], factors: &[1.0], refined: 1 };

/// A scale and the value of code 0 for little weighted squared error, and the codes `0..=TOP`; `None` if the elements are too large.
#[inline(always)]
pub(super) fn range<S: Simd, const TOP: u8, const N: usize>(
    s: S,
    x: &[f32; N],
    w: &[f32; N],
    unit: Unit,
) -> Option<(f16, f16, [u8; N])> {
    // Below the largest element, every value is a minimum's to reach.
    let largest = x.iter().fold(f32::MIN, |m, &x| m.max(x));
    let mut below = [0.0; N];
    for (below, x) in below.iter_mut().zip(x) {
        *below = x - largest;
    }
    let (d, m) = FREE.free::<S, TOP, N>(s, &below, w);
    let mut best = (f32::INFINITY, f16::ZERO, f16::ZERO);
    let (start_d, start_m) = (unit.rounded(d), unit.rounded(largest - m));
    for d in [-1, 0, 1] {
        for m in [-1, 0, 1] {
            let at = |start: f16, by: i16| f16::from_bits(start.to_bits().saturating_add_signed(by));
            let (d, m) = (at(start_d, d), at(start_m, m));
            if !(d.is_finite() && m.is_finite() && d >= f16::ZERO) {
                continue;
            }
            let (vd, vm) = (unit.value(d.to_f32()), unit.value(m.to_f32()));
            let rest = ranged::rest::<S, TOP, N>(s, x, w, vd, -vm);
            if rest < best.0 {
                best = (rest, d, m);
            }
        }
    }
    let (rest, d, m) = best;
    let codes = ranged::codes::<S, TOP, N>(s, x, unit.value(d.to_f32()), -unit.value(m.to_f32()));
    rest.is_finite().then_some((d, m, codes))
}
