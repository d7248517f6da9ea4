//! A thread that starts workers, watches them, and puts them away. Everything that can take time happens here.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use twinband_protocol::shm::{Layout, Shared};
use twinband_protocol::{Device, Driver, Load, Open, Report, TILE};

use super::client::{Client, Starting};
use super::link::Link;
use super::policy::{Kind, Next, Policy};
use super::process::{self, Process, Spawn};
use super::verdict::Subject;
use super::{GpuOptions, HeadMatrix, Lost, Mode, Stage, Store};

/// Jobs that can be under way.
const SLOTS: u32 = 2;

/// How long a worker that has ended waits for the one who talked to it to report why, before it is put away unasked.
const GRACE: Duration = Duration::from_millis(200);

/// Bytes of rows for which a load may take a second.
const LOAD_RATE: u64 = 50_000_000;

/// To the supervisor.
pub(super) enum Command {
    /// A worker does not serve any more.
    Lost { generation: u32, kind: Kind, text: String, closed: bool },
    /// A worker has closed its standard error.
    Ended { generation: u32 },
    /// A worker has done its first job.
    Proven { generation: u32 },
    /// The worker is not wanted any more.
    Stop,
}

/// From the supervisor.
pub(super) enum Event {
    /// A worker is being started.
    Starting { generation: u32 },
    /// It takes jobs.
    Ready(Box<Ready>),
    /// It was lost, or did not start. Another try follows after the pause.
    Lost { generation: u32, text: String, pause: Duration, absent: bool },
    /// No other try follows.
    GivenUp { generation: u32, text: String },
}

/// A worker that takes jobs.
pub(super) struct Ready {
    pub client: Client,
    pub generation: u32,
    pub device: Device,
    pub rows: Range<u32>,
    pub pid: Option<u32>,
}

/// The thread's own state.
pub(super) struct Supervisor {
    pub options: GpuOptions,
    pub matrix: HeadMatrix,
    /// The rows to load, a suffix of the matrix.
    pub rows: Range<u32>,
    pub commands: Receiver<Command>,
    /// For threads that report to this one.
    pub own: Sender<Command>,
    pub events: Sender<Event>,
    pub stop: Arc<AtomicBool>,
}

/// The rows that a share of a matrix comes to: a suffix that begins on a tile and is at least as large as asked.
pub(super) fn suffix(rows: u32, share: f32) -> Range<u32> {
    if share.is_nan() || share <= 0.0 {
        return rows..rows;
    }
    let first = f64::from(rows) * (1.0 - f64::from(share.min(1.0)));
    let first = first as u32 / TILE * TILE;
    if first < rows { first..rows } else { (rows.saturating_sub(1)) / TILE * TILE..rows }
}

/// Half of the rows, still beginning on a tile; empty in the end.
fn half(rows: &Range<u32>) -> Range<u32> {
    let first = rows.start + (rows.end - rows.start).div_ceil(2).next_multiple_of(TILE);
    first.min(rows.end)..rows.end
}

/// What to open.
fn open(options: &GpuOptions, store: &Store) -> Open {
    let named = options.device.is_some() || matches!(options.driver, Driver::Manifest(_));
    Open {
        backend: options.backend.clone(),
        driver: options.driver.clone(),
        device: options.device.clone(),
        software: options.mode == Mode::On || named,
        cache: store.dir().and_then(|dir| dir.to_str()).map(str::to_owned),
    }
}

/// Has a worker of its own look at what there is, by the way that the options name, and ends it. Takes at most the
/// patience for a greeting and that for opening a device.
pub fn probe(options: &GpuOptions) -> Result<Report, Lost> {
    let program = process::locate(options.worker.as_deref());
    let spawn = Spawn { program: &program, shared: None, model: None, keep_layers: options.keep_layers };
    let (mut process, output, input) = Process::spawn(spawn, || ())?;
    let link = Link::new(output, input).map_err(|source| Lost::Spawn { path: program, source })?;
    let mut starting = Starting { link, stop: &AtomicBool::new(false) };
    let patience = &options.patience;
    let store = Store::new(options.cache_dir.as_deref());
    let report =
        starting.greet(patience.greeting).and_then(|()| starting.probe(open(options, &store), patience.open));
    match report {
        Err(Lost::Gone { stage, .. }) => Err(process.ending(stage)),
        report => report,
    }
}

impl Supervisor {
    pub(super) fn run(mut self) {
        let store = Store::new(self.options.cache_dir.as_deref());
        let subject = Subject::new(store.clone(), &self.options);
        if let Some(cause) = subject.standing() {
            let text = format!("{cause} in an earlier run; `twinband vkinfo --retry` forgets that");
            let _ = self.events.send(Event::GivenUp { generation: 0, text });
            return;
        }
        let mut policy = Policy::new(self.options.limits);
        for generation in 1.. {
            if self.events.send(Event::Starting { generation }).is_err() {
                return;
            }
            subject.trying();
            let end = match self.start(&store, generation) {
                Ok((ready, process)) => {
                    policy.ready(Instant::now());
                    let _ = self.events.send(Event::Ready(Box::new(ready)));
                    self.attend(process, generation, &subject)
                }
                Err(lost) => Some((Kind::of(&lost), lost.to_string())),
            };
            let stopped = self.stop.load(Ordering::Relaxed);
            // What ends with the program is nobody's fault, but a wrong number must be remembered.
            let Some((kind, mut text)) = end.filter(|(kind, _)| !stopped || *kind == Kind::Wrong) else {
                subject.harmless();
                return;
            };
            let mut next = policy.lost(kind, Instant::now());
            if next == Next::Smaller {
                self.rows = half(&self.rows);
                next = Next::Again(Duration::ZERO);
                if self.rows.is_empty() {
                    text = format!("{text}, not even for a few rows");
                    next = Next::Stop { verdict: false };
                }
            }
            match next {
                Next::Stop { verdict: true } => subject.condemn(&text),
                Next::Stop { verdict: false } | Next::Again(_) | Next::Smaller => subject.harmless(),
            }
            let Next::Again(pause) = next else {
                let _ = self.events.send(Event::GivenUp { generation, text });
                return;
            };
            let absent = kind == Kind::Absent;
            let _ = self.events.send(Event::Lost { generation, text, pause, absent });
            if !self.pause(pause) {
                return;
            }
        }
    }

