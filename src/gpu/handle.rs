//! What the head holds in its hands.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use twinband_protocol::TILE;

use super::client::{Client, Done, Input, Ticket};
use super::policy::{Kind, Lateness};
use super::supervisor::{Command, Event, Ready, Supervisor, suffix};
use super::{GpuOptions, HeadMatrix, Lost, Mode, Patience, State, Status};

/// How long the end of the program may wait for a verdict to be written.
const RECORD: Duration = Duration::from_millis(500);

/// A worker, or the hope for one. Nothing here waits, but for [`Gpu::wait`], [`Gpu::settle`] and [`Gpu::loaded`], which
/// are told how long. Dropping it ends the worker.
#[derive(Debug)]
pub struct Gpu {
    status: Status,
    messages: Vec<String>,
    active: Option<Active>,
    lateness: Lateness,
    silence: Duration,
    verbose: bool,
    /// To the supervisor; `None` where there never was one.
    supervisor: Option<(Sender<Command>, Receiver<Event>)>,
    stop: Arc<AtomicBool>,
}

/// A worker that takes jobs.
#[derive(Debug)]
struct Active {
    client: Client,
    generation: u32,
    /// It has done a job.
    proven: bool,
    /// How many rows it should get is settled.
    calibrated: bool,
}

impl Gpu {
    /// Has a worker started in the background, to compute up to `max_share` of the rows of `matrix`, counted from the
    /// end. Returns at once.
    pub fn start(options: GpuOptions, matrix: HeadMatrix, max_share: f32) -> Self {
        let mut gpu = Self::off();
        gpu.lateness = Lateness::new(&options.limits);
        gpu.silence = options.limits.silence;
        gpu.verbose = options.verbose;
        let rows = suffix(matrix.rows, max_share);
        if options.mode == Mode::Off || rows.is_empty() {
            return gpu;
        }
        let (own, commands) = channel();
        let (sender, events) = channel();
        let stop = Arc::clone(&gpu.stop);
        let supervisor =
            Supervisor { options, matrix, rows, commands, own: own.clone(), events: sender, stop };
        // Not a thread of a pool: the kernel kills the worker when the thread that started it ends.
        match thread::Builder::new().name("gpu supervisor".to_owned()).spawn(move || supervisor.run()) {
            Ok(_) => {
                gpu.supervisor = Some((own, events));
                gpu.status.state = State::Starting;
            }
            Err(error) => gpu.give_up(format!("cannot start a thread: {error}")),
        }
        gpu
    }

    /// No worker.
    pub fn off() -> Self {
        let limits = super::Limits::default();
        Self {
            status: Status::default(),
            messages: Vec::new(),
            active: None,
            lateness: Lateness::new(&limits),
            silence: limits.silence,
            verbose: false,
            supervisor: None,
            stop: Arc::default(),
        }
    }

