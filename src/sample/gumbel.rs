//! Sampling from the whole vocabulary by Gumbel-max.
//!
//! With `v` uniform in (0, 1), `g = -ln(-ln(1 - v))` is a standard Gumbel number, and the token with the largest
//! `score + g` is a draw from `softmax(score)` (Gumbel, 1954). Two logarithms a token would cost more than the
//! forward pass of a small model; but as `-ln(1 - v) >= v`, `g <= -ln v`, which the leading zeros of the random
//! bits bound: all but a few tokens cannot win and are passed over without a logarithm, with the same result.

use super::rng::{self, Rng};

/// One draw from `softmax(logits / temperature)`: `logits` `[n_vocab]`, none above `max`, which is finite.
pub(super) fn draw(logits: &[f32], max: f32, temperature: f64, rng: &mut Rng) -> u32 {
    let mut best = f64::NEG_INFINITY;
    let mut winner = 0;
    for (id, &logit) in (0..).zip(logits) {
        // The order of draws belongs to the contract: one a token, ruled out or not.
        let bits = rng.bits();
        let score = f64::from(logit - max) / temperature;
        if score + bound(bits) > best {
            let value = score + gumbel(bits);
            if value > best {
                best = value;
                winner = id;
            }
        }
    }
    winner
}

fn gumbel(bits: u64) -> f64 {
    -libm::log(-libm::log1p(-rng::open_unit(bits)))
}

/// No less than `gumbel(bits)`: `v` is at least 2^-(z + 1) with z leading zeros, so `-ln v <= (z + 1) ln 2`; the
/// constant is a little above ln 2 to stand clear of rounding.
fn bound(bits: u64) -> f64 {
    const ABOVE_LN_2: f64 = std::f64::consts::LN_2 + 1e-8;
    f64::from(bits.leading_zeros() + 1) * ABOVE_LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds() {
        let mut rng = Rng::new(3);
        let edges = (0..64).flat_map(|shift| [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift]);
        for bits in edges.chain((0..100_000).map(|_| rng.bits())) {
            assert!(gumbel(bits).is_finite(), "{bits:#x}");
            assert!(gumbel(bits) <= bound(bits), "{bits:#x}: {} above {}", gumbel(bits), bound(bits));
        }
    }

    #[test]
    fn passing_over_losers_changes_nothing() {
        let mut noise = Rng::new(11);
        for round in 0..50 {
            let logits: Vec<f32> = (0..2000).map(|_| (noise.uniform() * 12.0 - 6.0) as f32).collect();
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut rng = Rng::new(round);
            let mut plain = (f64::NEG_INFINITY, 0);
            for (id, &logit) in (0..).zip(&logits) {
                let value = f64::from(logit - max) / 0.8 + gumbel(rng.bits());
                if value > plain.0 {
                    plain = (value, id);
                }
            }
            assert_eq!(draw(&logits, max, 0.8, &mut Rng::new(round)), plain.1);
        }
    }

    #[test]
    fn impossible_tokens_never_win() {
        let mut rng = Rng::new(5);
        let logits = [f32::NEG_INFINITY, -3.0e38, 1.0, f32::NEG_INFINITY];
        for _ in 0..1000 {
            assert_eq!(draw(&logits, 1.0, 1.0, &mut rng), 2);
            assert_eq!(draw(&logits, 1.0, f64::MIN_POSITIVE, &mut rng), 2);
        }
    }
}
