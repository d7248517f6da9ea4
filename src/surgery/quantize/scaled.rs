//! Blocks whose sub-blocks have whole scales, multiples of one f16: Q3_K, Q6_K, IQ4_XS.
//!
//! Each sub-block's own best scale is searched first, of either sign, since codes are not symmetric. Then the common factor:
//! with each candidate the sub-blocks choose whole scales near their own best, by the error these really leave. From the
//! best candidates on two moves alternate while they help: to the factor that is best for the codes chosen, and to
//! neighbouring whole scales.

use super::block::Unit;
use super::codes::{Codes, moments, rest};
use super::inverse;
use crate::kernel::isa::Simd;
use half::f16;

/// How a format is searched.
pub(super) struct Scaled {
    /// The whole scales that can be stored.
    pub low: i32,
    pub high: i32,
    /// A sub-block's scales tried: so many, the largest element at `first` times the outermost code, each the last
    /// divided by `ratio`.
    pub first: f32,
    pub ratio: f32,
    pub steps: usize,
    /// Factors tried: with the first, the sub-block of the largest scale gets `low`, with the next `low + 1`, ...
    pub factors: i32,
}

/// Factors that are refined.
const REFINED: usize = 2;
/// Rounds of refinement; few blocks need more.
const ROUNDS: usize = 6;

/// What was found for a block.
#[derive(Clone, Copy)]
pub(super) struct Found<const B: usize> {
    /// The factor.
    pub d: f16,
    /// The whole scales.
    pub scales: [i32; B],
    rest: f32,
}

impl Scaled {
    /// The best factor and whole scales found for `B` sub-blocks of `N`; `None` if the numbers are too large.
    #[inline(always)]
    pub fn search<S: Simd, C: Codes, const N: usize, const B: usize>(
        &self,
        s: S,
        x: &[[f32; N]; B],
        w: &[[f32; N]; B],
        unit: Unit,
    ) -> Option<Found<B>> {
        let mut ideal = [[0.0; 2]; B];
        let mut largest = 0f32;
        for j in 0..B {
            ideal[j] = self.ideal::<S, C, N>(s, &x[j], &w[j]);
            for d in ideal[j] {
                largest = if d.abs() > largest.abs() { d } else { largest };
            }
        }
        let none = Found { d: f16::ZERO, scales: [0; B], rest: f32::INFINITY };
        let mut best = [none; REFINED];
        let (mut last, mut any) = (f16::ZERO, false);
        for whole in self.low..self.low + self.factors {
            let Some(d) = unit.f16(largest / whole as f32) else { continue };
            any = true;
            if d == last {
                continue;
            }
            last = d;
            let value = unit.value(d.to_f32());
            let mut one = Found { d, scales: [0; B], rest: 0.0 };
            for j in 0..B {
                let mut chosen = (f32::INFINITY, 0);
                for ideal in ideal[j] {
                    let near = self.near::<S, C, N>(s, &x[j], &w[j], value, self.whole(ideal, value));
                    chosen = if near.0 < chosen.0 { near } else { chosen };
                }
                one.rest += chosen.0;
                one.scales[j] = chosen.1;
            }
            for place in &mut best {
                if one.rest < place.rest {
                    std::mem::swap(place, &mut one);
                }
            }
        }
        if !any {
            return None;
        }
        let mut found = none;
        for one in &mut best {
            if one.rest.is_finite() {
                self.refine::<S, C, N, B>(s, x, w, unit, one);
                found = if one.rest < found.rest { *one } else { found };
            }
        }
        Some(found)
    }

    /// The scales of least error, one of either sign.
    #[inline(always)]
    fn ideal<S: Simd, C: Codes, const N: usize>(&self, s: S, x: &[f32; N], w: &[f32; N]) -> [f32; 2] {
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let mut found = [0.0; 2];
        if largest == 0.0 {
            return found;
        }
        for (sign, found) in [1.0, -1.0].iter().zip(&mut found) {
            let mut inverse = sign * C::HIGH.max(-C::LOW) / (largest * self.first);
            let mut best = 0.0;
            for _ in 0..self.steps {
                let (xq, qq) = moments::<S, C, N>(s, x, w, inverse);
                // What the codes explain of sum w x x, with the best scale for them.
                if qq > 0.0 && xq * xq > best * qq {
                    best = xq * xq / qq;
                    *found = xq / qq;
                }
                inverse *= self.ratio;
            }
        }
        found
    }

    /// The nearest whole scale.
    #[inline(always)]
    fn whole(&self, ideal: f32, d: f32) -> i32 {
        (ideal * inverse(d)).clamp(self.low as f32, self.high as f32).round() as i32
    }

    /// The error of the best of a whole scale and its neighbours, and that scale.
    #[inline(always)]
    fn near<S: Simd, C: Codes, const N: usize>(
        &self,
        s: S,
        x: &[f32; N],
        w: &[f32; N],
        d: f32,
        at: i32,
    ) -> (f32, i32) {
        let mut best = (f32::INFINITY, 0);
        for whole in (at - 1).max(self.low)..=(at + 1).min(self.high) {
            let rest = rest::<S, C, N>(s, x, w, d * whole as f32);
            if rest < best.0 {
                best = (rest, whole);
            }
        }
        best
    }

    #[inline(always)]
    fn refine<S: Simd, C: Codes, const N: usize, const B: usize>(
        &self,
        s: S,
        x: &[[f32; N]; B],
        w: &[[f32; N]; B],
        unit: Unit,
        found: &mut Found<B>,
    ) {
        for _ in 0..ROUNDS {
            let value = unit.value(found.d.to_f32());
            let (mut xq, mut qq) = (0.0, 0.0);
            for j in 0..B {
                let whole = found.scales[j] as f32;
                let (a, b) = moments::<S, C, N>(s, &x[j], &w[j], inverse(value * whole));
                xq += whole * a;
                qq += whole * whole * b;
            }
            let Some(d) = unit.f16(if qq > 0.0 { xq / qq } else { value }) else { return };
            let mut next = Found { d, scales: found.scales, rest: 0.0 };
            let value = unit.value(d.to_f32());
            for j in 0..B {
                let (rest, whole) = self.near::<S, C, N>(s, &x[j], &w[j], value, found.scales[j]);
                next.scales[j] = whole;
                next.rest += rest;
            }
            if next.rest >= found.rest {
                return;
            }
            *found = next;
        }
    }
}
