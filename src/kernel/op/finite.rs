//! Are all numbers finite?

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
                    }
                    x[i] = -1.0;
                }
            }
        }
    }
}
