//! Attention of the heads that share one key and value head, at one position.

use super::dot::dot;
use super::element::Element;
use super::softmax::exp_sum;
use crate::kernel::isa::Simd;

/// One head of a cache: for every position `len` elements, `stride` apart.
#[derive(Clone, Copy)]
pub struct Head<'a, E> {
    /// The positions that are looked at, `[positions][stride]`
    pub data: &'a [E],
    /// Elements of a position, all heads together.
    pub stride: usize,
    /// Where the head begins.
    pub at: usize,
    /// Its elements.
    pub len: usize,
}

impl<'a, E> Head<'a, E> {
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = &'a [E]> + use<'a, E> {
        let (at, len) = (self.at, self.len);
        self.data.chunks_exact(self.stride).map(move |row| &row[at..at + len])
    }
}

/// For every head `h`: `out[h] = sum_p e[p] * v[p] / sum_p e[p]` with `e[p] = exp(q[h] . k[p] * scale - max)`.
///
/// `q` is `[heads][k.len]`, `out` `[heads][v.len]`. The weighted sum runs over positions in ascending order, one
/// accumulator an element; the division comes last. `scores` is scratch.
#[inline(always)]
pub fn attend<S: Simd, E: Element>(
    s: S,
    q: &[f32],
    k: Head<'_, E>,
    v: Head<'_, E>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let n = k.data.len() / k.stride;
    let heads = q.len() / k.len;
    scores.resize(heads * n, 0.0);
    for (p, k) in k.rows().enumerate() {
        for (h, q) in q.chunks_exact(k.len()).enumerate() {
            scores[h * n + p] = dot(s, q, k) * scale;
        }
    }
    for (scores, out) in scores.chunks_exact_mut(n).zip(out.chunks_exact_mut(v.len)) {
        let sum = s.splat(exp_sum(s, scores));
        let mut at = 0;
        while at < v.len {
            let width = if v.len - at >= 64 { 64 } else { (v.len - at).min(8) };
            let part = Head { at: v.at + at, len: width, ..v };
            let out = &mut out[at..at + width];
            if width == 64 {
                weigh::<S, E, 8>(s, scores, part, sum, out);
            } else {
                weigh::<S, E, 1>(s, scores, part, sum, out);
            }
            at += width;
        }
    }
}

/// The weighted sum of up to `8 N` elements of each position, divided by `sum`.
#[inline(always)]
fn weigh<S: Simd, E: Element, const N: usize>(s: S, e: &[f32], v: Head<'_, E>, sum: S::V, out: &mut [f32]) {
    let mut acc = [s.splat(0.0); N];
    for (&e, v) in e.iter().zip(v.rows()) {
        let e = s.splat(e);
        let (v8, rest) = v.as_chunks::<8>();
        for (acc, v) in acc.iter_mut().zip(v8) {
            *acc = s.add(*acc, s.mul(e, E::load(s, v)));
        }
        if !rest.is_empty() {
            let mut pad = [E::default(); 8];
            pad[..rest.len()].copy_from_slice(rest);
            acc[0] = s.add(acc[0], s.mul(e, E::load(s, &pad)));
        }
    }
    for (acc, out) in acc.into_iter().zip(out.chunks_mut(8)) {
        let mut lanes = [0.0; 8];
        s.store(s.div(acc, sum), &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;
    use crate::kernel::op::element::store;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| (((i + seed) * 7919 % 401) as f32 - 200.0) * 0.004).collect()
    }

    fn real(
        q: &[f32],
        k: &[f32],
        v: &[f32],
        (stride, at): (usize, usize),
        len: usize,
        vlen: usize,
    ) -> Vec<f64> {
        let mut out = Vec::new();
        for q in q.chunks_exact(len) {
            let scores: Vec<f64> = k
                .chunks_exact(stride)
                .map(|k| {
                    q.iter().zip(&k[at..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * 0.3
                })
                .collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = e.iter().sum();
            for d in 0..vlen {
                let w =
                    e.iter().zip(v.chunks_exact(stride)).map(|(e, v)| e * f64::from(v[at + d])).sum::<f64>();
                out.push(w / sum);
            }
        }
        out
    }

    fn run<E: Element>(isa: Isa, q: &[f32], k: Head<'_, E>, v: Head<'_, E>) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len() / k.len * v.len];
        crate::simd!(isa, s => attend(s, q, k, v, 0.3, &mut Vec::new(), &mut out));
        out
    }

    #[test]
    fn values_and_bits_for_every_shape() {
        for (len, vlen) in [(64, 64), (256, 256), (48, 80), (20, 12), (128, 130)] {
            for positions in [1, 2, 9, 70] {
                for heads in [1, 3] {
                    let (stride, at) = (3 * len.max(vlen), len.max(vlen));
                    let q = numbers(heads * len, 3);
                    let (k, v) = (numbers(positions * stride, 1), numbers(positions * stride, 5));
                    let mut halves = [vec![0u16; k.len()], vec![0u16; v.len()]];
                    crate::simd!(Isa::Scalar, s => store(s, &k, &mut halves[0]));
                    crate::simd!(Isa::Scalar, s => store(s, &v, &mut halves[1]));
                    let head = |data, len| Head { data, stride, at, len };
                    let half = |i: usize, len| Head { data: &halves[i][..], stride, at, len };
                    let want = run(Isa::Scalar, &q, head(&k[..], len), head(&v[..], vlen));
                    let want16 = run(Isa::Scalar, &q, half(0, len), half(1, vlen));
                    for isa in Isa::all() {
                        assert_eq!(run(isa, &q, head(&k[..], len), head(&v[..], vlen)), want);
                        assert_eq!(run(isa, &q, half(0, len), half(1, vlen)), want16);
                        // A head has the same bits alone and together with others.
                        for h in 0..heads {
                            let alone = run(isa, &q[h * len..][..len], half(0, len), half(1, vlen));
                            assert_eq!(alone, want16[h * vlen..][..vlen]);
                        }
                    }
                    let real = real(&q, &k, &v, (stride, at), len, vlen);
                    for ((w, h), r) in want.iter().zip(&want16).zip(&real) {
                        assert!((f64::from(*w) - r).abs() < 3e-6, "{w} {r}");
                        assert!((f64::from(*h) - r).abs() < 2e-2, "{h} {r}");
                    }
                }
            }
        }
    }
}
