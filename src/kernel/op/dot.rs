//! The f32 dot product of the contract.

use crate::kernel::isa::Simd;

/// `sum a[i] * b[i]`: lane `l` adds the products of elements `i = l (mod 8)` in ascending order, each
/// operation rounded, then the lanes are added in the tree of [`Simd::sum`].
///
/// The slices have equal length; any length is allowed.
#[inline(always)]
pub fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut acc = s.splat(0.0);
    for (a, b) in a8.iter().zip(b8) {
        acc = s.add(acc, s.mul(s.load(a), s.load(b)));
    }
    if !a_rest.is_empty() {
        // Lanes past the end add 0 * 0 = +0, which changes no sum (a sum is never -0: it starts at +0).
        let (mut a, mut b) = ([0.0; 8], [0.0; 8]);
        a[..a_rest.len()].copy_from_slice(a_rest);
        b[..b_rest.len()].copy_from_slice(b_rest);
        acc = s.add(acc, s.mul(s.load(&a), s.load(&b)));
    }
    s.sum(acc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;

    /// The definition, lane by lane.
    fn definition(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 8];
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[i % 8] += a * b;
        }
        let s4: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
        (s4[0] + s4[2]) + (s4[1] + s4[3])
    }

    #[test]
    fn equals_the_definition_at_every_length() {
        for n in 0..70 {
            let a: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 1.37e-2).collect();
            let b: Vec<f32> = (0..n).map(|i| ((i * 53 % 97) as f32 - 48.0) * 3.1).collect();
            for isa in Isa::all() {
                let got = crate::simd!(isa, s => dot(s, &a, &b));
                assert_eq!(got.to_bits(), definition(&a, &b).to_bits(), "{n} {isa:?}");
            }
        }
    }
}