    /// Starts a worker up to the point where it takes jobs.
    fn start(&self, store: &Store, generation: u32) -> Result<(Ready, Process), Lost> {
        let HeadMatrix { cols, row_bytes, interleaved, format, activations, .. } = self.matrix;
        let rows = self.rows.clone();
        let count = rows.end - rows.start;
        // A fresh one every time: a worker that is stopped may still wake up and write to its own.
        let shared = Shared::create(Layout { cols, activations, rows: count, slots: SLOTS })?;
        let program = process::locate(self.options.worker.as_deref());
        let own = self.own.clone();
        let on_end = move || {
            let _ = own.send(Command::Ended { generation });
        };
        let spawn = Spawn {
            program: &program,
            shared: Some(shared.fd()),
            model: Some(&self.matrix.file),
            keep_layers: self.options.keep_layers,
        };
        let (mut process, output, input) = Process::spawn(spawn, on_end)?;
        let link = Link::new(output, input).map_err(|source| Lost::Spawn { path: program, source })?;
        let mut starting = Starting { link, stop: &self.stop };
        let patience = &self.options.patience;
        let bytes = u64::from(count) * u64::from(row_bytes);
        let mut talk = || {
            starting.greet(patience.greeting)?;
            let device = starting.open(open(&self.options, store), patience.open)?;
            let offset = self.matrix.offset + u64::from(rows.start) * u64::from(row_bytes);
            let (first, rows) = (rows.start, count);
            let load = Load { matrix: 0, format, cols, row_bytes, offset, first, rows, interleaved };
            starting.load(load, patience.load + Duration::from_secs(bytes / LOAD_RATE))?;
            Ok(device)
        };
        match talk() {
            Ok(device) => {
                let pid = process.id();
                let client = starting.finish(shared, generation);
                Ok((Ready { client, generation, device, rows, pid }, process))
            }
            Err(Lost::Gone { stage, .. }) => Err(process.ending(stage)),
            Err(lost) => Err(lost),
        }
    }

    /// Waits until a working worker is lost; `None` if it is not wanted any more. The process is put away in any case.
    fn attend(&self, mut process: Process, generation: u32, subject: &Subject) -> Option<(Kind, String)> {
        // From the moment on that it seems to have ended, until whoever talks to it has had time to say why.
        let mut grace: Option<Instant> = None;
        loop {
            let command = match grace {
                None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.commands.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match command {
                Ok(Command::Lost { generation: of, kind, text, closed }) if of == generation => {
                    if !closed {
                        return Some((kind, text));
                    }
                    // How it ended is for its process to say.
                    let lost = process.ending(Stage::Working);
                    return Some((Kind::of(&lost), lost.to_string()));
                }
                Ok(Command::Ended { generation: of }) if of == generation => {
                    grace = Some(Instant::now() + GRACE);
                }
                Ok(Command::Proven { generation: of }) if of == generation => subject.harmless(),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    let lost = process.ending(Stage::Working);
                    if process.has_ended() {
                        return Some((Kind::of(&lost), lost.to_string()));
                    }
                    // It only closed its standard error.
                    grace = None;
                }
                // About a worker that is gone already.
                Ok(_) => {}
            }
        }
    }

    /// Waits; false if no worker is wanted any more.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => return !self.stop.load(Ordering::Relaxed),
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_suffix_that_begins_on_a_tile() {
        let cases = [
            (1003, 0.0, 1003..1003),
            (1003, -1.0, 1003..1003),
            (1003, f32::NAN, 1003..1003),
            (1003, 1e-9, 960..1003),
            (1003, 0.01, 960..1003),
            (1003, 0.5, 448..1003),
            (1003, 0.99, 0..1003),
            (1003, 1.0, 0..1003),
            (1003, 7.0, 0..1003),
            (1024, 1e-9, 960..1024),
            (1, 0.5, 0..1),
            (49152, 0.5, 24576..49152),
        ];
        for (rows, share, expected) in cases {
            assert_eq!(suffix(rows, share), expected, "{rows} {share}");
        }
    }

    #[test]
    fn halving_ends_with_nothing() {
        for rows in [1, 64, 65, 1003, 262_144] {
            let mut band = 0..rows;
            let mut steps = 0;
            while !band.is_empty() {
                let smaller = half(&band);
                assert!(smaller.len() <= band.len() / 2 && smaller.end == rows, "{band:?} {smaller:?}");
                assert!(smaller.is_empty() || smaller.start.is_multiple_of(TILE));
                band = smaller;
                steps += 1;
            }
            assert!(steps <= 20);
        }
    }
}
