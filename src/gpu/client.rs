//! A worker that has been started and greeted.

use std::io::Write;
use std::path::Path;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use twinband_protocol::frame::{ReceiveError, SendError};
use twinband_protocol::{Hello, Message, Ready, VERSION};

use super::Error;
use super::link::{Late, Link};
use super::process::Process;

/// A worker that is ready to serve. Dropping it ends the worker.
#[derive(Debug)]
pub struct Client {
    ready: Ready,
    _link: Link<ChildStdin>,
    _process: Process,
}

impl Client {
    /// Starts the worker and waits until it is ready, no longer than `patience` in all.
    pub fn start(program: &Path, patience: Duration) -> Result<Self, Error> {
        let deadline = Instant::now() + patience;
        let (mut process, stdin, stdout) = Process::spawn(program)?;
        let mut link =
            Link::new(stdin, stdout).map_err(|source| Error::Spawn { path: program.to_owned(), source })?;
        match greet(&mut link, deadline) {
            Ok(ready) => Ok(Self { ready, _link: link, _process: process }),
            Err(Failure::Late) => Err(Error::Late { patience }),
            Err(Failure::Gone) => Err(Error::Gone { how: process.ending() }),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// The device the worker opened.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }
}

/// How a conversation fails, before the process has been asked about it.
#[derive(Debug)]
enum Failure {
    Late,
    Gone,
    Other(Error),
}

impl From<Late> for Failure {
    fn from(_: Late) -> Self {
        Self::Late
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Io(_) => Self::Gone,
            error => Self::Other(Error::Send(error)),
        }
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Closed | ReceiveError::Truncated | ReceiveError::Io(_) => Self::Gone,
            error => Self::Other(Error::Garbled(error)),
        }
    }
}

fn greet(link: &mut Link<impl Write>, deadline: Instant) -> Result<Ready, Failure> {
    let seq = link.send(&Message::Hello(Hello::ours()))?;
    match answer(link, seq, deadline)? {
        Message::Hello(hello) if hello.version == VERSION => {}
        Message::Hello(hello) => return Err(Failure::Other(Error::Version(hello))),
        other => return Err(unexpected(&other, "Hello")),
    }
    match answer(link, seq, deadline)? {
        Message::Ready(ready) => Ok(ready),
        Message::Fault(fault) => Err(Failure::Other(Error::Fault(fault))),
        other => Err(unexpected(&other, "Ready")),
    }
}

fn answer(link: &mut Link<impl Write>, question: u64, deadline: Instant) -> Result<Message, Failure> {
    let (seq, message) = link.receive(deadline)??;
    if seq == question { Ok(message) } else { Err(unexpected(&message, "the answer to another message")) }
}

fn unexpected(message: &Message, expected: &'static str) -> Failure {
    Failure::Other(Error::Unexpected { name: message.name(), expected })
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::thread;

    use twinband_protocol::frame;
    use twinband_protocol::{Fault, FaultCode};

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    /// Greets a worker that answers the greeting with `answers`, each sent `shift` numbers away from the question.
    fn greet_scripted(shift: u64, answers: Vec<Message>) -> Result<Ready, Failure> {
        let (mut questions, to_worker) = pipe().expect("a pipe");
        let (from_worker, mut to_engine) = pipe().expect("a pipe");
        let worker = thread::spawn(move || {
            let (seq, hello) = frame::receive(&mut questions).expect("the engine greets");
            assert_eq!(hello, Message::Hello(Hello::ours()));
            for answer in answers {
                frame::send(&mut to_engine, seq + shift, &answer).expect("the engine listens");
            }
        });
        let mut link = Link::new(to_worker, from_worker).expect("a thread");
        let result = greet(&mut link, Instant::now() + LONG);
        worker.join().expect("the script runs through");
        result
    }

    fn ready() -> Ready {
        Ready { backend: "test".to_owned(), device: "none".to_owned() }
    }

    #[test]
    fn a_ready_worker_is_accepted() {
        let answers = vec![Message::Hello(Hello::ours()), Message::Ready(ready())];
        assert_eq!(greet_scripted(0, answers).expect("both sides agree"), ready());
    }

    #[test]
    fn every_other_answer_is_an_error_of_its_own() {
        let hello = || Message::Hello(Hello::ours());
        let newer = Hello { version: VERSION + 1, build: "next".to_owned() };
        let fault = Fault { code: FaultCode::NoBackend, text: "no device".to_owned() };
        let message = |result: Result<Ready, Failure>| match result {
            Err(Failure::Other(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let said = message(greet_scripted(0, vec![Message::Hello(newer)]));
        assert!(said.contains(&format!("version {}", VERSION + 1)) && said.contains("next"), "{said}");
        let said = message(greet_scripted(0, vec![hello(), Message::Fault(fault)]));
        assert!(said.contains("no device"), "{said}");
        let said = message(greet_scripted(0, vec![Message::Ready(ready())]));
        assert!(said.contains("sent Ready where Hello"), "{said}");
        let said = message(greet_scripted(0, vec![hello(), Message::Bye]));
        assert!(said.contains("sent Bye where Ready"), "{said}");
        let said = message(greet_scripted(1, vec![hello()]));
        assert!(said.contains("another message"), "{said}");
        assert!(matches!(greet_scripted(0, vec![hello()]), Err(Failure::Gone)));
    }

    /// Programs that are on every Unix machine and know nothing of the protocol.
    #[cfg(unix)]
    mod strangers {
        use super::*;

        fn start(program: &str, patience: Duration) -> Error {
            Client::start(Path::new(program), patience).expect_err("it cannot greet")
        }

        #[test]
        fn a_missing_program_is_named() {
            let said = start("/nonexistent/worker", LONG).to_string();
            assert!(said.contains("/nonexistent/worker") && said.contains("TWINBAND_WORKER"), "{said}");
        }

        #[test]
        fn an_end_without_a_word_is_seen_at_once() {
            let (failed, succeeded) = (start("/bin/false", LONG), start("/bin/true", LONG));
            assert!(matches!(&failed, Error::Gone { how } if how.contains("exit status: 1")), "{failed}");
            assert!(matches!(&succeeded, Error::Gone { .. }), "{succeeded}");
        }

        #[test]
        fn an_echo_is_no_answer_and_silence_ends_at_the_deadline() {
            // It gives back our own greeting, which is right, and then waits for more.
            let started = Instant::now();
            let error = start("/bin/cat", SOON);
            assert!(matches!(error, Error::Late { .. }), "{error}");
            assert!((SOON..LONG).contains(&started.elapsed()), "{:?}", started.elapsed());
        }

        #[test]
        fn a_flood_of_text_is_refused() {
            let error = start("/usr/bin/yes", LONG);
            assert!(matches!(error, Error::Garbled(_)), "{error}");
        }
    }
}
