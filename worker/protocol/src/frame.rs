//! Frames: how a message travels through a pipe.
//!
//! ```text
//! offset  size  field
//!      0     4  length of the payload in bytes, at most MAX_PAYLOAD
//!      4     1  kind of the message
//!      5     8  sequence number, chosen by the sender; an answer carries that of the question
//!     13     n  payload
//!   13+n     4  checksum over everything before it (FNV-1a, 32 bits)
//! ```
//! Integers are little-endian. The checksum is there because a graphics driver may print to the same pipe: a stray line
//! must be noticed, not taken for a message.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::codec::CodecError;
use crate::message::Message;

/// The longest payload. Bulk data does not travel in frames.
pub const MAX_PAYLOAD: usize = 64 * 1024;

const HEADER: usize = 13;
const CHECKSUM: usize = 4;

/// A message could not be sent.
#[derive(Debug, Error)]
pub enum SendError {
    /// It cannot be encoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It does not fit a frame.
    #[error("a {name} message has {bytes} bytes of payload; {MAX_PAYLOAD} is the most")]
    TooLong {
        /// The message's name.
        name: &'static str,
        /// Bytes of its payload.
        bytes: usize,
    },
    /// The pipe refused it; `BrokenPipe` when the other side is gone.
    #[error("cannot write to the pipe: {0}")]
    Io(#[from] io::Error),
}

/// No message could be received.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The other side closed the pipe between two frames.
    #[error("the pipe was closed")]
    Closed,
    /// The other side closed the pipe inside a frame.
    #[error("the pipe was closed inside a frame")]
    Truncated,
    /// A length no frame has.
    #[error("a frame claims {length} bytes of payload; {MAX_PAYLOAD} is the most")]
    TooLong {
        /// The claimed length in bytes.
        length: u32,
    },
    /// The bytes are not what was sent, or were never meant as a frame.
    #[error("a frame has checksum {found:#010x} but its bytes give {computed:#010x}")]
    Checksum {
        /// As received.
        found: u32,
        /// Over the bytes received.
        computed: u32,
    },
    /// A kind this version does not know.
    #[error("a frame is of the unknown kind {0}")]
    UnknownKind(u8),
    /// A payload that is not what its kind says.
    #[error("a frame of kind {kind}: {source}")]
    Payload {
        /// The kind byte.
        kind: u8,
        /// What is wrong.
        source: CodecError,
    },
    /// The pipe failed.
    #[error("cannot read from the pipe: {0}")]
    Io(#[from] io::Error),
}

/// Sends one message in a single write, so that frames of a sender never mix.
pub fn send(pipe: &mut impl Write, seq: u64, message: &Message) -> Result<(), SendError> {
    let (kind, payload) = message.to_parts()?;
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD)
        .ok_or_else(|| SendError::TooLong { name: message.name(), bytes: payload.len() })?;
    let mut frame = Vec::with_capacity(HEADER + payload.len() + CHECKSUM);
    frame.extend(length.to_le_bytes());
    frame.push(kind);
    frame.extend(seq.to_le_bytes());
    frame.extend(payload);
    frame.extend(fnv1a(&frame).to_le_bytes());
    pipe.write_all(&frame)?;
    pipe.flush()?;
    Ok(())
}

/// Waits for one message and returns it with its sequence number.
pub fn receive(pipe: &mut impl Read) -> Result<(u64, Message), ReceiveError> {
    let mut frame = vec![0; HEADER];
    match fill(pipe, &mut frame)? {
        0 => return Err(ReceiveError::Closed),
        HEADER => {}
        _ => return Err(ReceiveError::Truncated),
    }
    let size = size(&frame)?.ok_or(ReceiveError::Truncated)?;
    frame.resize(size, 0);
    if fill(pipe, &mut frame[HEADER..])? < size - HEADER {
        return Err(ReceiveError::Truncated);
    }
    whole(&frame)
}

/// The message at the start of `bytes` and the length of its frame; `None` if more bytes are needed to tell.
pub fn parse(bytes: &[u8]) -> Result<Option<(usize, u64, Message)>, ReceiveError> {
    let Some(size) = size(bytes)? else { return Ok(None) };
    let Some(frame) = bytes.get(..size) else { return Ok(None) };
    whole(frame).map(|(seq, message)| Some((size, seq, message)))
}

/// The length of the frame that begins like this; `None` if the header is not complete.
fn size(bytes: &[u8]) -> Result<Option<usize>, ReceiveError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    match usize::try_from(length) {
        Ok(n) if n <= MAX_PAYLOAD => Ok(Some(HEADER + n + CHECKSUM)),
        _ => Err(ReceiveError::TooLong { length }),
    }
}

/// The message in a frame that is exactly as long as its header says.
fn whole(frame: &[u8]) -> Result<(u64, Message), ReceiveError> {
    let (body, checksum) = frame.split_last_chunk::<CHECKSUM>().ok_or(ReceiveError::Truncated)?;
    let (header, payload) = body.split_first_chunk::<HEADER>().ok_or(ReceiveError::Truncated)?;
    let (found, computed) = (u32::from_le_bytes(*checksum), fnv1a(body));
    if found != computed {
        return Err(ReceiveError::Checksum { found, computed });
    }
    let [_, _, _, _, kind, seq @ ..] = *header;
    match Message::from_parts(kind, payload) {
        None => Err(ReceiveError::UnknownKind(kind)),
        Some(Err(source)) => Err(ReceiveError::Payload { kind, source }),
        Some(Ok(message)) => Ok((u64::from_le_bytes(seq), message)),
    }
}

