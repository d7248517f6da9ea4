use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError};

/// One message. Its kind travels in the frame, its fields in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Both ways, first.
    Hello(Hello),
    /// From the worker: the device is open.
    Ready(Ready),
    /// From the worker: it cannot do what it was asked to. It ends after this.
    Fault(Fault),
    /// From the engine: end now.
    Bye,
}

/// Who is speaking. The same in every version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::VERSION`] of the speaker.
    pub version: u32,
    /// [`crate::BUILD`] of the speaker.
    pub build: String,
}

impl Hello {
    /// The greeting of this build.
    pub fn ours() -> Self {
        Self { version: crate::VERSION, build: crate::BUILD.to_owned() }
    }
}

/// The device the worker opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The backend, for example `vulkan`.
    pub backend: String,
    /// The device's own name.
    pub device: String,
}

/// Why the worker cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of trouble, for the engine to act on.
    pub code: FaultCode,
    /// The same in words, for the report.
    pub text: String,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultCode {
    /// There is no backend in this build, or no device for it.
    NoBackend,
}

impl Message {
    const HELLO: u8 = 1;
    const READY: u8 = 2;
    const FAULT: u8 = 3;
    const BYE: u8 = 4;

    /// The name of a kind of message, for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Ready(_) => "Ready",
            Self::Fault(_) => "Fault",
            Self::Bye => "Bye",
        }
    }

    /// The kind byte and the payload.
    pub(crate) fn to_parts(&self) -> Result<(u8, Vec<u8>), CodecError> {
        Ok(match self {
            Self::Hello(hello) => (Self::HELLO, codec::encode(hello)?),
            Self::Ready(ready) => (Self::READY, codec::encode(ready)?),
            Self::Fault(fault) => (Self::FAULT, codec::encode(fault)?),
            Self::Bye => (Self::BYE, codec::encode(&())?),
        })
    }

    /// The message of a kind byte and a payload; `None` for a kind that does not exist.
    pub(crate) fn from_parts(kind: u8, payload: &[u8]) -> Option<Result<Self, CodecError>> {
        Some(match kind {
            Self::HELLO => codec::decode(payload).map(Self::Hello),
            Self::READY => codec::decode(payload).map(Self::Ready),
            Self::FAULT => codec::decode(payload).map(Self::Fault),
            Self::BYE => codec::decode(payload).map(|()| Self::Bye),
            _ => return None,
        })
    }
}
