//! Where to cut the head between CPU and device: arithmetic on measured times, nothing else.
//!
//! Rows `[0..k)` are the CPU's, `[k..vocab)` the device's, computed at the same time. The CPU takes `c` a row, the device
//! `a + b` a row. The best cut makes both finish together; with `a = 0` that is the classic
//! `device rows = vocab * tc / (tc + tg)` for whole-head times `tc` and `tg`. It is used only if it is measured to be
//! faster by a margin that noise does not reach.

use std::time::Duration;

/// Samples a median is taken of before a decision.
pub const SAMPLES: usize = 15;

/// The least gain that counts, as a part of the CPU's time for the whole head.
const MIN_GAIN: f64 = 0.05;

/// A device that takes this many times the CPU's time for the whole head is shut off.
const HOPELESS: f64 = 4.0;

/// Measured speeds, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// A row on all CPU threads.
    pub cpu_row: f64,
    /// What a job costs the device before its first row.
    pub fixed: f64,
    /// A row on the device.
    pub device_row: f64,
}

impl Rates {
    /// Rates from the CPU's time for the whole head and the device's times for two sizes. Noise cannot make a rate
    /// negative.
    pub fn fit(
        vocab: usize,
        cpu: f64,
        (small, t_small): (usize, f64),
        (large, t_large): (usize, f64),
    ) -> Self {
        let device_row = ((t_large - t_small) / (large.saturating_sub(small)).max(1) as f64).max(0.0);
        // A slope of 0 would promise rows for nothing: then all of the larger time is put down to its rows.
        let device_row = if device_row > 0.0 { device_row } else { t_large / large.max(1) as f64 };
        let fixed = (t_small - device_row * small as f64).max(0.0);
        Self { cpu_row: cpu / vocab.max(1) as f64, fixed, device_row }
    }

    /// The device's time for `rows`.
    pub fn device(&self, rows: usize) -> f64 {
        if rows == 0 { 0.0 } else { self.fixed + self.device_row * rows as f64 }
    }

    /// The number of rows for the device, a multiple of `tile` except that the head's last rows belong to it: 0 if the
    /// device cannot help. `most` is what it has loaded.
    pub fn device_rows(&self, vocab: usize, tile: usize, most: usize) -> usize {
        let whole = self.cpu_row * vocab as f64;
        if self.device(vocab) > HOPELESS * whole {
            return 0;
        }
        // c * (vocab - g) = a + b * g
        let best = (whole - self.fixed) / (self.cpu_row + self.device_row);
        if best.is_nan() || best < 1.0 {
            return 0;
        }
        rows_from_cut(vocab, tile, (best as usize).min(most))
    }

    /// The time of the head with `rows` on the device.
    pub fn both(&self, vocab: usize, rows: usize) -> f64 {
        (self.cpu_row * (vocab - rows) as f64).max(self.device(rows))
    }
}

/// The largest band of at most `rows` rows at the end of the head that begins on a multiple of `tile`.
pub fn rows_from_cut(vocab: usize, tile: usize, rows: usize) -> usize {
    let cut = (vocab - rows.min(vocab)).next_multiple_of(tile);
    vocab.saturating_sub(cut)
}

/// The band for a share that somebody asked for: at least one tile, so that the device is used at all.
pub fn forced_rows(vocab: usize, tile: usize, share: f64, most: usize) -> usize {
    let wanted = (vocab as f64 * share).round() as usize;
    let rows = rows_from_cut(vocab, tile, wanted.min(most));
    if rows > 0 || share <= 0.0 || most == 0 { rows } else { vocab - (vocab - 1) / tile * tile }
}

/// The middle of some times; 0 of none.
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// How far the median of some times may be off: the distance of the quartiles over the square root of their number.
fn spread(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n < 4 {
        return f64::INFINITY;
    }
    (sorted[n * 3 / 4] - sorted[n / 4]) / (n as f64).sqrt()
}

/// What to do with the next token's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All rows on the CPU, and tell how long it took.
    Cpu,
    /// This many rows on the device, and tell how long each side took.
    Split(usize),
    /// Measuring is over: from now on this many rows on the device (0: none).
    Settled(usize),
}

