//! Activation functions of the feed-forward block, times the other branch.

use super::exp::exp;
use super::map::zip;
use crate::kernel::isa::Simd;

/// `gate[i] = silu(gate[i]) * up[i]` with `silu(x) = x / (1 + e^-x)`.
#[inline(always)]
pub fn swiglu<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    zip(
        s,
        gate,
        up,
        #[inline(always)]
        |g, u| s.mul(gated(s, g, s.sub(s.splat(0.0), g)), u),
    );
}

/// `gate[i] = gelu(gate[i]) * up[i]`, the tanh form `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
///
/// Since `(1 + tanh a) / 2 = 1 / (1 + e^-2a)`, it is computed as `x / (1 + e^-2a)`: no cancellation for negative `x`.
#[inline(always)]
pub fn geglu<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    // -2 sqrt(2 / pi), and that times 0.044715.
    const LINEAR: f32 = -1.595_769_2;
    const CUBIC: f32 = -0.071_354_814;
    zip(
        s,
        gate,
        up,
        #[inline(always)]
        |g, u| {
            let t = s.add(s.splat(LINEAR), s.mul(s.splat(CUBIC), s.mul(g, g)));
            s.mul(gated(s, g, s.mul(g, t)), u)
        },
    );
}

/// `x / (1 + e^a)`.
#[inline(always)]
fn gated<S: Simd>(s: S, x: S::V, a: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, a)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    fn inputs() -> Vec<f32> {
        (0..20_003).map(|i| (i as f32 - 10_000.0) * 2e-3).collect()
    }

    fn run(isa: Isa, gelu: bool, gate: &[f32], up: &[f32]) -> Vec<f32> {
        let mut y = gate.to_vec();
        if gelu {
            crate::simd!(isa, s => geglu(s, &mut y, up));
        } else {
            crate::simd!(isa, s => swiglu(s, &mut y, up));
        }
        y
    }

    #[test]
    fn values_are_those_of_the_formulas() {
        let x = inputs();
        for gelu in [false, true] {
            for (y, &x) in run(Isa::Scalar, gelu, &x, &vec![1.0; x.len()]).iter().zip(&x) {
                let x = f64::from(x);
                let exponent = if gelu {
                    -2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
                } else {
                    -x
                };
                // `exp` stays where it is outside of its range.
                let want = x / (1.0 + libm::exp(exponent.clamp(-87.0, 88.0)));
                // An exponent that is off by an ulp makes a power off by as much as the exponent is large.
                let bound = 3e-7 * (1.0 + exponent.clamp(0.0, 88.0)) * want.abs();
                assert!((f64::from(*y) - want).abs() <= bound, "{gelu} {x}: {y} {want}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for gelu in [false, true] {
            for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
                assert!(!run(Isa::Scalar, gelu, &[bad], &[1.0])[0].is_finite());
                assert!(!run(Isa::Scalar, gelu, &[1.0], &[bad])[0].is_finite());
            }
        }
    }

    #[test]
    fn instruction_sets_agree() {
        let (x, up) = (inputs(), inputs().into_iter().rev().collect::<Vec<_>>());
        for gelu in [false, true] {
            let want = run(Isa::Scalar, gelu, &x, &up);
            for isa in Isa::all() {
                assert_eq!(run(isa, gelu, &x, &up), want);
            }
        }
    }
}
