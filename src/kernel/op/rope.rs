//! Rotary position embedding.
//!
//! Pair `i` of a head is turned by `position * freq[i]` radians. Frequencies and angles are f64, sines and cosines come
//! from the `libm` crate in f64 and are rounded to f32 once: a system's libm differs from machine to machine.

use std::f64::consts::TAU;

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Neighbours `2i` and `2i + 1` (files converted for it; ggml's NORM).
    Pairs,
    /// `i` and `i + n/2` (ggml's NEOX).
    Halves,
}

/// How far the frequencies of a model are stretched beyond those it was first trained with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Every angle is divided by `factor` (1: unscaled).
    Linear {
        /// How many times longer the context is.
        factor: f32,
    },
    /// Low frequencies are divided by `factor`, high ones kept, with a ramp between them (YaRN).
    Yarn {
        /// How many times longer the context is.
        factor: f32,
        /// Strength of the keeping, 1 for YaRN as published.
        ext_factor: f32,
        /// Turns over the original context from which on a frequency is kept.
        beta_fast: f32,
        /// Turns over the original context below which a frequency is divided.
        beta_slow: f32,
        /// The context the model was first trained with, in tokens.
        original_ctx: f32,
        /// Multiplies the logarithm in the magnitude's divisor; 0: no divisor.
        log_multiplier: f32,
    },
}

/// The rotation of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Elements of a head that are turned, from its start; even.
    pub n_rot: usize,
    /// Pair `i` turns by `base^(-2i / n_rot)` radians a position.
    pub base: f32,
    /// Stretching.
    pub scaling: Scaling,
    /// Multiplies sines and cosines.
    pub magnitude: f32,
}

/// Frequencies of a [`Spec`], ready for use.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians a position, `[n_rot / 2]`
    freqs: Vec<f64>,
    magnitude: f64,
}

impl Rope {
    /// Prepares the frequencies. Pair `i`'s is divided by `factors[i]` if there are factors (`[n_rot / 2]`).
    pub fn new(spec: &Spec, factors: Option<&[f32]>) -> Self {
        let (n, base) = (spec.n_rot as f64, f64::from(spec.base));
        let mut magnitude = f64::from(spec.magnitude);
        if let Scaling::Yarn { factor, log_multiplier, ext_factor, .. } = spec.scaling {
            let mscale = |by: f32| 1.0 + 0.1 * f64::from(by) * libm::log(f64::from(factor)).max(0.0);
            if ext_factor != 0.0 {
                magnitude *= mscale(1.0) / mscale(log_multiplier);
            }
        }
        let freqs = (0..spec.n_rot / 2).map(|i| {
            let plain = libm::pow(base, -2.0 * i as f64 / n);
            let own = factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
            plain / own * stretch(spec, i as f64)
        });
        Self { freqs: freqs.collect(), magnitude }
    }

    /// Elements of a head that are turned.
    pub fn n_rot(&self) -> usize {
        2 * self.freqs.len()
    }

    /// Fills `table` (`[n_rot]`) with the cosines of all pairs at `pos`, then their sines.
    pub fn table(&self, pos: usize, table: &mut [f32]) {
        let (cos, sin) = table.split_at_mut(self.freqs.len());
        for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(&self.freqs) {
            let (s, c) = libm::sincos(pos as f64 * freq);
            *cos = (c * self.magnitude) as f32;
            *sin = (s * self.magnitude) as f32;
        }
    }
}

