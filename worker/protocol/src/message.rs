use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError};

/// One message. Its kind travels in the frame, its fields in the payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Both ways, first.
    Hello(Hello),
    /// From the engine: open a device. Answered by [`Message::Ready`].
    Open(Open),
    /// From the worker: the device is open.
    Ready(Box<Device>),
    /// From the engine: take rows of a matrix into the device's memory. Answered by [`Message::Loaded`].
    Load(Load),
    /// From the worker: the rows are there.
    Loaded(Loaded),
    /// From the engine: compute. Answered by [`Message::Done`].
    Job(Job),
    /// From the worker: the results are in the shared buffer.
    Done(Done),
    /// From the engine: look at everything there is, for a report. Answered by [`Message::Report`].
    Probe(Open),
    /// From the worker: what is there.
    Report(Report),
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

/// Which device to open, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// What computes.
    pub backend: Backend,
    /// How to reach the driver.
    pub driver: Driver,
    /// Part of a device's name, its UUID in hex digits, or its number in the list; `None` for the best.
    pub device: Option<String>,
    /// Whether a device that is a CPU in disguise will do although nobody named it.
    pub software: bool,
    /// Folder for compiled pipelines; `None` for no cache.
    pub cache: Option<String>,
}

/// What computes in the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// A Vulkan device.
    #[default]
    Vulkan,
    /// The worker's own CPU code, for tests of everything around it. The text lists faults to commit, see the
    /// worker's `backend/null.rs`.
    Null(String),
}

/// How to reach a Vulkan driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// Through the system's loader, and if that fails directly.
    #[default]
    Loader,
    /// Directly, trying every manifest that the loader would read.
    Direct,
    /// Directly, by this manifest.
    Manifest(String),
}

/// A device, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The backend, for example `vulkan`.
    pub backend: String,
    /// The device's own name.
    pub name: String,
    /// The device's UUID, the same however the driver is reached.
    pub uuid: [u8; 16],
    /// What kind of device it says it is.
    pub kind: DeviceKind,
    /// The driver's name and version in words.
    pub driver: String,
    /// The driver's version number.
    pub driver_version: u32,
    /// The manifest it was reached by, if directly.
    pub manifest: Option<String>,
    /// API version, as Vulkan packs it.
    pub api_version: u32,
    /// Bytes of the largest device-local heap.
    pub memory: u64,
    /// Limits that matter here, by name.
    pub limits: Vec<(String, u64)>,
    /// ggml codes of the head formats that would run.
    pub formats: Vec<u32>,
    /// Why it would not be used unasked, if so.
    pub unfit: Option<String>,
}

impl Device {
    /// The UUID as 32 hex digits.
    pub fn uuid_text(&self) -> String {
        self.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Kinds of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// On a card of its own, with its own memory.
    Discrete,
    /// In the processor's package, sharing its memory.
    Integrated,
    /// Passed through to a virtual machine.
    Virtual,
    /// A CPU in disguise.
    Cpu,
    /// None of these, or not said.
    #[default]
    Other,
}

/// Rows of a matrix in the model file (descriptor [`crate::MODEL_FD`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Number by which jobs name the matrix.
    pub matrix: u32,
    /// ggml code of the weights' format.
    pub format: u32,
    /// Elements in a row.
    pub cols: u32,
    /// Bytes in a row.
    pub row_bytes: u32,
    /// First byte of the first row, from the start of the file.
    pub offset: u64,
    /// Number of the first row, a multiple of [`crate::TILE`].
    pub first: u32,
    /// How many rows; the last tile may be partly filled.
    pub rows: u32,
    /// Whether rows lie in groups of [`crate::GROUP`], the last of what is left: block 0 of each row of a group, block 1 of
    /// each, and so on. Otherwise one row follows the other.
    pub interleaved: bool,
}

/// An answer to [`Load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes taken on the device.
    pub bytes: u64,
    /// Microseconds it took, compilation of shaders included.
    pub micros: u64,
}

