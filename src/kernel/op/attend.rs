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

    /// Elements `at..at + len` of the head.
    fn part(self, at: usize, len: usize) -> Self {
        Self { at: self.at + at, len, ..self }
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
    let mut h = 0;
    while h < heads {
        // Stored numbers are widened once for several heads. No head is left over alone if that can be helped.
        let take = match heads - h {
            1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        let q = &q[h * k.len..][..take * k.len];
        let scores = &mut scores[h * n..][..take * n];
        let out = &mut out[h * v.len..][..take * v.len];
        match take {
            1 => some::<S, E, 1>(s, q, k, v, scale, scores, out),
            2 => some::<S, E, 2>(s, q, k, v, scale, scores, out),
            _ => some::<S, E, 3>(s, q, k, v, scale, scores, out),
        }
        h += take;
    }
}

/// The same for `N` heads: as many as leave registers for all sums that are under way.
#[inline(always)]
fn some<S: Simd, E: Element, const N: usize>(
    s: S,
    q: &[f32],
    k: Head<'_, E>,
    v: Head<'_, E>,
    scale: f32,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let n = scores.len() / N;
    let mut heads = [&q[..0]; N];
    for (h, head) in heads.iter_mut().enumerate() {
        *head = &q[h * k.len..][..k.len];
    }
    let fours = k.data.chunks_exact(4 * k.stride);
    let rest = fours.remainder();
    let mut p = 0;
    for four in fours {
        let row = |i: usize| &four[i * k.stride + k.at..][..k.len];
        let dots = dots::<S, E, N>(s, heads, [row(0), row(1), row(2), row(3)]);
        for (h, dots) in dots.iter().enumerate() {
            for (i, dot) in dots.iter().enumerate() {
                scores[h * n + p + i] = dot * scale;
            }
        }
        p += 4;
    }
    for row in rest.chunks_exact(k.stride) {
        for (h, q) in heads.iter().enumerate() {
            scores[h * n + p] = dot(s, q, &row[k.at..][..k.len]) * scale;
        }
        p += 1;
    }
    let mut sums = [s.splat(0.0); N];
    for (sum, scores) in sums.iter_mut().zip(scores.chunks_exact_mut(n)) {
        *sum = s.splat(exp_sum(s, scores));
    }
    let mut at = 0;
    while at < v.len {
        let wide = if N == 1 { 64 } else { 32 };
        let width = if v.len - at >= wide { wide } else { (v.len - at).min(16) };
        let part = v.part(at, width);
        match width {
            64 => weigh::<S, E, N, 4>(s, scores, part, sums, out, at, v.len),
            32 => weigh::<S, E, N, 2>(s, scores, part, sums, out, at, v.len),
            _ => weigh::<S, E, N, 1>(s, scores, part, sums, out, at, v.len),
        }
        at += width;
    }
}

/// The [dot products](dot) of `N` heads with the keys of four positions, two in each pair of vectors.
#[inline(always)]
fn dots<S: Simd, E: Element, const N: usize>(s: S, q: [&[f32]; N], k: [&[E]; 4]) -> [[f32; 4]; N] {
    let (k8, k_rest) = (k.map(|k| k.as_chunks::<8>().0), k.map(|k| k.as_chunks::<8>().1));
    let mut acc = [[s.splat2(0.0); 2]; N];
    for i in 0..k8[0].len() {
        let k = [E::load2(s, &k8[0][i], &k8[1][i]), E::load2(s, &k8[2][i], &k8[3][i])];
        for (acc, q) in acc.iter_mut().zip(q) {
            let q = s.load_both(&q.as_chunks::<8>().0[i]);
            acc[0] = s.add2(acc[0], s.mul2(q, k[0]));
            acc[1] = s.add2(acc[1], s.mul2(q, k[1]));
        }
    }
    if !k_rest[0].is_empty() {
        let k = k_rest.map(padded);
        let k = [E::load2(s, &k[0], &k[1]), E::load2(s, &k[2], &k[3])];
        for (acc, q) in acc.iter_mut().zip(q) {
            let q = s.load_both(&padded(q.as_chunks::<8>().1));
            acc[0] = s.add2(acc[0], s.mul2(q, k[0]));
            acc[1] = s.add2(acc[1], s.mul2(q, k[1]));
        }
    }
    let mut dots = [[0.0; 4]; N];
    for (dots, acc) in dots.iter_mut().zip(acc) {
        let ([p0, p1], [p2, p3]) = (s.halves(acc[0]), s.halves(acc[1]));
        *dots = s.sum4([p0, p1, p2, p3]);
    }
    dots
}

/// Fewer than eight elements, and zeros after them: those add +0, which changes nothing.
#[inline(always)]
fn padded<E: Element>(rest: &[E]) -> [E; 8] {
    let mut pad = [E::default(); 8];
    pad[..rest.len()].copy_from_slice(rest);
    pad
}

/// The weighted sums of up to `16 W` elements of each position, divided by `sums`; `e` is `[N][positions]`. They go to `at..` of
/// each head's `len` outputs.
#[inline(always)]
fn weigh<S: Simd, E: Element, const N: usize, const W: usize>(
    s: S,
    e: &[f32],
    v: Head<'_, E>,
    sums: [S::V; N],
    out: &mut [f32],
    at: usize,
    len: usize,
) {
    let n = e.len() / N;
    let mut acc = [[s.splat2(0.0); W]; N];
    for (p, v) in v.rows().enumerate() {
        let (v16, rest) = v.as_chunks::<16>();
        let mut add = |w: usize, v: S::W| {
            for (h, acc) in acc.iter_mut().enumerate() {
                acc[w] = s.add2(acc[w], s.mul2(s.splat2(e[h * n + p]), v));
            }
        };
        for (w, v) in v16.iter().enumerate().take(W) {
            let eights = v.as_chunks::<8>().0;
            add(w, E::load2(s, &eights[0], &eights[1]));
        }
        if !rest.is_empty() {
            let (first, last) = rest.split_at(rest.len().min(8));
            add(0, E::load2(s, &padded(first), &padded(last)));
        }
    }
    for (h, (acc, sum)) in acc.into_iter().zip(sums).enumerate() {
        let out = &mut out[h * len + at..][..v.len];
        for (acc, out) in acc.into_iter().zip(out.chunks_mut(16)) {
            for (acc, out) in s.halves(acc).into_iter().zip(out.chunks_mut(8)) {
                let mut lanes = [0.0; 8];
                s.store(s.div(acc, sum), &mut lanes);
                out.copy_from_slice(&lanes[..out.len()]);
            }
        }
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
                for heads in [1, 2, 3, 4, 7] {
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
