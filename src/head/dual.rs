//! The head on CPU and device at once: submit, CPU band, wait, verify, join.
//!
//! ```text
//! rows   0 ............ k ............ vocab
//!        CPU, all threads | device
//! ```
//! The device is never needed. A band that is missing, late or doubtful is computed by the CPU at once, so the logits
//! are whole and the same to the bit whatever happens to the device.

use std::time::{Duration, Instant};

use super::patience::{FIRST_JOBS, Job};
use super::split::{Calibration, Step, Watch, forced_rows, median};
use super::times::{JobTime, Times};
use super::verify::{Checksum, full_compare_due, rows_to_check};
use super::{Head, Operands};
use crate::gpu::{self, Activations, Gpu, GpuOptions, HeadMatrix, Lost, Mode, State, Status, Store, TILE};
use crate::kernel::format::{ActBlock, Layout};
use crate::kernel::op::matmul::Input;
use crate::kernel::op::quantize::SUM;
use crate::kernel::par::Team;
use crate::model::{EvalError, Model};

/// How the device's rows are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Some rows bit for bit and a checksum of all with every token, all rows on a schedule.
    #[default]
    Spot,
    /// All rows bit for bit with every token.
    Full,
}

/// How a device takes part.
#[derive(Clone, Debug, Default)]
pub struct DualOptions {
    /// Which device and how.
    pub gpu: GpuOptions,
    /// The device's share of the rows, in (0, 1]; `None` to measure which is best.
    pub share: Option<f64>,
    /// How its rows are verified.
    pub verify: Verify,
}

/// A device that was asked for cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the GPU cannot be used: {cause}; see `twinband vkinfo`, or run with --gpu auto or --gpu off")]
pub struct Unusable {
    cause: String,
}

/// Times that are remembered.
const WINDOW: usize = 16;
/// What a job costs besides the device's own time, at most.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// The longest wait for a job without rows, which is made only to measure it.
const EMPTY_PATIENCE: Duration = Duration::from_secs(1);

/// Who is told what becomes of the device, a line at a time.
pub type Notify = Box<dyn FnMut(&str)>;

/// The head on both sides.
pub struct Dual {
    gpu: Gpu,
    options: DualOptions,
    store: Store,
    threads: usize,
    vocab: usize,
    /// Made when there is a device worth verifying.
    checksum: Option<Checksum>,
    calibration: Option<Calibration>,
    /// The restart that the calibration and these belong to.
    restart: u32,
    settled: bool,
    /// The cut to report, once there are times to report with it.
    unreported: Option<usize>,
    /// Jobs that this worker has answered in time, and whether its last answer was late.
    answered: u64,
    late: bool,
    watch: Watch,
    /// Rows of the device with the last token.
    rows: usize,
    /// Tokens with a band of the device's.
    tokens: u64,
    /// Seconds of a row on the CPU, and of a row on the device, of the last tokens.
    cpu_row: Vec<f64>,
    device_row: Vec<f64>,
    times: Times,
    notify: Notify,
    check: Vec<usize>,
    band: Vec<f32>,
    decoded: Vec<f32>,
}

impl Dual {
    /// Starts a worker for the head of `model`, in the background. With [`Mode::On`] waits for it, because an explicit
    /// wish must be granted or refused.
    pub fn start(
        model: &Model<'_>,
        options: DualOptions,
        exact: bool,
        threads: usize,
        notify: Notify,
    ) -> Result<Self, Unusable> {
        let mode = options.gpu.mode;
        let store = Store::new(options.gpu.cache_dir.as_deref());
        let gpu = match matrix(model, exact) {
            Ok(matrix) => Gpu::start(options.gpu.clone(), matrix, options.share.unwrap_or(1.0) as f32),
            Err(cause) if mode == Mode::On => return Err(Unusable { cause }),
            Err(_) => Gpu::off(),
        };
        let mut dual = Self {
            gpu,
            options,
            store,
            threads,
            vocab: model.config.vocab,
            checksum: None,
            calibration: None,
            restart: 0,
            settled: false,
            unreported: None,
            answered: 0,
            late: false,
            watch: Watch::new(),
            rows: 0,
            tokens: 0,
            cpu_row: Vec::new(),
            device_row: Vec::new(),
            times: Times::default(),
            notify,
            check: Vec::new(),
            band: Vec::new(),
            decoded: Vec::new(),
        };
        if mode == Mode::On {
            dual.gpu.loaded(&dual.options.gpu.patience).map_err(|cause| Unusable { cause })?;
        }
        dual.tell();
        Ok(dual)
    }

