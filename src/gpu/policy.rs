//! What to do after a loss. Pure: no clock, no process, no file.

use std::time::{Duration, Instant};

use twinband_protocol::FaultCode;

use super::{Lost, Stage};

/// How losses are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Losses after which a new worker is started; the next one is the last.
    pub losses: u32,
    /// A worker that has been healthy for this long makes up for one loss.
    pub forgiveness: Duration,
    /// Pause before the first restart; four times as long before each further one.
    pub backoff: Duration,
    /// Pause before looking again where there was no device.
    pub look_again: Duration,
    /// Late answers in a row that make a worker lost.
    pub late: u32,
    /// How long a job may stay without any answer before the worker is taken for dead.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            losses: 3,
            forgiveness: seconds(5 * 60),
            backoff: Duration::from_millis(250),
            look_again: seconds(5 * 60),
            late: 2,
            silence: seconds(2),
        }
    }
}

/// Kinds of loss, by what they tell of the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is nothing to use now. That can change.
    Absent,
    /// The driver said no in good order. That can change too, but not for ever.
    Refused,
    /// No use trying again, and no fault of a driver.
    Unusable,
    /// It crashed or hung before it was ready.
    BadStart,
    /// It crashed at work, or talked rubbish.
    Crashed,
    /// It was killed from outside.
    Killed,
    /// It answers too late.
    Slow,
    /// Its numbers are wrong.
    Wrong,
    /// It needs more memory than there is.
    Memory,
}

impl Kind {
    pub(super) fn of(lost: &Lost) -> Self {
        let by_stage = |stage: Stage| match stage {
            // Nothing of a driver has run yet.
            Stage::Greeting => Self::Unusable,
            Stage::Opening | Stage::Loading => Self::BadStart,
            Stage::Working => Self::Crashed,
        };
        match lost {
            Lost::Spawn { .. } | Lost::Buffer(_) | Lost::Version(_) | Lost::Stopped | Lost::Stale => {
                Self::Unusable
            }
            Lost::Late { stage: Stage::Working, .. } => Self::Slow,
            Lost::Gone { killed: true, .. } => Self::Killed,
            Lost::Late { stage, .. }
            | Lost::Gone { stage, .. }
            | Lost::Garbled { stage, .. }
            | Lost::Send { stage, .. }
            | Lost::Unexpected { stage, .. } => by_stage(*stage),
            Lost::Fault { stage, fault } => match fault.code {
                FaultCode::NoDevice | FaultCode::NoFitDevice => Self::Absent,
                FaultCode::Memory => Self::Memory,
                FaultCode::Format | FaultCode::Input => Self::Unusable,
                FaultCode::DeviceLost => Self::Crashed,
                FaultCode::Driver if *stage == Stage::Working => Self::Crashed,
                FaultCode::Driver => Self::Refused,
                FaultCode::Internal => by_stage(*stage),
            },
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start another worker after a pause.
    Again(Duration),
    /// Start another with half the rows.
    Smaller,
    /// No more in this run.
    Stop {
        /// Nor in later ones, until the driver, the device or the engine changes.
        verdict: bool,
    },
}

/// Counts losses and forgives them.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    limits: Limits,
    losses: u32,
    healthy_since: Option<Instant>,
}

impl Policy {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, losses: 0, healthy_since: None }
    }

    /// A worker takes jobs from now on.
    pub(super) fn ready(&mut self, now: Instant) {
        self.healthy_since = Some(now);
    }

    /// A worker was lost, or could not be started.
    pub(super) fn lost(&mut self, kind: Kind, now: Instant) -> Next {
        if let Some(since) = self.healthy_since.take() {
            let periods =
                now.saturating_duration_since(since).as_nanos() / self.limits.forgiveness.as_nanos().max(1);
            self.losses = self.losses.saturating_sub(u32::try_from(periods).unwrap_or(u32::MAX));
        }
        match kind {
            Kind::Absent => return Next::Again(self.limits.look_again),
            Kind::Memory => return Next::Smaller,
            Kind::Unusable => return Next::Stop { verdict: false },
            Kind::BadStart | Kind::Wrong => return Next::Stop { verdict: true },
            Kind::Refused | Kind::Crashed | Kind::Killed | Kind::Slow => {}
        }
        self.losses = self.losses.saturating_add(1);
        if self.losses > self.limits.losses {
            return Next::Stop { verdict: kind == Kind::Crashed };
        }
        if kind == Kind::Refused {
            return Next::Again(self.limits.look_again);
        }
        let factor = 4u32.saturating_pow(self.losses - 1);
        Next::Again(self.limits.backoff.saturating_mul(factor).min(self.limits.look_again))
    }
}

/// Late answers in a row.
#[derive(Clone, Debug)]
pub(super) struct Lateness {
    limit: u32,
    in_a_row: u32,
}

