//! Are all numbers finite, and which is the largest?

use crate::kernel::isa::Simd;

/// Whether no element is infinite or NaN. One subtraction and one addition an element, no branch.
#[inline(always)]
pub fn all_finite<S: Simd>(s: S, x: &[f32]) -> bool {
    let (x8, rest) = x.as_chunks::<8>();
    let mut bad = s.splat(0.0);
    for x in x8 {
        let x = s.load(x);
        // 0 for a finite number, NaN for the rest; a NaN stays in the sum.
        bad = s.add(bad, s.sub(x, x));
    }
    s.sum(bad) == 0.0 && rest.iter().all(|x| x.is_finite())
}

/// The largest element, minus infinity if there is none; nothing unless all are finite. One pass.
#[inline(always)]
pub fn largest<S: Simd>(s: S, x: &[f32]) -> Option<f32> {
    largest_of(
        s,
        x,
        #[inline(always)]
        |x| x,
    )
}

/// The largest magnitude of elements, in the same way.
#[inline(always)]
pub fn largest_magnitude<S: Simd>(s: S, x: &[f32]) -> Option<f32> {
    largest_of(
        s,
        x,
        #[inline(always)]
        |x| s.abs(x),
    )
}

/// The largest of what `of` makes of elements.
#[inline(always)]
fn largest_of<S: Simd>(s: S, x: &[f32], of: impl Fn(S::V) -> S::V) -> Option<f32> {
    let (x8, rest) = x.as_chunks::<8>();
    // Two chains: one alone waits for itself.
    let mut chains = [(s.splat(0.0), s.splat(f32::NEG_INFINITY)); 2];
    let (pairs, last) = x8.as_chunks::<2>();
    for [x, y] in pairs {
        chains[0] = join(s, chains[0], s.load(x), &of);
        chains[1] = join(s, chains[1], s.load(y), &of);
    }
    if let [x] = last {
        chains[0] = join(s, chains[0], s.load(x), &of);
    }
    if let Some(&some) = rest.first() {
        let mut padded = [some; 8];
        padded[..rest.len()].copy_from_slice(rest);
        chains[1] = join(s, chains[1], s.load(&padded), &of);
    }
    let (bad, max) = (s.add(chains[0].0, chains[1].0), s.max(chains[0].1, chains[1].1));
    let mut lanes = [0.0; 8];
    s.store(max, &mut lanes);
    (s.sum(bad) == 0.0).then(|| lanes.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// One vector more: a sum that is 0 as long as all are finite, and the largest of what `of` makes of them.
#[inline(always)]
fn join<S: Simd>(s: S, (bad, max): (S::V, S::V), x: S::V, of: &impl Fn(S::V) -> S::V) -> (S::V, S::V) {
    (s.add(bad, s.sub(x, x)), s.max(of(x), max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    #[test]
    fn one_bad_element_anywhere_is_seen() {
        for isa in Isa::all() {
            for n in 1..30 {
                let mut x = vec![f32::MAX; n];
                assert!(crate::simd!(isa, s => all_finite(s, &x)));
                for i in 0..n {
                    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        x[i] = bad;
                        assert!(!crate::simd!(isa, s => all_finite(s, &x)), "{n} {i} {bad}");
                        assert_eq!(crate::simd!(isa, s => largest(s, &x)), None, "{n} {i} {bad}");
                    }
                    x[i] = -1.0;
                }
            }
        }
    }

    #[test]
    fn the_largest_is_found_anywhere() {
        for isa in Isa::all() {
            for n in 0..30 {
                let mut x = vec![-3.5; n];
                let found = crate::simd!(isa, s => largest(s, &x));
                assert_eq!(found, Some(if n == 0 { f32::NEG_INFINITY } else { -3.5 }));
                for i in 0..n {
                    x[i] = -3.0;
                    assert_eq!(crate::simd!(isa, s => largest(s, &x)), Some(-3.0), "{n} {i}");
                    x[i] = -4.0;
                    assert_eq!(crate::simd!(isa, s => largest_magnitude(s, &x)), Some(4.0), "{n} {i}");
                    x[i] = -3.5;
                }
            }
        }
    }
}
