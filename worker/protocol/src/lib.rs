//! Messages between the engine and its worker process.
//!
//! The engine starts the worker and owns both ends of its life; the two talk in [`frame`]s over the worker's standard
//! input and output. The conversation so far:
//!
//! ```text
//! engine -> worker   Hello { version, build }
//! worker -> engine   Hello { version, build }     always, so that a mismatch can be reported by both numbers
//! worker -> engine   Ready { .. }  or  Fault { code, text }
//! engine -> worker   Bye                          or simply closes the pipe
//! ```
//!
//! The layout of a frame and of [`Hello`] is the same in every version; everything else may change with [`VERSION`].

mod codec;
mod exit;
pub mod frame;
mod message;

pub use codec::CodecError;
pub use exit::Exit;
pub use message::{Fault, FaultCode, Hello, Message, Ready};

/// Version of the messages. An engine and a worker that differ in it do not work together.
pub const VERSION: u32 = 1;

/// The build this code belongs to, for reports.
pub const BUILD: &str = concat!("twinband ", env!("CARGO_PKG_VERSION"));

/// File name of the worker's program.
pub const WORKER_PROGRAM: &str = "twinband-worker";
