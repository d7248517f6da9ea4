//! Sets of codes, and the error that they leave with a scale.

use super::inverse;
use crate::kernel::format::IQ4_STEPS;
use crate::kernel::isa::Simd;

/// The numbers that a scale multiplies.
pub(super) trait Codes {
    /// The ends: the smallest and the largest number.
    const LOW: f32;
    const HIGH: f32;

    /// The numbers nearest to `v`.
    fn nearest<S: Simd>(s: S, v: S::V) -> S::V;

    /// How a number that [`Codes::nearest`] gave is stored.
    fn stored(number: f32) -> u8;
}

/// Every whole number from `LOW` to `HIGH`, stored less `LOW`.
pub(super) struct Whole<const LOW: i8, const HIGH: i8>;

impl<const LOW: i8, const HIGH: i8> Codes for Whole<LOW, HIGH> {
    const LOW: f32 = LOW as f32;
    const HIGH: f32 = HIGH as f32;

    #[inline(always)]
    fn nearest<S: Simd>(s: S, v: S::V) -> S::V {
        s.round(s.min(s.max(v, s.splat(Self::LOW)), s.splat(Self::HIGH)))
    }

    fn stored(number: f32) -> u8 {
        (number - Self::LOW) as u8
    }
}

/// IQ4_NL's uneven steps.
pub(super) struct Uneven;

/// The nearest of the steps and its index, for every number from -128 on in halves: twice the middle of two steps is whole,
/// so all numbers from one half to the next have the same.
static NEAREST: [(f32, u8); 512] = {
    let mut table = [(0.0, 0); 512];
    let mut k = 0;
    let mut index = 0;
    while k < 512 {
        while index < 15 && k as i32 - 256 >= IQ4_STEPS[index] as i32 + IQ4_STEPS[index + 1] as i32 {
            index += 1;
        }
        table[k] = (IQ4_STEPS[index] as f32, index as u8);
        k += 1;
    }
    table
};

impl Codes for Uneven {
    const LOW: f32 = -127.0;
    const HIGH: f32 = 113.0;

    #[inline(always)]
    fn nearest<S: Simd>(s: S, v: S::V) -> S::V {
        // Where numbers are as large as this their neighbours are 1 apart, and the sum's last bits are a whole number: that
        // of the halves that are full. (A number between two may take either: they differ only where steps are as near.)
        const WHOLE: f32 = 8_388_607.5;
        let v = s.min(s.max(v, s.splat(-127.5)), s.splat(127.5));
        let halves = s.mul(s.add(v, s.splat(128.0)), s.splat(2.0));
        let mut lanes = [0.0; 8];
        s.store(s.add(halves, s.splat(WHOLE)), &mut lanes);
        for v in &mut lanes {
            *v = NEAREST[v.to_bits() as usize % NEAREST.len()].0;
        }
        s.load(&lanes)
    }

    fn stored(number: f32) -> u8 {
        NEAREST[((number + 128.0) * 2.0) as usize].1
    }
}

/// The weighted squared error that scale `d` leaves.
#[inline(always)]
pub(super) fn rest<S: Simd, C: Codes, const N: usize>(s: S, x: &[f32; N], w: &[f32; N], d: f32) -> f32 {
    let (inverse, d) = (s.splat(inverse(d)), s.splat(d));
    let mut rest = s.splat(0.0);
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        let x = s.load(x);
        let r = s.sub(x, s.mul(d, C::nearest(s, s.mul(x, inverse))));
        rest = s.add(rest, s.mul(s.load(w), s.mul(r, r)));
    }
    s.sum(rest)
}

/// `sum w x q` and `sum w q q` of the codes that scale `1 / inverse` leads to: their quotient is the best scale for these
/// codes.
#[inline(always)]
pub(super) fn moments<S: Simd, C: Codes, const N: usize>(
    s: S,
    x: &[f32; N],
    w: &[f32; N],
    inverse: f32,
) -> (f32, f32) {
    let inverse = s.splat(inverse);
    let (mut xq, mut qq) = (s.splat(0.0), s.splat(0.0));
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        let x = s.load(x);
        let q = C::nearest(s, s.mul(x, inverse));
        let wq = s.mul(s.load(w), q);
        xq = s.add(xq, s.mul(wq, x));
        qq = s.add(qq, s.mul(wq, q));
    }
    (s.sum(xq), s.sum(qq))
}

/// The codes nearest to `x / d`, as they are stored.
#[inline(always)]
pub(super) fn choose<S: Simd, C: Codes, const N: usize>(s: S, x: &[f32; N], d: f32) -> [u8; N] {
    let inverse = s.splat(inverse(d));
    let mut codes = [0; N];
    for (x, codes) in x.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
        let mut numbers = [0.0; 8];
        s.store(C::nearest(s, s.mul(s.load(x), inverse)), &mut numbers);
        for (number, code) in numbers.iter().zip(codes) {
            *code = C::stored(*number);
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Scalar;

    #[test]
    fn nearest_steps_are_nearest() {
        for k in -600..=600 {
            let v = k as f32 * 0.25;
            let distance = |q: f32| (v - q).abs();
            let least = IQ4_STEPS.iter().map(|&q| distance(f32::from(q))).fold(f32::INFINITY, f32::min);
            let mut lanes = [0.0; 8];
            Scalar.store(Uneven::nearest(Scalar, Scalar.splat(v)), &mut lanes);
            assert_eq!(distance(lanes[0]), least, "{v}");
        }
        for (i, &q) in IQ4_STEPS.iter().enumerate() {
            assert_eq!(usize::from(Uneven::stored(f32::from(q))), i);
        }
    }

    #[test]
    fn whole_numbers_are_rounded_and_end() {
        let x = [0.4, -0.6, 31.4, 99.0, -32.6, -1e30, 0.5, 1.5];
        let got = choose::<Scalar, Whole<-32, 31>, 8>(Scalar, &x, 1.0);
        assert_eq!(got, [32, 31, 63, 63, 0, 0, 32, 34]);
    }
}
