//! The exponentials of a softmax.

use super::exp::exp;
use crate::kernel::isa::Simd;

/// `x[i] = e^(x[i] - max x)`; returns their sum (lanes `i mod 8` in ascending order, then the tree of [`Simd::sum`]).
/// Dividing by it is left to the caller, who can do that once for a whole weighted sum.
#[inline(always)]
pub fn exp_sum<S: Simd>(s: S, x: &mut [f32]) -> f32 {
    let (x8, rest) = x.as_chunks_mut::<8>();
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in x8.iter() {
        max = s.max(s.load(x), max);
    }
    let mut lanes = [0.0; 8];
    s.store(max, &mut lanes);
    let max = lanes.iter().chain(rest.iter()).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    let max = s.splat(max);
    let mut sum = s.splat(0.0);
    for x in x8 {
        let e = exp(s, s.sub(s.load(x), max));
        s.store(e, x);
        sum = s.add(sum, e);
    }
    if !rest.is_empty() {
        let mut pad = [0.0; 8];
        pad[..rest.len()].copy_from_slice(rest);
        let e = exp(s, s.sub(s.load(&pad), max));
        s.store(e, &mut pad);
        rest.copy_from_slice(&pad[..rest.len()]);
        // Lanes past the end add +0, which changes no sum of numbers that are not negative.
        pad[rest.len()..].fill(0.0);
        sum = s.add(sum, s.load(&pad));
    }
    s.sum(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    #[test]
    fn values_and_bits_at_every_length() {
        for n in 1..100 {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.9).collect();
            let run = |isa: Isa| {
                let mut y = x.clone();
                let sum = crate::simd!(isa, s => exp_sum(s, &mut y));
                (y, sum)
            };
            let (y, sum) = run(Isa::Scalar);
            let max = x.iter().copied().fold(f32::MIN, f32::max);
            let real: Vec<f64> = x.iter().map(|&x| libm::exp(f64::from(x - max))).collect();
            for (&y, &r) in y.iter().zip(&real) {
                assert!((f64::from(y) - r).abs() <= 2e-7 * r + 2e-38);
            }
            let total = real.iter().sum::<f64>();
            assert!((f64::from(sum) - total).abs() <= 1e-6 * total);
            for isa in Isa::all() {
                assert_eq!(run(isa), (y.clone(), sum));
            }
        }
    }

    #[test]
    fn a_nan_is_not_lost() {
        for isa in Isa::all() {
            for at in [0, 5, 9] {
                let mut x = [1.0; 10];
                x[at] = f32::NAN;
                assert!(crate::simd!(isa, s => exp_sum(s, &mut x)).is_nan());
            }
        }
    }
}