/// Finds the cut during the first tokens: CPU alone and split in turn, so that whatever else the machine does falls on
/// both alike.
#[derive(Clone, Debug)]
pub struct Calibration {
    vocab: usize,
    tile: usize,
    most: usize,
    phase: Phase,
    cpu: Vec<f64>,
    small: Vec<f64>,
    large: Vec<f64>,
    both: Vec<f64>,
    turn: usize,
    rates: Option<Rates>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Times of the device for two sizes.
    Rates,
    /// Whether the cut that follows from them really pays.
    Proof(usize),
    Settled(usize),
}

impl Calibration {
    /// For a head of `vocab` rows of which the device has loaded the last `most`, a multiple of `tile` rows.
    pub fn new(vocab: usize, tile: usize, most: usize) -> Self {
        let phase = if most == 0 { Phase::Settled(0) } else { Phase::Rates };
        let none = Vec::new;
        Self {
            vocab,
            tile,
            most,
            phase,
            cpu: none(),
            small: none(),
            large: none(),
            both: none(),
            turn: 0,
            rates: None,
        }
    }

    /// A result that was measured earlier under the same conditions.
    pub fn known(vocab: usize, tile: usize, most: usize, rows: usize) -> Self {
        let phase = Phase::Settled(rows_from_cut(vocab, tile, rows.min(most)));
        Self { phase, ..Self::new(vocab, tile, most) }
    }

    fn small_rows(&self) -> usize {
        rows_from_cut(self.vocab, self.tile, (self.most / 16).max(self.tile)).max(1)
    }

    fn large_rows(&self) -> usize {
        rows_from_cut(self.vocab, self.tile, (self.most / 2).max(self.tile)).max(1)
    }

    /// What to do with the next token.
    pub fn step(&self) -> Step {
        match self.phase {
            Phase::Settled(rows) => Step::Settled(rows),
            Phase::Proof(rows) => {
                if self.turn.is_multiple_of(2) {
                    Step::Cpu
                } else {
                    Step::Split(rows)
                }
            }
            Phase::Rates => match self.turn % 4 {
                1 => Step::Split(self.small_rows()),
                3 => Step::Split(self.large_rows()),
                _ => Step::Cpu,
            },
        }
    }

    /// The measured speeds, once known.
    pub fn rates(&self) -> Option<Rates> {
        self.rates
    }

    /// The head was computed as [`Calibration::step`] said: `whole` is the time of all of it, `device` that of the device
    /// (`None`: it was late or there was none).
    pub fn record(&mut self, whole: Duration, device: Option<Duration>) {
        let (whole, step) = (whole.as_secs_f64(), self.step());
        let device = device.map(|d| d.as_secs_f64());
        self.turn += 1;
        match (self.phase, step) {
            (Phase::Rates, Step::Cpu) => self.cpu.push(whole),
            (Phase::Rates, Step::Split(rows)) => {
                // A late answer tells at least this much.
                let took = device.unwrap_or(whole);
                if rows == self.small_rows() && self.turn % 4 == 2 {
                    &mut self.small
                } else {
                    &mut self.large
                }
                .push(took);
                self.judge_rates();
            }
            (Phase::Proof(_), Step::Cpu) => self.cpu.push(whole),
            (Phase::Proof(rows), Step::Split(_)) => {
                self.both.push(whole);
                self.judge_proof(rows);
            }
            (Phase::Settled(_), _) | (_, Step::Settled(_)) => {}
        }
    }

    fn judge_rates(&mut self) {
        let enough = self.small.len() >= SAMPLES / 2 && self.large.len() >= SAMPLES / 2;
        // After three samples the hopeless case is plain: a job of a sixteenth that takes longer than four whole heads.
        let early = self.small.len() >= 3 && median(&self.small) > HOPELESS * median(&self.cpu);
        if early {
            self.phase = Phase::Settled(0);
        } else if enough {
            let small = (self.small_rows(), median(&self.small));
            let large = (self.large_rows(), median(&self.large));
            let rates = Rates::fit(self.vocab, median(&self.cpu), small, large);
            self.rates = Some(rates);
            let rows = rates.device_rows(self.vocab, self.tile, self.most);
            self.phase = if rows == 0 { Phase::Settled(0) } else { Phase::Proof(rows) };
            self.cpu.clear();
            self.turn = 0;
        }
    }

