//! `e^x` and `tanh`, ours: the same bits on every machine, which a system's libm does not promise.

use crate::kernel::isa::Simd;

/// Below this `exp` stays at `e^MIN` (1.6e-38, the last that is surely no denormal).
pub const MIN: f32 = -87.0;
/// Above this `exp` stays at `e^MAX` (1.7e38).
pub const MAX: f32 = 88.0;

/// ln 2 in two parts; the first has 9 bits, so its product with a whole number below 2^15 is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// `e^r = 1 + r + r^2 q(r)` for |r| <= ln 2 / 2: the coefficients of `q`, lowest first, with the least largest
/// relative error (3e-9 before rounding).
const Q: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_851, 0.001_381_432];

/// `e^x`, at most 1.0 ulp off in [[`MIN`], [`MAX`]]; outside, the value at the nearer end; a NaN stays one.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let c = s.max(s.min(x, s.splat(MAX)), s.splat(MIN));
    let n = s.round(s.mul(c, s.splat(std::f32::consts::LOG2_E)));
    let r = s.sub(s.sub(c, s.mul(n, s.splat(LN2_HI))), s.mul(n, s.splat(LN2_LO)));
    let mut q = s.splat(Q[4]);
    for k in [Q[3], Q[2], Q[1], Q[0]] {
        q = s.add(s.mul(q, r), s.splat(k));
    }
    let p = s.add(s.splat(1.0), s.add(r, s.mul(s.mul(r, r), q)));
    s.keep_nan(x, s.mul(p, s.exp2i(n)))
}

/// `tanh x` as `1 - 2 / (e^2x + 1)`: off by at most 2e-7, absolutely.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.mul(x, s.splat(2.0)));
    s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    /// `f` over `x`, eight at a time, on one instruction set; the caller pads.
    macro_rules! over {
        ($isa:expr, $x:expr, $f:path) => {{
            let mut y: Vec<f32> = $x.to_vec();
            for c in y.as_chunks_mut::<8>().0 {
                $crate::simd!($isa, s => { let v = $f(s, s.load(c)); s.store(v, c) });
            }
            y
        }};
    }

    /// The distance of `got` from the real number `want` in units of the last place of `want`.
    pub fn ulps(got: f32, want: f64) -> f64 {
        let exponent = (want as f32).abs().max(f32::MIN_POSITIVE).log2().floor();
        (f64::from(got) - want).abs() / f64::from(exponent - 23.0).exp2()
    }

    fn grid() -> Vec<f32> {
        let n = 1 << 18;
        (0..n)
            .map(|i| MIN + (MAX - MIN) * (i as f32 / n as f32))
            .chain((0..n).map(|i| i as f32 * 1e-6 - 0.13))
            .collect()
    }

    #[test]
    fn exp_is_within_one_ulp_of_the_real_value() {
        let x = grid();
        let worst = over!(Isa::Scalar, x, exp)
            .iter()
            .zip(&x)
            .map(|(&y, &x)| ulps(y, libm::exp(f64::from(x))))
            .fold(0.0, f64::max);
        assert!(worst <= 1.0, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_ends_and_beyond() {
        let one = |x: f32| over!(Isa::Scalar, [x; 8], exp)[0];
        assert_eq!(one(0.0), 1.0);
        assert_eq!(one(f32::NEG_INFINITY), one(MIN));
        assert_eq!(one(-1e30), one(MIN));
        assert_eq!(one(f32::INFINITY), one(MAX));
        assert!(one(MIN).is_normal() && one(MAX).is_finite());
        assert!(one(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_close_everywhere() {
        let x = grid();
        for (y, &x) in over!(Isa::Scalar, x, tanh).iter().zip(&x) {
            assert!((f64::from(*y) - libm::tanh(f64::from(x))).abs() <= 2e-7, "{x}: {y}");
        }
        let one = |x: f32| over!(Isa::Scalar, [x; 8], tanh)[0];
        assert_eq!((one(1e9), one(-1e9)), (1.0, -1.0));
        assert!(one(f32::NAN).is_nan());
    }

    #[test]
    fn instruction_sets_agree() {
        let mut x = grid();
        x.extend([f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, 1e30, -1e30, 88.1, -87.1]);
        for isa in Isa::all() {
            assert_eq!(over!(isa, x, exp), over!(Isa::Scalar, x, exp));
            assert_eq!(over!(isa, x, tanh), over!(Isa::Scalar, x, tanh));
        }
    }
}
