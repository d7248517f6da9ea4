//! The options that let a device take part, and what is told about it.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::Ui;
use super::report::median;
use crate::gpu::{Backend, Driver, GpuOptions, Mode, State};
use crate::head::Engine;
use crate::head::dual::{Dual, DualOptions, Verify};
use crate::head::times::JobTime;

/// Whether and how a GPU computes part of the output head. None of these can change a text.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "GPU")]
pub struct GpuArgs {
    /// off: never look at a driver. auto: use a fit GPU if that is measured to be faster. on: use one, or fail saying why
    #[arg(long = "gpu", value_name = "MODE", default_value = "off")]
    mode: GpuMode,

    /// The device: part of its name, its UUID, or its number in vkinfo
    #[arg(long = "gpu-device", value_name = "DEVICE")]
    device: Option<String>,

    /// The GPU's share of the output head, above 0 and at most 1, in place of the measured best
    #[arg(long = "gpu-share", value_name = "F", value_parser = share)]
    share: Option<f64>,

    /// Reach the driver directly, without the system's Vulkan loader: by its manifest, even a software driver's with --gpu auto; or auto for the first that works
    #[arg(long = "vk-icd", value_name = "PATH|auto")]
    icd: Option<String>,

    /// Let implicit Vulkan layers (overlays, capture tools) into the worker
    #[arg(long)]
    vk_layers: bool,

    /// How the GPU's numbers are verified: spot checks and a checksum with every token, or all of them
    #[arg(long, value_name = "HOW", default_value = "spot")]
    verify: VerifyMode,

    /// The worker's program, in place of the one beside twinband
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,

    /// Compute with the worker's own CPU code and commit these faults: for tests
    #[arg(long, value_name = "FAULTS", hide = true)]
    gpu_null: Option<String>,
}

/// Whether to use a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GpuMode {
    Auto,
    On,
    Off,
}

/// How the GPU's numbers are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum VerifyMode {
    Spot,
    Full,
}

/// A part of a whole, and not nothing of it.
fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|f| *f > 0.0 && *f <= 1.0)
        .ok_or_else(|| "must be a number above 0 and at most 1; --gpu off leaves a GPU alone".to_owned())
}

impl GpuArgs {
    /// Which worker to start, and for what.
    pub fn options(&self, ui: &Ui) -> GpuOptions {
        GpuOptions {
            mode: match self.mode {
                GpuMode::Auto => Mode::Auto,
                GpuMode::On => Mode::On,
                GpuMode::Off => Mode::Off,
            },
            worker: self.worker.clone(),
            device: self.device.clone(),
            driver: match self.icd.as_deref() {
                None => Driver::Loader,
                Some("auto") => Driver::Direct,
                Some(path) => Driver::Manifest(path.to_owned()),
            },
            backend: self.gpu_null.clone().map_or(Backend::Vulkan, Backend::Null),
            keep_layers: self.vk_layers,
            verbose: ui.verbose(),
            ..GpuOptions::default()
        }
    }

    /// Has the engine use a device, if one was asked for.
    pub fn apply(&self, engine: &mut Engine<'_>, ui: &Ui) -> anyhow::Result<()> {
        if self.mode == GpuMode::Off {
            let given = self.device.is_some() || self.share.is_some() || self.icd.is_some();
            if given || self.vk_layers || self.worker.is_some() || self.verify == VerifyMode::Full {
                ui.note("what is said of the GPU does nothing without --gpu auto or --gpu on");
            }
            return Ok(());
        }
        let verify = match self.verify {
            VerifyMode::Spot => Verify::Spot,
            VerifyMode::Full => Verify::Full,
        };
        let options = DualOptions { gpu: self.options(ui), share: self.share, verify };
        let ui = ui.clone();
        engine.use_gpu(options, Box::new(move |line| ui.aside(line)))?;
        Ok(())
    }
}

/// The part a GPU had in a run, as `--json` tells it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GpuReport {
    /// As asked for: auto, on or off.
    pub mode: &'static str,
    /// What became of it.
    pub state: State,
    /// The device's name.
    pub device: Option<String>,
    /// The part of the output head computed there with the last token, from 0 to 1.
    pub share: f64,
    /// Jobs answered in time.
    pub jobs: u64,
    /// Answers that did not come in time.
    pub late: u64,
    /// Wrong numbers found.
    pub mismatches: u64,
    /// Workers started after the first.
    pub restarts: u32,
    /// The last thing that went wrong.
    pub last_fault: Option<String>,
    /// What the jobs cost; null if there were none.
    pub times: Option<JobTimes>,
}

