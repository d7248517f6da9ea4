//! Truncation of the vocabulary to the likelier tokens, and the draw among them.
//!
//! A candidate is one u64: the logit's bits, mapped so that integers order as the floats do, above the complement of
//! its id. Falling keys are falling logits with rising ids among equals, a total order which needs no float compare:
//! selection and sorting run on plain integers, and their result does not depend on the algorithm.

use super::Params;

/// How many candidates top-p orders first; it asks for four times as many until their probability suffices.
const FIRST_RUN: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct Candidates {
    /// Sorted, likeliest first, after [`Candidates::truncate`].
    keys: Vec<u64>,
    weights: Vec<f64>,
}

fn key(id: u32, logit: f32) -> u64 {
    // Adding 0 makes -0 and 0 equal.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

fn logit(key: u64) -> f64 {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    f64::from(f32::from_bits(bits))
}

fn id(key: u64) -> u32 {
    !(key as u32)
}

impl Candidates {
    /// Takes every token of `logits`, `[n_vocab]`, that is not ruled out by minus infinity.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.keys.clear();
        let possible = (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        self.keys.extend(possible.map(|(id, &logit)| key(id, logit)));
    }

    /// Top-k, top-p and min-p, in this order; leaves at least one candidate if there was one, sorted.
    pub(super) fn truncate(&mut self, params: &Params) {
        let k = params.top_k;
        if k > 0 && k < self.keys.len() {
            self.keys.select_nth_unstable_by(k, |a, b| b.cmp(a));
            self.keys.truncate(k);
        }
        let max = self.keys.iter().copied().max().map_or(0.0, logit);
        if params.top_p < 1.0 {
            self.top_p(f64::from(params.top_p), max, k > 0);
        }
        if params.min_p > 0.0 {
            let least = max + libm::log(f64::from(params.min_p));
            self.keys.retain(|&key| logit(key) >= least);
        }
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Keeps the shortest run of likeliest candidates with at least `p` of the probability of all.
    fn top_p(&mut self, p: f64, max: f64, sorted_first: bool) {
        if sorted_first {
            // The order of the sum below must not depend on how selection left the candidates.
            self.keys.sort_unstable_by(|a, b| b.cmp(a));
        }
        let total: f64 = self.keys.iter().map(|&key| libm::exp(logit(key) - max)).sum();
        let wanted = p * total;
        let (mut reached, mut kept, mut run) = (0.0, 0, FIRST_RUN);
        while kept < self.keys.len() {
            let rest = self.keys.split_at_mut(kept).1;
            let n = run.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n, |a, b| b.cmp(a));
            }
            let next = rest.split_at_mut(n).0;
            next.sort_unstable_by(|a, b| b.cmp(a));
            for &mut key in next {
                reached += libm::exp(logit(key) - max);
                kept += 1;
                if reached >= wanted {
                    self.keys.truncate(kept);
                    return;
                }
            }
            run *= 4;
        }
    }

    /// The candidate at `uniform`, in (0, 1), of the running sum of weights `exp((logit - max) / temperature)`.
    pub(super) fn draw(&mut self, temperature: f64, uniform: f64) -> u32 {
        let max = self.keys.first().copied().map_or(0.0, logit);
        self.weights.clear();
        let mut sum = 0.0;
        self.weights.extend(self.keys.iter().map(|&key| {
            sum += libm::exp((logit(key) - max) / temperature);
            sum
        }));
        let point = uniform * sum;
        let index = self.weights.partition_point(|&upto| upto <= point);
        // Rounding can put the point on the sum itself: then it is the last candidate with a weight.
        let index = index.min(self.weights.partition_point(|&upto| upto < sum));
        self.keys.get(index).copied().map_or(0, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Rng;

    fn kept(params: &Params, logits: &[f32]) -> Vec<u32> {
        let mut candidates = Candidates::default();
        candidates.fill(logits);
        candidates.truncate(params);
        candidates.keys.iter().map(|&key| id(key)).collect()
    }

    #[test]
    fn keys_order_as_logits_then_ids() {
        let floats = [f32::MIN, -1.0, -f32::MIN_POSITIVE, -1e-45, 0.0, 1e-45, 0.1, 1.0, f32::MAX];
        for pair in floats.windows(2) {
            assert!(key(0, pair[0]) < key(u32::MAX, pair[1]));
        }
        assert!(key(1, 0.5) > key(2, 0.5));
        assert!(key(1, -0.0) > key(2, 0.0));
        for float in floats {
            assert_eq!((logit(key(77, float)), id(key(77, float))), (f64::from(float), 77));
        }
    }

    /// The definition, by sorting everything.
    fn plain(params: &Params, logits: &[f32]) -> Vec<u32> {
        let mut order: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&l| f64::from(l))).collect();
        order.retain(|(_, l)| *l > f64::NEG_INFINITY);
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if params.top_k > 0 {
            order.truncate(params.top_k);
        }
        let max = order.first().expect("one candidate").1;
        let total: f64 = order.iter().map(|(_, l)| (l - max).exp()).sum();
        let mut sum = 0.0;
        let mut n = order.len();
        for (i, (_, l)) in order.iter().enumerate() {
            sum += (l - max).exp() / total;
            if sum >= f64::from(params.top_p) {
                n = i + 1;
                break;
            }
        }
        order.truncate(n);
        order.retain(|(_, l)| (l - max).exp() >= f64::from(params.min_p));
        order.into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn truncation_is_its_definition() {
        let mut rng = Rng::new(1);
        for n in [1usize, 2, 10, 255, 256, 257, 3000] {
            for spread in [0.5, 4.0, 30.0] {
                let mut logits: Vec<f32> = (0..n).map(|_| (rng.uniform() * spread) as f32).collect();
                if n > 9 {
                    logits[3] = f32::NEG_INFINITY;
                    logits[5] = logits[7];
                }
                for top_k in [0, 1, 2, 40, n, n + 1] {
                    for top_p in [0.0, 0.31, 0.9, 0.999, 1.0] {
                        for min_p in [0.0, 0.05, 0.7, 1.0] {
                            let params = Params { top_k, top_p, min_p, ..Params::default() };
                            let kept = kept(&params, &logits);
                            assert_eq!(kept, plain(&params, &logits), "{n} logits, {params:?}");
                            assert!(!kept.is_empty());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_draw_finds_each_part_of_the_interval() {
        let mut candidates = Candidates::default();
        // Probabilities 1/2, 1/4, 1/4 and one of no weight at all.
        candidates.fill(&[0.0, 2f32.ln(), 0.0, -3.0e38]);
        candidates.truncate(&Params { top_k: 4, ..Params::default() });
        for (point, wanted) in [
            (1e-16, 1),
            (0.499, 1),
            (0.501, 0),
            (0.749, 0),
            (0.751, 2),
            (1.0 - f64::EPSILON / 2.0, 2),
            (1.0, 2),
        ] {
            assert_eq!(candidates.draw(1.0, point), wanted, "{point}");
        }
        assert_eq!(candidates.draw(f64::MIN_POSITIVE, 0.999), 1);
    }

    #[test]
    fn the_second_token_allocates_nothing() {
        let logits: Vec<f32> = (0..5000).map(|i| (i as f32).sin()).collect();
        let mut candidates = Candidates::default();
        let params = Params { top_p: 0.99, ..Params::default() };
        let round = |candidates: &mut Candidates| {
            candidates.fill(&logits);
            candidates.truncate(&params);
            candidates.draw(1.0, 0.5);
            (candidates.keys.as_ptr(), candidates.weights.as_ptr())
        };
        let first = round(&mut candidates);
        assert_eq!(round(&mut candidates), first);
    }
}
