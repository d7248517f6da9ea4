//! Messages through the worker's pipes, received with a deadline.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use twinband_protocol::Message;
use twinband_protocol::frame::{self, ReceiveError, SendError};

/// Frames that may wait here unread; a worker that sends more is held up by its pipe.
const BACKLOG: usize = 8;

type Received = Result<(u64, Message), ReceiveError>;

/// Both directions of the conversation.
///
/// A thread reads, so that a deadline holds for a whole message however slowly its bytes come. The thread ends with the
/// pipe, that is at the latest when the process is killed.
#[derive(Debug)]
pub(super) struct Link<W> {
    output: W,
    input: Receiver<Received>,
    next_seq: u64,
}

/// Nothing came by the deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Late;

impl<W: Write> Link<W> {
    pub(super) fn new(output: W, mut input: impl Read + Send + 'static) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(BACKLOG);
        thread::Builder::new().name("worker link".to_owned()).spawn(move || {
            loop {
                let received = frame::receive(&mut input);
                let last = received.is_err();
                if sender.send(received).is_err() || last {
                    break;
                }
            }
        })?;
        Ok(Self { output, input: receiver, next_seq: 1 })
    }

    /// Sends a message and returns the number that its answers will carry.
    pub(super) fn send(&mut self, message: &Message) -> Result<u64, SendError> {
        let seq = self.next_seq;
        self.next_seq += 1;
        frame::send(&mut self.output, seq, message)?;
        Ok(seq)
    }

    /// The next message, if it comes before the deadline.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Received, Late> {
        let left = deadline.checked_duration_since(Instant::now()).unwrap_or(Duration::ZERO);
        match self.input.recv_timeout(left) {
            Ok(received) => Ok(received),
            Err(RecvTimeoutError::Timeout) => Err(Late),
            // The reading thread has reported how the pipe ended and left.
            Err(RecvTimeoutError::Disconnected) => Ok(Err(ReceiveError::Closed)),
        }
    }
}
