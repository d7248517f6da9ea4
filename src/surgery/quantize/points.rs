//! Blocks whose groups of eight or four elements are points of a grid, with whole odd scales of sub-blocks, multiples of one
//! f16: IQ1, IQ2, IQ3.
//!
//! With scale `s` a point `p` leaves `sum w (x - s p)^2` of a group: but for a constant `s (s B - 2 A)`, where `A = sum w x p`
//! and `B = sum w p p` do not depend on the scale. They are computed once for all points. A look through all of them with each
//! of a few scales gives a few candidates, and with these the error as a function of the scale is cheap: scales of
//! sub-blocks and their common factor are searched on it, as in [`scaled`](super::scaled). At last every group takes the best
//! of all points for the scale found.

use super::block::Unit;
use super::inverse;
use crate::kernel::isa::Simd;
use half::f16;

/// The points of a grid as numbers.
pub(super) struct Grid {
    /// Elements a point has.
    group: usize,
    /// The smallest and the largest element.
    smallest: f32,
    largest: f32,
    /// In eights of points: of each first all first elements, then all second ones, ...
    elements: Vec<[f32; 8]>,
}

impl Grid {
    /// Of the bytes of all points, `group` each.
    pub fn new(group: usize, bytes: impl Iterator<Item = i8>) -> Self {
        let all: Vec<f32> = bytes.map(f32::from).collect();
        let smallest = all.iter().fold(f32::INFINITY, |m, e| m.min(e.abs()));
        let largest = all.iter().fold(0f32, |m, e| m.max(e.abs()));
        let eights = all.chunks_exact(8 * group);
        let elements =
            eights.flat_map(|e| (0..group).map(move |i| std::array::from_fn(|lane| e[lane * group + i])));
        Self { group, smallest, largest, elements: elements.collect() }
    }

    /// Eights of points.
    fn eights(&self) -> usize {
        self.elements.len() / self.group
    }
}

/// How a format is searched.
pub(super) struct Points {
    /// What the stored factor is multiplied by.
    pub part: f32,
    /// The largest whole scale, of which `2 * whole + 1` counts.
    pub most: i32,
    /// The scales tried of a sub-block, the largest element at `first` times the grid's largest, each the last divided by
    /// `ratio`.
    pub first: f32,
    pub ratio: f32,
    /// Factors tried: with the first, the sub-block of the largest scale gets the largest whole one, with the next one less.
    pub factors: i32,
}

/// Candidates of a group: as many as lanes.
const FEW: usize = 8;
/// Scales of a sub-block compared between two of these.
const BETWEEN: usize = 3;
/// Factors that are refined.
const REFINED: usize = 2;
/// Rounds of refinement.
const ROUNDS: usize = 6;

/// `2 A` and `B` of some points.
#[derive(Clone, Copy)]
struct Forms {
    a: [f32; 8],
    b: [f32; 8],
}

/// What was found for a block of `B` sub-blocks, and the point of each of its `G` groups.
pub(super) struct Found<const B: usize, const G: usize> {
    /// The factor as it is stored.
    pub d: f16,
    /// The whole scales as they are stored.
    pub scales: [i32; B],
    pub points: [usize; G],
}

/// Sums over a sub-block of what its groups take with some scale.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// `sum w x p` and `sum w p p`.
    a: f32,
    b: f32,
}

impl Taken {
    /// How much less than with the scale 0 is left.
    fn gain(self, s: f32) -> f32 {
        s * (2.0 * self.a - s * self.b)
    }
}

/// What all sub-blocks take, with their whole scales, of a common factor 1.
#[inline(always)]
fn together<const B: usize>(scales: &[i32; B], taken: impl Fn(usize) -> Taken) -> Taken {
    let mut sum = Taken::default();
    for (j, &whole) in scales.iter().enumerate() {
        let (odd, taken) = ((2 * whole + 1) as f32, taken(j));
        sum.a += odd * taken.a;
        sum.b += odd * odd * taken.b;
    }
    sum
}

/// The forms of all points for a group.
#[inline(always)]
fn forms<S: Simd>(s: S, grid: &Grid, x: &[f32], w: &[f32], all: &mut Vec<Forms>) {
    all.clear();
    for elements in grid.elements.chunks_exact(grid.group) {
        let (mut a, mut b) = (s.splat(0.0), s.splat(0.0));
        for ((e, &x), &w) in elements.iter().zip(x).zip(w) {
            let e = s.load(e);
            let we = s.mul(s.splat(w), e);
            a = s.add(a, s.mul(s.splat(2.0 * x), we));
            b = s.add(b, s.mul(we, e));
        }
        let mut forms = Forms { a: [0.0; 8], b: [0.0; 8] };
        s.store(a, &mut forms.a);
        s.store(b, &mut forms.b);
        all.push(forms);
    }
}