impl Lateness {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { limit: limits.late, in_a_row: 0 }
    }

    pub(super) fn in_time(&mut self) {
        self.in_a_row = 0;
    }

    /// True if that is one too many.
    pub(super) fn late(&mut self) -> bool {
        self.in_a_row += 1;
        self.in_a_row >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twinband_protocol::{Fault, Hello};

    const MINUTE: Duration = Duration::from_secs(60);

    fn again(ms: u64) -> Next {
        Next::Again(Duration::from_millis(ms))
    }

    const STOP: Next = Next::Stop { verdict: false };
    const VERDICT: Next = Next::Stop { verdict: true };

    /// Losses with the minutes of health before each, and what follows.
    fn play(steps: &[(u32, Kind, Next)]) {
        let mut policy = Policy::new(Limits::default());
        let mut now = Instant::now();
        for (i, &(minutes, kind, next)) in steps.iter().enumerate() {
            policy.ready(now);
            now += MINUTE * minutes;
            assert_eq!(policy.lost(kind, now), next, "step {i} of {steps:?}");
            // Time without a worker is no time of health.
            now += MINUTE * 60;
        }
    }

    #[test]
    fn a_fourth_crash_in_a_row_is_the_last() {
        let step = |next| (0, Kind::Crashed, next);
        play(&[step(again(250)), step(again(1000)), step(again(4000)), step(VERDICT)]);
        let step = |next| (4, Kind::Slow, next);
        play(&[step(again(250)), step(again(1000)), step(again(4000)), step(STOP)]);
        let step = |next| (4, Kind::Killed, next);
        play(&[step(again(250)), step(again(1000)), step(again(4000)), step(STOP)]);
    }

    #[test]
    fn five_minutes_of_health_make_up_for_one_loss() {
        let crash = |minutes, next| (minutes, Kind::Crashed, next);
        // A crash every six minutes goes on for ever.
        play(&[crash(6, again(250)); 20]);
        play(&[crash(0, again(250)), crash(0, again(1000)), crash(5, again(1000)), crash(0, again(4000))]);
        play(&[crash(0, again(250)), crash(0, again(1000)), crash(0, again(4000)), crash(60, again(250))]);
    }

    #[test]
    fn what_cannot_get_better_ends_at_once_and_what_is_absent_is_looked_for_again() {
        play(&[(0, Kind::Unusable, STOP)]);
        play(&[(0, Kind::BadStart, VERDICT)]);
        play(&[(100, Kind::Wrong, VERDICT)]);
        let look = Next::Again(5 * MINUTE);
        play(&[(0, Kind::Absent, look); 20]);
        play(&[
            (0, Kind::Refused, look),
            (0, Kind::Refused, look),
            (0, Kind::Refused, look),
            (0, Kind::Refused, STOP),
        ]);
        play(&[(0, Kind::Memory, Next::Smaller); 20]);
    }

    #[test]
    fn losses_are_told_apart() {
        let fault = |stage, code| Lost::Fault { stage, fault: Fault { code, text: String::new() } };
        let gone = |stage, killed| Lost::Gone { stage, how: String::new(), killed };
        let late = |stage| Lost::Late { stage, patience: MINUTE };
        use FaultCode as F;
        use Stage::{Greeting, Loading, Opening, Working};
        let table = [
            (fault(Opening, F::NoDevice), Kind::Absent),
            (fault(Opening, F::NoFitDevice), Kind::Absent),
            (fault(Opening, F::Driver), Kind::Refused),
            (fault(Working, F::Driver), Kind::Crashed),
            (fault(Working, F::DeviceLost), Kind::Crashed),
            (fault(Loading, F::Memory), Kind::Memory),
            (fault(Working, F::Memory), Kind::Memory),
            (fault(Loading, F::Format), Kind::Unusable),
            (fault(Working, F::Input), Kind::Unusable),
            (fault(Working, F::Internal), Kind::Crashed),
            (gone(Greeting, false), Kind::Unusable),
            (gone(Opening, false), Kind::BadStart),
            (gone(Opening, true), Kind::Killed),
            (gone(Working, false), Kind::Crashed),
            (late(Opening), Kind::BadStart),
            (late(Working), Kind::Slow),
            (Lost::Version(Hello::ours()), Kind::Unusable),
        ];
        for (lost, kind) in table {
            assert_eq!(Kind::of(&lost), kind, "{lost:?}");
        }
    }

    #[test]
    fn lateness_counts_only_in_a_row() {
        let mut lateness = Lateness::new(&Limits::default());
        for _ in 0..5 {
            assert!(!lateness.late());
            lateness.in_time();
        }
        assert!(!lateness.late());
        assert!(lateness.late());
    }
}