    /// How the device is doing.
    pub fn status(&self) -> &Status {
        self.gpu.status()
    }

    /// The device's share of the rows with the last token.
    pub fn share(&self) -> f64 {
        self.rows as f64 / self.vocab.max(1) as f64
    }

    /// What the jobs cost.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// The CPU's time for the whole head, from the last tokens; zero if there were none.
    pub fn cpu_head(&self) -> Duration {
        seconds(usual(&self.cpu_row, self.vocab))
    }

    /// The times of up to `n` jobs without rows: what a job costs that computes nothing. None where there is no worker.
    pub fn round_trips(&mut self, n: usize, model: &Model<'_>) -> Vec<Duration> {
        let first = self.gpu.poll(Instant::now()).rows.start;
        let cols = model.config.dim;
        let (zeros, codes, sums) = (vec![0.0; cols], vec![0; cols], vec![0; cols / SUM]);
        let input = match model.weights.output.w.format().act() {
            None => gpu::Input::F32(&zeros),
            Some(block) => {
                gpu::Input::Q8 { codes: &codes, scales: &zeros[..cols / block.elements()], sums: &sums }
            }
        };
        let mut times = Vec::new();
        while times.len() < n {
            let Some(ticket) = self.gpu.submit(&input, first..first) else { break };
            let Ok(done) = self.gpu.wait(ticket, Instant::now() + EMPTY_PATIENCE, &mut []) else { break };
            times.push(done.total);
        }
        times
    }

    /// Whether devices were to be used.
    pub fn mode(&self) -> Mode {
        self.options.gpu.mode
    }

    /// Passes on what has come up.
    fn tell(&mut self) {
        for line in self.gpu.messages() {
            (self.notify)(&line);
        }
    }

    /// The logits of one hidden vector, `[vocab]`.
    pub fn logits(
        &mut self,
        head: &mut Head,
        model: &Model<'_>,
        team: &Team,
        position: usize,
        hidden: &[f32],
        logits: &mut [f32],
    ) -> Result<(), EvalError> {
        head.prepare(position, hidden)?;
        let of = Operands { model, team, hidden };
        self.rows = self.device_rows(model);
        self.tell();
        let first = self.vocab - self.rows;
        let ticket = if self.rows == 0 {
            None
        } else {
            let x = head.input(hidden, model.config.dim);
            self.gpu.submit(&wire(&x), first as u32..self.vocab as u32)
        };
        let started = Instant::now();
        let Some(ticket) = ticket else {
            self.rows = 0;
            let finite = head.band(of, 0..self.vocab, logits);
            self.took(started.elapsed(), None);
            return done(finite, position);
        };
        let (own, device) = logits.split_at_mut(first);
        let mut finite = own.is_empty() || head.band(of, 0..first, own);
        let cpu = started.elapsed();
        remember(&mut self.cpu_row, cpu, first);
        let patience = self.patience();
        let answer = self.gpu.wait(ticket, started + patience, device);
        let whole = started.elapsed();
        let wait = whole.saturating_sub(cpu);
        let times = answer.as_ref().ok().map(|d| JobTime { total: d.total, device: d.device, wait });
        self.times.record(wait, patience, times);
        self.answered += u64::from(answer.is_ok());
        self.late = matches!(answer, Err(Lost::Late { .. }));
        let right = match &answer {
            Ok(_) => self.verify(head, of, device),
            Err(_) => false,
        };
        finite &= if right {
            head.finish(model, first..self.vocab, device)
        } else {
            head.band(of, first..self.vocab, device)
        };
        let device = answer.ok().map(|d| d.total.min(d.device + ROUND_TRIP));
        if let Some(time) = device {
            remember(&mut self.device_row, time, self.rows);
        }
        self.took(whole, Some((cpu, device)));
        self.report();
        self.tell();
        done(finite, position)
    }