/// `scale * B - 2 A` of eight points.
#[inline(always)]
fn slopes<S: Simd>(s: S, forms: &Forms, scale: f32) -> S::V {
    s.sub(s.mul(s.splat(scale), s.load(&forms.b)), s.load(&forms.a))
}

#[inline(always)]
fn lowest<S: Simd>(s: S, v: S::V) -> f32 {
    let mut lanes = [0.0; 8];
    s.store(v, &mut lanes);
    lanes.iter().fold(f32::INFINITY, |m, &lane| m.min(lane))
}

/// Eights of points whose lowest are kept, so that few are looked through for the lowest of all.
const CHUNK: usize = 16;
/// No grid has more points in chunks.
const CHUNKS: usize = 32;

/// The best point for a scale above 0.
#[inline(always)]
fn nearest<S: Simd>(s: S, all: &[Forms], scale: f32) -> usize {
    let mut lows = [[f32::INFINITY; 8]; CHUNKS];
    let mut low = s.splat(f32::INFINITY);
    for (chunk, lows) in all.chunks(CHUNK).zip(&mut lows) {
        let mut two = [s.splat(f32::INFINITY); 2];
        for pair in chunk.chunks_exact(2) {
            two = [s.min(slopes(s, &pair[0], scale), two[0]), s.min(slopes(s, &pair[1], scale), two[1])];
        }
        let two = s.min(two[0], two[1]);
        s.store(two, lows);
        low = s.min(two, low);
    }
    let least = lowest(s, low);
    let chunk = lows.iter().position(|lows| lows.contains(&least)).unwrap_or(0);
    for (eight, forms) in all.iter().enumerate().skip(chunk * CHUNK) {
        let mut lanes = [0.0; 8];
        s.store(slopes(s, forms, scale), &mut lanes);
        if let Some(lane) = lanes.iter().position(|&slope| slope == least) {
            return eight * 8 + lane;
        }
    }
    0
}

/// A group's candidates.
type Few = Forms;

/// What a sub-block takes of its groups' candidates with a scale.
#[inline(always)]
fn take<S: Simd>(s: S, groups: &[Few], scale: f32) -> Taken {
    let mut taken = Taken::default();
    for few in groups {
        let mut slopes_of = [0.0; 8];
        s.store(slopes(s, few, scale), &mut slopes_of);
        let mut best = 0;
        for lane in 1..FEW {
            if slopes_of[lane] < slopes_of[best] {
                best = lane;
            }
        }
        taken.a += 0.5 * few.a[best];
        taken.b += few.b[best];
    }
    taken
}

/// How much the sub-block gains with a scale.
#[inline(always)]
fn gain<S: Simd>(s: S, groups: &[Few], scale: f32) -> f32 {
    groups.iter().map(|few| -lowest(s, slopes(s, few, scale))).sum::<f32>() * scale
}

impl Points {
    /// The candidates of a sub-block's groups, and its best scale with what that gains.
    #[inline(always)]
    fn sub_block<S: Simd>(
        &self,
        s: S,
        grid: &Grid,
        x: &[f32],
        w: &[f32],
        all: &mut Vec<Forms>,
        groups: &mut [Few],
    ) -> (f32, f32) {
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let first = self.first * largest.max(f32::MIN_POSITIVE) / grid.largest;
        let mut tried: [f32; FEW] = std::array::from_fn(|k| first / self.ratio.powi(k as i32));
        // Where numbers are all alike, all may be smallest elements.
        tried[FEW - 1] = largest.max(f32::MIN_POSITIVE) / grid.smallest;
        for ((x, w), few) in x.chunks(grid.group).zip(w.chunks(grid.group)).zip(&mut *groups) {
            forms(s, grid, x, w, all);
            for (lane, scale) in tried.into_iter().enumerate() {
                let point = nearest(s, all, scale);
                few.a[lane] = all[point / 8].a[point % 8];
                few.b[lane] = all[point / 8].b[point % 8];
            }
        }
        let step = libm::powf(self.ratio, 1.0 / BETWEEN as f32);
        let mut best = (0.0, 0.0);
        let mut scale = tried[FEW - 1];
        for k in 0..FEW * BETWEEN {
            let taken = take(s, groups, scale);
            if taken.a > 0.0 && taken.b > 0.0 && taken.a * taken.a > best.1 * taken.b {
                best = (taken.a / taken.b, taken.a * taken.a / taken.b);
            }
            scale = if k == 0 { first } else { scale / step };
        }
        for _ in 0..ROUNDS {
            let taken = take(s, groups, best.0);
            if !(taken.a > 0.0 && taken.b > 0.0 && taken.a * taken.a > best.1 * taken.b) {
                break;
            }
            best = (taken.a / taken.b, taken.a * taken.a / taken.b);
        }
        best
    }

