//! How far one model's predictions are from another's.

use serde::Serialize;

use super::Sum;

/// What was compared: two models' logits at the same positions of a text.
#[derive(Debug, Default)]
pub struct Compared {
    /// `-ln p` of the tokens, as the parent predicts them.
    parent: Sum,
    /// Divergence at each position, in nats.
    divergences: Vec<f64>,
    /// Positions at which both have the same token on top.
    same_top: usize,
}

/// The part of `ppl --json` about the parent.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The parent's perplexity.
    pub ppl: f64,
    /// Kullback-Leibler divergence from the parent's distribution to the model's, in nats: mean, error of the mean,
    /// 99th percentile and largest.
    pub kld_mean: f64,
    pub kld_error: f64,
    pub kld_p99: f64,
    pub kld_max: f64,
    /// Part of the positions at which both have the same token on top.
    pub same_top: f64,
}

impl Compared {
    /// Compares two models' logits, `[n_vocab]` each, where `target` follows. False if they are not numbers.
    pub fn add(&mut self, parent: &[f32], model: &[f32], target: u32) -> bool {
        let (Some(p), Some(q)) = (LogSum::of(parent), LogSum::of(model)) else { return false };
        let Some(&logit) = parent.get(target as usize) else { return false };
        let mut divergence = 0.0;
        for (&a, &b) in parent.iter().zip(model) {
            let (a, b) = (f64::from(a) - p.0, f64::from(b) - q.0);
            divergence += libm::exp(a) * (a - b);
        }
        if !divergence.is_finite() {
            return false;
        }
        self.parent.add(p.0 - f64::from(logit));
        // Rounding may take equal distributions below 0.
        self.divergences.push(divergence.max(0.0));
        self.same_top += usize::from(top(parent) == top(model));
        true
    }

    /// The figures. There is at least one position.
    pub fn report(mut self) -> Report {
        self.divergences.sort_by(f64::total_cmp);
        let n = self.divergences.len().max(1) as f64;
        let mean = self.divergences.iter().sum::<f64>() / n;
        let variance = self.divergences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / n;
        let last = self.divergences.len().saturating_sub(1);
        let at =
            |part: f64| self.divergences.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0);
        Report {
            ppl: self.parent.perplexity().0,
            kld_mean: mean,
            kld_error: if last > 0 { (variance / last as f64).sqrt() } else { 0.0 },
            kld_p99: at(0.99),
            kld_max: at(1.0),
            same_top: self.same_top as f64 / n,
        }
    }
}

/// The logarithm of `sum exp` of logits.
struct LogSum(f64);

impl LogSum {
    fn of(logits: &[f32]) -> Option<Self> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit - max))).sum();
        let log = f64::from(max) + libm::log(sum);
        log.is_finite().then_some(Self(log))
    }
}

/// The first of the largest.
fn top(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |top, i| if logits[i] > logits[top] { i } else { top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_laws() {
        let law = |p: &[f32]| p.iter().map(|p| p.ln() + 3.0).collect::<Vec<_>>();
        let (p, q) = (law(&[0.5, 0.25, 0.25]), law(&[0.25, 0.5, 0.25]));
        let mut compared = Compared::default();
        assert!(compared.add(&p, &q, 0) && compared.add(&p, &p, 2));
        let report = compared.report();
        // By hand: 0.5 ln 2 + 0.25 ln 0.5 = 0.173287; half of that is the mean of both, and the error of it.
        assert!((report.kld_max - 0.173_286_8).abs() < 1e-6 && report.kld_max == report.kld_p99);
        assert!(
            (report.kld_mean - 0.086_643_4).abs() < 1e-6 && (report.kld_error - 0.086_643_4).abs() < 1e-6
        );
        assert_eq!(report.same_top, 0.5);
        // Of 1/2 and 1/4: the root of 8.
        assert!((report.ppl - 8f64.sqrt()).abs() < 1e-6, "{}", report.ppl);
        let mut compared = Compared::default();
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!compared.add(&[0.0, bad], &[0.0, 0.0], 0) && !compared.add(&[0.0; 2], &[bad, 0.0], 0));
        }
        assert!(!compared.add(&[0.0; 2], &[0.0; 2], 2));
    }
}