    /// How many rows, from the end, the device gets with this token.
    fn device_rows(&mut self, model: &Model<'_>) -> usize {
        if self.options.gpu.mode == Mode::Off {
            return 0;
        }
        let status = self.gpu.poll(Instant::now());
        let (state, loaded, restarts) = (status.state, status.rows.clone(), status.restarts);
        if !matches!(state, State::Calibrating | State::Ready) || loaded.is_empty() {
            return 0;
        }
        if self.restart != restarts {
            self.restart = restarts;
            self.settled = false;
            self.calibration = None;
            (self.answered, self.late) = (0, false);
        }
        let w = &model.weights.output.w;
        let checksum = self.checksum.get_or_insert_with(|| Checksum::new(w, TILE as usize));
        // A sixty-fourth with every token, so that no token waits for it.
        checksum.fold(w, self.vocab.div_ceil(64));
        let (tile, most) = (TILE as usize, loaded.len());
        let rows = if let Some(share) = self.options.share {
            let rows = forced_rows(self.vocab, tile, share, most);
            if !self.settled {
                self.settle(rows);
            }
            rows
        } else {
            if self.calibration.is_none() {
                let known = self.store.load::<usize>("split", &self.key());
                self.calibration = Some(match known {
                    Some(rows) => Calibration::known(self.vocab, tile, most, rows),
                    None => Calibration::new(self.vocab, tile, most),
                });
            }
            match self.calibration.as_ref().map(Calibration::step) {
                Some(Step::Split(rows)) => rows,
                Some(Step::Settled(rows)) => {
                    if !self.settled {
                        // Not being able to save it costs a measurement next time.
                        let _ = self.store.save("split", &self.key(), &rows);
                        self.settle(rows);
                    }
                    rows
                }
                Some(Step::Cpu) | None => 0,
            }
        };
        self.checkable(rows)
    }

    /// A band that can be verified: one that begins at a piece of the checksum, or is small enough to be compared whole.
    fn checkable(&self, rows: usize) -> usize {
        match &self.checksum {
            Some(sum) if self.options.verify == Verify::Spot && sum.complete() && rows > 2 * sum.piece() => {
                sum.band(rows)
            }
            _ => rows,
        }
    }

    fn settle(&mut self, rows: usize) {
        self.settled = true;
        self.gpu.calibrated();
        self.unreported = self.options.gpu.verbose.then_some(rows);
        self.report();
    }

    /// Reports the cut with the times of whole heads: those it was made by, or those of the first jobs.
    fn report(&mut self) {
        let Some(rows) = self.unreported else { return };
        let (cut, vocab) = (self.vocab - rows, self.vocab);
        let rates = self.calibration.as_ref().and_then(Calibration::rates);
        let heads = match rates {
            Some(r) => Some((r.cpu_row * vocab as f64, r.device(vocab))),
            None if rows == 0 => None,
            None if self.answered < FIRST_JOBS => return,
            None => Some((usual(&self.cpu_row, vocab), usual(&self.device_row, vocab))),
        };
        let times =
            heads.map_or(String::new(), |(tc, tg)| format!(" tc={:.2}ms tg={:.2}ms", 1e3 * tc, 1e3 * tg));
        let verdict = if rows == 0 { ": the device is no faster, the CPU computes all" } else { "" };
        (self.notify)(&format!("[gpu] dual band: cpu=[0..{cut}) gpu=[{cut}..{vocab}){times}{verdict}"));
        self.unreported = None;
    }

    fn key(&self) -> Vec<String> {
        let status = self.gpu.status();
        let device = status.device.as_ref();
        let (uuid, driver) = device.map_or_else(Default::default, |d| (d.uuid_text(), d.driver_version));
        vec![uuid, driver.to_string(), self.vocab.to_string(), self.threads.to_string()]
    }

    /// How long the device is waited for, from the submission on.
    fn patience(&self) -> Duration {
        let job = Job {
            answered: self.answered,
            late: self.late,
            forced: self.options.share.is_some(),
            cpu: seconds(usual(&self.cpu_row, self.rows)),
            device: seconds(usual(&self.device_row, self.rows)),
        };
        job.patience()
    }

    /// Whether the device's products (`out`, of the last rows) are what the CPU computes. If not, the device is dropped.
    fn verify(&mut self, head: &mut Head, of: Operands<'_, '_>, out: &[f32]) -> bool {
        self.tokens += 1;
        let first = self.vocab - out.len();
        let spot = match &self.checksum {
            Some(sum) if self.options.verify == Verify::Spot && !full_compare_due(self.tokens) => {
                sum.complete() && first.is_multiple_of(sum.piece())
            }
            _ => false,
        };
        let wrong = if spot { self.wrong_by_spot(head, of, out) } else { self.wrong_by_full(head, of, out) };
        match wrong {
            None => true,
            Some(what) => {
                self.gpu.mismatch(&what);
                false
            }
        }
    }