/// Reads until `buffer` is full or the pipe ends; returns how much came.
fn fill(pipe: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pipe.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Device, Done, Driver, Fault, FaultCode, Hello, Job, Load, Loaded, Open, Report};

    fn every_message() -> Vec<Message> {
        vec![
            Message::Hello(Hello::ours()),
            Message::Open(Open {
                backend: Backend::Null("x".to_owned()),
                driver: Driver::Manifest("/y.json".to_owned()),
                ..Open::default()
            }),
            Message::Ready(Box::new(Device { name: "Größe 7".to_owned(), ..Device::default() })),
            Message::Load(Load {
                matrix: 1,
                format: 2,
                cols: 64,
                row_bytes: 36,
                offset: 1 << 40,
                first: 64,
                rows: 3,
                interleaved: true,
            }),
            Message::Loaded(Loaded { bytes: 1 << 33, micros: 5 }),
            Message::Job(Job { matrix: 1, slot: 1, first: 64, rows: 3 }),
            Message::Done(Done { micros: 77 }),
            Message::Probe(Open::default()),
            Message::Report(Report::default()),
            Message::Fault(Fault { code: FaultCode::NoDevice, text: String::new() }),
            Message::Bye,
        ]
    }

    fn sent(seq: u64, message: &Message) -> Vec<u8> {
        let mut pipe = Vec::new();
        send(&mut pipe, seq, message).expect("a vector takes everything");
        pipe
    }

    /// One byte a read, as a pipe may do it.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(buffer.len()).min(1);
            self.0.read(&mut buffer[..n])
        }
    }

    #[test]
    fn checksum_is_fnv1a() {
        // Published test vectors of the function.
        for (input, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(input.as_bytes()), hash, "{input:?}");
        }
    }

    #[test]
    fn layout_is_as_documented() {
        let frame = sent(0x0102, &Message::Hello(Hello { version: 7, build: "ab".to_owned() }));
        let payload = [7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b'];
        let head = [14, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(frame[..27], [&head[..], &payload[..]].concat());
        assert_eq!(frame.len(), 31);
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let mut pipe = Vec::new();
        for (seq, message) in (0..).zip(every_message()) {
            send(&mut pipe, seq, &message).expect("a vector takes everything");
        }
        let mut pipe = Trickle(&pipe);
        for (seq, message) in (0..).zip(every_message()) {
            assert_eq!(receive(&mut pipe).expect("a frame"), (seq, message));
        }
        assert!(matches!(receive(&mut pipe), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_cut_frame_is_truncated_at_every_byte() {
        for message in every_message() {
            let frame = sent(3, &message);
            for end in 1..frame.len() {
                let got = receive(&mut &frame[..end]);
                assert!(matches!(got, Err(ReceiveError::Truncated)), "{message:?} cut at {end}: {got:?}");
                let got = parse(&frame[..end]);
                assert!(matches!(got, Ok(None)), "{message:?} cut at {end}: {got:?}");
            }
            let length = frame.len();
            let more = [&frame[..], b"more"].concat();
            assert!(matches!(parse(&more), Ok(Some((n, 3, m))) if n == length && m == message));
        }
    }

    #[test]
    fn a_changed_bit_is_noticed() {
        for message in every_message() {
            let frame = sent(3, &message);
            for bit in 0..frame.len() * 8 {
                let mut frame = frame.clone();
                frame[bit / 8] ^= 1 << (bit % 8);
                let got = receive(&mut &frame[..]);
                assert!(got.is_err(), "{message:?} with bit {bit} changed was taken for {got:?}");
            }
        }
    }

    /// A frame with a right checksum around anything.
    fn forged(length: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = length.to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend([0; 8]);
        frame.extend(payload);
        frame.extend(fnv1a(&frame).to_le_bytes());
        frame
    }

    #[test]
    fn hostile_frames_are_refused() {
        let cases = [
            ("length over the limit", forged(MAX_PAYLOAD as u32 + 1, 4, &[])),
            ("length of 4 GiB", forged(u32::MAX, 4, &[])),
            ("unknown kind", forged(0, 0, &[])),
            ("empty hello", forged(0, 1, &[])),
            ("bye with a payload", forged(1, 4, &[0])),
            ("string longer than the payload", forged(12, 1, &[1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0])),
            ("string of 2^60 bytes", forged(12, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16])),
            ("string that is not UTF-8", forged(13, 1, &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xff])),
            ("unknown fault code", forged(12, 3, &[99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            ("a driver's chatter", b"MESA: warning: something happened, going on\n".to_vec()),
        ];
        for (name, frame) in cases {
            let got = receive(&mut &frame[..]);
            assert!(got.is_err(), "{name} was taken for {got:?}");
        }
    }

    #[test]
    fn a_message_over_the_limit_is_not_sent() {
        let mut pipe = Vec::new();
        let fault = Fault { code: FaultCode::NoDevice, text: "x".repeat(MAX_PAYLOAD) };
        assert!(matches!(
            send(&mut pipe, 0, &Message::Fault(fault)),
            Err(SendError::TooLong { name: "Fault", .. })
        ));
        assert!(pipe.is_empty());
    }
}
