//! The Vulkan backend: rows of a matrix in a device's memory, multiplied by shaders that give the bits the CPU would.
//!
//! In the order of use: the protocol's `manifest` finds drivers, `loader` opens one, `instance` lists its devices,
//! `select` picks one, `device` opens it; `layout` says where rows lie, `memory` and `heap` find room, `upload` brings
//! them there, `pipeline` makes shaders ready, `matrix` runs jobs.
//!
//! Every call may fail. A failure becomes a `Fault`, after which nothing more is called.

use std::ffi::OsString;
use std::fs::File;
use std::rc::Rc;
use std::time::Instant;

use twinband_protocol::manifest::{self, Manifest};
use twinband_protocol::shm::{Activations, Shared};
use twinband_protocol::{
    Device, Done, Driver, Fault, FaultCode, Job, Load, Loaded, Loader, Manifest as Listed, Open, Report,
};

use super::Backend;
use crate::backend::vulkan::device::Gpu;
use crate::backend::vulkan::fault::fault;
use crate::backend::vulkan::instance::{Found, Instance};
use crate::backend::vulkan::matrix::Matrix;
use crate::backend::vulkan::options::Options;
use crate::backend::vulkan::pace::Pace;
use crate::backend::vulkan::pipeline::Pipelines;

mod cache;
mod device;
mod fault;
mod format;
mod heap;
mod instance;
mod layout;
mod loader;
mod matrix;
mod memory;
mod options;
mod pace;
mod pack;
mod pipeline;
mod select;
mod upload;

/// An open Vulkan device.
pub struct Vulkan {
    device: Device,
    /// By the engine's numbers. Before what they are made of, so that they are dropped first.
    matrices: Vec<(u32, Matrix)>,
    pipelines: Pipelines,
    gpu: Rc<Gpu>,
    pace: Pace,
    options: Options,
}

impl Vulkan {
    /// Opens the device that is asked for.
    pub fn open(open: &Open) -> Result<Self, Fault> {
        let options = Options::from_env();
        let found = distinct(search(&open.driver)?);
        let devices: Vec<&Device> = found.iter().map(|f| &f.device).collect();
        let index = select::choose(&devices, open.device.as_deref(), open.software)?;
        let chosen = found[index].clone();
        let device = chosen.device.clone();
        let gpu = Gpu::open(chosen)?;
        let pipelines = Pipelines::new(&gpu, open.cache.as_deref())?;
        Ok(Self { device, matrices: Vec::new(), pipelines, gpu, pace: Pace::new(options.submit), options })
    }
}

impl Backend for Vulkan {
    fn device(&self) -> &Device {
        &self.device
    }

    fn load(&mut self, load: &Load, model: &File, activations: Activations) -> Result<Loaded, Fault> {
        let begin = Instant::now();
        // A matrix of the same number makes room first.
        self.matrices.retain(|(number, _)| *number != load.matrix);
        let matrix = Matrix::load(&self.gpu, &mut self.pipelines, load, model, activations, self.options)?;
        let bytes = matrix.bytes();
        self.matrices.push((load.matrix, matrix));
        Ok(Loaded { bytes, micros: micros(begin.elapsed()) })
    }