/// What the frequency of pair `i` is multiplied by.
fn stretch(spec: &Spec, i: f64) -> f64 {
    match spec.scaling {
        Scaling::Linear { factor } => 1.0 / f64::from(factor),
        Scaling::Yarn { factor, ext_factor, beta_fast, beta_slow, original_ctx, .. } => {
            let n = spec.n_rot as f64;
            // The pair that makes `turns` turns over the original context.
            let pair = |turns: f32| {
                n * libm::log(f64::from(original_ctx) / (f64::from(turns) * TAU))
                    / (2.0 * libm::log(f64::from(spec.base)))
            };
            let low = libm::floor(pair(beta_fast)).max(0.0);
            let high = libm::ceil(pair(beta_slow)).min(n - 1.0);
            let ramp = ((i - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let keep = (1.0 - ramp) * f64::from(ext_factor);
            (1.0 - keep) / f64::from(factor) + keep
        }
    }
}

/// Turns one head; `table` is that of its position. Elements from `n_rot` on stay.
#[inline(always)]
pub fn rotate(style: Style, head: &mut [f32], table: &[f32]) {
    let (cos, sin) = table.split_at(table.len() / 2);
    let turned = &mut head[..table.len()];
    match style {
        Style::Pairs => {
            for ((x, &c), &s) in turned.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                *x = [x[0] * c - x[1] * s, x[0] * s + x[1] * c];
            }
        }
        Style::Halves => {
            let (a, b) = turned.split_at_mut(cos.len());
            for (((a, b), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Scaling = Scaling::Linear { factor: 1.0 };

    fn spec(scaling: Scaling) -> Spec {
        Spec { n_rot: 64, base: 10_000.0, scaling, magnitude: 1.0 }
    }

    fn table(spec: &Spec, factors: Option<&[f32]>, pos: usize) -> Vec<f32> {
        let mut t = vec![0.0; spec.n_rot];
        Rope::new(spec, factors).table(pos, &mut t);
        t
    }

    #[test]
    fn both_styles_turn_their_pairs() {
        // One pair a quarter turn, the other half a turn.
        let table = [0.0, -1.0, 1.0, 0.0];
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        rotate(Style::Pairs, &mut x, &table);
        assert_eq!(x, [-2.0, 1.0, -3.0, -4.0, 5.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        rotate(Style::Halves, &mut x, &table);
        assert_eq!(x, [-3.0, -2.0, 1.0, -4.0, 5.0]);
    }

    #[test]
    fn angles_follow_the_formula() {
        let t = table(&spec(PLAIN), None, 1234);
        for i in 0..32 {
            let angle = 1234.0 * 10_000f64.powf(-2.0 * i as f64 / 64.0);
            assert!((f64::from(t[i]) - angle.cos()).abs() < 1e-7);
            assert!((f64::from(t[32 + i]) - angle.sin()).abs() < 1e-7);
        }
        assert_eq!(table(&spec(PLAIN), None, 0), [[1.0; 32], [0.0; 32]].concat());
    }

    #[test]
    fn linear_scaling_and_factors_slow_the_angles_down() {
        let plain = table(&spec(PLAIN), None, 300);
        assert_eq!(table(&spec(Scaling::Linear { factor: 4.0 }), None, 1200), plain);
        assert_eq!(table(&spec(PLAIN), Some(&[4.0; 32]), 1200), plain);
        assert_eq!(table(&spec(PLAIN), Some(&[1.0; 32]), 300), plain);
        assert_ne!(table(&spec(PLAIN), Some(&[8.0; 32]), 300), plain);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_slows_slow_ones() {
        let yarn = Scaling::Yarn {
            factor: 4.0,
            ext_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_ctx: 4096.0,
            log_multiplier: 0.0,
        };
        let rope = Rope::new(&spec(yarn), None);
        let plain = Rope::new(&spec(PLAIN), None);
        // By hand: pair(32) = 64 ln(4096 / 64pi) / (2 ln 10^4) = 10.4 and pair(1) = 22.5.
        let ratio: Vec<f64> = rope.freqs.iter().zip(&plain.freqs).map(|(a, b)| a / b).collect();
        assert!(ratio[..=10].iter().all(|&r| r == 1.0), "{ratio:?}");
        assert!(ratio[23..].iter().all(|&r| (r - 0.25).abs() < 1e-12));
        assert!((ratio[15] - (1.0 - 0.75 * 5.0 / 13.0)).abs() < 1e-12);
        assert!((rope.magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }
}
