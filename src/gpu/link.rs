//! Messages through the worker's pipes. Nothing here waits longer than it is told to.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use twinband_protocol::Message;
use twinband_protocol::frame::{self, ReceiveError, SendError};

/// Both directions of the conversation.
///
/// The pipes do not block on this side. A worker that does not read what it is sent is an error once its pipe is full,
/// and what it sends is put together here from however small pieces.
#[derive(Debug)]
pub(super) struct Link {
    output: File,
    input: File,
    /// Bytes that are no whole frame yet.
    buffer: Vec<u8>,
    next_seq: u64,
}

impl Link {
    pub(super) fn new(output: impl Into<OwnedFd>, input: impl Into<OwnedFd>) -> io::Result<Self> {
        let (output, input) = (output.into(), input.into());
        for fd in [&output, &input] {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self { output: output.into(), input: input.into(), buffer: Vec::new(), next_seq: 1 })
    }

    /// Sends a message and returns the number that its answers will carry. An error may leave half a frame behind: the
    /// conversation is over.
    pub(super) fn send(&mut self, message: &Message) -> Result<u64, SendError> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let mut frame = Vec::new();
        frame::send(&mut frame, seq, message)?;
        self.output.write_all(&frame)?;
        Ok(seq)
    }

    /// The next message, if it is whole by the deadline; one that is there already is taken in any case.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Option<(u64, Message)>, ReceiveError> {
        loop {
            if let Some((length, seq, message)) = frame::parse(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(Some((seq, message)));
            }
            let mut piece = [0; 4096];
            match self.input.read(&mut piece) {
                Ok(0) if self.buffer.is_empty() => return Err(ReceiveError::Closed),
                Ok(0) => return Err(ReceiveError::Truncated),
                Ok(n) => self.buffer.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    // How much time is left is found anew each time: bytes may come one by one.
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.wait(left)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until there is something to read, the pipe is closed, or the time is up.
    fn wait(&self, time: Duration) -> io::Result<()> {
        let mut fds = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, pipe};
    use std::thread;

    use twinband_protocol::Hello;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn link() -> (Link, PipeReader, PipeWriter) {
        let (questions, output) = pipe().expect("a pipe");
        let (input, answers) = pipe().expect("a pipe");
        (Link::new(output, input).expect("a link"), questions, answers)
    }

    #[test]
    fn a_message_in_pieces_is_put_together_and_its_deadline_is_one() {
        let (mut link, _questions, mut answers) = link();
        let mut bytes = Vec::new();
        frame::send(&mut bytes, 5, &Message::Bye).expect("a vector takes everything");
        frame::send(&mut bytes, 6, &Message::Hello(Hello::ours())).expect("a vector takes everything");
        let writer = thread::spawn(move || {
            for byte in bytes {
                thread::sleep(Duration::from_millis(1));
                answers.write_all(&[byte]).expect("the engine listens");
            }
            // Half a frame, one byte at a time, for longer than anyone waits.
            for _ in 0..8 {
                thread::sleep(Duration::from_millis(50));
                answers.write_all(&[1]).expect("the engine listens");
            }
        });
        let mut receive = |time| link.receive(Instant::now() + time).expect("no error");
        assert!(matches!(receive(LONG), Some((5, Message::Bye))));
        assert!(matches!(receive(LONG), Some((6, Message::Hello(_)))));
        let started = Instant::now();
        assert!(receive(Duration::from_millis(120)).is_none());
        assert!(started.elapsed() >= Duration::from_millis(120));
        writer.join().expect("it runs through");
        assert!(matches!(link.receive(Instant::now() + LONG), Err(ReceiveError::Truncated)));
    }

    #[test]
    fn a_past_deadline_takes_what_is_there() {
        let (mut link, _questions, mut answers) = link();
        assert!(link.receive(Instant::now()).expect("no error").is_none());
        frame::send(&mut answers, 5, &Message::Bye).expect("the engine listens");
        assert!(link.receive(Instant::now()).expect("no error").is_some());
        drop(answers);
        assert!(matches!(link.receive(Instant::now()), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_full_pipe_does_not_block() {
        let (mut link, _questions, _answers) = link();
        let error = (0..1_000_000).find_map(|_| link.send(&Message::Bye).err());
        assert!(matches!(&error, Some(SendError::Io(e)) if e.kind() == ErrorKind::WouldBlock), "{error:?}");
    }
}