    fn judge_proof(&mut self, rows: usize) {
        if self.both.len() < SAMPLES {
            return;
        }
        let (cpu, both) = (median(&self.cpu), median(&self.both));
        let noise = 2.0 * (spread(&self.cpu) + spread(&self.both));
        let pays = cpu - both > (MIN_GAIN * cpu).max(noise);
        self.phase = Phase::Settled(if pays { rows } else { 0 });
    }
}

/// Watches the device after the cut is settled: shrinks its band at once when it has become slow, lets it grow slowly.
#[derive(Clone, Debug)]
pub struct Watch {
    waits: Vec<f64>,
}

impl Watch {
    /// A watch over nothing yet.
    pub fn new() -> Self {
        Self { waits: Vec::new() }
    }

    /// One token's times: the CPU's band took `cpu`, the device's answer came after `device`. Returns the factor to
    /// apply to the device's rows when that is due.
    pub fn record(&mut self, cpu: Duration, device: Duration) -> Option<f64> {
        const WINDOW: usize = 16;
        self.waits.push(device.as_secs_f64() / cpu.as_secs_f64().max(1e-9));
        if self.waits.len() >= 4 && median(&self.waits) > 2.0 {
            self.waits.clear();
            return Some(0.5);
        }
        if self.waits.len() < WINDOW {
            return None;
        }
        let ratio = median(&self.waits);
        self.waits.clear();
        match ratio {
            r if r > 1.25 => Some(0.8),
            r if r < 0.8 => Some(1.05),
            _ => None,
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: usize = 64;
    const VOCAB: usize = 49_152;

    /// Noise of a given relative size, the same on every run.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self, size: f64) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            1.0 + size * ((self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
        }
    }

    /// Runs a calibration against a machine of known speeds.
    fn calibrate(truth: Rates, noise: f64, seed: u64) -> Calibration {
        let mut n = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut c = Calibration::new(VOCAB, TILE, VOCAB);
        let time = |s: f64| Duration::from_secs_f64(s.max(0.0));
        for _ in 0..200 {
            match c.step() {
                Step::Settled(_) => break,
                Step::Cpu => c.record(time(truth.cpu_row * VOCAB as f64 * n.next(noise)), None),
                Step::Split(rows) => {
                    let device = truth.device(rows) * n.next(noise);
                    let cpu = truth.cpu_row * (VOCAB - rows) as f64 * n.next(noise);
                    c.record(time(cpu.max(device)), Some(time(device)));
                }
            }
        }
        c
    }

    fn settled(c: &Calibration) -> usize {
        match c.step() {
            Step::Settled(rows) => rows,
            other => panic!("not settled: {other:?}"),
        }
    }

    #[test]
    fn without_a_fixed_cost_the_cut_is_the_classic_rule() {
        for (tc, tg) in [(10.0, 10.0), (10.0, 1.0), (3.0, 9.0)] {
            let rates = Rates { cpu_row: tc / VOCAB as f64, fixed: 0.0, device_row: tg / VOCAB as f64 };
            let classic = VOCAB as f64 * tc / (tc + tg);
            let rows = rates.device_rows(VOCAB, TILE, VOCAB);
            assert!((rows as f64 - classic).abs() <= TILE as f64, "{rows} {classic}");
            assert!((VOCAB - rows).is_multiple_of(TILE));
        }
    }

    #[test]
    fn the_cut_is_where_both_finish_together_and_no_other_is_better() {
        let rates = Rates { cpu_row: 2e-7, fixed: 1e-4, device_row: 5e-8 };
        let rows = rates.device_rows(VOCAB, TILE, VOCAB);
        let best = (0..=VOCAB / TILE).map(|t| rates.both(VOCAB, t * TILE)).fold(f64::MAX, f64::min);
        assert!(rates.both(VOCAB, rows) <= best + rates.cpu_row * TILE as f64);
        assert_eq!(rates.device_rows(VOCAB, TILE, 1000), 1000 / TILE * TILE);
    }

