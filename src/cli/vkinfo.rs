//! `twinband vkinfo`: what Vulkan offers on this machine, and what the worker can do with it.
//!
//! Nothing here is loaded into this process. The loader is looked at by a worker, and each driver by another one that
//! reaches it by its manifest alone, so that a driver that crashes or hangs costs a line in the report and hides no
//! other. Devices are then put to work on small matrices whose products are compared with the CPU's, bit for bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;

use super::{Ui, report};
use crate::gpu::{self, Device, DeviceKind, Driver, GpuOptions, Loader, Lost, Mode, Patience, Store};
use crate::kernel::format::{self, GgmlType};

mod print;
mod render;
mod trial;

/// Show what Vulkan offers here, and test it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Forget what is held against drivers from earlier runs
    #[arg(long)]
    retry: bool,

    /// The worker's program, in place of the one beside twinband
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,

    /// Look past the system's Vulkan loader: at the driver of this manifest, or auto for those of all
    #[arg(long = "vk-icd", value_name = "PATH|auto")]
    icd: Option<String>,

    /// Let implicit Vulkan layers (overlays, capture tools) into the worker
    #[arg(long)]
    vk_layers: bool,
}

/// How long a driver may take to start, and to list its devices.
const PATIENCE: Duration = Duration::from_secs(10);

/// All that is found, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Findings {
    worker: PathBuf,
    loader: State,
    manifests: Vec<Manifest>,
    layers: Vec<String>,
    /// Whether implicit layers could get into the worker.
    layers_kept: bool,
    /// What the worker saw of the variables that steer loaders and drivers.
    variables: BTreeMap<String, String>,
    render_nodes: Vec<render::Node>,
    devices: Vec<Found>,
    verdicts: Vec<Verdict>,
    /// Verdicts that were forgotten first.
    cleared: usize,
    calibrations: Vec<Calibration>,
    advice: Vec<String>,
}

/// How a loader or driver does.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct State {
    /// `works`, `no-device`, `broken` (its manifest), `fails` (in good order), `lost` (it took the worker with it), or
    /// `not-tried`.
    state: &'static str,
    /// In words.
    text: String,
}

impl State {
    fn new(state: &'static str, text: impl Into<String>) -> Self {
        Self { state, text: text.into() }
    }
}

/// A driver's manifest.
#[derive(Debug, Serialize)]
struct Manifest {
    path: String,
    library: Option<String>,
    #[serde(flatten)]
    state: State,
}

/// A device, however many ways lead to it.
#[derive(Debug, Serialize)]
struct Found {
    /// The number by which `--gpu-device` knows it.
    number: usize,
    name: String,
    uuid: String,
    kind: &'static str,
    driver: String,
    driver_version: u32,
    api: String,
    memory: u64,
    limits: BTreeMap<String, u64>,
    /// Formats of the output head that would run.
    formats: Vec<String>,
    /// Why it is not used unasked.
    unfit: Option<String>,
    /// `loader`, and manifests.
    reached_by: Vec<String>,
    self_test: Vec<trial::Trial>,
}

/// What is held against a driver.
#[derive(Debug, Serialize)]
struct Verdict {
    about: Vec<String>,
    /// Why it is not tried; `None` for one that is only marked as being tried.
    cause: Option<String>,
    /// Seconds since 1970.
    time: u64,
}

/// A split of the output head that was measured to be the best.
#[derive(Debug, Serialize)]
struct Calibration {
    /// Device, driver, and what else it depends on.
    about: Vec<String>,
    value: Value,
}

/// Looks, and tells. An error only if nothing could be looked at.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let store = Store::new(None);
    let cleared = if args.retry { gpu::clear_verdicts(&store) } else { 0 };
    let options = GpuOptions {
        mode: Mode::On,
        worker: args.worker.clone(),
        keep_layers: args.vk_layers,
        patience: Patience { greeting: PATIENCE, open: PATIENCE, load: 2 * PATIENCE },
        ..GpuOptions::default()
    };
    let mut sight = look(&options, args.icd.as_deref())?;
    let mut progress = ui.progress("devices tested", sight.devices.len() as u64);
    for (n, found) in sight.devices.iter_mut().enumerate() {
        progress.set(n as u64);
        if !found.device.formats.is_empty() {
            found.trials = trial::run(&options, &found.driver(), &found.device);
        }
    }
    progress.finish();
    let render_nodes =
        render::nodes(Path::new("/dev/dri"), Path::new("/etc/group"), &render::User::current());
    let advice = advice(&sight, &render_nodes);
    let findings = Findings {
        worker: gpu::locate(args.worker.as_deref()),
        loader: sight.loader,
        manifests: sight.manifests,
        layers: sight.layers,
        layers_kept: args.vk_layers,
        variables: gpu::worker_variables(args.vk_layers).into_iter().collect(),
        render_nodes,
        devices: sight.devices.into_iter().enumerate().map(|(n, seen)| seen.found(n)).collect(),
        verdicts: verdicts(&store),
        cleared,
        calibrations: store
            .all("split")
            .into_iter()
            .map(|(about, value)| Calibration { about, value })
            .collect(),
        advice,
    };
    if args.json { report::json(&findings) } else { print::print(&findings) }
}