/// One product of loaded rows and the activations in a slot of the shared buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The matrix.
    pub matrix: u32,
    /// The slot with the activations, which also takes the results: row `r` at `r - first`.
    pub slot: u32,
    /// First row, a multiple of [`crate::TILE`].
    pub first: u32,
    /// How many rows; 0 is a round trip without work on the device.
    pub rows: u32,
}

/// An answer to [`Job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Microseconds from submission to the fence, 0 for a job without rows.
    pub micros: u64,
}

/// The system's Vulkan loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loader {
    /// Nobody looked.
    #[default]
    NotTried,
    /// It works; its library and version.
    Works(String),
    /// It does not, and why.
    Fails(String),
}

/// What there is on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The loader's library, or why it cannot be used.
    pub loader: Loader,
    /// Every driver manifest that the loader would read, in its order.
    pub manifests: Vec<Manifest>,
    /// The devices that were found, each once.
    pub devices: Vec<Device>,
    /// Names of layers that the loader found.
    pub layers: Vec<String>,
    /// What went wrong on the way, in words.
    pub troubles: Vec<String>,
}

/// A driver manifest: the file by which a Vulkan driver announces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The file.
    pub path: String,
    /// The driver's library, if the manifest is sound.
    pub library: Option<String>,
    /// What is wrong with the manifest, if anything.
    pub trouble: Option<String>,
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
    /// No driver or no device: nothing is broken, there is just nothing to use. Worth looking again later.
    NoDevice,
    /// There are devices, but none that may be used as asked.
    NoFitDevice,
    /// The driver failed where it should not.
    Driver,
    /// The device does not have the memory, even for a small share.
    Memory,
    /// The format of the matrix cannot be computed on this device.
    Format,
    /// The device was lost.
    DeviceLost,
    /// The model file or the shared buffer is not what the engine said.
    Input,
    /// A mistake in the worker's own code, for example a panic.
    Internal,
}

impl Message {
    /// The name of a kind of message, for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Open(_) => "Open",
            Self::Ready(_) => "Ready",
            Self::Load(_) => "Load",
            Self::Loaded(_) => "Loaded",
            Self::Job(_) => "Job",
            Self::Done(_) => "Done",
            Self::Probe(_) => "Probe",
            Self::Report(_) => "Report",
            Self::Fault(_) => "Fault",
            Self::Bye => "Bye",
        }
    }

    /// The kind byte and the payload.
    pub(crate) fn to_parts(&self) -> Result<(u8, Vec<u8>), CodecError> {
        // Hello and Bye keep their numbers in every version.
        Ok(match self {
            Self::Hello(m) => (1, codec::encode(m)?),
            Self::Ready(m) => (2, codec::encode(m)?),
            Self::Fault(m) => (3, codec::encode(m)?),
            Self::Bye => (4, codec::encode(&())?),
            Self::Open(m) => (5, codec::encode(m)?),
            Self::Load(m) => (6, codec::encode(m)?),
            Self::Loaded(m) => (7, codec::encode(m)?),
            Self::Job(m) => (8, codec::encode(m)?),
            Self::Done(m) => (9, codec::encode(m)?),
            Self::Probe(m) => (10, codec::encode(m)?),
            Self::Report(m) => (11, codec::encode(m)?),
        })
    }

    /// The message of a kind byte and a payload; `None` for a kind that does not exist.
    pub(crate) fn from_parts(kind: u8, payload: &[u8]) -> Option<Result<Self, CodecError>> {
        Some(match kind {
            1 => codec::decode(payload).map(Self::Hello),
            2 => codec::decode(payload).map(Self::Ready),
            3 => codec::decode(payload).map(Self::Fault),
            4 => codec::decode(payload).map(|()| Self::Bye),
            5 => codec::decode(payload).map(Self::Open),
            6 => codec::decode(payload).map(Self::Load),
            7 => codec::decode(payload).map(Self::Loaded),
            8 => codec::decode(payload).map(Self::Job),
            9 => codec::decode(payload).map(Self::Done),
            10 => codec::decode(payload).map(Self::Probe),
            11 => codec::decode(payload).map(Self::Report),
            _ => return None,
        })
    }
}
