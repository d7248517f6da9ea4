//! The conversation with one worker, seen from the engine.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use twinband_protocol::frame::{ReceiveError, SendError};
use twinband_protocol::shm::{Activations, Part, Shared};
use twinband_protocol::{Device, Hello, Job, Load, Loaded, Message, Open, Report, VERSION};

use super::link::Link;
use super::{Lost, Stage};

/// How often somebody who waits for a start looks whether anyone still wants it.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// The number of the matrix; there is one so far.
const MATRIX: u32 = 0;

/// Activations, in the form that the matrix is multiplied by.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// int8 codes with scales.
    Q8 {
        /// `[cols]`
        codes: &'a [i8],
        /// `[cols / block]`
        scales: &'a [f32],
        /// `[cols / 16]`
        sums: &'a [i16],
    },
    /// `[cols]`
    F32(&'a [f32]),
}

impl Input<'_> {
    /// Whether the lengths are those of the buffer.
    fn fits(&self, shared: &Shared) -> bool {
        let layout = shared.layout();
        let cols = layout.cols as usize;
        match (self, layout.activations) {
            (Self::Q8 { codes, scales, sums }, Activations::Q8 { block }) => {
                codes.len() == cols && scales.len() == cols / block as usize && sums.len() == cols / 16
            }
            (Self::F32(x), Activations::F32) => x.len() == cols,
            _ => false,
        }
    }

    fn put(&self, shared: &Shared, slot: u32) {
        match self {
            Self::Q8 { codes, scales, sums } => {
                shared.put(slot, Part::Codes, codes);
                shared.put(slot, Part::Scales, scales);
                shared.put(slot, Part::Sums, sums);
            }
            Self::F32(x) => shared.put(slot, Part::Codes, x),
        }
    }
}

/// A job under way.
#[derive(Debug)]
#[must_use = "the answer has to be waited for"]
pub struct Ticket {
    /// Which worker, counted from the first.
    pub(super) generation: u32,
    seq: u64,
    slot: u32,
    rows: Range<u32>,
    submitted: Instant,
}

impl Ticket {
    /// The rows it is for.
    pub fn rows(&self) -> Range<u32> {
        self.rows.clone()
    }
}

/// An answer that came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// From submission to fence, as the worker measured it.
    pub device: Duration,
    /// From [`Gpu::submit`](super::Gpu::submit) to the results in the caller's slice.
    pub total: Duration,
}

/// One worker's end of the conversation, ready for jobs.
#[derive(Debug)]
pub(super) struct Client {
    link: Link,
    shared: Shared,
    generation: u32,
    /// The job without an answer, if there is one, and since when. The next has to wait for it.
    asked: Option<(u64, Instant)>,
    next_slot: u32,
}

/// A worker that is being started.
pub(super) struct Starting<'a> {
    pub link: Link,
    /// Set when nobody wants the worker any more.
    pub stop: &'a AtomicBool,
}

impl Starting<'_> {
    /// Exchanges greetings.
    pub(super) fn greet(&mut self, patience: Duration) -> Result<(), Lost> {
        match self.ask(&Message::Hello(Hello::ours()), Stage::Greeting, patience)? {
            Message::Hello(hello) if hello.version == VERSION => Ok(()),
            Message::Hello(hello) => Err(Lost::Version(hello)),
            other => Err(unexpected(other, Stage::Greeting, "Hello")),
        }
    }

    /// Has a device opened.
    pub(super) fn open(&mut self, open: Open, patience: Duration) -> Result<Device, Lost> {
        match self.ask(&Message::Open(open), Stage::Opening, patience)? {
            Message::Ready(device) => Ok(*device),
            other => Err(unexpected(other, Stage::Opening, "Ready")),
        }
    }

    /// Has everything looked at.
    pub(super) fn probe(&mut self, open: Open, patience: Duration) -> Result<Report, Lost> {
        match self.ask(&Message::Probe(open), Stage::Opening, patience)? {
            Message::Report(report) => Ok(report),
            other => Err(unexpected(other, Stage::Opening, "Report")),
        }
    }

    /// Has rows loaded. The load's matrix number is set here.
    pub(super) fn load(&mut self, load: Load, patience: Duration) -> Result<Loaded, Lost> {
        match self.ask(&Message::Load(Load { matrix: MATRIX, ..load }), Stage::Loading, patience)? {
            Message::Loaded(loaded) => Ok(loaded),
            other => Err(unexpected(other, Stage::Loading, "Loaded")),
        }
    }

    /// Turns to work.
    pub(super) fn finish(self, shared: Shared, generation: u32) -> Client {
        Client { link: self.link, shared, generation, asked: None, next_slot: 0 }
    }

    fn ask(&mut self, question: &Message, stage: Stage, patience: Duration) -> Result<Message, Lost> {
        let deadline = Instant::now() + patience;
        let number = self.link.send(question).map_err(|e| not_sent(e, stage))?;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Lost::Stopped);
            }
            let now = Instant::now();
            let answer =
                self.link.receive(deadline.min(now + STOP_CHECK)).map_err(|e| not_received(e, stage))?;
            return match answer {
                Some((seq, message)) if seq == number => Ok(message),
                Some((_, message)) => Err(unexpected(message, stage, "the answer to another message")),
                None if now < deadline => continue,
                None => Err(Lost::Late { stage, patience }),
            };
        }
    }
}

