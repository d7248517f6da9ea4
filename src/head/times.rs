//! What the jobs of a device cost, as the head sees it.

use std::time::Duration;

/// Jobs that are remembered.
const KEPT: usize = 1024;

/// The times of a job that was answered in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobTime {
    /// From handing it over to having its results.
    pub total: Duration,
    /// From submission to fence, as the worker measured it.
    pub device: Duration,
    /// The part of `total` after the CPU was done with its own rows.
    pub wait: Duration,
}

/// The times of the last jobs, and what waiting came to.
#[derive(Clone, Debug, Default)]
pub struct Times {
    jobs: Vec<JobTime>,
    next: usize,
    /// All waiting, for late and lost answers too.
    pub waited: Duration,
    /// The longest wait for an answer that came in time.
    pub longest: Duration,
    /// The longest wait for one that did not, and the deadline of that job, counted from its submission.
    pub missed: Option<(Duration, Duration)>,
}

impl Times {
    /// A job was waited for: `answer` if it came in time.
    pub fn record(&mut self, wait: Duration, deadline: Duration, answer: Option<JobTime>) {
        self.waited += wait;
        let Some(job) = answer else {
            self.missed = self.missed.max(Some((wait, deadline)));
            return;
        };
        self.longest = self.longest.max(wait);
        match self.jobs.get_mut(self.next) {
            Some(oldest) => *oldest = job,
            None => self.jobs.push(job),
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The last jobs, in no particular order.
    pub fn jobs(&self) -> &[JobTime] {
        &self.jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_jobs_are_kept_and_all_waiting_is_counted() {
        let ms = Duration::from_millis;
        let mut times = Times::default();
        times.record(ms(70), ms(50), None);
        for n in 0..KEPT as u64 + 10 {
            let job = JobTime { total: ms(n), ..JobTime::default() };
            times.record(ms(1), ms(20), Some(job));
        }
        times.record(ms(30), ms(50), None);
        assert_eq!((times.waited, times.longest), (ms(70 + 1034 + 30), ms(1)));
        assert_eq!(times.missed, Some((ms(70), ms(50))));
        let mut kept: Vec<_> = times.jobs().iter().map(|job| job.total).collect();
        kept.sort();
        assert_eq!((kept.len(), kept[0], kept[1023]), (1024, ms(10), ms(1033)));
    }
}
