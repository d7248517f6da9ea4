//! How much work one submit may hold. Arithmetic only.
//!
//! Systems reset a device that works on one submission for too long, after two seconds at worst. Work is therefore cut
//! to what takes about a tenth of a second at the speed seen so far, and to very little before any was seen.

use std::time::Duration;

/// What a submit should take at most.
const TARGET: Duration = Duration::from_millis(100);

/// Bytes of weights in a submit to a device of unknown speed: 100 ms at 0.04 GB/s.
const FIRST: u64 = 4 << 20;

/// Smaller jobs say more about their fixed cost than about speed.
const TELLING: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Bytes of a submit.
    budget: u64,
    /// For tests: never more than this.
    most: u64,
}

impl Pace {
    pub fn new(most: Option<u64>) -> Self {
        Self { budget: FIRST, most: most.unwrap_or(u64::MAX) }
    }

    /// Tiles that a submit may hold, at least one.
    pub fn tiles(&self, tile_bytes: u64) -> u32 {
        u32::try_from(self.budget.min(self.most) / tile_bytes.max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Learns from a job. The budget is kept a power of two, so that it changes rarely: a change means recording anew.
    pub fn note(&mut self, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let target = u64::try_from(TARGET.as_micros()).unwrap_or(u64::MAX);
        if bytes < TELLING && took < TARGET {
            return;
        }
        let affordable = u64::try_from(u128::from(bytes) * u128::from(target) / u128::from(micros));
        let affordable = affordable.unwrap_or(u64::MAX).clamp(1, 1 << 40);
        let rounded = 1 << affordable.ilog2();
        // Down at once; up only when it is clearly too small, and no faster than by four.
        if rounded < self.budget || rounded >= self.budget.saturating_mul(2) {
            self.budget = rounded.min(self.budget.saturating_mul(4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: u64 = 64 * 324;
    const HEAD: u64 = 49152 * 324;

    #[test]
    fn an_unknown_device_gets_little_and_a_slow_one_less() {
        let mut pace = Pace::new(None);
        assert_eq!(u64::from(pace.tiles(TILE)), FIRST / TILE);
        // 0.1 GB/s: 10 MB in 100 ms.
        pace.note(HEAD, Duration::from_micros(HEAD / 100));
        let bytes = u64::from(pace.tiles(TILE)) * TILE;
        assert!((4_000_000..10_000_000).contains(&bytes), "{bytes}");
        // Twenty times slower.
        pace.note(HEAD, Duration::from_micros(HEAD / 5));
        let bytes = u64::from(pace.tiles(TILE)) * TILE;
        assert!((200_000..500_000).contains(&bytes), "{bytes}");
        assert_eq!(pace.tiles(1 << 30), 1);
    }

    #[test]
    fn a_fast_device_soon_gets_everything_at_once() {
        let mut pace = Pace::new(None);
        for _ in 0..4 {
            pace.note(HEAD, Duration::from_micros(50));
        }
        assert!(u64::from(pace.tiles(TILE)) * TILE > HEAD);
        let before = pace.budget;
        // Small jobs are all fixed cost.
        pace.note(TILE, Duration::from_millis(1));
        // A little slower than thought is no reason to record anew.
        assert_eq!(pace.budget, before);
        assert_eq!(Pace::new(Some(1)).tiles(TILE), 1);
    }
}
