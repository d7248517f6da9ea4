//! The engine's side of the worker process: find it, start it, talk to it, survive it.
//!
//! A worker can only cost time. Nothing here waits longer than its caller says, every way a worker can fail is a
//! [`Lost`], and the engine computes itself whatever is not delivered.
//!
//! ```text
//! Gpu          what the head holds: submit, wait with a deadline, poll
//! supervisor   a thread of its own: starts workers, kills and reaps them, keeps the verdicts
//! policy       what to do after a loss (pure)
//! client       the conversation, seen from here
//! link         frames through non-blocking pipes
//! process      the child process and what it may inherit
//! verdict      which drivers are not to be tried again
//! store        small records that outlive the program
//! ```
//!
//! ```text
//! Off    Starting -> Calibrating -> Ready <-> Busy        any -> Lost -> Starting, or GivenUp
//! ```

mod client;
mod handle;
mod link;
mod policy;
mod process;
mod store;
mod supervisor;
mod verdict;

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use twinband_protocol::frame::{ReceiveError, SendError};
use twinband_protocol::shm::ShmError;
use twinband_protocol::{BUILD, Fault, Hello, VERSION};

pub use client::{Done, Input, Ticket};
pub use handle::Gpu;
pub use policy::Limits;
pub use process::{WORKER_VARIABLE, locate, worker_variables};
pub use store::Store;
pub use supervisor::probe;
pub use twinband_protocol::shm::Activations;
pub use twinband_protocol::{Backend, Device, DeviceKind, Driver, Loader, Report, TILE};
pub use verdict::{Verdict, clear_verdicts, manifests, verdicts};

/// Whether to use a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// If there is a fit one.
    #[default]
    Auto,
    /// Any, software included.
    On,
    /// No worker is started and no driver is looked at.
    Off,
}

/// How to use a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Whether at all.
    pub mode: Mode,
    /// The worker's program, see [`locate`].
    pub worker: Option<PathBuf>,
    /// Part of a device's name, its UUID, or its number; `None` for the best.
    pub device: Option<String>,
    /// How to reach the driver.
    pub driver: Driver,
    /// What computes.
    pub backend: Backend,
    /// Let implicit Vulkan layers (overlays, capture tools) into the worker.
    pub keep_layers: bool,
    /// Report starts and losses too, not only what becomes of it.
    pub verbose: bool,
    /// Folder for verdicts, measurements and compiled pipelines; `None` for the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// How long steps may take.
    pub patience: Patience,
    /// How losses are dealt with.
    pub limits: Limits,
}

/// How long the steps of a start may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From the start of the program to its greeting.
    pub greeting: Duration,
    /// Opening the device.
    pub open: Duration,
    /// Loading rows, besides a second for every 50 MB of them.
    pub load: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { greeting: seconds(10), open: seconds(30), load: seconds(60) }
    }
}

/// The matrix whose rows are computed, as it lies in the model file.
#[derive(Debug)]
pub struct HeadMatrix {
    /// The file, or the part of a split set, that holds it.
    pub file: File,
    /// First byte of row 0.
    pub offset: u64,
    /// Rows: the vocabulary.
    pub rows: u32,
    /// Elements of a row.
    pub cols: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Whether rows lie in groups of eight, as [`Layout::Rows8`](crate::kernel::format::Layout) has them; otherwise one after
    /// the other.
    pub interleaved: bool,
    /// ggml code of the format.
    pub format: u32,
    /// The form of the activations it is multiplied by.
    pub activations: Activations,
}

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Not asked for.
    #[default]
    Off,
    /// A worker is being started, or opens its device, or loads rows.
    Starting,
    /// It takes jobs; how many rows it should get is not settled.
    Calibrating,
    /// It takes jobs.
    Ready,
    /// It has a job.
    Busy,
    /// It was lost, or there is no device; another try will be made later.
    Lost,
    /// No further try is made in this run.
    GivenUp,
}

/// What is known of the worker.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Where it is in its life.
    pub state: State,
    /// The device, from the time it is ready.
    pub device: Option<Device>,
    /// Rows that it can compute, a suffix of the matrix beginning on a tile; empty if none.
    pub rows: Range<u32>,
    /// The worker's process number, while there is one to talk to.
    pub pid: Option<u32>,
    /// Jobs answered in time.
    pub jobs: u64,
    /// Answers that did not come in time.
    pub late: u64,
    /// Wrong numbers.
    pub mismatches: u64,
    /// Workers started after the first.
    pub restarts: u32,
    /// The last thing that went wrong.
    pub last_fault: Option<String>,
}

/// What a worker was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not yet touching any driver.
    Greeting,
    /// Opening the device.
    Opening,
    /// Loading rows.
    Loading,
    /// Computing, or waiting for work.
    Working,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Greeting => "while it started",
            Self::Opening => "while it opened the device",
            Self::Loading => "while it loaded the rows",
            Self::Working => "at work",
        })
    }
}

/// Why there is no worker, no longer one, or no answer from it.
#[derive(Debug, Error)]
pub enum Lost {
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
    /// The buffer for bulk data cannot be made.
    #[error(transparent)]
    Buffer(#[from] ShmError),
    /// It did not answer in time. At work this is a loss only if it happens again at once.
    #[error("the worker did not answer within {} ms {stage}", .patience.as_millis())]
    Late {
        /// What it should have done.
        stage: Stage,
        /// How long the engine was ready to wait.
        patience: Duration,
    },
    /// It ended, or closed its pipe.
    #[error("the worker {how} {stage}")]
    Gone {
        /// What it was doing.
        stage: Stage,
        /// How it ended, as far as its exit status tells.
        how: String,
        /// By SIGKILL, which no driver does to itself.
        killed: bool,
    },
    /// What it wrote is no frame.
    #[error("the worker's answer cannot be understood {stage}: {source}")]
    Garbled {
        /// What it was doing.
        stage: Stage,
        /// What is wrong with it.
        source: ReceiveError,
    },
    /// The engine could not send its message.
    #[error("the worker cannot be told {stage}: {source}")]
    Send {
        /// What it was doing.
        stage: Stage,
        /// The reason.
        source: SendError,
    },
    /// It sent a message that has no place at this point.
    #[error("the worker sent {name} where {expected} was expected")]
    Unexpected {
        /// What it was doing.
        stage: Stage,
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
    /// It reported a fault.
    #[error("{}", .fault.text)]
    Fault {
        /// What it was doing.
        stage: Stage,
        /// Its report.
        fault: Fault,
    },
    /// There is no worker (any more): the ticket is from another one.
    #[error("the worker that had the job is gone")]
    Stale,
    /// Nobody is interested any more.
    #[error("the worker was stopped")]
    Stopped,
}
