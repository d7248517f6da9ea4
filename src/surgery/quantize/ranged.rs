//! Blocks whose sub-blocks have whole scales and whole minimums, multiples of two f16 numbers: Q2_K, Q4_K, Q5_K.
//!
//! A value is `d * scale * code - m * minimum`; scale, code and minimum are 0 or more. Each sub-block's own best scale and
//! minimum are searched first, by where the range of codes begins and ends. Near them the error is a quadratic form, by which
//! many pairs of common factors are compared. From the best few on, whole scales and minimums are chosen by the error that
//! they really leave, and factors by least squares, in turn while it helps.

use super::block::Unit;
use super::inverse;
use crate::kernel::isa::Simd;
use half::f16;

/// How a format is searched.
pub(super) struct Ranged {
    /// The largest whole scale and minimum.
    pub most: i32,
    /// Where the range of codes begins, in steps from the smallest element inwards, and where it ends, from the largest.
    pub ends: &'static [f32],
    /// Factors tried, each: as multiples of that which gives the largest scale (or minimum) `most`.
    pub factors: &'static [f32],
    /// Pairs of factors that are refined.
    pub refined: usize,
}

/// Rounds of refinement; few blocks need more.
const ROUNDS: usize = 6;
/// How often a sub-block's scale and minimum are fitted again to the codes that they lead to.
const FITS: usize = 4;

/// A sub-block's own best scale and minimum, and sums for the codes that they lead to.
#[derive(Clone, Copy, Default)]
struct Ideal {
    d: f32,
    m: f32,
    /// `sum w x`, `sum w`.
    x: f32,
    w: f32,
    sums: Sums,
}

/// Sums over a sub-block for the codes that a scale and a minimum lead to.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// `sum w x q`
    xq: f32,
    /// `sum w q q`
    qq: f32,
    /// `sum w q`
    q: f32,
}

impl Ideal {
    /// How much more than the least a scale and a minimum leave, with the same codes.
    #[inline(always)]
    fn more(&self, d: f32, m: f32) -> f32 {
        let (d, m) = (d - self.d, m - self.m);
        d * d * self.sums.qq - 2.0 * d * m * self.sums.q + m * m * self.w
    }
}

/// What was found for a block.
#[derive(Clone, Copy)]
pub(super) struct Found<const B: usize> {
    /// The factors of scales and of minimums.
    pub d: f16,
    pub m: f16,
    pub scales: [i32; B],
    pub minimums: [i32; B],
    rest: f32,
}

/// The code nearest to `v`, of `0..=top`.
#[inline(always)]
fn nearest<S: Simd>(s: S, v: S::V, top: S::V) -> S::V {
    s.round(s.min(s.max(v, s.splat(0.0)), top))
}

#[inline(always)]
fn sums<S: Simd, const TOP: u8, const N: usize>(s: S, x: &[f32; N], w: &[f32; N], d: f32, m: f32) -> Sums {
    let (inverse, m, top) = (s.splat(inverse(d)), s.splat(m), s.splat(f32::from(TOP)));
    let (mut xq, mut qq, mut qs) = (s.splat(0.0), s.splat(0.0), s.splat(0.0));
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        let x = s.load(x);
        let q = nearest(s, s.mul(s.add(x, m), inverse), top);
        let wq = s.mul(s.load(w), q);
        xq = s.add(xq, s.mul(wq, x));
        qq = s.add(qq, s.mul(wq, q));
        qs = s.add(qs, wq);
    }
    let [xq, qq, q, _] = s.sum4([xq, qq, qs, qs]);
    Sums { xq, qq, q }
}

/// The weighted squared error that a scale and a minimum leave.
#[inline(always)]
pub(super) fn rest<S: Simd, const TOP: u8, const N: usize>(
    s: S,
    x: &[f32; N],
    w: &[f32; N],
    d: f32,
    m: f32,
) -> f32 {
    let (inverse, d, m, top) = (s.splat(inverse(d)), s.splat(d), s.splat(m), s.splat(f32::from(TOP)));
    let mut rest = s.splat(0.0);
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        let x = s.add(s.load(x), m);
        let r = s.sub(x, s.mul(d, nearest(s, s.mul(x, inverse), top)));
        rest = s.add(rest, s.mul(s.load(w), s.mul(r, r)));
    }
    s.sum(rest)
}