/// What there is, before it is put to work.
struct Sight {
    loader: State,
    manifests: Vec<Manifest>,
    layers: Vec<String>,
    devices: Vec<Seen>,
}

/// A device and the ways to it.
struct Seen {
    device: Device,
    by_loader: bool,
    manifests: Vec<String>,
    trials: Vec<trial::Trial>,
}

/// One worker for the loader, and one for each manifest, these all at once.
fn look(options: &GpuOptions, icd: Option<&str>) -> anyhow::Result<Sight> {
    let mut sight = Sight {
        loader: State::new("not-tried", "not looked at"),
        manifests: Vec::new(),
        layers: Vec::new(),
        devices: Vec::new(),
    };
    let mut paths = Vec::new();
    match icd {
        Some("auto") => paths = known_manifests(),
        Some(path) => paths.push(path.to_owned()),
        None => match probe(options, Driver::Loader)? {
            Ok(report) => {
                sight.loader = match report.loader {
                    Loader::Works(text) => State::new("works", text),
                    Loader::Fails(text) => State::new("fails", text),
                    Loader::NotTried => sight.loader,
                };
                sight.layers = report.layers;
                paths.extend(report.manifests.into_iter().map(|manifest| manifest.path));
                report.devices.into_iter().for_each(|device| merge(&mut sight.devices, device, None));
            }
            Err(lost) => {
                sight.loader = State::new("lost", lost.to_string());
                paths = known_manifests();
            }
        },
    }
    let reports: Vec<_> = thread::scope(|scope| {
        let ask = |path: &String| {
            let driver = Driver::Manifest(path.clone());
            scope.spawn(move || probe(options, driver))
        };
        let threads: Vec<_> = paths.iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for (path, report) in paths.into_iter().zip(reports) {
        let report = report.map_err(|_| anyhow::anyhow!("looking at {path} failed"))??;
        let (library, state) = judge(&report);
        for device in report.into_iter().flat_map(|report| report.devices) {
            merge(&mut sight.devices, device, Some(&path));
        }
        sight.manifests.push(Manifest { path, library, state });
    }
    Ok(sight)
}

/// Asks a worker of its own. The outer error is for one that could not look at anything.
fn probe(options: &GpuOptions, driver: Driver) -> anyhow::Result<Result<gpu::Report, Lost>> {
    match gpu::probe(&GpuOptions { driver, ..options.clone() }) {
        Err(lost @ (Lost::Spawn { .. } | Lost::Version(_))) => Err(lost).context("nothing can be looked at"),
        other => Ok(other),
    }
}

/// The manifests that a loader would read, as far as can be told without it.
fn known_manifests() -> Vec<String> {
    gpu::manifests().iter().map(|path| path.display().to_string()).collect()
}

/// The library and the state of the one manifest that a report is about.
fn judge(report: &Result<gpu::Report, Lost>) -> (Option<String>, State) {
    let report = match report {
        Ok(report) => report,
        Err(lost) => return (None, State::new("lost", lost.to_string())),
    };
    let manifest = report.manifests.first();
    let library = manifest.and_then(|manifest| manifest.library.clone());
    let state = if let Some(trouble) = manifest.and_then(|manifest| manifest.trouble.clone()) {
        State::new("broken", trouble)
    } else if !report.troubles.is_empty() {
        State::new("fails", report.troubles.join("; "))
    } else {
        match report.devices.len() {
            0 => State::new("no-device", "it works, but finds no device"),
            1 => State::new("works", "1 device"),
            n => State::new("works", format!("{n} devices")),
        }
    };
    (library, state)
}

/// Adds a device, or another way to one that is there already: the same UUID is the same device.
fn merge(devices: &mut Vec<Seen>, device: Device, manifest: Option<&str>) {
    let at = devices.iter().position(|seen| seen.device.uuid == device.uuid).unwrap_or(devices.len());
    if at == devices.len() {
        devices.push(Seen { device, by_loader: false, manifests: Vec::new(), trials: Vec::new() });
    }
    match manifest {
        Some(path) => devices[at].manifests.push(path.to_owned()),
        None => devices[at].by_loader = true,
    }
}

impl Seen {
    /// The way to it that depends on the fewest others.
    fn driver(&self) -> Driver {
        self.manifests.first().map_or(Driver::Loader, |path| Driver::Manifest(path.clone()))
    }

    fn found(self, number: usize) -> Found {
        let Self { device, by_loader, manifests, trials } = self;
        let api = device.api_version;
        Found {
            number,
            uuid: device.uuid_text(),
            kind: match device.kind {
                DeviceKind::Discrete => "discrete",
                DeviceKind::Integrated => "integrated",
                DeviceKind::Virtual => "virtual",
                DeviceKind::Cpu => "cpu",
                DeviceKind::Other => "other",
            },
            driver: device.driver,
            driver_version: device.driver_version,
            // As Vulkan packs it: three bits of variant, then these.
            api: format!("{}.{}.{}", api >> 22 & 0x7f, api >> 12 & 0x3ff, api & 0xfff),
            memory: device.memory,
            limits: device.limits.into_iter().collect(),
            // A worker may know formats that are not in use yet.
            formats: device
                .formats
                .into_iter()
                .filter_map(|code| format::of(GgmlType(code)))
                .map(|f| f.ty.to_string())
                .collect(),
            unfit: device.unfit,
            reached_by: by_loader.then(|| "loader".to_owned()).into_iter().chain(manifests).collect(),
            self_test: trials,
            name: device.name,
        }
    }
}

fn verdicts(store: &Store) -> Vec<Verdict> {
    let all = gpu::verdicts(store).into_iter();
    all.map(|(about, verdict)| Verdict { about, cause: verdict.standing(), time: verdict.time }).collect()
}

/// What to do about what is missing.
fn advice(sight: &Sight, nodes: &[render::Node]) -> Vec<String> {
    let mut advice = Vec::new();
    if sight.devices.is_empty() {
        advice.push(if sight.manifests.is_empty() {
            "there is no Vulkan driver: Mesa's are in the package mesa-vulkan-drivers, others come with their \
             vendor's driver; a container has to be given them"
                .to_owned()
        } else if nodes.is_empty() {
            "no driver finds a device, and there is no /dev/dri/renderD*: without a GPU that is as it should be; a \
             container has to be given the device"
                .to_owned()
        } else {
            "no driver finds a device: see the states of the manifests and the rights of the render nodes".to_owned()
        });
    }
    for manifest in sight.manifests.iter().filter(|m| m.state.state == "broken") {
        advice.push(if Path::new(&manifest.path).exists() {
            format!("repair or remove {}: a loader may stumble over it", manifest.path)
        } else {
            format!("{} is not there: see who names it, --vk-icd or a variable", manifest.path)
        });
    }
    if matches!(sight.loader.state, "fails" | "lost") && !sight.devices.is_empty() {
        advice.push(
            "the loader is in the way, but drivers can be reached directly: use --vk-icd auto".to_owned(),
        );
    }
    advice.extend(nodes.iter().filter_map(render::Node::advice));
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: u8, name: &str) -> Device {
        Device { uuid: [uuid; 16], name: name.to_owned(), ..Device::default() }
    }

    /// V28: the loader lists a device twice, and two manifests lead to it.
    #[test]
    fn devices_of_one_uuid_are_one() {
        let mut all = Vec::new();
        for (id, manifest) in
            [(1, None), (2, None), (1, Some("/a.json")), (1, Some("/b.json")), (3, Some("/b.json"))]
        {
            merge(&mut all, device(id, "x"), manifest);
        }
        let found: Vec<Found> = all.into_iter().enumerate().map(|(n, seen)| seen.found(n)).collect();
        let ways: Vec<Vec<&str>> =
            found.iter().map(|f| f.reached_by.iter().map(String::as_str).collect()).collect();
        assert_eq!(ways, [vec!["loader", "/a.json", "/b.json"], vec!["loader"], vec!["/b.json"]]);
        assert_eq!(found[2].uuid, "03".repeat(16));
        assert_eq!(found[2].number, 2);
    }

    #[test]
    fn a_device_is_tested_past_the_loader_where_that_is_possible() {
        let mut all = Vec::new();
        merge(&mut all, device(1, "x"), None);
        assert_eq!(all[0].driver(), Driver::Loader);
        merge(&mut all, device(1, "x"), Some("/a.json"));
        assert_eq!(all[0].driver(), Driver::Manifest("/a.json".to_owned()));
    }

    #[test]
    fn versions_are_unpacked() {
        let device = Device { api_version: (1 << 22) | (3 << 12) | 230, ..Device::default() };
        let seen = Seen { device, by_loader: true, manifests: Vec::new(), trials: Vec::new() };
        assert_eq!(seen.found(0).api, "1.3.230");
    }
}
