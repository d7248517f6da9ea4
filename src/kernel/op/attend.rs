//! Attention of the query heads that share one key and value head, of one token or several.

use super::element::Element;
use super::softmax::exp_sum;
use crate::kernel::isa::{Aligned, Simd};
use crate::kernel::par::Cols;
use std::ops::Range;

/// The most queries that go through keys and values together, on any instruction set.
pub const QUERIES: usize = 8;

/// How many bytes before they are read keys and values are asked for, where they come from memory: two pages on, so that the place
/// of the next is known in time. The hardware's own prefetcher ends where a page does.
const AHEAD: usize = 8192;

/// How many bytes before they are read they are moved to the second-level cache: the first waits for too few lines at once to take
/// all of memory's speed.
const FAR: usize = 24 << 10;

/// One head of a cache: `len` numbers for every position.
#[derive(Clone, Copy)]
pub struct Head<'a, E: Element> {
    /// The positions that are looked at, `[positions][stride]`
    pub data: &'a [E::Raw],
    /// The memory of a position, all heads together.
    pub stride: usize,
    /// Where the head begins.
    pub at: usize,
    /// Its numbers.
    pub len: usize,
}

impl<'a, E: Element> Head<'a, E> {
    #[inline(always)]
    fn row(&self, p: usize) -> &'a [E::Raw] {
        &self.data[p * self.stride + self.at..][..E::raw(self.len)]
    }

    #[inline(always)]
    fn rows(&self, positions: Range<usize>) -> impl Iterator<Item = &'a [E::Raw]> + use<'a, E> {
        let (at, end) = (self.at, self.at + E::raw(self.len));
        let data = &self.data[positions.start * self.stride..positions.end * self.stride];
        data.chunks_exact(self.stride).map(move |row| &row[at..end])
    }

    /// Asks for what lies [`AHEAD`] of position `p`.
    #[inline(always)]
    fn ask<S: Simd>(&self, s: S, p: usize) {
        let row = self.data.as_ptr().wrapping_add(p * self.stride + self.at).cast::<u8>();
        for line in (0..E::raw(self.len) * size_of::<E::Raw>()).step_by(64) {
            s.prefetch(row.wrapping_add(AHEAD + line));
        }
        // (Lines come in pairs.)
        for line in (0..E::raw(self.len) * size_of::<E::Raw>()).step_by(2 * 64) {
            s.prefetch_far(row.wrapping_add(FAR + line));
        }
    }

    /// Numbers `at..at + len` of the head.
    fn part(self, at: usize, len: usize) -> Self {
        Self { at: self.at + E::raw(at), len, ..self }
    }
}

/// The query heads of some tokens that attend to one head of the cache.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The first token's first head begins here; a token is `stride` behind the one before.
    pub data: &'a [f32],
    /// Numbers of a token, all heads together.
    pub stride: usize,
    /// Heads of a token, side by side.
    pub heads: usize,
    /// Numbers of a head.
    pub len: usize,
    /// For every token the positions that it sees, of those that the cache's heads hold.
    pub seen: &'a [Range<usize>],
}

impl<'a> Queries<'a> {
    /// Query `i`, heads of a token in a row.
    #[inline(always)]
    fn get(&self, i: usize) -> (&'a [f32], Range<usize>) {
        let (token, head) = (i / self.heads, i % self.heads);
        (&self.data[token * self.stride + head * self.len..][..self.len], self.seen[token].clone())
    }
}

/// For every query `q` into its own `out`: `sum_p e[p] * v[p] / sum_p e[p]` with `e[p] = exp(q . k[p] * scale - max)`, over
/// the positions `p` that it sees.
///
/// `out` has a row for each token, and `v.len` columns for each of its heads. The weighted sum runs over positions in
/// ascending order, one accumulator an element; the division comes last. So a query has the same bits alone and together
/// with others. `scores` is scratch.
#[inline(always)]
pub fn attend<S: Simd, K: Element, V: Element>(
    s: S,
    queries: &Queries<'_>,
    k: Head<'_, K>,
    v: Head<'_, V>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut Cols<'_, f32>,
) {
    let few = Few { s, queries, k, v, scale };
    let (mut first, count) = (0, queries.seen.len() * queries.heads);
    while first < count {
        // Stored numbers are read once for several queries. None is left over alone if that can be helped.
        let take = match count - first {
            8.. if S::QUERIES == 8 => 8,
            left @ (1 | 2) => left,
            4 => 2,
            _ => 3,
        };
        match take {
            1 => few.attend::<1>(first, scores, out),
            2 => few.attend::<2>(first, scores, out),
            8 if S::QUERIES == 8 => few.attend::<8>(first, scores, out),
            _ => few.attend::<3>(first, scores, out),
        }
        first += take;
    }
}