/// The codes that a scale and a minimum lead to.
#[inline(always)]
pub(super) fn codes<S: Simd, const TOP: u8, const N: usize>(s: S, x: &[f32; N], d: f32, m: f32) -> [u8; N] {
    let (inverse, m, top) = (s.splat(inverse(d)), s.splat(m), s.splat(f32::from(TOP)));
    let mut codes = [0; N];
    for (x, codes) in x.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
        let mut numbers = [0.0; 8];
        s.store(nearest(s, s.mul(s.add(s.load(x), m), inverse), top), &mut numbers);
        *codes = numbers.map(|number| number as u8);
    }
    codes
}

impl Ranged {
    /// The best found for `B` sub-blocks of `N`; `None` if the numbers are too large.
    #[inline(always)]
    pub fn search<S: Simd, const TOP: u8, const N: usize, const B: usize>(
        &self,
        s: S,
        x: &[[f32; N]; B],
        w: &[[f32; N]; B],
        unit: Unit,
    ) -> Option<Found<B>> {
        let mut ideal = [Ideal::default(); B];
        let (mut largest_d, mut largest_m) = (0f32, 0f32);
        for j in 0..B {
            ideal[j] = self.ideal::<S, TOP, N>(s, &x[j], &w[j]);
            largest_d = largest_d.max(ideal[j].d);
            largest_m = largest_m.max(ideal[j].m);
        }
        // The best pairs of factors, in order.
        let mut best: Vec<Found<B>> = Vec::with_capacity(self.refined + 1);
        let (ds, ms) = (self.tried(unit, largest_d), self.tried(unit, largest_m));
        for &d in &ds {
            for &m in &ms {
                let found = Self::whole(self.most as f32, &ideal, unit, d, m);
                let place = best.iter().take_while(|b| b.rest <= found.rest).count();
                if place < self.refined {
                    best.truncate(self.refined - 1);
                    best.insert(place, found);
                }
            }
        }
        let mut found: Option<Found<B>> = None;
        for one in &mut best {
            self.refine::<S, TOP, N, B>(s, x, w, (&ideal, unit), one);
            if found.is_none_or(|found| one.rest < found.rest) {
                found = Some(*one);
            }
        }
        found
    }

    /// The factors tried where the largest scale or minimum is this, each once.
    fn tried(&self, unit: Unit, largest: f32) -> Vec<f16> {
        let all = self.factors.iter().filter_map(|f| unit.f16(largest * f / self.most as f32));
        let mut all: Vec<f16> = all.collect();
        all.dedup();
        all
    }

    /// The best scale and minimum, 0 or more, where both are free.
    #[inline(always)]
    pub fn free<S: Simd, const TOP: u8, const N: usize>(
        &self,
        s: S,
        x: &[f32; N],
        w: &[f32; N],
    ) -> (f32, f32) {
        let ideal = self.ideal::<S, TOP, N>(s, x, w);
        (ideal.d, ideal.m)
    }

    /// A sub-block's best scale and minimum.
    #[inline(always)]
    fn ideal<S: Simd, const TOP: u8, const N: usize>(&self, s: S, x: &[f32; N], w: &[f32; N]) -> Ideal {
        let (mut low, mut high, mut sw, mut sx) = (0f32, f32::MIN, 0.0, 0.0);
        for i in 0..N {
            low = low.min(x[i]);
            high = high.max(x[i]);
            sw += w[i];
            sx += w[i] * x[i];
        }
        let constant = Ideal { m: -low, x: sx, w: sw, ..Ideal::default() };
        if high <= low {
            return constant;
        }
        let step = (high - low) / f32::from(TOP);
        let mut best = (f32::NEG_INFINITY, constant);
        for a in self.ends {
            for b in self.ends {
                let (from, to) = ((low + a * step).min(0.0), high - b * step);
                if to > from {
                    let fit =
                        Self::fit::<S, TOP, N>(s, x, w, (sx, sw), ((to - from) / f32::from(TOP), -from));
                    best = if fit.0 > best.0 { fit } else { best };
                }
            }
        }
        for _ in 0..FITS {
            let fit = Self::fit::<S, TOP, N>(s, x, w, (sx, sw), (best.1.d, best.1.m));
            if fit.0 <= best.0 {
                break;
            }
            best = fit;
        }
        best.1
    }

    /// The best scale and minimum for the codes that others lead to, and what they explain of the sum of squares.
    #[inline(always)]
    fn fit<S: Simd, const TOP: u8, const N: usize>(
        s: S,
        x: &[f32; N],
        w: &[f32; N],
        (sx, sw): (f32, f32),
        (d, m): (f32, f32),
    ) -> (f32, Ideal) {
        let sums = sums::<S, TOP, N>(s, x, w, d, m);
        let mean = sx / sw;
        // About the means, which keeps the digits of small ranges far from 0.
        let (across, along) = (sums.xq - mean * sums.q, sums.qq - sums.q * (sums.q / sw));
        let free = if along > 0.0 { across / along } else { 0.0 };
        let at = free * (sums.q / sw) - mean;
        if at >= 0.0 && free > 0.0 {
            (across * free + mean * sx, Ideal { d: free, m: at, x: sx, w: sw, sums })
        } else if sums.qq > 0.0 && sums.xq > 0.0 {
            let d = sums.xq / sums.qq;
            (sums.xq * d, Ideal { d, m: 0.0, x: sx, w: sw, sums })
        } else {
            (f32::NEG_INFINITY, Ideal::default())
        }
    }