    #[test]
    fn a_device_that_cannot_help_gets_nothing() {
        let slow = Rates { cpu_row: 3e-8, fixed: 1e-4, device_row: 2e-6 };
        assert_eq!(slow.device_rows(VOCAB, TILE, VOCAB), 0);
        let late = Rates { cpu_row: 3e-8, fixed: 5e-3, device_row: 1e-9 };
        assert_eq!(late.device_rows(VOCAB, TILE, VOCAB), 0);
        assert_eq!(settled(&calibrate(slow, 0.06, 1)), 0);
        assert_eq!(settled(&Calibration::new(VOCAB, TILE, 0)), 0);
    }

    #[test]
    fn forced_shares_and_odd_sizes() {
        assert_eq!(forced_rows(1003, TILE, 0.5, 1003), 1003 - 512);
        assert_eq!(forced_rows(1003, TILE, 0.01, 1003), 1003 - 960);
        assert_eq!(forced_rows(1003, TILE, 0.99, 1003), 1003 - 64);
        assert_eq!(forced_rows(1003, TILE, 1.0, 1003), 1003);
        assert_eq!(forced_rows(1003, TILE, 0.0, 1003), 0);
        assert_eq!(forced_rows(1, TILE, 0.5, 1), 1);
        assert_eq!(forced_rows(1003, TILE, 0.9, 0), 0);
        assert_eq!(forced_rows(VOCAB, TILE, 0.9, 640), 640);
    }

    #[test]
    fn rates_come_back_from_their_own_times() {
        let truth = Rates { cpu_row: 2e-7, fixed: 1e-4, device_row: 5e-8 };
        let fit = Rates::fit(
            VOCAB,
            truth.cpu_row * VOCAB as f64,
            (3072, truth.device(3072)),
            (24_576, truth.device(24_576)),
        );
        for (a, b) in
            [(fit.cpu_row, truth.cpu_row), (fit.fixed, truth.fixed), (fit.device_row, truth.device_row)]
        {
            assert!((a / b - 1.0).abs() < 1e-9);
        }
        // Times that contradict each other give no free rows.
        let odd = Rates::fit(VOCAB, 1e-2, (64, 2e-3), (640, 1e-3));
        assert!(odd.device_row > 0.0 && odd.fixed >= 0.0);
    }

    #[test]
    fn a_clear_gain_is_found_through_noise() {
        let truth = Rates { cpu_row: 2e-7, fixed: 5e-5, device_row: 4e-8 };
        let want = truth.device_rows(VOCAB, TILE, VOCAB) as f64;
        for seed in 1..=20 {
            let rows = settled(&calibrate(truth, 0.06, seed)) as f64;
            assert!((rows / want - 1.0).abs() < 0.1, "seed {seed}: {rows} of {want}");
        }
    }

    #[test]
    fn noise_alone_is_not_taken_for_a_gain() {
        // The device is exactly as good as it must be for no gain at all.
        let none = Rates { cpu_row: 1e-7, fixed: 1e-7 * VOCAB as f64 * 0.97, device_row: 1e-9 };
        let yes = (1..=100).filter(|&seed| settled(&calibrate(none, 0.06, seed)) > 0).count();
        assert!(yes <= 5, "{yes} of 100");
    }

    #[test]
    fn the_watch_shrinks_at_once_and_grows_slowly() {
        let ms = Duration::from_millis;
        let mut w = Watch::new();
        assert_eq!((0..4).filter_map(|_| w.record(ms(10), ms(50))).collect::<Vec<_>>(), [0.5]);
        let mut w = Watch::new();
        assert_eq!((0..16).filter_map(|_| w.record(ms(10), ms(5))).collect::<Vec<_>>(), [1.05]);
        let mut w = Watch::new();
        assert_eq!((0..64).find_map(|_| w.record(ms(10), ms(10))), None);
    }
}