/// The operands of attention.
struct Few<'a, S, K: Element, V: Element> {
    s: S,
    queries: &'a Queries<'a>,
    k: Head<'a, K>,
    v: Head<'a, V>,
    scale: f32,
}

impl<S: Simd, K: Element, V: Element> Few<'_, S, K, V> {
    /// [`attend`] for `N` queries: as many as leave registers for all sums that are under way.
    #[inline(always)]
    fn attend<const N: usize>(&self, first: usize, scores: &mut Vec<f32>, out: &mut Cols<'_, f32>) {
        let (s, len) = (self.s, self.v.len);
        let (mut queries, mut seen) = ([&[][..]; N], [const { 0..0 }; N]);
        for i in 0..N {
            (queries[i], seen[i]) = self.queries.get(first + i);
        }
        let ends = |ranges: &[Range<usize>; N]| ranges.iter().map(|seen| seen.end).max().unwrap_or(0);
        let n = ends(&seen);
        if scores.len() < N * n {
            scores.resize(N * n, 0.0);
        }
        let scores = &mut scores[..N * n];
        // Another token or the heads before have just read all of it.
        let fresh = first == 0 && self.queries.seen.len() == 1;
        self.scores::<N>(queries, &seen, scores, fresh);
        let mut sums = [s.splat(0.0); N];
        for ((sum, scores), seen) in sums.iter_mut().zip(scores.chunks_exact_mut(n)).zip(&seen) {
            *sum = s.splat(exp_sum(s, &mut scores[seen.clone()]));
        }
        let mut at = 0;
        while at < len {
            let width = match len - at {
                64.. if N == 1 || (N == 2 && S::QUERIES == 8) => 64,
                32.. => 32,
                left => left.min(16),
            };
            let v = self.v.part(at, width);
            let mut to = |i: usize, sums: &[f32]| {
                let (token, head) = ((first + i) / self.queries.heads, (first + i) % self.queries.heads);
                out.row(token)[head * len + at..][..width].copy_from_slice(&sums[..width]);
            };
            match width {
                64 => weigh::<S, V, N, 4>(s, scores, &seen, v, fresh, sums, &mut to),
                32 => weigh::<S, V, N, 2>(s, scores, &seen, v, fresh, sums, &mut to),
                _ => weigh::<S, V, N, 1>(s, scores, &seen, v, fresh, sums, &mut to),
            }
            at += width;
        }
    }

    /// `scores[i][p] = queries[i] . k[p] * scale` for the positions that any of the queries sees: also where one does not see
    /// what another does, so that all are computed alike.
    #[inline(always)]
    fn scores<const N: usize>(
        &self,
        queries: [&[f32]; N],
        seen: &[Range<usize>; N],
        scores: &mut [f32],
        fresh: bool,
    ) {
        let n = scores.len() / N;
        let mut p = seen.iter().map(|seen| seen.start).min().unwrap_or(0);
        // (Whole fours have a loop of their own: to store fewer takes a call.)
        while p + 4 <= n {
            if fresh {
                for p in p..p + 4 {
                    self.k.ask(self.s, p);
                }
            }
            let dots = self.four(queries, p, 4);
            for (dots, scores) in dots.iter().zip(scores.chunks_exact_mut(n)) {
                for (score, dot) in scores[p..p + 4].iter_mut().zip(dots) {
                    *score = dot * self.scale;
                }
            }
            p += 4;
        }
        if p < n {
            let dots = self.four(queries, p, n - p);
            for (dots, scores) in dots.iter().zip(scores.chunks_exact_mut(n)) {
                scores[p..].iter_mut().zip(dots).for_each(|(score, dot)| *score = dot * self.scale);
            }
        }
    }

    /// The dot products with the keys of up to four positions from `p` on, the last of which is taken again if there are fewer.
    #[inline(always)]
    fn four<const N: usize>(&self, queries: [&[f32]; N], p: usize, count: usize) -> [[f32; 4]; N] {
        let row = |i: usize| self.k.row(p + i.min(count - 1));
        dots::<S, K, N>(self.s, queries, [row(0), row(1), row(2), row(3)])
    }
}

