//! Devices that can compute rows of a matrix.

mod groups;
mod null;
mod vulkan;

use std::fs::File;

use twinband_protocol::shm::{Activations, Shared};
use twinband_protocol::{self as protocol, Device, Done, Fault, Job, Load, Loaded, Open, Report};

/// An open device.
///
/// Every method may fail at any time: the engine computes itself whatever is not delivered. After a [`Fault`] the worker
/// reports it and ends; nothing is called on the backend any more, not even its destructor.
pub trait Backend {
    /// What was opened.
    fn device(&self) -> &Device;

    /// Takes rows of a matrix from the model file into the device's memory and gets ready to compute with them.
    fn load(&mut self, load: &Load, model: &File, activations: Activations) -> Result<Loaded, Fault>;

    /// Computes rows of a loaded matrix by the activations in the job's slot, and puts the results there.
    fn run(&mut self, job: &Job, shared: &Shared) -> Result<Done, Fault>;
}

/// Opens what the engine asks for.
pub fn open(open: &Open) -> Result<Box<dyn Backend>, Fault> {
    match &open.backend {
        protocol::Backend::Vulkan => Ok(Box::new(vulkan::Vulkan::open(open)?)),
        protocol::Backend::Null(orders) => Ok(Box::new(null::Null::open(orders)?)),
    }
}

/// Looks at everything there is.
pub fn probe(open: &Open) -> Report {
    match &open.backend {
        protocol::Backend::Vulkan => vulkan::probe(open),
        protocol::Backend::Null(orders) => null::probe(orders),
    }
}
