//! Element by element over slices of any length.

use crate::kernel::isa::Simd;

/// `y[i] = f(y[i])`.
#[inline(always)]
pub fn map<S: Simd>(s: S, y: &mut [f32], f: impl Fn(S::V) -> S::V) {
    let (y8, rest) = y.as_chunks_mut::<8>();
    for y in y8 {
        let v = f(s.load(y));
        s.store(v, y);
    }
    if !rest.is_empty() {
        let mut pad = [0.0; 8];
        pad[..rest.len()].copy_from_slice(rest);
        let v = f(s.load(&pad));
        s.store(v, &mut pad);
        rest.copy_from_slice(&pad[..rest.len()]);
    }
}

/// `y[i] = f(y[i], x[i])`. The slices have equal length.
#[inline(always)]
pub fn zip<S: Simd>(s: S, y: &mut [f32], x: &[f32], f: impl Fn(S::V, S::V) -> S::V) {
    debug_assert_eq!(y.len(), x.len());
    let (x8, x_rest) = x.as_chunks::<8>();
    let (y8, y_rest) = y.as_chunks_mut::<8>();
    for (y, x) in y8.iter_mut().zip(x8) {
        let v = f(s.load(y), s.load(x));
        s.store(v, y);
    }
    if !y_rest.is_empty() {
        let (mut a, mut b) = ([0.0; 8], [0.0; 8]);
        a[..y_rest.len()].copy_from_slice(y_rest);
        b[..x_rest.len()].copy_from_slice(x_rest);
        let v = f(s.load(&a), s.load(&b));
        s.store(v, &mut a);
        y_rest.copy_from_slice(&a[..y_rest.len()]);
    }
}

/// `y[i] += x[i]`.
#[inline(always)]
pub fn add<S: Simd>(s: S, y: &mut [f32], x: &[f32]) {
    zip(
        s,
        y,
        x,
        #[inline(always)]
        |y, x| s.add(y, x),
    );
}

/// `y[i] *= by`.
#[inline(always)]
pub fn scale<S: Simd>(s: S, y: &mut [f32], by: f32) {
    let by = s.splat(by);
    map(
        s,
        y,
        #[inline(always)]
        |y| s.mul(y, by),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    #[test]
    fn every_element_once_at_every_length() {
        for isa in Isa::all() {
            for n in 0..40 {
                let x: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
                let mut y: Vec<f32> = (0..n).map(|i| 100.0 * i as f32).collect();
                crate::simd!(isa, s => add(s, &mut y, &x));
                crate::simd!(isa, s => scale(s, &mut y, 2.0));
                let want: Vec<f32> = (0..n).map(|i| (101.0 * i as f32 + 0.5) * 2.0).collect();
                assert_eq!(y, want);
            }
        }
    }
}