    fn wrong_by_spot(&mut self, head: &mut Head, of: Operands<'_, '_>, out: &[f32]) -> Option<String> {
        let first = self.vocab - out.len();
        rows_to_check(out, self.tokens, &mut self.check);
        for &i in &self.check {
            let (row, mut want) = (first + i, [0.0]);
            head.products(of, row..row + 1, &mut want);
            if want[0].to_bits() != out[i].to_bits() {
                return Some(difference(row, out[i], want[0]));
            }
        }
        let sum = self.checksum.as_ref()?;
        decode(&head.input(of.hidden, of.model.config.dim), &mut self.decoded);
        let check = sum.check(&self.decoded, out);
        (!check.passes()).then(|| {
            format!(
                "the checksum of rows {first}.. is off by {:.3e}, {:.3e} is possible",
                check.off, check.bound
            )
        })
    }

    fn wrong_by_full(&mut self, head: &mut Head, of: Operands<'_, '_>, out: &[f32]) -> Option<String> {
        let first = self.vocab - out.len();
        self.band.resize(out.len(), 0.0);
        head.raw_band(of, first..self.vocab, &mut self.band);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        let at = out.iter().zip(&self.band).position(|pair| !same(pair))?;
        Some(difference(first + at, out[at], self.band[at]))
    }

    /// Takes note of times: those of all of the head, and with a band on the device those of both sides.
    fn took(&mut self, whole: Duration, sides: Option<(Duration, Option<Duration>)>) {
        if sides.is_none() {
            remember(&mut self.cpu_row, whole, self.vocab);
        }
        let Some(calibration) = &mut self.calibration else { return };
        match calibration.step() {
            Step::Settled(rows) if rows > 0 => {
                let Some((cpu, Some(device))) = sides else { return };
                if let Some(by) = self.watch.record(cpu, device) {
                    let rows = (rows as f64 * by) as usize;
                    let most = self.gpu.status().rows.len();
                    *calibration = Calibration::known(self.vocab, TILE as usize, most, rows);
                }
            }
            Step::Settled(_) => {}
            // A turn that should have been split but found no worker ready tells nothing.
            Step::Split(_) if sides.is_none() => {}
            _ => calibration.record(whole, sides.and_then(|(_, device)| device)),
        }
    }
}

fn done(finite: bool, position: usize) -> Result<(), EvalError> {
    if finite { Ok(()) } else { Err(super::non_finite(position, "a logit")) }
}

/// The seconds that so many rows take as a rule, from those that one took.
fn usual(row: &[f64], rows: usize) -> f64 {
    median(row) * rows as f64
}

/// Seconds as a duration; nothing measured can be too long for one.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn difference(row: usize, got: f32, want: f32) -> String {
    format!("row {row} is {got:e}, should be {want:e}")
}

fn remember(times: &mut Vec<f64>, time: Duration, rows: usize) {
    if rows > 0 {
        if times.len() == WINDOW {
            times.remove(0);
        }
        times.push(time.as_secs_f64() / rows as f64);
    }
}

/// The head's matrix for a worker, or why there can be none.
fn matrix(model: &Model<'_>, exact: bool) -> Result<HeadMatrix, String> {
    if exact {
        return Err("--exact computes on the CPU alone".to_owned());
    }
    let w = &model.weights.output.w;
    let why = "the head does not lie in a file that a worker can open";
    let (file, offset, layout) = model.output_in_file().ok_or(why)?;
    let small = |n: usize| u32::try_from(n).map_err(|_| "the head is too large".to_owned());
    Ok(HeadMatrix {
        file,
        offset,
        rows: small(w.rows())?,
        cols: small(w.cols())?,
        row_bytes: small(w.row_bytes())?,
        interleaved: layout == Layout::Rows8,
        format: w.format().ty.0,
        activations: match w.format().act() {
            None => Activations::F32,
            Some(block @ (ActBlock::B32 | ActBlock::B256)) => {
                Activations::Q8 { block: block.elements() as u32 }
            }
        },
    })
}

/// An input as it travels.
fn wire<'a>(x: &Input<'a>) -> gpu::Input<'a> {
    match x.b32.or(x.b256) {
        Some(q) => gpu::Input::Q8 { codes: q.codes, scales: q.scales, sums: q.sums },
        None => gpu::Input::F32(x.f32),
    }
}

/// The numbers that an input stands for.
fn decode(x: &Input<'_>, out: &mut Vec<f32>) {
    out.clear();
    match x.b32.or(x.b256) {
        Some(q) => out.extend(
            q.codes
                .chunks_exact(q.block.elements())
                .zip(q.scales)
                .flat_map(|(codes, d)| codes.iter().map(move |&c| f32::from(c) * d)),
        ),
        None => out.extend_from_slice(x.f32),
    }
}