impl Client {
    /// Sends a job, if no other is without an answer and `input` has the form that was agreed on.
    pub(super) fn submit(&mut self, input: &Input<'_>, rows: Range<u32>) -> Result<Option<Ticket>, Lost> {
        let submitted = Instant::now();
        if self.asked.is_some() || !input.fits(&self.shared) {
            return Ok(None);
        }
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % self.shared.layout().slots;
        input.put(&self.shared, slot);
        let job = Job { matrix: MATRIX, slot, first: rows.start, rows: rows.end - rows.start };
        let seq = self.link.send(&Message::Job(job)).map_err(|e| not_sent(e, Stage::Working))?;
        self.asked = Some((seq, submitted));
        Ok(Some(Ticket { generation: self.generation, seq, slot, rows, submitted }))
    }

    /// Waits for the answer to a job and copies its results. `Late` if it does not come by the deadline: it is then
    /// thrown away whenever it comes.
    pub(super) fn wait(&mut self, ticket: &Ticket, deadline: Instant, out: &mut [f32]) -> Result<Done, Lost> {
        if self.asked.is_none_or(|(seq, _)| seq != ticket.seq) {
            return Err(Lost::Stale);
        }
        let Some(done) = self.answer(deadline)? else {
            let patience = deadline.saturating_duration_since(ticket.submitted);
            return Err(Lost::Late { stage: Stage::Working, patience });
        };
        self.shared.get(ticket.slot, Part::Results, 0, out);
        Ok(Done { device: Duration::from_micros(done.micros), total: ticket.submitted.elapsed() })
    }

    /// Takes what has come without waiting: a late answer, or the news that the worker is gone.
    pub(super) fn listen(&mut self) -> Result<(), Lost> {
        self.answer(Instant::now()).map(|_| ())
    }

    /// Since when a job has had no answer.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.asked.map(|(_, since)| since)
    }

    /// The answer to the one job that has none yet.
    fn answer(&mut self, deadline: Instant) -> Result<Option<twinband_protocol::Done>, Lost> {
        let stage = Stage::Working;
        let received = self.link.receive(deadline).map_err(|e| not_received(e, stage))?;
        match (received, self.asked) {
            (None, _) => Ok(None),
            (Some((seq, Message::Done(done))), Some((asked, _))) if seq == asked => {
                self.asked = None;
                Ok(Some(done))
            }
            (Some((_, Message::Fault(fault))), _) => Err(Lost::Fault { stage, fault }),
            (Some((_, message)), _) => Err(unexpected(message, stage, "the answer to a job")),
        }
    }
}

fn not_sent(source: SendError, stage: Stage) -> Lost {
    match source {
        SendError::Io(e) if e.kind() == std::io::ErrorKind::BrokenPipe => gone(stage),
        source => Lost::Send { stage, source },
    }
}

fn not_received(source: ReceiveError, stage: Stage) -> Lost {
    match source {
        ReceiveError::Closed | ReceiveError::Truncated | ReceiveError::Io(_) => gone(stage),
        source => Lost::Garbled { stage, source },
    }
}

/// How it ended is for its process to say.
fn gone(stage: Stage) -> Lost {
    Lost::Gone { stage, how: "closed its pipe".to_owned(), killed: false }
}