    fn run(&mut self, job: &Job, shared: &Shared) -> Result<Done, Fault> {
        let matrix = self.matrices.iter_mut().find(|(number, _)| *number == job.matrix);
        let (_, matrix) =
            matrix.ok_or_else(|| fault(FaultCode::Input, format!("matrix {} is not loaded", job.matrix)))?;
        matrix.run(job, shared, &mut self.pace).map(|took| Done { micros: micros(took) })
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Looks at everything there is by the way that `open` names.
pub fn probe(open: &Open) -> Report {
    let mut report = Report::default();
    let found = match &open.driver {
        Driver::Loader => {
            report.manifests = manifests().iter().map(listed).collect();
            match loader::system() {
                Ok(entry) => {
                    report.layers = instance::layers(&entry);
                    match Instance::create(&entry).and_then(|i| i.devices()) {
                        Ok(found) => {
                            report.loader = Loader::Works(entry.described);
                            found
                        }
                        Err(fault) => {
                            report.loader = Loader::Fails(fault.text);
                            Vec::new()
                        }
                    }
                }
                Err(fault) => {
                    report.loader = Loader::Fails(fault.text);
                    Vec::new()
                }
            }
        }
        Driver::Direct => {
            let manifests = manifests();
            report.manifests = manifests.iter().map(listed).collect();
            looked_at(directly(&manifests), &mut report)
        }
        Driver::Manifest(path) => {
            let manifest = manifest::read(path.as_ref());
            report.manifests = vec![listed(&manifest)];
            looked_at(directly(&[manifest]), &mut report)
        }
    };
    report.devices = distinct(found).into_iter().map(|f| f.device.clone()).collect();
    report
}

fn listed(manifest: &Manifest) -> Listed {
    let (library, trouble) = match &manifest.library {
        Ok(library) => (Some(library.display().to_string()), None),
        Err(trouble) => (None, Some(trouble.clone())),
    };
    Listed { path: manifest.path.display().to_string(), library, trouble }
}

fn manifests() -> Vec<Manifest> {
    manifest::all(&|name: &str| -> Option<OsString> { std::env::var_os(name) })
}

/// The devices to choose from.
fn search(driver: &Driver) -> Result<Vec<Found>, Fault> {
    let (listed, first) = match driver {
        Driver::Loader => {
            let by_loader =
                loader::system().and_then(|entry| Instance::create(&entry)).and_then(|i| i.devices());
            match by_loader {
                Ok(found) => return Ok(found),
                // A loader stumbles over a single bad manifest: look past it.
                Err(fault) => (manifests(), Some(fault)),
            }
        }
        Driver::Direct => (manifests(), None),
        Driver::Manifest(path) => (vec![manifest::read(path.as_ref())], None),
    };
    let Direct { found, troubles, absent } = directly(&listed);
    if !found.is_empty() {
        return Ok(found);
    }
    let nothing = match (listed.is_empty(), troubles.is_empty(), absent.is_empty()) {
        (true, ..) => "there is no Vulkan driver manifest".to_owned(),
        (_, true, true) => "no Vulkan driver found a device".to_owned(),
        (_, true, false) => format!("no Vulkan driver found a device: {}", absent.join("; ")),
        (_, false, _) => troubles.join("; "),
    };
    // No driver is not a broken driver.
    let code = if troubles.is_empty() { FaultCode::NoDevice } else { FaultCode::Driver };
    Err(match first {
        Some(first) if troubles.is_empty() => fault(first.code, format!("{}; {nothing}", first.text)),
        _ => fault(code, nothing),
    })
}

/// What came of drivers that were reached without a loader.
#[derive(Default)]
struct Direct {
    found: Vec<Found>,
    /// What is wrong with some.
    troubles: Vec<String>,
    /// Why others found nothing, as far as they say. A driver without its hardware is no trouble.
    absent: Vec<String>,
}

/// The devices of drivers reached without a loader. One that cannot be used costs a line, no more.
fn directly(manifests: &[Manifest]) -> Direct {
    let mut direct = Direct::default();
    for manifest in manifests {
        let entry = loader::direct(manifest).and_then(|entry| Instance::create(&entry));
        match entry.and_then(|i| i.devices()) {
            Ok(devices) => direct.found.extend(devices),
            Err(fault) if fault.code == FaultCode::NoDevice => direct.absent.push(fault.text),
            Err(fault) => direct.troubles.push(fault.text),
        }
    }
    direct
}

fn looked_at(direct: Direct, report: &mut Report) -> Vec<Found> {
    report.troubles.extend(direct.troubles.into_iter().chain(direct.absent));
    direct.found
}

fn distinct(found: Vec<Found>) -> Vec<Found> {
    let uuids: Vec<_> = found.iter().map(|f| f.device.uuid).collect();
    let layered: Vec<_> = found.iter().map(|f| f.layered).collect();
    let keep = select::distinct(&uuids, &layered);
    let kept = found.into_iter().enumerate().filter(|(i, _)| keep.contains(i));
    kept.map(|(_, f)| f).collect()
}