/// What the last jobs of a GPU cost (at most 1024 of them), in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct JobTimes {
    /// From handing a job over to having its results.
    pub job_us: Quantiles,
    /// From submission to fence, as the worker measured it.
    pub device_us: Quantiles,
    /// What the head waited for when the CPU was done with its own rows.
    pub wait_us: Quantiles,
    /// A job without rows. Measured by `bench` only.
    pub empty_us: Option<Quantiles>,
    /// The part of the decoding that was spent waiting, from 0 to 1. Measured by `bench` only.
    pub wait_share: Option<f64>,
    /// The longest wait for an answer that came in time.
    pub longest_wait_us: f64,
    /// The longest wait for one that did not, and the deadline of that job, counted from its submission.
    pub missed_wait_us: Option<f64>,
    pub missed_deadline_us: Option<f64>,
    /// The whole head on the CPU, the median.
    pub cpu_head_us: f64,
}

/// The middle of some times, and what one in a hundred exceeds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

impl Quantiles {
    /// Of times; `None` of none.
    pub fn new(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut us: Vec<f64> = times.map(micros).collect();
        us.sort_by(f64::total_cmp);
        let p99 = *us.get(us.len() * 99 / 100)?;
        Some(Self { p50: median(&us), p99 })
    }
}

impl Display for Quantiles {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ms ({:.2})", self.p50 / 1e3, self.p99 / 1e3)
    }
}

fn micros(time: Duration) -> f64 {
    // Nanoseconds tell nothing here.
    (1e7 * time.as_secs_f64()).round() / 10.0
}

impl JobTimes {
    fn new(dual: &Dual) -> Option<Self> {
        let times = dual.times();
        let of = |part: fn(&JobTime) -> Duration| Quantiles::new(times.jobs().iter().map(part));
        Some(Self {
            job_us: of(|job| job.total)?,
            device_us: of(|job| job.device)?,
            wait_us: of(|job| job.wait)?,
            empty_us: None,
            wait_share: None,
            longest_wait_us: micros(times.longest),
            missed_wait_us: times.missed.map(|(wait, _)| micros(wait)),
            missed_deadline_us: times.missed.map(|(_, deadline)| micros(deadline)),
            cpu_head_us: micros(dual.cpu_head()),
        })
    }

    /// In words, for `bench` and `--stats`: two lines.
    pub fn lines(&self) -> String {
        let empty = self.empty_us.map_or(String::new(), |us| format!(", an empty job {us}"));
        let share =
            self.wait_share.map_or(String::new(), |share| format!(", {:.0} % of the time", 100.0 * share));
        let missed = match (self.missed_wait_us, self.missed_deadline_us) {
            (Some(wait), Some(deadline)) => {
                format!(", in vain {:.1} ms with a deadline of {:.1} ms", wait / 1e3, deadline / 1e3)
            }
            _ => String::new(),
        };
        let (longest, head) = (self.longest_wait_us / 1e3, self.cpu_head_us / 1e3);
        format!(
            "jobs     {}, on the device {}{empty}: medians (p99)\nwaiting  {} a token{share}; at most {longest:.1} \
             ms{missed}; the CPU's whole head takes {head:.1} ms",
            self.job_us, self.device_us, self.wait_us
        )
    }
}

impl GpuReport {
    /// How things stand with an engine.
    pub fn new(dual: Option<&Dual>) -> Self {
        let Some(dual) = dual else { return Self { mode: "off", ..Self::default() } };
        let status = dual.status();
        Self {
            mode: match dual.mode() {
                Mode::Auto => "auto",
                Mode::On => "on",
                Mode::Off => "off",
            },
            state: status.state,
            device: status.device.as_ref().map(|d| d.name.clone()),
            share: dual.share(),
            jobs: status.jobs,
            late: status.late,
            mismatches: status.mismatches,
            restarts: status.restarts,
            last_fault: status.last_fault.clone(),
            times: JobTimes::new(dual),
        }
    }

    /// In words, for `--stats`.
    pub fn line(&self) -> String {
        let Some(device) = &self.device else { return self.mode.to_owned() };
        let share = 100.0 * self.share;
        let fault = self.last_fault.as_ref().map_or(String::new(), |fault| format!("; last fault: {fault}"));
        let (mode, jobs, late) = (self.mode, self.jobs, self.late);
        format!("{mode} ({device}, {share:.0} % of the head, {jobs} jobs, {late} late{fault})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let of = |n: u64| Quantiles::new((1..=n).rev().map(Duration::from_micros));
        assert!(of(0).is_none());
        let pairs = [1, 2, 100, 1000].map(|n| of(n).map(|q| (q.p50, q.p99)));
        assert_eq!(pairs, [Some((1.0, 1.0)), Some((1.5, 2.0)), Some((50.5, 100.0)), Some((500.5, 991.0))]);
    }

    #[test]
    fn shares_are_parts_of_a_whole() {
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(share("1"), Ok(1.0));
        for wrong in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