fn unexpected(message: Message, stage: Stage, expected: &'static str) -> Lost {
    match message {
        Message::Fault(fault) => Lost::Fault { stage, fault },
        message => Lost::Unexpected { stage, name: message.name(), expected },
    }
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::thread;

    use twinband_protocol::shm::Layout;
    use twinband_protocol::{Fault, FaultCode, frame};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// A worker that answers each message with the next of `answers`, each sent `shift` numbers away from the question.
    fn scripted(shift: u64, answers: Vec<Message>) -> Link {
        let (mut questions, to_worker) = pipe().expect("a pipe");
        let (from_worker, mut to_engine) = pipe().expect("a pipe");
        thread::spawn(move || {
            for answer in answers {
                let Ok((seq, _)) = frame::receive(&mut questions) else { return };
                frame::send(&mut to_engine, seq + shift, &answer).expect("the engine listens");
            }
            let _ = frame::receive(&mut questions);
        });
        Link::new(to_worker, from_worker).expect("a link")
    }

    fn start(shift: u64, answers: Vec<Message>) -> Result<Device, Lost> {
        let stop = AtomicBool::new(false);
        let mut starting = Starting { link: scripted(shift, answers), stop: &stop };
        starting.greet(LONG)?;
        starting.open(Open::default(), LONG)
    }

    fn hello() -> Message {
        Message::Hello(Hello::ours())
    }

    #[test]
    fn a_ready_worker_is_accepted() {
        let device = Device { name: "it".to_owned(), ..Device::default() };
        let answers = vec![hello(), Message::Ready(Box::new(device.clone()))];
        assert_eq!(start(0, answers).expect("both sides agree"), device);
    }

    #[test]
    fn every_other_answer_is_an_error_of_its_own() {
        let newer = Hello { version: VERSION + 1, build: "next".to_owned() };
        let fault = Fault { code: FaultCode::NoDevice, text: "no device".to_owned() };
        let said = |shift, answers| start(shift, answers).expect_err("it is not right").to_string();
        let text = said(0, vec![Message::Hello(newer)]);
        assert!(text.contains(&format!("version {}", VERSION + 1)) && text.contains("next"), "{text}");
        assert_eq!(said(0, vec![hello(), Message::Fault(fault)]), "no device");
        let text = said(0, vec![Message::Ready(Box::default())]);
        assert!(text.contains("sent Ready where Hello"), "{text}");
        let text = said(0, vec![hello(), Message::Bye]);
        assert!(text.contains("sent Bye where Ready"), "{text}");
        let text = said(1, vec![hello()]);
        assert!(text.contains("another message"), "{text}");
        assert!(matches!(start(0, vec![hello()]), Err(Lost::Gone { stage: Stage::Opening, .. })));
    }

    #[test]
    fn nobody_waits_for_a_start_that_is_not_wanted() {
        let (_questions, to_worker) = pipe().expect("a pipe");
        let (from_worker, _to_engine) = pipe().expect("a pipe");
        let stop = AtomicBool::new(true);
        let link = Link::new(to_worker, from_worker).expect("a link");
        assert!(matches!(Starting { link, stop: &stop }.greet(LONG), Err(Lost::Stopped)));
    }

    fn client(answers: Vec<Message>) -> Client {
        let layout = Layout { cols: 32, activations: Activations::F32, rows: 64, slots: 2 };
        Client {
            link: scripted(0, answers),
            shared: Shared::create(layout).expect("a buffer"),
            generation: 1,
            asked: None,
            next_slot: 0,
        }
    }

    #[test]
    fn an_answer_to_nothing_and_a_fault_end_the_conversation() {
        let input = Input::F32(&[0.0; 32]);
        for (answer, expected) in [
            (Message::Ready(Box::default()), "sent Ready"),
            (Message::Fault(Fault { code: FaultCode::DeviceLost, text: "lost it".to_owned() }), "lost it"),
        ] {
            let mut client = client(vec![answer]);
            let ticket = client.submit(&input, 0..64).expect("it takes jobs").expect("it is free");
            let lost = client.wait(&ticket, Instant::now() + LONG, &mut [0.0; 64]).expect_err("no answer");
            assert!(lost.to_string().contains(expected), "{lost}");
        }
    }

    #[test]
    fn one_job_at_a_time_and_only_in_the_form_agreed_on() {
        let done = Message::Done(twinband_protocol::Done { micros: 5 });
        let mut client = client(vec![done.clone(), done]);
        let q8 = Input::Q8 { codes: &[0; 32], scales: &[0.0], sums: &[0; 2] };
        assert!(client.submit(&q8, 0..64).expect("no error").is_none());
        assert!(client.submit(&Input::F32(&[0.0; 31]), 0..64).expect("no error").is_none());
        let input = Input::F32(&[0.0; 32]);
        for slot in [0, 1] {
            let ticket = client.submit(&input, 0..64).expect("no error").expect("it is free");
            assert_eq!(ticket.slot, slot);
            assert!(client.submit(&input, 0..64).expect("no error").is_none());
            let done = client.wait(&ticket, Instant::now() + LONG, &mut [0.0; 64]).expect("an answer");
            assert_eq!(done.device, Duration::from_micros(5));
        }
    }
}
