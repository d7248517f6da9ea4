//! Activations to int8: done once per matrix input, shared by every matrix that reads it.
//!
//! For a block of 32 or 256 elements: `d = amax / 127`; `d` below 2^-60 becomes 0 with all codes 0, above
//! 2^60 it becomes 2^60; a code is `x * (1 / d)` rounded to nearest even and held in [-127, 127]. Beside the
//! codes, the sum of every 16 of them, for formats whose weights have minimums or an offset.
//!
//! With `d` bounded like this and finite weight scales no product or sum in a dot can be a denormal, an
//! infinity or a NaN, so devices that flush denormals agree to the bit.

use crate::kernel::format::ActBlock;
use crate::kernel::isa::{Isa, Simd};
use crate::kernel::op::finite::largest_magnitude;

/// The smallest scale that is not 0.
pub const MIN_SCALE: f32 = f32::from_bits((127 - 60) << 23);
/// The largest scale.
pub const MAX_SCALE: f32 = f32::from_bits((127 + 60) << 23);
/// Codes that share one stored sum.
pub const SUM: usize = 16;

/// Quantised activations of several tokens, as one term or two: what the codes of the first lose can be quantised too
/// ([`remainder`]), and a product is then the sum of both terms' products.
#[derive(Clone, Copy)]
pub struct Q8<'a> {
    /// Elements that share a scale.
    pub block: ActBlock,
    /// Elements of one token.
    pub n: usize,
    /// Terms that are stored of each token: 1 or 2.
    pub stored: usize,
    /// Terms that products are made of: 1 or all.
    pub terms: usize,
    /// `[tokens][stored][n]`
    pub codes: &'a [i8],
    /// `[tokens][stored][n / block]`
    pub scales: &'a [f32],
    /// `[tokens][stored][n / 16]`
    pub sums: &'a [i16],
}

/// One term of one token.
#[derive(Clone, Copy)]
pub struct Q8Row<'a> {
    /// `[n]`
    pub codes: &'a [i8],
    /// `[n / block]`
    pub scales: &'a [f32],
    /// `[n / 16]`
    pub sums: &'a [i16],
}

impl<'a> Q8<'a> {
    /// Activations of one term.
    pub fn new(block: ActBlock, n: usize, codes: &'a [i8], scales: &'a [f32], sums: &'a [i16]) -> Self {
        Self { block, n, stored: 1, terms: 1, codes, scales, sums }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.codes.len() / (self.n * self.stored)
    }

    /// Number of vectors that a matrix is multiplied by: every term of every token.
    pub fn vectors(&self) -> usize {
        self.tokens() * self.terms
    }

    /// The token of vector `v`, and which of its terms that is.
    #[inline(always)]
    pub fn place(&self, v: usize) -> (usize, usize) {
        // No division: one or two.
        if self.terms == 1 { (v, 0) } else { (v / 2, v % 2) }
    }

    /// Vector `v`.
    #[inline]
    pub fn vector(&self, v: usize) -> Q8Row<'a> {
        // Called for every few products: no divisions.
        debug_assert!(self.terms == self.stored || self.terms == 1);
        let i = if self.terms == self.stored { v } else { v * self.stored };
        let (blocks, sums) = (self.block.count(self.n), self.n / SUM);
        Q8Row {
            codes: &self.codes[i * self.n..][..self.n],
            scales: &self.scales[i * blocks..][..blocks],
            sums: &self.sums[i * sums..][..sums],
        }
    }
}

/// Quantised activations of one term that own their memory. (A forward pass quantises into buffers that it has.)
#[derive(Clone, Debug)]
pub struct Quantised {
    /// Elements that share a scale.
    pub block: ActBlock,
    /// Elements of one token.
    pub n: usize,
    /// `[tokens][n]`
    pub codes: Vec<i8>,
    /// `[tokens][n / block]`
    pub scales: Vec<f32>,
    /// `[tokens][n / 16]`
    pub sums: Vec<i16>,
    /// Whether every number was finite: a block with another is all 0.
    pub finite: bool,
}

impl Quantised {
    /// Quantises `x`, which is `[tokens][n]`, with `n` a multiple of the block.
    pub fn new(isa: Isa, block: ActBlock, n: usize, x: &[f32]) -> Self {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; block.count(x.len())]);
        let mut sums = vec![0; x.len() / SUM];
        let finite = crate::simd!(isa, s => quantize(s, block, x, &mut codes, &mut scales, &mut sums));
        Self { block, n, codes, scales, sums, finite }
    }

    /// What products take.
    pub fn q8(&self) -> Q8<'_> {
        Q8::new(self.block, self.n, &self.codes, &self.scales, &self.sums)
    }
}

