//! Root mean square normalisation.

use super::dot::dot;
use super::map::zip;
use crate::kernel::isa::Simd;

/// `y[i] = (x[i] * r) * w[i]` with `r = 1 / sqrt(sum x^2 / n + eps)`; the sum is that of [`dot`]. `y` holds `x` on
/// entry; `w` has as many elements.
#[inline(always)]
pub fn rms_norm<S: Simd>(s: S, y: &mut [f32], w: &[f32], eps: f32) {
    let mean = dot(s, y, y) / y.len() as f32;
    let r = s.splat(1.0 / (mean + eps).sqrt());
    zip(
        s,
        y,
        w,
        #[inline(always)]
        |x, w| s.mul(s.mul(x, r), w),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    #[test]
    fn values_and_bits() {
        for n in [1, 7, 8, 64, 100, 577, 2048] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 7919 % 211) as f32 - 100.0) * 0.37).collect();
            let w: Vec<f32> = (0..n).map(|i| 0.5 + (i % 13) as f32 * 0.1).collect();
            let run = |isa: Isa| {
                let mut y = x.clone();
                crate::simd!(isa, s => rms_norm(s, &mut y, &w, 1e-5));
                y
            };
            let want = run(Isa::Scalar);
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            for ((&y, &x), &w) in want.iter().zip(&x).zip(&w) {
                let real = f64::from(x) / (mean + 1e-5).sqrt() * f64::from(w);
                assert!((f64::from(y) - real).abs() <= 1e-6 * real.abs(), "{n}: {y} {real}");
            }
            for isa in Isa::all() {
                assert_eq!(run(isa), want);
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut y = [0.0; 9];
        crate::simd!(Isa::Scalar, s => rms_norm(s, &mut y, &[1.0; 9], 1e-6));
        assert_eq!(y, [0.0; 9]);
    }
}