/// The [dot products](super::dot::dot) of `N` queries with the keys of four positions, two in each pair of vectors.
#[inline(always)]
fn dots<S: Simd, E: Element, const N: usize>(s: S, q: [&[f32]; N], k: [&[E::Raw]; 4]) -> [[f32; 4]; N] {
    let n = E::units(k[0]).len();
    let (mut units, mut eights) = ([&E::units(k[0])[..0]; 4], [&q[0].as_chunks::<8>().0[..0]; N]);
    for (units, k) in units.iter_mut().zip(k) {
        *units = &E::units(k)[..n];
    }
    for (eights, q) in eights.iter_mut().zip(q) {
        *eights = &q.as_chunks().0[..n * E::EIGHTS];
    }
    let mut acc = [[s.splat2(0.0); 2]; N];
    for u in 0..n {
        for e in 0..E::EIGHTS {
            let k01 = E::load2(s, [(&units[0][u], e), (&units[1][u], e)]);
            let k23 = E::load2(s, [(&units[2][u], e), (&units[3][u], e)]);
            for (acc, q) in acc.iter_mut().zip(eights) {
                let q = s.load_both(&q[u * E::EIGHTS + e]);
                acc[0] = s.add2(acc[0], s.mul2(q, k01));
                acc[1] = s.add2(acc[1], s.mul2(q, k23));
            }
        }
    }
    let done = n * E::EIGHTS * 8;
    if done < q[0].len() {
        // Fewer than eight numbers, and zeros after them: those add +0, which changes nothing.
        let rest = k.map(|k| E::rest(&k[E::raw(done)..])[0]);
        let k01 = E::load2(s, [(&rest[0], 0), (&rest[1], 0)]);
        let k23 = E::load2(s, [(&rest[2], 0), (&rest[3], 0)]);
        for (acc, q) in acc.iter_mut().zip(q) {
            let mut padded = [0.0; 8];
            padded[..q.len() - done].copy_from_slice(&q[done..]);
            let q = s.load_both(&padded);
            acc[0] = s.add2(acc[0], s.mul2(q, k01));
            acc[1] = s.add2(acc[1], s.mul2(q, k23));
        }
    }
    s.sums(acc)
}

/// Numbers `16 i..16 i + 16` of a row.
#[inline(always)]
fn sixteen<S: Simd, E: Element>(s: S, row: &[E::Raw], i: usize) -> S::W {
    let units = E::units(row);
    let eight = |i: usize| (&units[i / E::EIGHTS], i % E::EIGHTS);
    E::load2(s, [eight(2 * i), eight(2 * i + 1)])
}

/// The weighted sums of up to `16 W` numbers of each position that a query sees, divided by `sums`; `e` is `[N][positions]`. `to`
/// is called with the number of each query and its sums.
#[inline(always)]
fn weigh<S: Simd, E: Element, const N: usize, const W: usize>(
    s: S,
    e: &[f32],
    seen: &[Range<usize>; N],
    v: Head<'_, E>,
    fresh: bool,
    sums: [S::V; N],
    to: &mut impl FnMut(usize, &[f32]),
) {
    let n = e.len() / N;
    let mut acc = [[s.splat2(0.0); W]; N];
    // What all see is between what only some do. To weigh the rest with 0 would not do: a number there may not be finite.
    let first = seen.iter().map(|seen| seen.start).min().unwrap_or(0);
    let common = seen.iter().map(|seen| seen.start).max().unwrap_or(0).min(n);
    let end = seen.iter().map(|seen| seen.end).min().unwrap_or(0).max(common);
    acc = add::<S, E, N, W, false>(s, e, seen, v, fresh, first..common, acc);
    acc = add::<S, E, N, W, true>(s, e, seen, v, fresh, common..end, acc);
    acc = add::<S, E, N, W, false>(s, e, seen, v, fresh, end..n, acc);
    for (h, (acc, sum)) in acc.into_iter().zip(sums).enumerate() {
        let mut lanes = Aligned([[[0.0; 8]; 2]; W]);
        for (acc, lanes) in acc.into_iter().zip(&mut lanes.0) {
            for (acc, lanes) in s.halves(acc).into_iter().zip(lanes) {
                s.store(s.div(acc, sum), lanes);
            }
        }
        to(h, lanes.0.as_flattened().as_flattened());
    }
}

