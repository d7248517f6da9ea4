//! Encoders of IQ1, IQ2 and IQ3: their grids, signs, and where everything is put.

use std::sync::LazyLock;

use super::block::Block;
use super::points::{Found, Grid, Points};
use super::put_f16;
use crate::kernel::format::grid;
use crate::kernel::isa::Isa;
use crate::simd;
use half::f16;

static IQ2_XXS: LazyLock<Grid> = LazyLock::new(|| eights(&grid::IQ2_XXS));
static IQ2_XS: LazyLock<Grid> = LazyLock::new(|| eights(&grid::IQ2_XS));
static IQ2_S: LazyLock<Grid> = LazyLock::new(|| eights(&grid::IQ2_S));
static IQ3_XXS: LazyLock<Grid> = LazyLock::new(|| fours(&grid::IQ3_XXS));
static IQ3_S: LazyLock<Grid> = LazyLock::new(|| fours(&grid::IQ3_S));
/// With either shift.
static IQ1: [LazyLock<Grid>; 2] = [LazyLock::new(|| shifted(&[1])), LazyLock::new(|| shifted(&[-1]))];
static IQ1_BOTH: LazyLock<Grid> = LazyLock::new(|| shifted(&[1, -1]));

fn eights(points: &[u64]) -> Grid {
    Grid::new(8, points.iter().flat_map(|p| p.to_le_bytes()).map(|e| e as i8))
}

fn fours(points: &[u32]) -> Grid {
    Grid::new(4, points.iter().flat_map(|p| p.to_le_bytes()).map(|e| e as i8))
}

fn shifted(shifts: &[i8]) -> Grid {
    let points = |&shift: &i8| (0..grid::IQ1_POINTS).flat_map(move |p| grid::iq1(p).map(|e| e + shift));
    Grid::new(8, shifts.iter().flat_map(points))
}

/// Makes numbers positive, and says which were not: a bit an element. Where the number of minuses must be even, the sign is
/// turned at which that costs least, if `least` is about what the smallest element of a point stands for.
fn unsigned<const N: usize, const B: usize>(block: &mut Block<N, B>, least: Option<f32>) -> [u8; 32] {
    let mut signs = [0; 32];
    let eights = block.x.as_flattened_mut().as_chunks_mut::<8>().0.iter_mut();
    for ((x, w), signs) in eights.zip(block.w.as_flattened().as_chunks::<8>().0).zip(&mut signs) {
        for (i, x) in x.iter_mut().enumerate() {
            *signs |= u8::from(*x < 0.0) << i;
            *x = x.abs();
        }
        let Some(least) = least.filter(|_| signs.count_ones() % 2 == 1) else { continue };
        let mut turned = 0;
        let cost = |i: usize| w[i] * (x[i] + least).powi(2);
        for i in 1..8 {
            turned = if cost(i) < cost(turned) { i } else { turned };
        }
        *signs ^= 1 << turned;
        x[turned] = -x[turned];
    }
    signs
}

/// The best that is found for a block whose points have positive elements, and the signs; `None` if the numbers are too
/// large. `even`: the number of minuses among eight elements.
fn signed<const N: usize, const B: usize, const P: usize>(
    format: &Points,
    grid: &Grid,
    even: bool,
    x: &[f32],
    importance: Option<&[f32]>,
) -> Option<(Found<B, P>, [u8; 32])> {
    let Some(mut block) = Block::<N, B>::new(x, importance) else {
        return Some((Found { d: f16::ZERO, scales: [0; B], points: [0; P] }, [0; 32]));
    };
    let rms = (block.x.as_flattened().iter().map(|x| x * x).sum::<f32>() / 256.0).sqrt();
    let signs = unsigned(&mut block, even.then_some(0.3 * rms));
    let Block { unit, x, w } = &block;
    let search = simd!(Isa::detect(), s => format.search::<_, N, B, P>(s, &[grid], x, w, *unit));
    let (found, _) = search?;
    Some((found, signs))
}

const TWO: Points = Points { part: 0.125, most: 15, first: 1.5, ratio: 1.127, factors: 6 };
const THREE: Points = Points { part: 0.25, most: 15, first: 1.3, ratio: 1.09, factors: 6 };
const ONE: Points = Points { part: 0.125, most: 7, first: 1.0, ratio: 1.16, factors: 4 };

/// Four numbers of seven signs, and a whole scale above them.
fn word(signs: &[u8], scale: i32) -> [u8; 4] {
    let signs = signs.iter().rev().fold(0u32, |bits, &s| bits << 7 | u32::from(s & 127));
    (signs | (scale as u32) << 28).to_le_bytes()
}

