//! The engine's side of the worker process: find it, start it, talk to it, survive it.
//!
//! A worker can only cost time. Every way it can fail is an [`enum@Error`] that comes within a deadline, and the engine
//! computes itself whatever the worker does not deliver.
//!
//! ```no_run
//! use std::time::Duration;
//! use twinband::gpu::{Client, locate};
//!
//! match Client::start(&locate(None), Duration::from_secs(10)) {
//!     Ok(client) => println!("{} through {}", client.ready().device, client.ready().backend),
//!     Err(why) => println!("no help from a GPU: {why}"),
//! }
//! ```

mod client;
mod link;
mod process;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use twinband_protocol::frame::{ReceiveError, SendError};
use twinband_protocol::{BUILD, Fault, Hello, VERSION};

pub use client::Client;
pub use process::{WORKER_VARIABLE, locate};

/// Why there is no worker, or no longer one.
#[derive(Debug, Error)]
pub enum Error {
    /// The program could not be started.
    #[error(
        "cannot start the worker {path}: {source}. It is installed beside twinband; \
         --worker or TWINBAND_WORKER name another place", path = .path.display()
    )]
    Spawn {
        /// What was to be started.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It did not answer in time and was killed.
    #[error("the worker did not answer within {} ms", .patience.as_millis())]
    Late {
        /// How long the engine was ready to wait.
        patience: Duration,
    },
    /// It ended, or closed its pipe.
    #[error("the worker {how}")]
    Gone {
        /// How it ended, as far as its exit status tells.
        how: String,
    },
    /// What it wrote is no frame.
    #[error("the worker's answer cannot be understood: {0}")]
    Garbled(ReceiveError),
    /// The engine could not put its message into a frame.
    #[error(transparent)]
    Send(SendError),
    /// It sent a message that has no place at this point.
    #[error("the worker sent {name} where {expected} was expected")]
    Unexpected {
        /// The message that came.
        name: &'static str,
        /// What should have come.
        expected: &'static str,
    },
    /// Engine and worker come from different versions.
    #[error(
        "the worker speaks version {theirs} of the protocol ({build}) and this is version {VERSION} ({BUILD}): \
         install both from the same build", theirs = .0.version, build = .0.build
    )]
    Version(Hello),
    /// It works but cannot serve.
    #[error("the worker cannot serve: {}", .0.text)]
    Fault(Fault),
}