/// Adds to the sums what some positions contribute, which every query sees (`ALL`) or only some do. Whether one does must not be
/// asked in the loop that does most of the work.
#[inline(always)]
fn add<S: Simd, E: Element, const N: usize, const W: usize, const ALL: bool>(
    s: S,
    e: &[f32],
    seen: &[Range<usize>; N],
    v: Head<'_, E>,
    fresh: bool,
    positions: Range<usize>,
    mut acc: [[S::W; W]; N],
) -> [[S::W; W]; N] {
    let (n, start, count) = (e.len() / N, positions.start, positions.len());
    // (A loop: `array::from_fn` is not inlined here, and what it makes is in memory.)
    let mut weights = [&e[..0]; N];
    for (h, weights) in weights.iter_mut().enumerate() {
        *weights = &e[h * n + start..][..count];
    }
    for (i, row) in (0..count).zip(v.rows(positions)) {
        if fresh {
            v.ask(s, start + i);
        }
        for w in 0..W {
            let v = if W == 1 && v.len < 16 {
                let rest = E::rest(row);
                E::load2(s, [(&rest[0], 0), (&rest[1], 0)])
            } else {
                sixteen::<S, E>(s, row, w)
            };
            for h in 0..N {
                if ALL || seen[h].contains(&(start + i)) {
                    acc[h][w] = s.add2(acc[h][w], s.mul2(s.splat2(weights[h][i]), v));
                }
            }
        }
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::isa::Isa;
    use crate::kernel::op::element::{F16, F32, Q4_0, Q8_0, read};

    const SCALE: f32 = 0.3;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| (((i + seed) * 7919 % 401) as f32 - 200.0) * 0.004).collect()
    }

    /// A cache of three heads, of which the second is looked at, and the numbers it holds there.
    struct Stored<E: Element> {
        data: Vec<E::Raw>,
        len: usize,
        read: Vec<f32>,
    }

    impl<E: Element> Stored<E> {
        fn new(positions: usize, len: usize, seed: usize) -> Self {
            let x = numbers(positions * 3 * len, seed);
            let mut data = vec![E::Raw::default(); 3 * positions * E::raw(len)];
            let heads = data.chunks_exact_mut(E::raw(len)).zip(x.chunks_exact(len));
            heads.for_each(|(to, x)| crate::simd!(Isa::Scalar, s => E::store(s, x, to)));
            let seconds = data.chunks_exact(E::raw(len)).skip(1).step_by(3);
            let read =
                seconds.flat_map(|row| crate::simd!(Isa::Scalar, s => read::<_, E>(s, row, len))).collect();
            Self { data, len, read }
        }

        fn head(&self) -> Head<'_, E> {
            Head { data: &self.data, stride: 3 * E::raw(self.len), at: E::raw(self.len), len: self.len }
        }
    }

    /// The formula in f64 for one query.
    fn real(q: &[f32], seen: Range<usize>, k: &[f32], v: &[f32], v_len: usize) -> Vec<f64> {
        let rows = |x: &'static str, all: &[f32], len: usize| -> Vec<Vec<f64>> {
            assert!(all.len() >= seen.end * len, "{x}");
            seen.clone().map(|p| all[p * len..][..len].iter().map(|&x| f64::from(x)).collect()).collect()
        };
        let dot = |k: &Vec<f64>| q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum::<f64>();
        let scores: Vec<f64> = rows("keys", k, q.len()).iter().map(|k| dot(k) * f64::from(SCALE)).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let (sum, v) = (e.iter().sum::<f64>(), rows("values", v, v_len));
        (0..v_len).map(|d| e.iter().zip(&v).map(|(e, v)| e * v[d]).sum::<f64>() / sum).collect()
    }

    fn run<K: Element, V: Element>(isa: Isa, q: &Queries<'_>, k: Head<'_, K>, v: Head<'_, V>) -> Vec<f32> {
        let width = q.heads * v.len;
        let mut out = vec![f32::NAN; q.seen.len() * width];
        let mut cols = Cols::whole(&mut out, width);
        crate::simd!(isa, s => attend(s, q, k, v, SCALE, &mut Vec::new(), &mut cols));
        drop(cols);
        out
    }

    /// Several queries at once against the formula, and against each query alone in scalar code.
    fn check<K: Element, V: Element>(k_len: usize, v_len: usize, heads: usize, seen: &[Range<usize>]) {
        let positions = seen.iter().map(|seen| seen.end).max().expect("a token");
        let (k, v) = (Stored::<K>::new(positions, k_len, 1), Stored::<V>::new(positions, v_len, 5));
        let stride = (heads + 1) * k_len;
        let data = numbers(seen.len() * stride, 3);
        let all = Queries { data: &data, stride, heads, len: k_len, seen };
        let mut want = Vec::new();
        for i in 0..seen.len() * heads {
            let (q, seen) = all.get(i);
            let alone =
                Queries { data: q, stride: k_len, heads: 1, len: k_len, seen: std::slice::from_ref(&seen) };
            let alone = run(Isa::Scalar, &alone, k.head(), v.head());
            for (a, r) in alone.iter().zip(real(q, seen, &k.read, &v.read, v_len)) {
                assert!((f64::from(*a) - r).abs() < 3e-6, "{a} {r}");
            }
            want.extend(alone);
        }
        for isa in Isa::all() {
            let got = run(isa, &all, k.head(), v.head());
            let wrong = got.iter().zip(&want).position(|(g, w)| g.to_bits() != w.to_bits());
            assert_eq!(wrong, None, "{k_len} {v_len}, {heads} heads, {seen:?}, {isa:?}");
        }
    }

    #[test]
    fn values_and_bits_for_every_shape() {
        for positions in [1, 2, 9, 70] {
            for heads in 1..=13 {
                let seen = &[const { 0..0 }; 1].map(|_| 0..positions);
                for (k_len, v_len) in [(64, 64), (48, 80), (20, 12), (128, 130)] {
                    check::<F16, F16>(k_len, v_len, heads, seen);
                }
                check::<F32, F32>(256, 256, heads, seen);
                check::<F32, F32>(20, 12, heads, seen);
                for (k_len, v_len) in [(64, 96), (128, 32)] {
                    check::<Q8_0, Q8_0>(k_len, v_len, heads, seen);
                    check::<Q8_0, Q4_0>(k_len, v_len, heads, seen);
                }
            }
        }
    }

    #[test]
    fn tokens_share_what_they_all_see() {
        // A context that grows, a window that moves, one shorter than the tokens are many, and tokens far apart.
        let tokens: [&[Range<usize>]; 5] = [
            &[0..1, 0..2, 0..3, 0..4, 0..5, 0..6, 0..7, 0..8],
            &[0..29, 0..30, 0..31, 0..32],
            &[0..16, 1..17, 2..18, 3..19],
            &[5..7, 6..8, 7..9, 8..10],
            &[0..3, 20..21],
        ];
        for seen in tokens {
            for heads in [1, 2, 3] {
                check::<F16, F16>(64, 64, heads, seen);
                check::<F16, F16>(20, 12, heads, seen);
                check::<F32, F32>(32, 40, heads, seen);
                check::<Q8_0, Q8_0>(64, 64, heads, seen);
                check::<Q8_0, Q4_0>(64, 64, heads, seen);
            }
        }
    }

    #[test]
    fn a_number_that_is_not_finite_reaches_only_those_that_see_it() {
        let (k, mut v) = (Stored::<F32>::new(12, 16, 1), Stored::<F32>::new(12, 16, 5));
        v.data[3 * 16 * 10 + 16..][..16].fill(f32::NAN);
        let data = numbers(4 * 16, 3);
        let queries =
            Queries { data: &data, stride: 16, heads: 1, len: 16, seen: &[0..9, 0..10, 0..11, 11..12] };
        for isa in Isa::all() {
            let out = run(isa, &queries, k.head(), v.head());
            let nan: Vec<bool> = out.chunks(16).map(|out| out.iter().any(|x| x.is_nan())).collect();
            assert_eq!(nan, [false, false, true, false], "{isa:?}");
        }
    }
}
