//! The conversation with the engine, from greeting to goodbye.

use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

use twinband_protocol::frame::{self, ReceiveError};
use twinband_protocol::shm::Shared;
use twinband_protocol::{Done, Exit, Fault, FaultCode, Hello, Job, Load, Message, VERSION, WORKER_PROGRAM};

use crate::backend::{self, Backend};
use crate::sandbox::{self, Inherited};

/// Serves one engine until it says goodbye or leaves; the result tells how the conversation ended.
pub fn serve(inherited: Inherited) -> Exit {
    let Inherited { mut input, output, shared, model } = inherited;
    let greeted = greet(&mut input, output);
    // The backend is never torn down: the process ends first, and with it everything the driver holds.
    let mut session = ManuallyDrop::new(Session { output, shared, model, buffer: None, backend: None });
    match greeted.and_then(|()| session.run(&mut input)) {
        Ok(never) => match never {},
        Err(exit) => exit,
    }
}

enum Never {}

/// Exchanges greetings. Ours is always sent, so that a mismatch can be reported by both numbers.
fn greet(input: &mut impl Read, output: &File) -> Result<(), Exit> {
    let (seq, engine) = match receive(input)? {
        (seq, Message::Hello(hello)) => (seq, hello),
        (_, Message::Bye) => return Err(Exit::Bye),
        (_, other) => return Err(unexpected(&other)),
    };
    send(output, seq, &Message::Hello(Hello::ours()))?;
    if engine.version == VERSION { Ok(()) } else { Err(Exit::Version) }
}

/// What has been handed over and opened so far.
struct Session {
    output: &'static File,
    /// Until it is mapped.
    shared: Option<OwnedFd>,
    model: Option<File>,
    buffer: Option<Shared>,
    backend: Option<Box<dyn Backend>>,
}

impl Session {
    fn run(&mut self, input: &mut impl Read) -> Result<Never, Exit> {
        loop {
            let (seq, message) = receive(input)?;
            sandbox::answering(seq);
            match self.answer(message)? {
                Ok(answer) => send(self.output, seq, &answer)?,
                Err(fault) => {
                    let exit = Exit::Fault(fault.code);
                    send(self.output, seq, &Message::Fault(fault))?;
                    return Err(exit);
                }
            }
        }
    }

    /// The answer to a message, or the end of the conversation.
    fn answer(&mut self, message: Message) -> Result<Result<Message, Fault>, Exit> {
        Ok(match (message, &self.backend) {
            (Message::Bye, _) => return Err(Exit::Bye),
            (Message::Probe(open), None) => Ok(Message::Report(backend::probe(&open))),
            (Message::Open(open), None) => backend::open(&open).map(|backend| {
                let device = backend.device().clone();
                self.backend = Some(backend);
                Message::Ready(Box::new(device))
            }),
            (Message::Load(load), Some(_)) => self.load(&load),
            (Message::Job(job), Some(_)) => self.job(&job).map(Message::Done),
            (other, _) => return Err(unexpected(&other)),
        })
    }

    fn load(&mut self, load: &Load) -> Result<Message, Fault> {
        if self.buffer.is_none() {
            let fd = self.shared.take().ok_or_else(|| input("no shared buffer was handed over"))?;
            self.buffer = Some(Shared::open(fd).map_err(|e| input(&e.to_string()))?);
        }
        let (Some(backend), Some(buffer), Some(model)) = (&mut self.backend, &self.buffer, &self.model)
        else {
            return Err(input("no model file was handed over"));
        };
        let layout = buffer.layout();
        if load.rows == 0 || load.cols != layout.cols || load.rows > layout.rows {
            return Err(input("the rows to load do not fit the shared buffer"));
        }
        backend.load(load, model, layout.activations).map(Message::Loaded)
    }

    fn job(&mut self, job: &Job) -> Result<Done, Fault> {
        let (Some(backend), Some(buffer)) = (&mut self.backend, &self.buffer) else {
            return Err(input("nothing is loaded"));
        };
        let layout = buffer.layout();
        if job.slot >= layout.slots || job.rows > layout.rows {
            return Err(input("a job does not fit the shared buffer"));
        }
        backend.run(job, buffer)
    }
}

fn input(text: &str) -> Fault {
    Fault { code: FaultCode::Input, text: text.to_owned() }
}

fn receive(input: &mut impl Read) -> Result<(u64, Message), Exit> {
    frame::receive(input).map_err(|error| match error {
        ReceiveError::Closed => Exit::EngineGone,
        error => {
            eprintln!("{WORKER_PROGRAM}: {error}");
            Exit::Protocol
        }
    })
}

/// An engine that no longer reads is gone, whatever the pipe says about it.
fn send(mut output: &File, seq: u64, message: &Message) -> Result<(), Exit> {
    frame::send(&mut output, seq, message).map_err(|_| Exit::EngineGone)
}

fn unexpected(message: &Message) -> Exit {
    eprintln!("{WORKER_PROGRAM}: did not expect {} now", message.name());
    Exit::Protocol
}
