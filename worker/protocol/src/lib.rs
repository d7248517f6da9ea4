//! Messages between the engine and its worker process.
//!
//! The engine starts the worker and owns both ends of its life; the two talk in [`frame`]s over the worker's standard
//! input and output. The conversation so far:
//!
//! ```text
//! engine -> worker   Hello { version, build }
//! worker -> engine   Hello { version, build }     always, so that a mismatch can be reported by both numbers
//! engine -> worker   Open { backend, driver, device }        or Probe, answered by Report
//! worker -> engine   Ready(device)
//! engine -> worker   Load { rows of a matrix in the model file }
//! worker -> engine   Loaded
//! engine -> worker   Job { slot, rows }           as often as it likes; activations are in the shared buffer
//! worker -> engine   Done                         results are in the shared buffer
//! engine -> worker   Bye                          or simply closes the pipe
//! ```
//! Wherever the worker owes an answer it may send `Fault` instead, and ends.
//!
//! The layout of a frame and of [`Hello`] is the same in every version; everything else may change with [`VERSION`].
//! Besides the pipes the worker inherits two descriptors: [`SHARED_FD`], the buffer of [`shm`], and [`MODEL_FD`], the
//! model file.

mod codec;
mod exit;
pub mod frame;
pub mod manifest;
mod message;
pub mod shm;

pub use codec::CodecError;
pub use exit::Exit;
pub use message::{
    Backend, Device, DeviceKind, Done, Driver, Fault, FaultCode, Hello, Job, Load, Loaded, Loader, Manifest,
    Message, Open, Report,
};

/// Version of the messages. An engine and a worker that differ in it do not work together.
pub const VERSION: u32 = 3;

/// Rows that lie side by side on a device. Bands begin on multiples of it.
pub const TILE: u32 = 64;

/// Rows of a group in a file whose rows are interleaved. Tiles are whole groups.
pub const GROUP: u32 = 8;

/// The descriptor of the shared buffer in the worker.
pub const SHARED_FD: i32 = 3;

/// The descriptor of the model file in the worker.
pub const MODEL_FD: i32 = 4;

/// The environment variable by which the worker knows the engine's process number.
pub const ENGINE_VARIABLE: &str = "TWINBAND_ENGINE";

/// The build this code belongs to, for reports.
pub const BUILD: &str = concat!("twinband ", env!("CARGO_PKG_VERSION"));

/// File name of the worker's program.
pub const WORKER_PROGRAM: &str = "twinband-worker";