/// Quantises one vector; `x.len()` is a multiple of the block. Returns false if an element is not finite (its
/// block is then all 0).
#[inline(always)]
pub fn quantize<S: Simd>(
    s: S,
    block: ActBlock,
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i16],
) -> bool {
    let n = block.elements();
    let mut finite = true;
    let blocks = x.chunks_exact(n).zip(codes.chunks_exact_mut(n)).zip(sums.chunks_exact_mut(n / SUM));
    for (((x, codes), sums), scale) in blocks.zip(scales) {
        let amax = largest_magnitude(s, x);
        finite &= amax.is_some();
        // Of no scale too if a number is not finite.
        let d = amax.unwrap_or(0.0) / 127.0;
        if d < MIN_SCALE {
            *scale = 0.0;
            codes.fill(0);
            sums.fill(0);
            continue;
        }
        let d = if d > MAX_SCALE { MAX_SCALE } else { d };
        *scale = d;
        let inverse = s.splat(1.0 / d);
        let sixteens =
            x.as_chunks::<8>().0.as_chunks::<2>().0.iter().zip(codes.as_chunks_mut::<SUM>().0).zip(sums);
        for ((x, codes), sum) in sixteens {
            let whole = [whole(s, &x[0], inverse), whole(s, &x[1], inverse)];
            *sum = s.codes(whole, codes);
        }
    }
    finite
}

/// The codes of eight numbers, as floats.
#[inline(always)]
fn whole<S: Simd>(s: S, x: &[f32; 8], inverse: S::V) -> S::V {
    let q = s.round(s.mul(s.load(x), inverse));
    s.max(s.min(q, s.splat(127.0)), s.splat(-127.0))
}

/// What quantisation loses: `x[i] - scale * code[i]` into `rest`, both operations rounded.
#[inline(always)]
pub fn remainder<S: Simd>(s: S, block: ActBlock, x: &[f32], codes: &[i8], scales: &[f32], rest: &mut [f32]) {
    let n = block.elements();
    let blocks = x.chunks_exact(n).zip(codes.chunks_exact(n)).zip(rest.chunks_exact_mut(n));
    for (((x, codes), rest), &scale) in blocks.zip(scales) {
        let d = s.splat(scale);
        let all = x.as_chunks::<8>().0.iter().zip(codes.as_chunks::<8>().0).zip(rest.as_chunks_mut::<8>().0);
        for ((x, codes), rest) in all {
            let q = s.mul(s.load(&codes.map(f32::from)), d);
            s.store(s.sub(s.load(x), q), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(isa: Isa, block: ActBlock, x: &[f32]) -> (bool, Vec<i8>, Vec<f32>, Vec<i16>) {
        let n = x.len();
        let (mut c, mut d, mut s) = (vec![9i8; n], vec![9.0; n / block.elements()], vec![9i16; n / SUM]);
        let ok = crate::simd!(isa, v => quantize(v, block, x, &mut c, &mut d, &mut s));
        (ok, c, d, s)
    }

    #[test]
    fn follows_the_rule_on_a_worked_example() {
        let mut x = [0.0f32; 32];
        // d = 1 exactly, so codes are the values rounded to nearest even.
        x[..8].copy_from_slice(&[127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.4]);
        x[20] = 5.0;
        for isa in Isa::all() {
            let (ok, c, d, s) = run(isa, ActBlock::B32, &x);
            assert!(ok);
            assert_eq!(d, [1.0]);
            assert_eq!(c[..8], [127, -127, 0, 2, 2, 0, -2, 3]);
            assert_eq!(s, [5, 5]);
        }
    }

    #[test]
    fn scales_stay_in_range_and_bad_input_is_reported() {
        for isa in Isa::all() {
            for block in [ActBlock::B32, ActBlock::B256] {
                let n = block.elements();
                let fill = |v: f32| run(isa, block, &vec![v; n]);
                assert_eq!(fill(0.0), (true, vec![0; n], vec![0.0], vec![0; n / 16]));
                assert_eq!(fill(1e-19).2, [0.0]);
                assert_eq!(fill(1e-30).1, vec![0; n]);
                assert_eq!(fill(127.0 * MIN_SCALE).2, [MIN_SCALE]);
                assert_eq!(fill(f32::MAX).2, [MAX_SCALE]);
                assert_eq!(fill(f32::MAX).1, vec![127; n]);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = vec![1.0; n];
                    x[n - 3] = bad;
                    assert_eq!(run(isa, block, &x), (false, vec![0; n], vec![0.0], vec![0; n / 16]));
                }
            }
        }
    }

    #[test]
    fn instruction_sets_agree() {
        let x: Vec<f32> =
            (0..1024).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 0.013 * (i % 5) as f32).collect();
        for block in [ActBlock::B32, ActBlock::B256] {
            let want = run(Isa::Scalar, block, &x);
            for isa in Isa::all() {
                assert_eq!(run(isa, block, &x), want);
            }
        }
    }

    #[test]
    fn two_terms_leave_a_sixty_thousandth() {
        let x: Vec<f32> = (0..512).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 0.013).collect();
        for block in [ActBlock::B32, ActBlock::B256] {
            for isa in Isa::all() {
                let (_, c, d, _) = run(isa, block, &x);
                let mut rest = vec![0.0; x.len()];
                crate::simd!(isa, s => remainder(s, block, &x, &c, &d, &mut rest));
                let (_, c2, d2, _) = run(isa, block, &rest);
                let n = block.elements();
                for (i, &x) in x.iter().enumerate() {
                    let two = f64::from(c[i]) * f64::from(d[i / n]) + f64::from(c2[i]) * f64::from(d2[i / n]);
                    // Half a step of the second term: amax / 127 / 2 / 127 / 2.
                    assert!((f64::from(x) - two).abs() <= 6.5 / 64_000.0, "{x} {two}");
                }
            }
        }
    }
}
