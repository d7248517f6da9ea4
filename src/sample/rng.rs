//! The random source of sampling: xorshift64*, the same sequence for the same seed on every machine.

/// A xorshift64* generator (Vigna, 2016): 64 bits of state, period 2^64 - 1. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Any seed is good, 0 included: it passes through one splitmix64 step, so that close seeds give unrelated
    /// sequences.
    pub fn new(seed: u64) -> Self {
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The one state xorshift cannot leave.
        Rng { state: if z == 0 { 1 } else { z } }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let mut x = self.state;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.state = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A uniform number in the open interval (0, 1).
    pub fn uniform(&mut self) -> f64 {
        open_unit(self.bits())
    }
}

/// 64 random bits as a number strictly between 0 and 1: their top 52 and a half, over 2^52, which f64 holds exactly.
pub(super) fn open_unit(bits: u64) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 52) as f64;
    ((bits >> 12) as f64 + 0.5) * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xorshift64_star_gives_the_published_sequence() {
        // Worked by hand from the definition: state 1 becomes 1 ^ 1 << 25, times the multiplier.
        let mut rng = Rng { state: 1 };
        assert_eq!(rng.bits(), 0x47e4_ce4b_896c_dd1d);
        assert_eq!(rng.bits(), 0xabcf_a6a8_e079_651d);
    }

    #[test]
    fn splitmix64_scrambles_the_seed() {
        // First output of splitmix64 for seed 0.
        assert_eq!(Rng::new(0).state, 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn the_unit_interval_is_open() {
        assert!(open_unit(0) > 0.0);
        assert!(open_unit(u64::MAX) < 1.0);
        assert_eq!(open_unit(1 << 63), 0.5 + f64::EPSILON / 2.0);
    }

    #[test]
    fn uniform_numbers_have_the_mean_and_variance_of_their_law() {
        let mut rng = Rng::new(42);
        let n = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let u = rng.uniform();
            sum += u;
            squares += u * u;
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.5).abs() < 0.004, "mean {mean}");
        assert!((variance - 1.0 / 12.0).abs() < 0.002, "variance {variance}");
    }
}