    /// Takes notice of what has happened, and says how things are.
    pub fn poll(&mut self, now: Instant) -> &Status {
        while let Some((_, events)) = &self.supervisor {
            match events.try_recv() {
                Ok(event) => self.notice(event),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.supervisor = None;
                    if self.status.state != State::GivenUp {
                        self.give_up("the supervising thread ended".to_owned());
                    }
                }
            }
        }
        if let Some(active) = &mut self.active {
            let heard = active.client.listen();
            let waiting = active.client.waiting_since();
            match (heard, waiting) {
                (Err(lost), _) => self.lose_by(&lost),
                (Ok(()), Some(since)) if now.saturating_duration_since(since) >= self.silence => {
                    let ms = self.silence.as_millis();
                    self.lose(Kind::Slow, format!("the worker gave no sign of life for {ms} ms"));
                }
                (Ok(()), None) => self.status.state = active.idle_state(),
                (Ok(()), Some(_)) => {}
            }
        }
        &self.status
    }

    /// How things were when last looked at.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Waits until a worker takes jobs, or none does for the time being, but not longer than `patience`.
    pub fn settle(&mut self, patience: Duration) -> &Status {
        let deadline = Instant::now() + patience;
        while self.poll(Instant::now()).state == State::Starting && Instant::now() < deadline {
            let Some((_, events)) = &self.supervisor else { break };
            if let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                self.notice(event);
            }
        }
        &self.status
    }

    /// Waits as long as a start may take; returns the rows that the worker has, or why there is none.
    pub fn loaded(&mut self, patience: &Patience) -> Result<Range<u32>, String> {
        let status = self.settle(patience.greeting + patience.open + patience.load);
        if status.rows.is_empty() {
            let fault = status.last_fault.clone();
            return Err(fault.unwrap_or_else(|| "it was not ready in time".to_owned()));
        }
        Ok(status.rows.clone())
    }

    /// How many rows the worker should get is settled. Only the state that is reported depends on it.
    pub fn calibrated(&mut self) {
        if let Some(active) = &mut self.active {
            active.calibrated = true;
            if self.status.state == State::Calibrating {
                self.status.state = State::Ready;
            }
        }
    }

    /// Gives the worker a job: the product of `input` and `rows`, which begin on a tile and are loaded. `None` if it
    /// cannot take it now: there is no worker, or it still owes an answer. No rows make a round trip without work.
    pub fn submit(&mut self, input: &Input<'_>, rows: Range<u32>) -> Option<Ticket> {
        self.poll(Instant::now());
        let loaded = &self.status.rows;
        let inside = rows.start >= loaded.start && rows.start <= rows.end && rows.end <= loaded.end;
        if !inside || !rows.start.is_multiple_of(TILE) {
            return None;
        }
        match self.active.as_mut()?.client.submit(input, rows) {
            Ok(ticket) => {
                if ticket.is_some() {
                    self.status.state = State::Busy;
                }
                ticket
            }
            Err(lost) => {
                self.lose_by(&lost);
                None
            }
        }
    }

    /// Waits for the results of a job, `[rows of the ticket]`, but not beyond the deadline.
    ///
    /// On any error `out` holds nothing of use. A late answer is no loss of the worker by itself: the ticket is void, the
    /// worker takes no job until the answer has come, and only another late one at once is a loss.
    ///
    /// # Panics
    /// If `out` is not as long as the ticket has rows.
    pub fn wait(&mut self, ticket: Ticket, deadline: Instant, out: &mut [f32]) -> Result<Done, Lost> {
        assert_eq!(out.len(), ticket.rows().len(), "a place for every row of {:?}", ticket.rows());
        let active = self.active.as_mut().filter(|active| active.generation == ticket.generation);
        let active = active.ok_or(Lost::Stale)?;
        match active.client.wait(&ticket, deadline, out) {
            Ok(done) => {
                self.status.state = active.idle_state();
                self.status.jobs += 1;
                self.lateness.in_time();
                if !active.proven {
                    active.proven = true;
                    let generation = active.generation;
                    self.tell(Command::Proven { generation });
                }
                Ok(done)
            }
            Err(lost @ Lost::Late { .. }) => {
                self.status.late += 1;
                let text = lost.to_string();
                if self.lateness.late() {
                    self.lose(Kind::Slow, format!("{text}, again"));
                } else {
                    self.status.last_fault = Some(text);
                }
                Err(lost)
            }
            Err(Lost::Stale) => Err(Lost::Stale),
            Err(lost) => {
                self.lose_by(&lost);
                Err(lost)
            }
        }
    }

    /// A number of the worker's was wrong. It is not used again, in this run or others.
    pub fn mismatch(&mut self, what: &str) {
        self.status.mismatches += 1;
        self.lose(Kind::Wrong, format!("the device computed a wrong number: {what}"));
    }

    /// Lines for the user that have come up since the last time.
    pub fn messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    fn notice(&mut self, event: Event) {
        match event {
            Event::Starting { generation } => {
                self.status.state = State::Starting;
                self.status.restarts = generation - 1;
            }
            Event::Ready(ready) => {
                let Ready { client, generation, device, rows, pid } = *ready;
                let active = Active { client, generation, proven: false, calibrated: false };
                self.status.state = active.idle_state();
                self.status.rows = rows;
                self.status.pid = pid;
                self.messages.push(format!("[gpu] worker ready: {}", device.name));
                self.status.device = Some(device);
                self.active = Some(active);
                self.lateness.in_time();
            }
            Event::Lost { generation, text, pause, absent } => {
                self.forget(generation);
                // Without a pause a smaller try is under way already.
                self.status.state = if pause.is_zero() { State::Starting } else { State::Lost };
                if absent && self.status.last_fault.as_ref() != Some(&text) {
                    self.messages.push(format!("[gpu] not used: {text}"));
                } else if self.verbose {
                    let ms = pause.as_millis();
                    self.messages.push(format!("[gpu] lost: {text}; the next try is in {ms} ms"));
                }
                self.status.last_fault = Some(text);
            }
            Event::GivenUp { generation, text } => {
                self.forget(generation);
                self.give_up(text);
            }
        }
    }

    fn give_up(&mut self, text: String) {
        self.status.state = State::GivenUp;
        self.messages.push(format!("[gpu] not used: {text}"));
        self.status.last_fault = Some(text);
    }

    /// Lets a worker go that the supervisor has put away.
    fn forget(&mut self, generation: u32) {
        if self.active.as_ref().is_some_and(|active| active.generation <= generation) {
            self.active = None;
            self.status.rows = 0..0;
            self.status.pid = None;
        }
    }

    fn lose_by(&mut self, lost: &Lost) {
        self.end(Kind::of(lost), lost.to_string(), matches!(lost, Lost::Gone { .. }));
    }

    fn lose(&mut self, kind: Kind, text: String) {
        self.end(kind, text, false);
    }

    /// Gives a worker up and has it put away. `closed` if all that is known is that its pipe is closed.
    fn end(&mut self, kind: Kind, text: String, closed: bool) {
        let Some(active) = self.active.take() else { return };
        self.status.rows = 0..0;
        self.status.pid = None;
        self.status.state = State::Lost;
        self.status.last_fault = Some(text.clone());
        self.tell(Command::Lost { generation: active.generation, kind, text, closed });
    }

    fn tell(&self, command: Command) {
        if let Some((supervisor, _)) = &self.supervisor {
            // It has ended only after giving up, which is its last event and not read yet.
            let _ = supervisor.send(command);
        }
    }
}

impl Active {
    fn idle_state(&self) -> State {
        if self.calibrated { State::Ready } else { State::Calibrating }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tell(Command::Stop);
        // The program may end now: a wrong number has to be on record before. That takes a file, not a driver.
        let deadline = Instant::now() + RECORD;
        if let Some((_, events)) = self.supervisor.as_ref().filter(|_| self.status.mismatches > 0) {
            // Its thread ends when it is done.
            while events.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        }
    }
}