    /// The whole scale near another that gains most, and what it gains.
    #[inline(always)]
    fn near<S: Simd>(&self, s: S, groups: &[Few], value: f32, at: i32) -> (f32, i32) {
        let mut best = (f32::NEG_INFINITY, 0);
        for whole in (at - 1).max(0)..=(at + 1).min(self.most) {
            let gain = gain(s, groups, value * (2 * whole + 1) as f32);
            if gain > best.0 {
                best = (gain, whole);
            }
        }
        best
    }

    /// The best factor, whole scales and points found for `B` sub-blocks of `N` with `P` points, and which of the grids
    /// each sub-block takes; `None` if the numbers are too large.
    #[inline(always)]
    pub fn search<S: Simd, const N: usize, const B: usize, const P: usize>(
        &self,
        s: S,
        grids: &[&Grid],
        x: &[[f32; N]; B],
        w: &[[f32; N]; B],
        unit: Unit,
    ) -> Option<(Found<B, P>, [usize; B])> {
        let each = P / B;
        let mut all = Vec::with_capacity(grids.iter().map(|grid| grid.eights()).max()?);
        let mut few = [[Few { a: [0.0; 8], b: [0.0; 8] }; 16]; B];
        let (mut ideal, mut of_grid) = ([0.0; B], [0; B]);
        for j in 0..B {
            let mut most = f32::NEG_INFINITY;
            for (g, grid) in grids.iter().enumerate() {
                let mut groups = [Few { a: [0.0; 8], b: [0.0; 8] }; 16];
                let (scale, gain) = self.sub_block(s, grid, &x[j], &w[j], &mut all, &mut groups[..each]);
                if gain > most {
                    (most, ideal[j], of_grid[j], few[j]) = (gain, scale, g, groups);
                }
            }
        }
        let largest = ideal.iter().fold(0f32, |m, &d| m.max(d));
        let value = |d: f16| unit.value(d.to_f32()) * self.part;
        let none = (f32::NEG_INFINITY, f16::ZERO, [0; B]);
        let mut best = [none; REFINED];
        let mut any = false;
        for less in 0..self.factors {
            let Some(d) = unit.f16(largest / (self.part * (2 * (self.most - less) + 1) as f32)) else {
                continue;
            };
            any = true;
            let mut one = (0.0, d, [0; B]);
            for j in 0..B {
                let at =
                    (0.5 * (ideal[j] * inverse(value(d)) - 1.0)).round().clamp(0.0, self.most as f32) as i32;
                let (gain, whole) = self.near(s, &few[j][..each], value(d), at);
                one.0 += gain;
                one.2[j] = whole;
            }
            for place in &mut best {
                if one.0 > place.0 {
                    std::mem::swap(place, &mut one);
                }
            }
        }
        if !any {
            return None;
        }
        let mut found = none;
        for mut one in best {
            for _ in 0..ROUNDS {
                let Taken { a, b } = together(
                    &one.2,
                    #[inline(always)]
                    |j| take(s, &few[j][..each], value(one.1) * (2 * one.2[j] + 1) as f32),
                );
                let Some(d) = unit.f16(if b > 0.0 && a > 0.0 { a / b / self.part } else { value(one.1) })
                else {
                    break;
                };
                let mut next = (0.0, d, one.2);
                for j in 0..B {
                    let (gain, whole) = self.near(s, &few[j][..each], value(d), one.2[j]);
                    next.0 += gain;
                    next.2[j] = whole;
                }
                if next.0 <= one.0 {
                    break;
                }
                one = next;
            }
            found = if one.0 > found.0 { one } else { found };
        }
        // Every point of the grid.
        let (_, mut d, scales) = found;
        let mut points = [0; P];
        let mut sums = [Taken::default(); B];
        for j in 0..B {
            let grid = grids[of_grid[j]];
            let scale = value(d) * (2 * scales[j] + 1) as f32;
            for (g, (x, w)) in x[j].chunks(grid.group).zip(w[j].chunks(grid.group)).enumerate() {
                forms(s, grid, x, w, &mut all);
                let point = nearest(s, &all, scale);
                points[j * each + g] = point;
                sums[j].a += 0.5 * all[point / 8].a[point % 8];
                sums[j].b += all[point / 8].b[point % 8];
            }
        }
        let gain = |d: f16| (0..B).map(|j| sums[j].gain(value(d) * (2 * scales[j] + 1) as f32)).sum::<f32>();
        let Taken { a, b } = together(&scales, |j| sums[j]);
        if let Some(better) = unit.f16(a * inverse(b) / self.part).filter(|&better| gain(better) > gain(d)) {
            d = better;
        }
        // Grids have no 0: of numbers that are too small for any scale nothing is kept.
        if gain(d) <= 0.0 {
            d = f16::ZERO;
        }
        Some((Found { d, scales, points }, of_grid))
    }
}
