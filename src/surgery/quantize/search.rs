//! Encoders of our own formats: a scale is searched that leaves the least squared error.
//!
//! Codes are chosen against the scale as an f16 holds it, to the nearest, and none is left out. The error as a function of
//! the scale has many small valleys. A coarse search finds a good place among all of them, with scales of either sign,
//! since codes are not symmetric. From there two moves alternate while they help: to the scale that is best for the codes
//! chosen, and to a neighbouring f16.

use super::{inverse, put_f16, put_nibbles};
use half::f16;

/// Ratio of neighbouring scales in the coarse search.
const RATIO: f32 = 1.04;
/// The first scale, as a multiple of that at which the largest element just fits: an outlier is best put on a small code.
const FIRST: f32 = 2.6;
/// How many scales there are. With the last one, elements are cut off at 0.41 of the largest.
const STEPS: usize = 48;

/// The codes that a format has: `low..=high`.
struct Codes {
    low: f32,
    high: f32,
}

impl Codes {
    /// The nearest code to `x / d`, of which `inverse` is `1 / d`.
    #[inline(always)]
    fn nearest(&self, x: f32, inverse: f32) -> f32 {
        (x * inverse).round_ties_even().clamp(self.low, self.high)
    }

    /// The nearest codes to `x`, less `low`.
    fn choose<const N: usize>(&self, x: &[f32; N], d: f16) -> [u8; N] {
        // A reciprocal of a subnormal scale overflows nothing: the smallest f16 is 2^-24.
        let inverse = inverse(d.to_f32());
        x.map(|x| (self.nearest(x, inverse) - self.low) as u8)
    }

    /// What a scale leaves, and the scale that is best for the codes it leads to: sum x q / sum q q.
    fn try_scale<const N: usize>(&self, x: &[f32; N], d: f32) -> (f32, f32) {
        const LANES: usize = 8;
        let inverse = inverse(d);
        let (mut rest, mut xq, mut qq) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for x in x.as_chunks::<LANES>().0 {
            for l in 0..LANES {
                let q = self.nearest(x[l], inverse);
                let r = x[l] - d * q;
                rest[l] += r * r;
                xq[l] += x[l] * q;
                qq[l] += q * q;
            }
        }
        let sum = |lanes: [f32; LANES]| lanes.iter().sum::<f32>();
        (sum(rest), sum(xq) / sum(qq).max(1.0))
    }

    /// The scale of least squared error that was found; `None` if the elements are too large.
    fn search<const N: usize>(&self, x: &[f32; N]) -> Option<f16> {
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        if largest == 0.0 {
            return Some(f16::ZERO);
        }
        // Divided by a power of two, the largest is near 1 and no square under- or overflows. An f16 is divided exactly.
        let unit = f32::from_bits(largest.to_bits() & f32::INFINITY.to_bits());
        if unit == 0.0 {
            return Some(f16::ZERO); // Subnormal even as f32 numbers.
        }
        let x = x.map(|x| x / unit);
        let mut best = Best { rest: f32::INFINITY, scale: f16::NAN, ideal: 0.0 };
        let attempt = |best: &mut Best, scale: f16| {
            if !scale.is_finite() {
                return false;
            }
            let (rest, ideal) = self.try_scale(&x, scale.to_f32() / unit);
            let better = rest < best.rest;
            if better {
                *best = Best { rest, scale, ideal: ideal * unit };
            }
            better
        };
        let mut d = FIRST * largest / self.high.max(-self.low);
        for _ in 0..STEPS {
            attempt(&mut best, f16::from_f32(d));
            attempt(&mut best, f16::from_f32(-d));
            d /= RATIO;
        }
        if best.scale.is_nan() {
            return None;
        }
        loop {
            let ideal = f16::from_f32(best.ideal);
            let bits = best.scale.to_bits();
            let better = attempt(&mut best, ideal)
                || attempt(&mut best, f16::from_bits(bits.saturating_sub(1)))
                || attempt(&mut best, f16::from_bits(bits.saturating_add(1)));
            if !better {
                return Some(best.scale);
            }
        }
    }
}

/// The best scale so far, what it leaves, and the scale that would suit its codes best.
struct Best {
    rest: f32,
    scale: f16,
    ideal: f32,
}

/// Q4_0's codes.
const FOUR_BITS: Codes = Codes { low: -8.0, high: 7.0 };

/// Q4_VVC's codes.
const THREE_BITS: Codes = Codes { low: -3.0, high: 4.0 };

/// One scale for `N` elements of 4 bits.
fn fours<const N: usize>(x: &[f32; N], scale: &mut [u8], codes: &mut [u8]) -> Option<()> {
    let d = FOUR_BITS.search(x)?;
    let chosen = FOUR_BITS.choose(x, d);
    for (codes, out) in chosen.as_chunks::<32>().0.iter().zip(codes.chunks_exact_mut(16)) {
        put_nibbles(codes, out);
    }
    put_f16(d, scale)
}

pub(super) fn q4_0s(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (scale, codes) = out.split_at_mut(2);
    fours::<256>(x.try_into().ok()?, scale, codes)
}

pub(super) fn q4_0s_psy(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (scales, codes) = out.split_at_mut(4);
    let halves =
        x.as_chunks::<128>().0.iter().zip(scales.chunks_exact_mut(2)).zip(codes.chunks_exact_mut(64));
    for ((x, scale), codes) in halves {
        fours(x, scale, codes)?;
    }
    Some(())
}

pub(super) fn q4_vvc(x: &[f32], out: &mut [u8]) -> Option<()> {
    let x: &[f32; 256] = x.try_into().ok()?;
    let d = THREE_BITS.search(x)?;
    let chosen = THREE_BITS.choose(x, d);
    // Eight codes are three bytes.
    for (codes, out) in chosen.as_chunks::<8>().0.iter().zip(out[2..].as_chunks_mut::<3>().0) {
        let bits = codes.iter().rev().fold(0u32, |bits, &code| bits << 3 | u32::from(code));
        let [a, b, c, _] = bits.to_le_bytes();
        *out = [a, b, c];
    }
    put_f16(d, &mut out[..2])
}
