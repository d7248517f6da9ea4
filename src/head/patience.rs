//! How long a device is waited for: arithmetic on measured times, nothing else.

use std::time::Duration;

/// The least time a device is given for a job.
const LEAST: Duration = Duration::from_millis(20);
/// The same for a device whose share was asked for. It may be a software device, which competes with everything else that
/// the machine does, and a job of a few milliseconds is soon ten times as long.
const LEAST_FORCED: Duration = Duration::from_millis(50);
/// The time for a worker's first jobs, which may find caches cold and clocks low.
const FIRST: Duration = Duration::from_millis(250);
/// The same for a device whose share was asked for.
const FIRST_FORCED: Duration = Duration::from_secs(5);
/// How many jobs are first ones.
pub const FIRST_JOBS: u64 = 4;
/// A device gets this many times what the CPU takes for the same rows, or what itself took before.
const FACTOR: u32 = 4;

/// What the time for a job depends on.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Jobs that this worker has answered in time.
    pub answered: u64,
    /// Whether its last answer was late: another one ends it.
    pub late: bool,
    /// Whether somebody asked for this share, however slow the device is.
    pub forced: bool,
    /// The CPU's time for the same rows.
    pub cpu: Duration,
    /// The device's usual time for them, zero while it is not known.
    pub device: Duration,
}

impl Job {
    /// How long its answer is waited for, from the submission on.
    pub fn patience(&self) -> Duration {
        let (least, first) = if self.forced { (LEAST_FORCED, FIRST_FORCED) } else { (LEAST, FIRST) };
        let mut patience = (FACTOR * self.cpu).max(least);
        if self.forced {
            patience = patience.max(FACTOR * self.device);
            // The machine was busy, or the device hangs: a second look tells which.
            if self.late {
                patience *= FACTOR;
            }
        }
        if self.answered < FIRST_JOBS { patience.max(first) } else { patience }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_time_for_a_job() {
        let job = |answered, late, forced, cpu, device| {
            Job { answered, late, forced, cpu: ms(cpu), device: ms(device) }.patience()
        };
        // The first jobs of a worker.
        assert_eq!(job(0, false, false, 1, 0), ms(250));
        assert_eq!(job(3, false, false, 100, 0), ms(400));
        assert_eq!(job(0, false, true, 1, 0), ms(5000));
        assert_eq!(job(3, false, true, 1, 2000), ms(8000));
        // Later the CPU sets the measure, and what a device takes by itself does not count.
        assert_eq!(job(4, false, false, 1, 300), ms(20));
        assert_eq!(job(4, false, false, 10, 300), ms(40));
        assert_eq!(job(4, true, false, 10, 300), ms(40));
        // Unless somebody wants it.
        assert_eq!(job(4, false, true, 1, 2), ms(50));
        assert_eq!(job(4, false, true, 10, 300), ms(1200));
        assert_eq!(job(4, true, true, 1, 2), ms(200));
    }

    /// A device that was asked for and whose jobs take 5 ms, on a machine where now and then something else goes first.
    #[test]
    fn a_busy_machine_does_not_end_a_device_that_was_asked_for() {
        // Delays in ms, over and over: half of the answers are late, by up to 140 ms.
        let delays = [0, 60, 0, 90, 0, 140, 0, 70];
        let (mut late, mut lates) = (false, 0);
        for n in 4..1000 {
            let job = Job { answered: n, late, forced: true, cpu: ms(1), device: ms(5) };
            let took = ms(5 + delays[n as usize % delays.len()]);
            assert!(!(late && took > job.patience()), "job {n}: two late answers in a row");
            late = took > job.patience();
            lates += u64::from(late);
        }
        assert!(lates > 400, "{lates}");
        // The same when the delays come in pairs.
        for pair in [60, 90, 140, 190] {
            let second = Job { answered: 9, late: true, forced: true, cpu: ms(1), device: ms(5) };
            assert!(ms(5 + pair) <= second.patience(), "{pair}");
        }
    }
}