fn put_pairs(scales: &[i32], out: &mut [u8]) {
    for (pair, out) in scales.as_chunks::<2>().0.iter().zip(out) {
        *out = (pair[0] | pair[1] << 4) as u8;
    }
}

pub(super) fn iq2_xxs(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (found, signs) = signed::<32, 8, 32>(&TWO, &IQ2_XXS, true, x, importance)?;
    for (j, out) in out[2..].chunks_exact_mut(8).enumerate() {
        for (out, point) in out.iter_mut().zip(&found.points[4 * j..4 * j + 4]) {
            *out = *point as u8;
        }
        out[4..].copy_from_slice(&word(&signs[4 * j..4 * j + 4], found.scales[j]));
    }
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq2_xs(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (found, signs) = signed::<16, 16, 32>(&TWO, &IQ2_XS, true, x, importance)?;
    for (g, out) in out[2..66].chunks_exact_mut(2).enumerate() {
        let group = found.points[g] as u16 | u16::from(signs[g] & 127) << 9;
        out.copy_from_slice(&group.to_le_bytes());
    }
    put_pairs(&found.scales, &mut out[66..]);
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq2_s(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (found, signs) = signed::<16, 16, 32>(&TWO, &IQ2_S, false, x, importance)?;
    out[34..66].copy_from_slice(&signs);
    out[66..74].fill(0);
    for (g, point) in found.points.iter().enumerate() {
        out[2 + g] = *point as u8;
        out[66 + g / 4] |= ((point >> 8) << (2 * (g % 4))) as u8;
    }
    put_pairs(&found.scales, &mut out[74..]);
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq3_xxs(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (found, signs) = signed::<32, 8, 64>(&THREE, &IQ3_XXS, true, x, importance)?;
    for (out, point) in out[2..66].iter_mut().zip(&found.points) {
        *out = *point as u8;
    }
    for (j, out) in out[66..].chunks_exact_mut(4).enumerate() {
        out.copy_from_slice(&word(&signs[4 * j..4 * j + 4], found.scales[j]));
    }
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq3_s(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    const WHOLE: Points = Points { part: 1.0, ..THREE };
    let (found, signs) = signed::<32, 8, 64>(&WHOLE, &IQ3_S, false, x, importance)?;
    out[66..74].fill(0);
    for (g, point) in found.points.iter().enumerate() {
        out[2 + g] = *point as u8;
        out[66 + g / 8] |= ((point >> 8) << (g % 8)) as u8;
    }
    out[74..106].copy_from_slice(&signs);
    put_pairs(&found.scales, &mut out[106..]);
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq1_s(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (found, minus) = match Block::<32, 8>::new(x, importance) {
        None => (Found { d: f16::ZERO, scales: [0; 8], points: [0; 32] }, [0; 8]),
        Some(Block { unit, x, w }) => {
            let grids = [&*IQ1[0], &*IQ1[1]];
            simd!(Isa::detect(), s => ONE.search::<_, 32, 8, 32>(s, &grids, &x, &w, unit))?
        }
    };
    for (out, point) in out[2..34].iter_mut().zip(&found.points) {
        *out = *point as u8;
    }
    for (j, out) in out[34..].chunks_exact_mut(2).enumerate() {
        let high = (0..4).fold(0, |bits, i| bits | (found.points[4 * j + i] >> 8) << (3 * i));
        let word = high as u16 | (found.scales[j] as u16) << 12 | (minus[j] as u16) << 15;
        out.copy_from_slice(&word.to_le_bytes());
    }
    put_f16(found.d, &mut out[..2])
}

pub(super) fn iq1_m(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let found = match Block::<16, 16>::new(x, importance) {
        None => Found { d: f16::ZERO, scales: [0; 16], points: [0; 32] },
        Some(Block { unit, x, w }) => {
            simd!(Isa::detect(), s => ONE.search::<_, 16, 16, 32>(s, &[&IQ1_BOTH], &x, &w, unit))?.0
        }
    };
    out.fill(0);
    for (g, point) in found.points.iter().enumerate() {
        out[g] = *point as u8;
        // The points with the other shift come after all with the first.
        out[32 + g / 2] |= ((point >> 8) as u8) << (4 * (g % 2));
    }
    let mut bits = 0u64;
    for (s, scale) in found.scales.iter().enumerate() {
        bits |= (*scale as u64) << (16 * (s / 4) + 3 * (s % 4));
    }
    for k in 0..4 {
        bits |= u64::from(found.d.to_bits() >> (4 * k) & 15) << (16 * k + 12);
    }
    out[48..].copy_from_slice(&bits.to_le_bytes());
    found.d.is_finite().then_some(())
}