    /// Whole scales and minimums by the quadratic form alone.
    #[inline(always)]
    fn whole<const B: usize>(most: f32, ideal: &[Ideal; B], unit: Unit, d: f16, m: f16) -> Found<B> {
        let (vd, vm) = (unit.value(d.to_f32()), unit.value(m.to_f32()));
        let (id, im) = (inverse(vd), inverse(vm));
        let mut found = Found { d, m, scales: [0; B], minimums: [0; B], rest: 0.0 };
        for (j, ideal) in ideal.iter().enumerate() {
            let mut best = f32::INFINITY;
            let start = (ideal.d * id).min(most) as i32;
            for whole in [start, start + 1] {
                let scale = (whole as f32).min(most);
                // The best minimum for this scale.
                let at = ideal.m + (scale * vd - ideal.d) * (ideal.sums.q / ideal.w);
                let minimum = ((at * im).clamp(0.0, most) + 0.5) as i32;
                let more = ideal.more(scale * vd, minimum as f32 * vm);
                if more < best {
                    best = more;
                    (found.scales[j], found.minimums[j]) = (scale as i32, minimum);
                }
            }
            found.rest += best;
        }
        found
    }

    /// The error of the best whole scale and minimum near some others, and these.
    #[inline(always)]
    fn near<S: Simd, const TOP: u8, const N: usize>(
        &self,
        s: S,
        x: &[f32; N],
        w: &[f32; N],
        (d, m): (f32, f32),
        (scale, minimum): (i32, i32),
    ) -> (f32, i32, i32) {
        let mut best = (f32::INFINITY, 0, 0);
        for scale in (scale - 1).max(0)..=(scale + 1).min(self.most) {
            for minimum in (minimum - 1).max(0)..=(minimum + 1).min(self.most) {
                let rest = rest::<S, TOP, N>(s, x, w, d * scale as f32, m * minimum as f32);
                if rest < best.0 {
                    best = (rest, scale, minimum);
                }
            }
        }
        best
    }

    #[inline(always)]
    fn refine<S: Simd, const TOP: u8, const N: usize, const B: usize>(
        &self,
        s: S,
        x: &[[f32; N]; B],
        w: &[[f32; N]; B],
        (ideal, unit): (&[Ideal; B], Unit),
        found: &mut Found<B>,
    ) {
        found.rest = f32::INFINITY;
        let mut next = *found;
        for _ in 0..ROUNDS {
            let (vd, vm) = (unit.value(next.d.to_f32()), unit.value(next.m.to_f32()));
            next.rest = 0.0;
            // The normal equations of both factors: [a b; b c] (d, -m) = (e, f).
            let [mut a, mut b, mut c, mut e, mut f] = [0f64; 5];
            for j in 0..B {
                let at = (next.scales[j], next.minimums[j]);
                let (rest, scale, minimum) = self.near::<S, TOP, N>(s, &x[j], &w[j], (vd, vm), at);
                next.rest += rest;
                (next.scales[j], next.minimums[j]) = (scale, minimum);
                let (scale, minimum) = (scale as f32, minimum as f32);
                let sums = sums::<S, TOP, N>(s, &x[j], &w[j], vd * scale, vm * minimum);
                a += f64::from(scale * scale * sums.qq);
                b += f64::from(scale * minimum * sums.q);
                c += f64::from(minimum * minimum * ideal[j].w);
                e += f64::from(scale * sums.xq);
                f += f64::from(minimum * ideal[j].x);
            }
            if next.rest >= found.rest {
                return;
            }
            *found = next;
            let det = a * c - b * b;
            let (d, m) = if det > 1e-6 * a * c {
                ((e * c - f * b) / det, (e * b - f * a) / det)
            } else if a > 0.0 {
                ((e + f64::from(vm) * b) / a, f64::from(vm))
            } else {
                return;
            };
            match (unit.f16(d as f32), unit.f16(m as f32)) {
                (Some(d), Some(m)) if d > f16::ZERO && m > f16::ZERO => (next.d, next.m) = (d, m),
                _ => return,
            }
        }
    }
}
